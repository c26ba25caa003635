//! What the crate promises, by its public functions only.

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
