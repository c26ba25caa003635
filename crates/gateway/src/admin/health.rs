//! Is it alive, is it ready, what does it count. No token is needed for these.

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

use super::Desk;

/// How long a refused write keeps the gateway out of service when no other
/// follows. Then it is tried again: without traffic nobody would find out that
/// there is room again.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Whether the store took its last write.
pub(crate) struct Pulse {
    clock: Arc<dyn Clock>,
    /// When a write was refused, in milliseconds; 0 since one was taken.
    refused_at: AtomicU64,
}

impl Pulse {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            refused_at: AtomicU64::new(0),
        }
    }

    /// Notes how a write ended. A damaged record is no sign of a sick store.
    pub(crate) fn wrote<T>(&self, answer: &Result<T, StoreError>) {
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

    /// Whether the last write was refused, a short while ago.
    pub(crate) fn is_refused(&self) -> bool {
        let refused_at = self.refused_at.load(Ordering::Relaxed);
        let now = self.clock.now().unix_ms();
        refused_at != 0 && now.saturating_sub(refused_at) < REFUSED_FOR.as_millis() as u64
    }
}

pub(super) async fn alive() -> &'static str {
    "alive\n"
}

/// Ready means that the store answers and takes what is written; the upstream is
/// not asked.
pub(super) async fn ready(State(desk): State<Desk>) -> impl IntoResponse {
    let unready = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why);
    if desk.draining.load(Ordering::Relaxed) {
        return unready("draining\n".to_owned());
    }
    if desk.pulse.is_refused() {
        return unready("the store refused the last write\n".to_owned());
    }
    // A look for what never was: it goes all the way and costs nothing.
    match desk.engine.look(&Digest::from_bytes([0; 32])).await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => unready(format!("{error}\n")),
    }
}

pub(super) async fn metrics(State(desk): State<Desk>) -> impl IntoResponse {
    let page = desk.metrics.render(&desk.engine, desk.inspect.as_ref());
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
        let pulse = Pulse::new(clock.clone());
        let full = || Err::<(), _>(StoreError::Unavailable("full".into()));
        assert!(!pulse.is_refused());
        pulse.wrote(&full());
        assert!(pulse.is_refused());
        pulse.wrote(&Ok(()));
        assert!(!pulse.is_refused());
        pulse.wrote(&full());
        clock.advance(REFUSED_FOR);
        assert!(!pulse.is_refused());
        pulse.wrote(&Err::<(), _>(StoreError::Damaged("one record".into())));
        assert!(!pulse.is_refused());
    }
}
