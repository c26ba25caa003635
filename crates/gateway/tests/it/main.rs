//! The gateway end to end: real sockets, a real origin that keeps a ledger of
//! what it got, and the embedded store in a directory of the test's own.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]
// A test that fails says what it wanted; a panic is how.
#![allow(clippy::unwrap_used)]

mod admin;
mod callers;
mod config;
mod harness;
mod listen;
mod observe;
mod pages;
mod request;
mod upstream;
mod webhooks;
