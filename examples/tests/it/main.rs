//! The examples, run as programs.

#![allow(
    clippy::disallowed_methods,
    reason = "tests use the system's clock and environment"
)]

mod axum_service;
mod custom_store;
mod outbound;
mod postgres_payments;
mod postgres_queue;
mod program;
