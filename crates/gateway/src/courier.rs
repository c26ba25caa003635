//! Carries queued events to their upstreams.
//!
//! One task takes what is due, as much as there is room for, and each delivery
//! is a task of the engine's own. However slow upstreams are, none holds more
//! than its share, nor more places than are left free: so there always are some
//! for the others. In case an upstream is quick, some events wait for a moment;
//! what comes beyond that is put back, without counting as an attempt, for about
//! as long as those before it will take. Order is not promised.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::clock::Clock;
use onceward_core::store::Due;
use onceward_http::body::Body;
use onceward_http::delivery::deliver;
use onceward_http::rules::{Credentials, Rules};
use onceward_http::run::{Granted, Unanswered};
use onceward_webhooks::sign;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::callers::WallClock;
use crate::forward::Passage;
use crate::parcel::Parcel;
use crate::pipeline::Pipeline;
use crate::plan::{Plan, Planned};
use crate::webhooks::{Webhooks, WebhooksError};

/// How many events are taken in one step.
const TAKEN_MAX: usize = 64;
/// How long the courier rests at most: others may have queued something, or
/// have died with something in their hands.
const REST_MAX: Duration = Duration::from_secs(1);
/// How long at least, where something is due soon.
const REST_MIN: Duration = Duration::from_millis(5);
/// How long the courier rests when the store does not answer.
const REST_AWAY: Duration = Duration::from_secs(1);
/// How long an event waits for a place at its upstream before it is put back,
/// within its lease.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long an event is put back whose upstream has no place: at least so long
/// that putting back is not all that is done; and at most.
const PUT_BACK_MIN: Duration = Duration::from_millis(20);
/// How far apart the turns of those are at least that were put back: of an
/// upstream that has just become slow nobody knows it yet.
const PACE_MIN: Duration = Duration::from_micros(250);
const PUT_BACK_MAX: Duration = Duration::from_secs(60);

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Carries events.
pub(crate) struct Courier {
    pipeline: Arc<Pipeline>,
    clock: Arc<dyn Clock>,
    lanes: Arc<Mutex<Lanes>>,
}

/// What is under way, in all and to each upstream.
#[derive(Default)]
struct Lanes {
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
struct Bounds {
    in_all: usize,
    to_one: usize,
}

impl Bounds {
    fn of(plan: &Plan) -> Self {
        let webhooks = &plan.config.webhooks;
        Self {
            in_all: webhooks.deliveries,
            to_one: webhooks.deliveries_per_upstream,
        }
    }
}

/// A place among what is under way; free again when dropped.
struct Place {
    /// Rung when it is free.
    bell: Arc<Notify>,
    lanes: Arc<Mutex<Lanes>>,
    upstream: String,
    turn: Turn,
    since: Instant,
}

impl Place {
    /// Waits for a place at the upstream if that may be soon; else for how long
    /// the event is to be put back.
    async fn at_upstream(&mut self, bounds: Bounds, limit: Duration) -> Result<(), Duration> {
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
        self.bell.notify_one();
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
    fn room(&self, bounds: Bounds) -> usize {
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

fn lock(lanes: &Mutex<Lanes>) -> std::sync::MutexGuard<'_, Lanes> {
    lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Courier {
    pub(crate) fn new(pipeline: Arc<Pipeline>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            pipeline,
            clock,
            lanes: Arc::default(),
        })
    }

    /// Takes and carries until told to stop, whatever happens to it.
    pub(crate) async fn keep_carrying(self: Arc<Self>, stop: CancellationToken) {
        while let Err(error) = tokio::spawn(self.clone().carry(stop.clone())).await {
            tracing::error!(%error, "the courier broke off; it begins anew");
            tokio::time::sleep(REST_AWAY).await;
        }
    }

    /// What was taken is always carried: nobody else would before its lease is
    /// over.
    async fn carry(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let rest = self.take(&stop).await;
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.pipeline.bell.notified() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Takes what is due and tells how long there is nothing to do.
    async fn take(self: &Arc<Self>, stop: &CancellationToken) -> Duration {
        while !stop.is_cancelled() {
            let plan = self.pipeline.plan.load_full();
            let room = lock(&self.lanes).room(Bounds::of(&plan));
            if room == 0 {
                return REST_MAX;
            }
            let taken = Instant::now();
            let due = match self.pipeline.queue.due(room.min(TAKEN_MAX)).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(%error, "what is due cannot be taken");
                    return REST_AWAY;
                }
            };
            if due.is_empty() {
                return self.until_next().await;
            }
            for due in due {
                self.dispatch(&plan, due, taken);
            }
        }
        Duration::ZERO
    }

    async fn until_next(&self) -> Duration {
        match self.pipeline.queue.next_due().await {
            // Our clock may be ahead of the store's.
            Ok(Some(next)) => next.since(self.clock.now()).clamp(REST_MIN, REST_MAX),
            Ok(None) => REST_MAX,
            Err(error) => {
                tracing::warn!(%error, "when something is due cannot be told");
                REST_AWAY
            }
        }
    }

    fn dispatch(self: &Arc<Self>, plan: &Arc<Plan>, due: Due, taken: Instant) {
        let engine = self.pipeline.protection.engine.clone();
        let parcel = match Parcel::from_bytes(due.request.clone()) {
            Ok(parcel) => parcel,
            Err(error) => {
                tracing::error!(%error, operation_id = %due.grant.id, "an event cannot be delivered; paused");
                engine.clone().spawn(async move {
                    engine.take(&due).pause().await;
                });
                return;
            }
        };
        let mut place = self.place(plan, &parcel.upstream);
        let (courier, plan) = (self.clone(), plan.clone());
        engine.clone().spawn(async move {
            let bounds = Bounds::of(&plan);
            // Well within the lease, which nobody renews before it is carried.
            let limit = WAIT_MAX.min(due.record.terms.lease / 4);
            match place.at_upstream(bounds, limit).await {
                Ok(()) => Box::pin(courier.deliver(&plan, (due, taken), parcel)).await,
                Err(rest) => drop(engine.take(&due).defer(rest).await),
            }
            drop(place);
        });
    }

    fn place(&self, plan: &Plan, upstream: &str) -> Place {
        let since = Instant::now();
        Place {
            turn: lock(&self.lanes).enter(upstream, Bounds::of(plan), since),
            bell: self.pipeline.bell.clone(),
            lanes: self.lanes.clone(),
            upstream: upstream.to_owned(),
            since,
        }
    }

    async fn deliver(&self, plan: &Arc<Plan>, (due, taken): (Due, Instant), parcel: Parcel) {
        let pipeline = &self.pipeline;
        let class = pipeline.classes.get(&due.record.terms.class);
        let class = class.unwrap_or_else(|| Arc::new(Class::webhook()));
        let upstream = parcel.upstream.clone();
        let route = plan.event_routes.get(&*upstream);
        let caller = &due.record.identity.caller;
        let carriage = route.map(|route| pipeline.carriage(plan, route, &parcel, caller));
        let rules = match route {
            Some(route) => rules(route, &class),
            None => Arc::new(Rules::new(Credentials::Trusted)),
        };
        let attempts = due.record.attempts;
        let forward = |request, granted| {
            let carriage = carriage.clone();
            async move {
                match carriage {
                    Some(carriage) => carriage.on_attempt(attempts).send(request, granted).await,
                    None => Err(Unanswered::NotSent(Box::new(NoUpstream))),
                }
            }
        };
        let request = parcel.into_request();
        let delivered = deliver(
            &pipeline.protection,
            (due, taken),
            (class, rules),
            request,
            forward,
        );
        let delivered = delivered.await;
        pipeline.metrics.delivered(&upstream, delivered);
    }
}

/// The upstream of an event is no longer configured.
#[derive(Debug, thiserror::Error)]
#[error("the event's upstream is not configured")]
struct NoUpstream;

/// What an upstream's answer to an event means. No attempt is given more time
/// than its lease, as the class of now has it.
pub(crate) fn rules(route: &Planned, class: &Class) -> Arc<Rules> {
    if route.timeout <= class.lease {
        return route.rules.clone();
    }
    Arc::new(Rules {
        upstream_timeout: class.lease,
        ..Rules::clone(&route.rules)
    })
}

/// The way of one event: to its upstream, in our name.
#[derive(Clone)]
pub(crate) struct Carriage {
    webhooks: Arc<Webhooks>,
    clock: WallClock,
    plan: Arc<Plan>,
    passage: Passage,
}

impl Pipeline {
    pub(crate) fn carriage(
        &self,
        plan: &Arc<Plan>,
        route: &Arc<Planned>,
        parcel: &Parcel,
        caller: &Caller,
    ) -> Carriage {
        Carriage {
            webhooks: self.webhooks.clone(),
            clock: self.clock.clone(),
            plan: plan.clone(),
            passage: Passage {
                peer: parcel.peer.clone(),
                route: route.clone(),
                caller: caller.clone(),
                by: None,
                key: None,
                attempt: 1,
                link: None,
            },
        }
    }
}

impl Carriage {
    fn on_attempt(mut self, attempt: u32) -> Self {
        self.passage.attempt = attempt;
        self
    }

    pub(crate) fn passage(&self) -> &Passage {
        &self.passage
    }

    /// Sends an event once, in the name of its grant.
    pub(crate) async fn send(
        self,
        mut request: Request<Bytes>,
        granted: Option<Granted>,
    ) -> Result<Response<Body>, Unanswered> {
        if let Some(granted) = &granted {
            let signed = self.sign(request, &granted.id.to_string()).await;
            request = signed.map_err(|error| Unanswered::NotSent(Box::new(error)))?;
        }
        let forwarder = &self.passage.route.forwarder;
        forwarder.protected(request, granted, &self.passage).await
    }

    /// Signs a request in our name: what the provider signed with a time has
    /// gone stale when it is sent again.
    pub(crate) async fn sign(
        &self,
        mut request: Request<Bytes>,
        id: &str,
    ) -> Result<Request<Bytes>, WebhooksError> {
        let upstream = &self.passage.route.route.upstream;
        let key = self.webhooks.signing_key(&self.plan.config, upstream);
        let key = key.await?;
        let now = (self.clock.now().unix_ms() / 1000).cast_signed();
        let signature = sign(&key, id, now, request.body());
        let headers = request.headers_mut();
        for (name, value) in [
            (WEBHOOK_ID, id),
            (WEBHOOK_TIMESTAMP, &now.to_string()),
            (WEBHOOK_SIGNATURE, &signature),
        ] {
            // Ids, numbers and base64 are visible ASCII.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        Ok(request)
    }
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
                bell: Arc::default(),
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
