//! Carries queued events to their upstreams.
//!
//! One task takes what is due, as much as there is room for, and each delivery
//! is a task of the engine's own. However slow one upstream is, it holds no more
//! than its share: as many events again wait for a moment in case it is quick,
//! and what comes beyond that is put back, without counting as an attempt, for
//! about as long as those before it will take. So events for all others pass by.
//! Order is not promised.

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
    async fn at_upstream(&mut self, most: usize, limit: Duration) -> Result<(), Duration> {
        if self.turn == Turn::Soon {
            let freed = lock(&self.lanes)
                .lane(&self.upstream, self.since)
                .freed
                .clone();
            let waiting = async {
                loop {
                    let rung = freed.notified();
                    if lock(&self.lanes).advance(&self.upstream, most) {
                        return;
                    }
                    rung.await;
                }
            };
            let waited = tokio::time::timeout(limit, waiting).await;
            self.since = Instant::now();
            self.turn = match waited {
                Ok(()) => Turn::Now,
                Err(_) => lock(&self.lanes).give_up(&self.upstream, most, self.since),
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

    /// Takes a place in all, and one of the upstream's if it has one.
    fn enter(&mut self, upstream: &str, most: usize, now: Instant) -> Turn {
        self.under_way += 1;
        let lane = self.lane(upstream, now);
        if lane.under_way == 0 {
            // Nothing ended because nothing was under way.
            lane.ended = now;
        }
        if lane.under_way < most {
            lane.under_way += 1;
            Turn::Now
        } else if lane.waiting < most {
            lane.waiting += 1;
            Turn::Soon
        } else {
            lane.put_back(most, now)
        }
    }

    /// From waiting to being under way, if there is a place.
    fn advance(&mut self, upstream: &str, most: usize) -> bool {
        match self.by_upstream.get_mut(upstream) {
            Some(lane) if lane.under_way < most => {
                lane.waiting = lane.waiting.saturating_sub(1);
                lane.under_way += 1;
                true
            }
            _ => false,
        }
    }

    /// From waiting to being put back.
    fn give_up(&mut self, upstream: &str, most: usize, now: Instant) -> Turn {
        let lane = self.lane(upstream, now);
        lane.waiting = lane.waiting.saturating_sub(1);
        lane.put_back(most, now)
    }

    fn leave(&mut self, upstream: &str, turn: Turn, since: Instant, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
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
    fn put_back(&mut self, most: usize, now: Instant) -> Turn {
        // That an upstream has become slow is seen first by nothing ending there.
        let takes = self.takes.max(now.saturating_duration_since(self.ended));
        let pace = takes / u32::try_from(most.max(1)).unwrap_or(u32::MAX);
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
            let most = plan.config.webhooks.deliveries;
            let room = most.saturating_sub(lock(&self.lanes).under_way);
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
            let most = plan.config.webhooks.deliveries_per_upstream;
            // Well within the lease, which nobody renews before it is carried.
            let limit = WAIT_MAX.min(due.record.terms.lease / 4);
            match place.at_upstream(most, limit).await {
                Ok(()) => Box::pin(courier.deliver(&plan, (due, taken), parcel)).await,
                Err(rest) => drop(engine.take(&due).defer(rest).await),
            }
            drop(place);
        });
    }

    fn place(&self, plan: &Plan, upstream: &str) -> Place {
        let most = plan.config.webhooks.deliveries_per_upstream;
        let since = Instant::now();
        Place {
            turn: lock(&self.lanes).enter(upstream, most, since),
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

    #[test]
    fn an_upstream_has_its_share_and_leaves_the_rest_to_others() {
        let mut lanes = Lanes::default();
        let now = Instant::now();
        let turns: Vec<_> = (0..5).map(|_| lanes.enter("slow", 2, now)).collect();
        let later = Turn::Later(PUT_BACK_MIN);
        let want = [Turn::Now, Turn::Now, Turn::Soon, Turn::Soon, later];
        assert_eq!(turns, want);
        assert_eq!(lanes.enter("quick", 2, now), Turn::Now);
        assert!(!lanes.advance("slow", 2), "there is no place yet");
        lanes.leave("slow", Turn::Now, now, now);
        assert!(lanes.advance("slow", 2));
        assert_eq!(lanes.enter("slow", 2, now), Turn::Soon);
        assert_eq!(
            lanes.under_way, 6,
            "whatever its turn, it has a place in all"
        );
        lanes.leave("slow", later, now, now);
        assert_eq!(lanes.under_way, 5);
    }

    #[test]
    fn an_upstream_that_had_nothing_to_do_is_not_taken_for_a_slow_one() {
        let mut lanes = Lanes::default();
        let then = Instant::now();
        assert_eq!(lanes.enter("one", 1, then), Turn::Now);
        lanes.leave("one", Turn::Now, then, then + SHORT);
        let now = then + Duration::from_secs(3600);
        let turns = [1, 2, 3].map(|_| lanes.enter("one", 1, now));
        let later = Turn::Later(PUT_BACK_MIN);
        assert_eq!(turns, [Turn::Now, Turn::Soon, later]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_when_another_has_come_or_is_put_back() {
        for freed in [false, true] {
            let lanes = Arc::new(Mutex::new(Lanes::default()));
            let now = Instant::now();
            let first = lock(&lanes).enter("one", 1, now);
            let turn = lock(&lanes).enter("one", 1, now);
            assert_eq!((first, turn), (Turn::Now, Turn::Soon));
            let mut place = Place {
                bell: Arc::default(),
                lanes: lanes.clone(),
                upstream: "one".to_owned(),
                turn,
                since: now,
            };
            let waiting = tokio::spawn(async move { place.at_upstream(1, WAIT_MAX).await });
            tokio::time::sleep(WAIT_MAX / 2).await;
            if freed {
                lock(&lanes).leave("one", Turn::Now, now, Instant::now());
            }
            assert_eq!(waiting.await.expect("no panic").is_ok(), freed);
            assert_eq!(lock(&lanes).lane("one", now).waiting, 0);
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
            let turn = match lanes.enter("one", 10, now) {
                Turn::Soon => lanes.give_up("one", 10, now),
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
