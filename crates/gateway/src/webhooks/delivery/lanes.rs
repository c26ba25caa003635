//! How many events are under way, and to whom.
//!
//! However slow upstreams are, none holds more than its share, nor more places
//! than are left free: so there always are some for the others. In case an
//! upstream is quick, some events wait for a moment; what comes beyond that is
//! put back, for about as long as those before it will take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime::plan::Plan;

/// How long an event waits for a place at its upstream before it is put back.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long an event is put back whose upstream has no place: at least so long
/// that putting back is not all that is done; and at most.
const PUT_BACK_MIN: Duration = Duration::from_millis(20);
const PUT_BACK_MAX: Duration = Duration::from_secs(60);
/// How far apart the turns of those are at least that were put back: of an
/// upstream that has just become slow nobody knows it yet.
const PACE_MIN: Duration = Duration::from_micros(250);

/// What is under way, in all and to each upstream.
#[derive(Default)]
pub(super) struct Lanes {
    under_way: usize,
    /// Those that wait for a place, or are being put back.
    beside: usize,
    /// As many as upstreams are or were configured.
    by_upstream: HashMap<String, Lane>,
}

struct Lane {
    under_way: usize,
    waiting: usize,
    /// Rung when a place is free.
    freed: Arc<Notify>,
    /// About how long a delivery takes, of late.
    takes: Duration,
    /// When the last delivery ended, or the first of these began.
    ended: Instant,
    /// The last turn that was given to an event that was put back.
    last_turn: Instant,
}

/// Whether an upstream takes one more now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    /// As soon as there is a place.
    Soon,
    /// Not before this long.
    Later(Duration),
}

/// How many may be under way.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    in_all: usize,
    to_one: usize,
}

impl Bounds {
    pub(super) fn of(plan: &Plan) -> Self {
        let webhooks = &plan.config.webhooks;
        Self {
            in_all: webhooks.deliveries,
            to_one: webhooks.deliveries_per_upstream,
        }
    }
}

/// A place among what is under way; free again when dropped.
pub(super) struct Place {
    /// Rung when it is free.
    courier_wakeup: Arc<Notify>,
    lanes: Arc<Mutex<Lanes>>,
    upstream: String,
    turn: Turn,
    since: Instant,
}

impl Place {
    /// Enters an event for its upstream, under way or beside.
    pub(super) fn enter(
        lanes: &Arc<Mutex<Lanes>>,
        upstream: &str,
        bounds: Bounds,
        courier_wakeup: &Arc<Notify>,
    ) -> Self {
        let since = Instant::now();
        Self {
            turn: lock(lanes).enter(upstream, bounds, since),
            courier_wakeup: courier_wakeup.clone(),
            lanes: lanes.clone(),
            upstream: upstream.to_owned(),
            since,
        }
    }

    /// Waits for a place at the upstream if that may be soon; else for how long
    /// the event is to be put back.
    pub(super) async fn at_upstream(
        &mut self,
        bounds: Bounds,
        limit: Duration,
    ) -> Result<(), Duration> {
        if self.turn == Turn::Soon {
            let freed = lock(&self.lanes)
                .lane(&self.upstream, self.since)
                .freed
                .clone();
            let waiting = async {
                loop {
                    let rung = freed.notified();
                    if lock(&self.lanes).advance(&self.upstream, bounds, Instant::now()) {
                        return;
                    }
                    rung.await;
                }
            };
            let waited = tokio::time::timeout(limit, waiting).await;
            self.since = Instant::now();
            self.turn = match waited {
                Ok(()) => Turn::Now,
                Err(_) => lock(&self.lanes).give_up(&self.upstream, bounds, self.since),
            };
        }
        match self.turn {
            Turn::Now => Ok(()),
            Turn::Soon => Err(PUT_BACK_MIN),
            Turn::Later(rest) => Err(rest),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = Instant::now();
        lock(&self.lanes).leave(&self.upstream, self.turn, self.since, now);
        self.courier_wakeup.notify_one();
    }
}

impl Lanes {
    fn lane(&mut self, upstream: &str, now: Instant) -> &mut Lane {
        self.by_upstream
            .entry(upstream.to_owned())
            .or_insert_with(|| Lane {
                under_way: 0,
                waiting: 0,
                freed: Arc::default(),
                takes: Duration::ZERO,
                ended: now,
                last_turn: now,
            })
    }

    /// How many more may be taken out of the queue.
    pub(super) fn room(&self, bounds: Bounds) -> usize {
        match self.under_way < bounds.in_all {
            true => bounds.in_all.saturating_sub(self.beside),
            false => 0,
        }
    }

    /// Whether one more may go to this upstream. The more are under way in all,
    /// the fewer may any upstream have: no number of slow ones takes all places.
    fn has_place(&mut self, upstream: &str, bounds: Bounds, now: Instant) -> bool {
        let free = bounds.in_all.saturating_sub(self.under_way);
        self.lane(upstream, now).under_way < bounds.to_one.min(free)
    }

    fn enter(&mut self, upstream: &str, bounds: Bounds, now: Instant) -> Turn {
        if self.has_place(upstream, bounds, now) {
            self.set_out(upstream, now);
            return Turn::Now;
        }
        self.beside += 1;
        let lane = self.lane(upstream, now);
        let is_alive = now.saturating_duration_since(lane.ended) < WAIT_MAX;
        if is_alive && lane.waiting < bounds.to_one {
            lane.waiting += 1;
            return Turn::Soon;
        }
        lane.put_back(bounds, now)
    }

    fn set_out(&mut self, upstream: &str, now: Instant) {
        self.under_way += 1;
        let lane = self.lane(upstream, now);
        if lane.under_way == 0 {
            // Nothing ended because nothing was under way.
            lane.ended = now;
        }
        lane.under_way += 1;
    }

    /// From waiting to being under way, if there is a place.
    fn advance(&mut self, upstream: &str, bounds: Bounds, now: Instant) -> bool {
        let has_place = self.has_place(upstream, bounds, now);
        if has_place {
            self.beside = self.beside.saturating_sub(1);
            let lane = self.lane(upstream, now);
            lane.waiting = lane.waiting.saturating_sub(1);
            self.set_out(upstream, now);
        }
        has_place
    }

    /// From waiting to being put back.
    fn give_up(&mut self, upstream: &str, bounds: Bounds, now: Instant) -> Turn {
        let lane = self.lane(upstream, now);
        lane.waiting = lane.waiting.saturating_sub(1);
        lane.put_back(bounds, now)
    }

    fn leave(&mut self, upstream: &str, turn: Turn, since: Instant, now: Instant) {
        match turn {
            Turn::Now => self.under_way = self.under_way.saturating_sub(1),
            Turn::Soon | Turn::Later(_) => self.beside = self.beside.saturating_sub(1),
        }
        let lane = self.lane(upstream, now);
        match turn {
            Turn::Now => {
                lane.under_way = lane.under_way.saturating_sub(1);
                lane.takes = (lane.takes * 7 + now.saturating_duration_since(since)) / 8;
                lane.ended = now;
                lane.freed.notify_one();
            }
            Turn::Soon => lane.waiting = lane.waiting.saturating_sub(1),
            Turn::Later(_) => {}
        }
    }
}

impl Lane {
    /// The turn of an event that has no place, nor one to wait at.
    fn put_back(&mut self, bounds: Bounds, now: Instant) -> Turn {
        // That an upstream has become slow is seen first by nothing ending there.
        let takes = self.takes.max(now.saturating_duration_since(self.ended));
        let places = u32::try_from(bounds.to_one.max(1)).unwrap_or(u32::MAX);
        let pace = (takes / places).max(PACE_MIN);
        self.last_turn = (self.last_turn.max(now) + pace).min(now + PUT_BACK_MAX);
        Turn::Later(self.last_turn.duration_since(now).max(PUT_BACK_MIN))
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

    fn bounds(in_all: usize, to_one: usize) -> Bounds {
        Bounds { in_all, to_one }
    }

    #[test]
    fn an_upstream_has_its_share_and_leaves_the_rest_to_others() {
        let mut lanes = Lanes::default();
        let (now, two) = (Instant::now(), bounds(100, 2));
        let turns: Vec<_> = (0..5).map(|_| lanes.enter("slow", two, now)).collect();
        let later = Turn::Later(PUT_BACK_MIN);
        let want = [Turn::Now, Turn::Now, Turn::Soon, Turn::Soon, later];
        assert_eq!(turns, want);
        assert_eq!(lanes.enter("quick", two, now), Turn::Now);
        assert!(!lanes.advance("slow", two, now), "there is no place yet");
        lanes.leave("slow", Turn::Now, now, now);
        assert!(lanes.advance("slow", two, now));
        assert_eq!(lanes.enter("slow", two, now), Turn::Soon);
        assert_eq!((lanes.under_way, lanes.beside), (3, 3));
        lanes.leave("slow", later, now, now);
        assert_eq!((lanes.under_way, lanes.beside), (3, 2));
    }

    /// However many upstreams do not answer, and however much there is for them.
    #[test]
    fn no_number_of_slow_upstreams_takes_all_places() {
        for slow in 1..40 {
            let mut lanes = Lanes::default();
            let (now, bounds) = (Instant::now(), bounds(256, 64));
            for _ in 0..1_000 {
                for upstream in 0..slow {
                    let name = upstream.to_string();
                    let turn = lanes.enter(&name, bounds, now);
                    if turn != Turn::Now {
                        lanes.leave(&name, turn, now, now);
                    }
                }
            }
            assert_eq!(lanes.enter("quick", bounds, now), Turn::Now, "{slow}");
            assert!(lanes.room(bounds) > 0, "{slow}");
        }
    }

    #[test]
    fn nobody_waits_for_an_upstream_where_nothing_ends() {
        let mut lanes = Lanes::default();
        let (then, one) = (Instant::now(), bounds(100, 1));
        assert_eq!(lanes.enter("hung", one, then), Turn::Now);
        let now = then + WAIT_MAX;
        assert!(matches!(lanes.enter("hung", one, now), Turn::Later(_)));
    }

    #[test]
    fn an_upstream_that_had_nothing_to_do_is_not_taken_for_a_slow_one() {
        let mut lanes = Lanes::default();
        let (then, one) = (Instant::now(), bounds(100, 1));
        assert_eq!(lanes.enter("one", one, then), Turn::Now);
        lanes.leave("one", Turn::Now, then, then + SHORT);
        let now = then + Duration::from_secs(3600);
        let turns = [1, 2, 3].map(|_| lanes.enter("one", one, now));
        let later = Turn::Later(PUT_BACK_MIN);
        assert_eq!(turns, [Turn::Now, Turn::Soon, later]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_when_another_has_come_or_is_put_back() {
        for freed in [false, true] {
            let lanes = Arc::new(Mutex::new(Lanes::default()));
            let (now, one) = (Instant::now(), bounds(100, 1));
            let first = lock(&lanes).enter("one", one, now);
            let turn = lock(&lanes).enter("one", one, now);
            assert_eq!((first, turn), (Turn::Now, Turn::Soon));
            let mut place = Place {
                courier_wakeup: Arc::default(),
                lanes: lanes.clone(),
                upstream: "one".to_owned(),
                turn,
                since: now,
            };
            let waiting = tokio::spawn(async move { place.at_upstream(one, WAIT_MAX).await });
            tokio::time::sleep(WAIT_MAX / 2).await;
            if freed {
                lock(&lanes).leave("one", Turn::Now, now, Instant::now());
            }
            assert_eq!(waiting.await.expect("no panic").is_ok(), freed);
            let lanes = lock(&lanes);
            assert_eq!((lanes.beside, lanes.by_upstream["one"].waiting), (0, 0));
        }
    }

    /// A thousand events come at once to an upstream with ten places, which is
    /// away for so long and then takes a short time for each: when the last is
    /// delivered, and how often any was put back.
    fn thousand_at_once(away: Duration) -> (Duration, usize) {
        let mut lanes = Lanes::default();
        let begin = Instant::now();
        let mut steps: BinaryHeap<_> = (0..1_000).map(|_| Reverse((begin, None))).collect();
        let (mut last, mut put_back) = (begin, 0);
        while let Some(Reverse((now, since))) = steps.pop() {
            if let Some(since) = since {
                lanes.leave("one", Turn::Now, since, now);
                last = now;
                continue;
            }
            // Nobody waits here: the next moment is the next step.
            let turn = match lanes.enter("one", bounds(100, 10), now) {
                Turn::Soon => lanes.give_up("one", bounds(100, 10), now),
                turn => turn,
            };
            match turn {
                Turn::Now => steps.push(Reverse((now.max(begin + away) + SHORT, Some(now)))),
                Turn::Soon => unreachable!("given up above"),
                Turn::Later(rest) => {
                    put_back += 1;
                    lanes.leave("one", turn, now, now);
                    steps.push(Reverse((now + rest, None)));
                }
            }
        }
        (last - begin, put_back)
    }

    #[test]
    fn many_at_once_are_delivered_about_as_fast_as_their_upstream_can() {
        let (after, put_back) = thousand_at_once(Duration::ZERO);
        // A second, if nobody ever waited.
        assert!(after < Duration::from_secs(3), "{after:?}");
        assert!(put_back < 10_000, "{put_back}");
    }

    #[test]
    fn those_for_an_upstream_that_does_not_answer_are_rarely_looked_at() {
        let away = Duration::from_secs(60);
        let (after, put_back) = thousand_at_once(away);
        assert!(after < away + PUT_BACK_MAX + PUT_BACK_MAX, "{after:?}");
        assert!(put_back < 10_000, "{put_back}");
    }
}
