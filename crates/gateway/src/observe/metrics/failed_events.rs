//! The gauge of events that failed for good.
//!
//! Stores do not count finished operations by state, so the gateway remembers
//! the events that it saw fail since its start, up to a maximum. Each time the
//! metrics are read it checks some of them: one that was purged, redelivered or
//! has expired is no longer counted, whichever gateway changed it.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::Gauge;
use onceward_core::identity::OperationId;
use onceward_core::record::State;
use onceward_core::store::Inspect;

/// How many failed events are remembered; the gauge does not rise above it.
const FAILED_MAX: usize = 10_000;
/// How many of them are checked each time the metrics are read.
const CHECKED_MAX: usize = 100;

pub(super) struct FailedEvents {
    remembered: Mutex<Remembered>,
    gauge: Gauge,
}

#[derive(Default)]
struct Remembered {
    ids: BTreeSet<OperationId>,
    last_checked: Option<OperationId>,
}

impl FailedEvents {
    pub(super) fn new(gauge: Gauge) -> Self {
        gauge.set(0.0);
        Self {
            remembered: Mutex::default(),
            gauge,
        }
    }

    pub(super) fn add(&self, id: OperationId) {
        self.change(|remembered| {
            if remembered.ids.len() < FAILED_MAX {
                remembered.ids.insert(id);
            }
        });
    }

    pub(super) fn remove(&self, id: OperationId) {
        self.change(|remembered| {
            remembered.ids.remove(&id);
        });
    }

    /// Removes events that are no longer failed, within the deadline.
    pub(super) async fn recheck(&self, inspect: &dyn Inspect, deadline: Duration) {
        let checking = async {
            for id in self.change(Remembered::next_to_check) {
                match inspect.show(id).await {
                    Ok(Some(record)) if record.state == State::Failed => {}
                    Ok(_) => self.remove(id),
                    // The store is away; the rest is checked next time.
                    Err(_) => return,
                }
            }
        };
        // What was not checked in time is checked next time.
        let _ = tokio::time::timeout(deadline, checking).await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut Remembered) -> T) -> T {
        let remembered = self.remembered.lock();
        let mut remembered = remembered.unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut remembered);
        self.gauge.set(remembered.ids.len() as f64);
        changed
    }
}

impl Remembered {
    /// The next events in turn, from the beginning again after the last.
    fn next_to_check(&mut self) -> Vec<OperationId> {
        let after = self.last_checked.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.ids.range((after, Bound::Unbounded));
        let next: Vec<_> = rest.take(CHECKED_MAX).copied().collect();
        self.last_checked = match next.len() < CHECKED_MAX {
            true => None,
            false => next.last().copied(),
        };
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onceward_core::caller::Caller;
    use onceward_core::clock::SystemClock;
    use onceward_core::identity::{Endpoint, Identity, KeySpace};
    use onceward_core::key::Key;
    use onceward_core::memory::MemoryStore;

    use super::*;

    fn id(number: u64) -> OperationId {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("webhooks.stripe.wh_1"),
            key: Key::parse("stripe-evt_1").expect("a good key"),
            space: KeySpace::Endpoint,
        };
        OperationId::new(&identity.digest(), number)
    }

    fn counted(failed: &FailedEvents) -> usize {
        failed.change(|remembered| remembered.ids.len())
    }

    #[tokio::test]
    async fn an_event_that_is_gone_is_no_longer_counted() {
        let failed = FailedEvents::new(Gauge::noop());
        for number in 0..150 {
            failed.add(id(number));
            failed.add(id(number));
        }
        failed.remove(id(7));
        assert_eq!(counted(&failed), 149);
        let empty = MemoryStore::new(Arc::new(SystemClock::new()));
        failed.recheck(&empty, Duration::from_secs(9)).await;
        assert_eq!(counted(&failed), 49);
        failed.recheck(&empty, Duration::from_secs(9)).await;
        assert_eq!(counted(&failed), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let failed = FailedEvents::new(Gauge::noop());
        for number in 0..FAILED_MAX as u64 + 5 {
            failed.add(id(number));
        }
        assert_eq!(counted(&failed), FAILED_MAX);
    }
}
