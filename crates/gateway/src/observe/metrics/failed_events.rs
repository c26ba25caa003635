//! The gauge of events that failed for good.
//!
//! Stores do not count finished operations by state, so the gateway remembers
//! failed events, up to a maximum: those that the store lists at start (repeatedly,
//! if other gateways share the store) and those that this gateway saw fail. Each
//! time the metrics are read, the gateway checks some of them. It no longer counts
//! an event that was purged, was redelivered or has expired, whichever gateway
//! changed it.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::Gauge;
use onceward_core::deadline::{store_within, within};
use onceward_core::identity::OperationId;
use onceward_core::record::{Record, State};
use onceward_core::store::{Filter, Inspect, PAGE_MAX, PageRequest, StoreError};

use crate::webhooks::registry::webhook_id_of;

/// How many failed events are remembered; the gauge cannot exceed it.
const FAILED_MAX: usize = 10_000;
/// How many of them are checked each time the metrics are read.
const CHECKED_MAX: usize = 100;
/// How many pages of failed operations one load reads from the store. Stores cannot
/// filter by the prefix of an endpoint, so the pages contain the failed operations
/// of all routes.
const PAGES_MAX: usize = 20;
/// The deadline of one page.
const PAGE_DEADLINE: Duration = Duration::from_secs(15);

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

    /// Adds an operation that an operator resolved, if it is an event. Whether it
    /// failed is checked when the metrics are read.
    pub(super) fn add_resolved(&self, record: &Record) {
        if is_event(record) {
            self.add(record.id);
        }
    }

    pub(super) fn remove(&self, id: OperationId) {
        self.change(|remembered| {
            remembered.ids.remove(&id);
        });
    }

    /// Adds the failed events that the store lists, the latest first.
    pub(super) async fn load(&self, inspect: &dyn Inspect) -> Result<(), StoreError> {
        let filter = Filter::default().with(|filter| filter.state = Some(State::Failed));
        let mut after = None;
        for _ in 0..PAGES_MAX {
            let request = PageRequest::first(PAGE_MAX).after(after);
            let page = store_within(PAGE_DEADLINE, inspect.list(&filter, request)).await?;
            for event in page.records.iter().filter(|record| is_event(record)) {
                self.add(event.id);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Removes events that are no longer failed, until the deadline.
    pub(super) async fn recheck(&self, inspect: &dyn Inspect, deadline: Duration) {
        let checking = async {
            for id in self.change(Remembered::next_to_check) {
                match inspect.show(id).await {
                    Ok(Some(record)) if record.state == State::Failed => {}
                    Ok(_) => self.remove(id),
                    // The store is unavailable; the rest is checked next time.
                    Err(_) => return,
                }
            }
        };
        // The rest is checked next time.
        let _ = within(deadline, checking).await;
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
    /// The next events to check; after the last one it starts again with the first.
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

/// Whether this is an event of a webhook.
fn is_event(record: &Record) -> bool {
    webhook_id_of(&record.identity.endpoint).is_some()
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
    async fn a_removed_event_is_no_longer_counted() {
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
    fn remembered_events_are_bounded() {
        let failed = FailedEvents::new(Gauge::noop());
        for number in 0..FAILED_MAX as u64 + 5 {
            failed.add(id(number));
        }
        assert_eq!(counted(&failed), FAILED_MAX);
    }
}
