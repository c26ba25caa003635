//! Every store against the contract of `core`, and each store's own promises:
//! crashes, refusals, damage.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]

mod embedded;
mod fixture;
#[cfg(all(feature = "postgres", feature = "redis"))]
mod forgetting;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
