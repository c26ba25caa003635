//! Limits on concurrent deliveries: in total, and per upstream.
//!
//! An upstream uses at most its share of the slots, and never more than are
//! still free, so that slow upstreams always leave slots for the others. A few
//! events wait briefly for a slot at their upstream, because most upstreams are
//! quick; events beyond that return to the queue, for about as long as the
//! deliveries before them will take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward_core::deadline::within;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime::plan::Plan;

/// How long an event waits for a slot at its upstream before it is deferred.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// The shortest and the longest deferral of an event. The shortest keeps the
/// courier from doing nothing but deferring.
const DEFER_MIN: Duration = Duration::from_millis(20);
const DEFER_MAX: Duration = Duration::from_secs(60);
/// The shortest interval between two deferred events: an upstream that has just
/// become slow is not measured yet.
const DEFER_STEP_MIN: Duration = Duration::from_micros(250);

/// The deliveries under way, in total and to each upstream.
#[derive(Default)]
pub(super) struct Lanes {
    active: usize,
    /// Events that wait for a slot, or are being deferred.
    inactive: usize,
    /// Holds every upstream that is or was configured.
    by_upstream: HashMap<String, Lane>,
}

struct Lane {
    active: usize,
    waiting: usize,
    /// Notified when a slot is free.
    freed: Arc<Notify>,
    /// A moving average of the time that a delivery takes.
    average: Duration,
    /// When the last delivery ended, or when the first of the current ones began.
    last_end: Instant,
    /// When the last deferred event becomes due.
    last_deferred: Instant,
}

/// Whether an event may be delivered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Active,
    /// It waits for a free slot.
    Waiting,
    /// It returns to the queue for this long.
    Deferred(Duration),
}

/// How many deliveries may be under way.
#[derive(Clone, Copy)]
pub(super) struct DeliveryLimits {
    total: usize,
    per_upstream: usize,
}

impl DeliveryLimits {
    pub(super) fn of(plan: &Plan) -> Self {
        let webhooks = &plan.config.webhooks;
        Self {
            total: webhooks.deliveries,
            per_upstream: webhooks.deliveries_per_upstream,
        }
    }
}

/// An event's slot in the lane of its upstream; free again when dropped.
pub(super) struct LaneSlot {
    /// Notified when the slot is free.
    courier_wakeup: Arc<Notify>,
    lanes: Arc<Mutex<Lanes>>,
    upstream: String,
    state: SlotState,
    since: Instant,
}

impl LaneSlot {
    /// Enters an event into the lane of its upstream.
    pub(super) fn enter(
        lanes: &Arc<Mutex<Lanes>>,
        upstream: &str,
        limits: DeliveryLimits,
        courier_wakeup: &Arc<Notify>,
    ) -> Self {
        let since = Instant::now();
        Self {
            state: lock(lanes).enter(upstream, limits, since),
            courier_wakeup: courier_wakeup.clone(),
            lanes: lanes.clone(),
            upstream: upstream.to_owned(),
            since,
        }
    }

    /// Waits up to `limit` for a free slot, if one can be expected soon.
    /// Otherwise returns how long the event is deferred.
    pub(super) async fn wait(
        &mut self,
        limits: DeliveryLimits,
        limit: Duration,
    ) -> Result<(), Duration> {
        if self.state == SlotState::Waiting {
            let freed = lock(&self.lanes)
                .lane(&self.upstream, self.since)
                .freed
                .clone();
            let starting = async {
                loop {
                    let notified = freed.notified();
                    if lock(&self.lanes).try_start(&self.upstream, limits, Instant::now()) {
                        return;
                    }
                    notified.await;
                }
            };
            let started = within(limit, starting).await;
            self.since = Instant::now();
            self.state = match started {
                Ok(()) => SlotState::Active,
                Err(_) => lock(&self.lanes).stop_waiting(&self.upstream, limits, self.since),
            };
        }
        match self.state {
            SlotState::Active => Ok(()),
            SlotState::Waiting => Err(DEFER_MIN),
            SlotState::Deferred(after) => Err(after),
        }
    }
}

impl Drop for LaneSlot {
    fn drop(&mut self) {
        let now = Instant::now();
        lock(&self.lanes).leave(&self.upstream, self.state, self.since, now);
        self.courier_wakeup.notify_one();
    }
}

impl Lanes {
    fn lane(&mut self, upstream: &str, now: Instant) -> &mut Lane {
        self.by_upstream
            .entry(upstream.to_owned())
            .or_insert_with(|| Lane {
                active: 0,
                waiting: 0,
                freed: Arc::default(),
                average: Duration::ZERO,
                last_end: now,
                last_deferred: now,
            })
    }

    /// How many more events may be taken from the queue.
    pub(super) fn capacity(&self, limits: DeliveryLimits) -> usize {
        match self.active < limits.total {
            true => limits.total.saturating_sub(self.inactive),
            false => 0,
        }
    }

    /// Whether one more delivery to this upstream may start. The more are active
    /// in total, the fewer may any upstream have: no number of slow upstreams
    /// uses all slots.
    fn has_slot(&mut self, upstream: &str, limits: DeliveryLimits, now: Instant) -> bool {
        let free = limits.total.saturating_sub(self.active);
        self.lane(upstream, now).active < limits.per_upstream.min(free)
    }

    fn enter(&mut self, upstream: &str, limits: DeliveryLimits, now: Instant) -> SlotState {
        if self.has_slot(upstream, limits, now) {
            self.start(upstream, now);
            return SlotState::Active;
        }
        self.inactive += 1;
        let lane = self.lane(upstream, now);
        let is_alive = now.saturating_duration_since(lane.last_end) < WAIT_MAX;
        if is_alive && lane.waiting < limits.per_upstream {
            lane.waiting += 1;
            return SlotState::Waiting;
        }
        lane.defer(limits, now)
    }

    fn start(&mut self, upstream: &str, now: Instant) {
        self.active += 1;
        let lane = self.lane(upstream, now);
        if lane.active == 0 {
            // No delivery ended, because none was under way.
            lane.last_end = now;
        }
        lane.active += 1;
    }

    /// Moves a waiting event to active, if there is a slot.
    fn try_start(&mut self, upstream: &str, limits: DeliveryLimits, now: Instant) -> bool {
        let has_slot = self.has_slot(upstream, limits, now);
        if has_slot {
            self.inactive = self.inactive.saturating_sub(1);
            let lane = self.lane(upstream, now);
            lane.waiting = lane.waiting.saturating_sub(1);
            self.start(upstream, now);
        }
        has_slot
    }

    /// Moves a waiting event to deferred.
    fn stop_waiting(&mut self, upstream: &str, limits: DeliveryLimits, now: Instant) -> SlotState {
        let lane = self.lane(upstream, now);
        lane.waiting = lane.waiting.saturating_sub(1);
        lane.defer(limits, now)
    }

    fn leave(&mut self, upstream: &str, state: SlotState, since: Instant, now: Instant) {
        match state {
            SlotState::Active => self.active = self.active.saturating_sub(1),
            SlotState::Waiting | SlotState::Deferred(_) => {
                self.inactive = self.inactive.saturating_sub(1);
            }
        }
        let lane = self.lane(upstream, now);
        match state {
            SlotState::Active => {
                lane.active = lane.active.saturating_sub(1);
                lane.average = (lane.average * 7 + now.saturating_duration_since(since)) / 8;
                lane.last_end = now;
                lane.freed.notify_one();
            }
            SlotState::Waiting => lane.waiting = lane.waiting.saturating_sub(1),
            SlotState::Deferred(_) => {}
        }
    }
}

impl Lane {
    /// Defers an event that neither has a slot nor may wait for one.
    fn defer(&mut self, limits: DeliveryLimits, now: Instant) -> SlotState {
        // The first sign of a slow upstream: deliveries do not end.
        let duration = self
            .average
            .max(now.saturating_duration_since(self.last_end));
        let slots = u32::try_from(limits.per_upstream.max(1)).unwrap_or(u32::MAX);
        let step = (duration / slots).max(DEFER_STEP_MIN);
        self.last_deferred = (self.last_deferred.max(now) + step).min(now + DEFER_MAX);
        SlotState::Deferred(self.last_deferred.duration_since(now).max(DEFER_MIN))
    }
}

pub(super) fn lock(lanes: &Mutex<Lanes>) -> std::sync::MutexGuard<'_, Lanes> {
    lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    fn limits(total: usize, per_upstream: usize) -> DeliveryLimits {
        DeliveryLimits {
            total,
            per_upstream,
        }
    }

    #[test]
    fn an_upstream_uses_its_share_and_leaves_the_rest_to_others() {
        let mut lanes = Lanes::default();
        let (now, two) = (Instant::now(), limits(100, 2));
        let states: Vec<_> = (0..5).map(|_| lanes.enter("slow", two, now)).collect();
        let later = SlotState::Deferred(DEFER_MIN);
        let want = [
            SlotState::Active,
            SlotState::Active,
            SlotState::Waiting,
            SlotState::Waiting,
            later,
        ];
        assert_eq!(states, want);
        assert_eq!(lanes.enter("quick", two, now), SlotState::Active);
        assert!(
            !lanes.try_start("slow", two, now),
            "there is no free slot yet"
        );
        lanes.leave("slow", SlotState::Active, now, now);
        assert!(lanes.try_start("slow", two, now));
        assert_eq!(lanes.enter("slow", two, now), SlotState::Waiting);
        assert_eq!((lanes.active, lanes.inactive), (3, 3));
        lanes.leave("slow", later, now, now);
        assert_eq!((lanes.active, lanes.inactive), (3, 2));
    }

    /// For any number of upstreams that do not answer, and any number of events.
    #[test]
    fn no_number_of_slow_upstreams_uses_all_slots() {
        for slow in 1..40 {
            let mut lanes = Lanes::default();
            let (now, limits) = (Instant::now(), limits(256, 64));
            for _ in 0..1_000 {
                for upstream in 0..slow {
                    let name = upstream.to_string();
                    let state = lanes.enter(&name, limits, now);
                    if state != SlotState::Active {
                        lanes.leave(&name, state, now, now);
                    }
                }
            }
            assert_eq!(
                lanes.enter("quick", limits, now),
                SlotState::Active,
                "{slow}"
            );
            assert!(lanes.capacity(limits) > 0, "{slow}");
        }
    }

    #[test]
    fn no_event_waits_for_an_upstream_where_nothing_ends() {
        let mut lanes = Lanes::default();
        let (then, one) = (Instant::now(), limits(100, 1));
        assert_eq!(lanes.enter("hung", one, then), SlotState::Active);
        let now = then + WAIT_MAX;
        assert!(matches!(
            lanes.enter("hung", one, now),
            SlotState::Deferred(_)
        ));
    }

    #[test]
    fn an_upstream_that_had_nothing_to_do_is_not_taken_for_a_slow_one() {
        let mut lanes = Lanes::default();
        let (then, one) = (Instant::now(), limits(100, 1));
        assert_eq!(lanes.enter("one", one, then), SlotState::Active);
        lanes.leave("one", SlotState::Active, then, then + SHORT);
        let now = then + Duration::from_secs(3600);
        let states = [1, 2, 3].map(|_| lanes.enter("one", one, now));
        let later = SlotState::Deferred(DEFER_MIN);
        assert_eq!(states, [SlotState::Active, SlotState::Waiting, later]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_event_starts_when_a_slot_is_free_or_is_deferred() {
        for freed in [false, true] {
            let lanes = Arc::new(Mutex::new(Lanes::default()));
            let (now, one) = (Instant::now(), limits(100, 1));
            let first = lock(&lanes).enter("one", one, now);
            let state = lock(&lanes).enter("one", one, now);
            assert_eq!((first, state), (SlotState::Active, SlotState::Waiting));
            let mut slot = LaneSlot {
                courier_wakeup: Arc::default(),
                lanes: lanes.clone(),
                upstream: "one".to_owned(),
                state,
                since: now,
            };
            let waiting = tokio::spawn(async move { slot.wait(one, WAIT_MAX).await });
            tokio::time::sleep(WAIT_MAX / 2).await;
            if freed {
                lock(&lanes).leave("one", SlotState::Active, now, Instant::now());
            }
            assert_eq!(waiting.await.expect("no panic").is_ok(), freed);
            let lanes = lock(&lanes);
            assert_eq!((lanes.inactive, lanes.by_upstream["one"].waiting), (0, 0));
        }
    }

    /// A thousand events arrive at once for an upstream with ten slots, which is
    /// away for this long and then takes a short time for each. Returns when the
    /// last is delivered, and how often events were deferred.
    fn thousand_at_once(away: Duration) -> (Duration, usize) {
        let mut lanes = Lanes::default();
        let begin = Instant::now();
        let mut steps: BinaryHeap<_> = (0..1_000).map(|_| Reverse((begin, None))).collect();
        let (mut last, mut deferred) = (begin, 0);
        while let Some(Reverse((now, since))) = steps.pop() {
            if let Some(since) = since {
                lanes.leave("one", SlotState::Active, since, now);
                last = now;
                continue;
            }
            // Waiting ends at once: the next moment is the next step.
            let state = match lanes.enter("one", limits(100, 10), now) {
                SlotState::Waiting => lanes.stop_waiting("one", limits(100, 10), now),
                state => state,
            };
            match state {
                SlotState::Active => {
                    steps.push(Reverse((now.max(begin + away) + SHORT, Some(now))));
                }
                SlotState::Waiting => unreachable!("deferred above"),
                SlotState::Deferred(after) => {
                    deferred += 1;
                    lanes.leave("one", state, now, now);
                    steps.push(Reverse((now + after, None)));
                }
            }
        }
        (last - begin, deferred)
    }

    #[test]
    fn many_at_once_are_delivered_about_as_fast_as_their_upstream_can() {
        let (after, deferred) = thousand_at_once(Duration::ZERO);
        // It would be a second if no event ever waited.
        assert!(after < Duration::from_secs(3), "{after:?}");
        assert!(deferred < 10_000, "{deferred}");
    }

    #[test]
    fn events_for_an_upstream_that_does_not_answer_are_rarely_taken() {
        let away = Duration::from_secs(60);
        let (after, deferred) = thousand_at_once(away);
        assert!(after < away + DEFER_MAX + DEFER_MAX, "{after:?}");
        assert!(deferred < 10_000, "{deferred}");
    }
}
