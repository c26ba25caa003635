//! The program itself: real processes on the embedded store, in front of a
//! service in the test that writes down everything it really got.
//!
//! What is shown here is what only a process can show: that it may die at any
//! step, that it stops as it should, and that it says clearly why it does not
//! start.

// A test that fails says what it wanted; a panic is how. What it prints is
// shown when it fails: seeds and figures.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod checker;
mod client;
mod crowd;
mod disk;
mod gateway;
mod holder;
mod joined;
mod log;
mod manners;
mod operator;
mod origin;
mod postgres_migrate;
mod reloading;
mod shared_crowd;
mod shared_failover;
mod shared_holder;
mod shared_house;
mod shared_operators;
mod shared_outage;
mod shared_partition;
mod shared_relay;
mod shared_rolling;
mod shared_secret;
mod shared_storm;
mod shared_waiting;
mod shared_webhooks;
mod stopping;
mod storm;
mod sweep;
mod webhooks_checker;
mod webhooks_commands;
mod webhooks_operator;
mod webhooks_outage;
mod webhooks_provider;
mod webhooks_sdk;
mod webhooks_storm;
mod webhooks_sweep;

use std::time::Duration;

/// Waits until something holds; the test runner's deadline is the limit.
async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
