//! The gateway end to end: real sockets, a real origin that records its requests,
//! and an embedded store in a temporary directory.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]
// Tests fail by panicking.
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
