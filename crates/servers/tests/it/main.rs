//! Servers start, answer, keep acknowledged data over a kill, and leave nothing
//! behind, neither after a drop nor when the test itself is killed.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]

mod fixture;
mod pgbouncer;
mod postgres;
mod redis;
mod redis_cluster;
mod sdk;
