//! The layer and `run`, against a service in this process.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]
// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod classes;
mod deliveries;
mod faults;
mod harness;
mod hosts;
mod joined;
mod layer;
