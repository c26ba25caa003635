//! The stores, put to the promises of `core` and to what only the embedded
//! store promises: what survives, what is refused, what goes on.

mod conformance;
#[cfg(feature = "failpoints")]
mod crashing;
mod damage;
mod finding;
mod full;
mod house;
mod killed;
mod opening;
#[cfg(feature = "postgres")]
mod postgres;
mod reclaiming;
#[cfg(feature = "redis")]
mod redis;
mod surviving;
mod versions;
