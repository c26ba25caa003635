//! The layer and `run`, against a service in this process.

// A test that fails says what it wanted; a panic is how.
#![allow(clippy::unwrap_used)]

mod classes;
mod deliveries;
mod faults;
mod harness;
mod hosts;
mod joined;
mod layer;
