//! Liveness, readiness and metrics. These need no token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use onceward_core::clock::Clock;
use onceward_core::identity::Digest;
use onceward_core::store::StoreError;

use super::AdminState;

/// How long a refused write makes the gateway not ready if no other write
/// follows. Then traffic is let in again: without a write, recovery would not be
/// noticed.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Whether the store accepted its last write.
pub(crate) struct StoreHealth {
    clock: Arc<dyn Clock>,
    /// When the last write was refused, in milliseconds; 0 if it was accepted.
    refused_at: AtomicU64,
}

impl StoreHealth {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            refused_at: AtomicU64::new(0),
        }
    }

    /// Records the result of a write. A damaged record says nothing about the store.
    pub(crate) fn record_write<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) if self.refused_at.load(Ordering::Relaxed) == 0 => {}
            Ok(_) => self.refused_at.store(0, Ordering::Relaxed),
            Err(StoreError::Damaged(_)) => {}
            Err(_) => {
                let now = self.clock.now().unix_ms().max(1);
                self.refused_at.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Whether the last write was refused, and not long ago.
    pub(crate) fn refuses_writes(&self) -> bool {
        let refused_at = self.refused_at.load(Ordering::Relaxed);
        let now = self.clock.now().unix_ms();
        refused_at != 0 && now.saturating_sub(refused_at) < REFUSED_FOR.as_millis() as u64
    }
}

pub(super) async fn alive() -> &'static str {
    "alive\n"
}

/// Ready means that the store answers and accepts writes. The upstream is not asked.
pub(super) async fn ready(State(admin): State<AdminState>) -> impl IntoResponse {
    let unready = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why);
    if admin.draining.load(Ordering::Relaxed) {
        return unready("draining\n".to_owned());
    }
    if admin.store_health.refuses_writes() {
        return unready("the store refused the last write\n".to_owned());
    }
    // A lookup of a record that cannot exist reaches the store and costs little.
    match admin.engine.look(&Digest::from_bytes([0; 32])).await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => unready(format!("{error}\n")),
    }
}

pub(super) async fn metrics(State(admin): State<AdminState>) -> impl IntoResponse {
    let page = admin.metrics.render(&admin.engine, admin.inspect.as_ref());
    let content_type = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, page.await)
}

#[cfg(test)]
mod tests {
    use onceward_core::clock::{ManualClock, Timestamp};

    use super::*;

    #[test]
    fn a_refused_write_is_remembered_until_one_is_taken_or_a_while() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(5)));
        let store_health = StoreHealth::new(clock.clone());
        let full = || Err::<(), _>(StoreError::Unavailable("full".into()));
        assert!(!store_health.refuses_writes());
        store_health.record_write(&full());
        assert!(store_health.refuses_writes());
        store_health.record_write(&Ok(()));
        assert!(!store_health.refuses_writes());
        store_health.record_write(&full());
        clock.advance(REFUSED_FOR);
        assert!(!store_health.refuses_writes());
        store_health.record_write(&Err::<(), _>(StoreError::Damaged("one record".into())));
        assert!(!store_health.refuses_writes());
    }
}
