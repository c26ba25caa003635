//! The background tasks of a running gateway: reclaiming expired operations,
//! tidying limits and connections, counting failed events, and reading changes that
//! other gateways make in a shared store.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::deadline::within;
use onceward_core::store::{Inspect, sweep_every};
use tokio::time::sleep;

use super::Runtime;

/// How often the gateway looks for expired operations.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// How often the gateway forgets the rates of idle tenants and closes connections to
/// upstreams that were not used for too long.
const TIDY_INTERVAL: Duration = Duration::from_secs(5);
/// The pause between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3);
/// How long one refresh of one kind may take.
const REFRESH_DEADLINE: Duration = Duration::from_secs(10);
/// The pause before failed events are read from the store again.
const FAILED_EVENTS_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// The pause after a read that failed.
const FAILED_EVENTS_RETRY: Duration = Duration::from_secs(30);

/// Reclaims the space of expired operations.
pub(crate) async fn sweep(inspect: Arc<dyn Inspect>) {
    sweep_every(SWEEP_INTERVAL, Arc::downgrade(&inspect)).await;
}

/// Keeps rate limits and unused connections from growing, and the count of failed
/// fetches up to date.
pub(crate) async fn tidy(runtime: Arc<Runtime>) {
    loop {
        sleep(TIDY_INTERVAL).await;
        runtime.tidy();
    }
}

/// Reads the failed events from the store, so that their gauge survives a restart.
/// Where other gateways share the store, it reads them repeatedly.
pub(crate) async fn load_failed_events(
    runtime: Arc<Runtime>,
    inspect: Arc<dyn Inspect>,
    is_shared: bool,
) {
    loop {
        let loaded = runtime.metrics().load_failed_events(inspect.as_ref()).await;
        let pause = match loaded {
            Ok(()) if !is_shared => return,
            Ok(()) => FAILED_EVENTS_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "failed events not read from the store; their gauge may be too low");
                FAILED_EVENTS_RETRY
            }
        };
        sleep(pause).await;
    }
}

/// Reads API keys, classes and webhooks again, where several gateways share a
/// store. A change is in force at once in the gateway where it was made. The others
/// read it here, so they accept a revoked key for a few seconds longer. A refresh
/// that fails changes nothing.
pub(crate) async fn refresh(runtime: Arc<Runtime>) {
    let api_keys = runtime.plan().callers.api_keys().clone();
    loop {
        sleep(REFRESH_INTERVAL).await;
        refresh_one("API keys", api_keys.refresh()).await;
        refresh_one("classes", runtime.classes().refresh()).await;
        refresh_one("webhooks", runtime.webhooks().refresh()).await;
    }
}

async fn refresh_one<E: std::fmt::Display>(
    what: &str,
    refreshing: impl Future<Output = Result<(), E>>,
) {
    match within(REFRESH_DEADLINE, refreshing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, what, "refresh failed; earlier values stay in force");
        }
        Err(_) => {
            tracing::warn!(what, "refresh timed out; earlier values stay in force");
        }
    }
}
