//! Idempotency for HTTP.
//!
//! [`run::run`] is the whole of it: identify, claim, forward, record. The
//! gateway calls it for requests on their way to an upstream, [`layer`] for a
//! service in this process; [`delivery`] sends requests that were queued.
//! [`problem`] is the only place that chooses a status.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests use the system's clock and environment"
    )
)]

mod answer;
mod attempt;
#[cfg(feature = "axum")]
pub mod axum;
pub mod body;
pub mod body_work;
mod bypass;
mod capture;
pub mod delivery;
mod duplicate;
pub mod fields;
pub mod joined;
pub mod layer;
pub mod problem;
pub mod read;
mod recording;
pub mod recovery;
pub mod rules;
pub mod run;
pub mod span;
pub mod status;
mod streaming;
