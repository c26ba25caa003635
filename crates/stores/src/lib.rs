//! The stores: embedded on SQLite, PostgreSQL and Redis. Each has a module and a
//! feature of its own; [`open`] opens the one that a URL names.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests use the system's clock and environment"
    )
)]

#[cfg(any(feature = "embedded", feature = "redis"))]
mod checksum;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(any(feature = "embedded", feature = "postgres", feature = "redis"))]
mod lookup;
#[cfg(any(feature = "embedded", feature = "postgres", feature = "redis"))]
mod mailbox;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod recent_replies;
#[cfg(any(feature = "embedded", feature = "postgres", feature = "redis"))]
mod record_size;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod time;

pub use open::{Durability, OpenError, Opened, Settings, open};
