//! The program itself: real processes, in front of a service in the test that records every request
//! it got.
//!
//! These tests show what only a process can show: that it may die at any step, that it stops in
//! order, and that its commands print what they should.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]
// A failed expectation in a test is a panic. Seeds and figures are printed when a test fails.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod commands;
mod crash;
mod crowd;
mod fixture;
mod joined;
mod process;
mod reload;
mod shared;
mod webhooks;
