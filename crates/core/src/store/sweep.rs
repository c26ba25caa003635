//! Reclaiming expired records in the background.

use std::sync::Weak;
use std::time::Duration;

use super::Inspect;

/// How many records one sweep reclaims at most.
const SWEEP_MAX: usize = 50_000;

/// Reclaims expired records at an interval, for as long as the store is in use
/// elsewhere.
pub async fn sweep_every(interval: Duration, inspect: Weak<dyn Inspect>) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(inspect) = inspect.upgrade() else {
            return;
        };
        match inspect.sweep(SWEEP_MAX).await {
            Ok(0) => {}
            Ok(records) => tracing::info!(records, "expired records reclaimed"),
            Err(error) => tracing::warn!(%error, "expired records could not be reclaimed"),
        }
    }
}
