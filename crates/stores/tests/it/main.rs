//! Every store against the contract of `core`, and against what it promises
//! beyond that: what survives a crash, what is refused, how damage is reported.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]

mod embedded;
mod fixture;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
