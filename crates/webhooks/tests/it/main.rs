//! The promises of the crate, through its public functions only.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]

mod batches;
mod generic;
mod identity;
mod properties;
mod request;
mod rules;
mod sdk;
mod secrets;
mod twilio;
mod vectors;
