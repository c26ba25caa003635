//! The examples, run as the programs that they are.

mod axum_service;
mod custom_store;
mod outbound;
mod postgres_payments;
mod postgres_queue;
mod program;
