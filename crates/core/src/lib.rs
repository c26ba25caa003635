//! The core of Onceward: keys, callers, fingerprints, operations, leases and
//! fences; the traits that every store implements; the engine that runs an
//! operation at most once per granted claim; and the memory store, which is the
//! model that all other stores are compared with.
//!
//! It does no I/O. Clock and randomness are handed in.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests use the system's clock and environment"
    )
)]

pub mod application;

pub mod caller;
pub mod class;
pub mod classify;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod deadline;
pub mod engine;
pub mod entropy;
pub mod failpoint;
pub mod fingerprint;
pub mod identity;
pub mod judge;
pub mod key;
pub mod memory;
pub mod namespace;
pub mod notifier;
pub mod record;
pub mod store;
pub mod wire;
