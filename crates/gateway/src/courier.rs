//! Carries queued events to their upstreams.
//!
//! One task takes what is due, as much as there is room for, and each delivery
//! is a task of the engine's own. However slow one upstream is, it holds no more
//! than its share: what comes for it beyond that is put back, without counting
//! as an attempt, for longer the more there is of it. So events for all others
//! pass by. Order is not promised.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::clock::Clock;
use onceward_core::store::Due;
use onceward_http::body::{Body, BoxError};
use onceward_http::delivery::deliver;
use onceward_http::rules::{Credentials, Rules};
use onceward_http::run::{Granted, Unanswered};
use onceward_webhooks::sign;
use tokio_util::sync::CancellationToken;

use crate::callers::WallClock;
use crate::forward::Passage;
use crate::parcel::Parcel;
use crate::pipeline::Pipeline;
use crate::plan::{Plan, Planned};
use crate::webhooks::Webhooks;

/// How many events are taken in one step.
const TAKEN_MAX: usize = 64;
/// How long the courier rests at most: others may have queued something, or
/// have died with something in their hands.
const REST_MAX: Duration = Duration::from_secs(1);
/// How long the courier rests when the store does not answer.
const REST_AWAY: Duration = Duration::from_secs(1);
/// How long an event is put back at most whose upstream has no place.
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
    by_upstream: HashMap<String, Lane>,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    under_way: usize,
    /// About how many were put back and have not come again.
    put_back: usize,
}

/// Whether an upstream takes one more now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    /// Not before this long.
    Later(Duration),
}

/// A place among what is under way; free again when dropped.
struct Place {
    pipeline: Arc<Pipeline>,
    lanes: Arc<Mutex<Lanes>>,
    upstream: String,
    turn: Turn,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.lanes).leave(&self.upstream, self.turn);
        self.pipeline.bell.notify_one();
    }
}

impl Lanes {
    /// Takes a place in all, and one of the upstream's if it has one. Else the
    /// event is to be put back: for about as long as those before it will take.
    fn enter(&mut self, upstream: &str, most: usize) -> Turn {
        self.under_way += 1;
        let lane = self.by_upstream.entry(upstream.to_owned()).or_default();
        if lane.under_way < most {
            lane.under_way += 1;
            return Turn::Now;
        }
        lane.put_back += 1;
        let turns = (lane.put_back / most.max(1)) as u64 + 1;
        Turn::Later(Duration::from_secs(turns).min(PUT_BACK_MAX))
    }

    fn leave(&mut self, upstream: &str, turn: Turn) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(lane) = self.by_upstream.get_mut(upstream) else {
            return;
        };
        if turn == Turn::Now {
            lane.under_way = lane.under_way.saturating_sub(1);
            lane.put_back = lane.put_back.saturating_sub(1);
        }
        if lane.under_way == 0 && lane.put_back == 0 {
            self.by_upstream.remove(upstream);
        }
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

    /// Takes and carries until told to stop. What was taken is always carried:
    /// nobody else would before its lease is over.
    pub(crate) async fn carry(self: Arc<Self>, stop: CancellationToken) {
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
                self.dispatch(&plan, due);
            }
        }
        Duration::ZERO
    }

    async fn until_next(&self) -> Duration {
        match self.pipeline.queue.next_due().await {
            Ok(Some(next)) => next.since(self.clock.now()).min(REST_MAX),
            Ok(None) => REST_MAX,
            Err(error) => {
                tracing::warn!(%error, "when something is due cannot be told");
                REST_AWAY
            }
        }
    }

    fn dispatch(self: &Arc<Self>, plan: &Arc<Plan>, due: Due) {
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
        let place = self.place(plan, &parcel.upstream);
        let (courier, plan) = (self.clone(), plan.clone());
        engine.clone().spawn(async move {
            match place.turn {
                Turn::Now => Box::pin(courier.deliver(&plan, due, parcel)).await,
                Turn::Later(rest) => drop(engine.take(&due).defer(rest).await),
            }
            drop(place);
        });
    }

    fn place(&self, plan: &Plan, upstream: &str) -> Place {
        let most = plan.config.webhooks.deliveries_per_upstream;
        Place {
            turn: lock(&self.lanes).enter(upstream, most),
            pipeline: self.pipeline.clone(),
            lanes: self.lanes.clone(),
            upstream: upstream.to_owned(),
        }
    }

    async fn deliver(&self, plan: &Arc<Plan>, due: Due, parcel: Parcel) {
        let pipeline = &self.pipeline;
        let class = pipeline.classes.get(&due.record.terms.class);
        let class = class.unwrap_or_else(|| Arc::new(Class::webhook()));
        let upstream = parcel.upstream.clone();
        let route = plan.event_routes.get(&*upstream);
        let carriage = route.map(|route| pipeline.carriage(plan, route, &parcel));
        let rules = match route {
            Some(route) => route.rules.clone(),
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
        let delivered = deliver(&pipeline.protection, due, (class, rules), request, forward);
        let delivered = delivered.await;
        pipeline.metrics.delivered(&upstream, delivered);
    }
}

/// The upstream of an event is no longer configured.
#[derive(Debug, thiserror::Error)]
#[error("the event's upstream is not configured")]
struct NoUpstream;

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
    ) -> Carriage {
        Carriage {
            webhooks: self.webhooks.clone(),
            clock: self.clock.clone(),
            plan: plan.clone(),
            passage: passage(parcel, route, &Caller::local()),
        }
    }
}

/// The way of a request that has no grant.
pub(crate) fn passage(parcel: &Parcel, route: &Arc<Planned>, caller: &Caller) -> Passage {
    Passage {
        peer: parcel.peer.clone(),
        route: route.clone(),
        caller: caller.clone(),
        by: None,
        key: None,
        attempt: 1,
        link: None,
    }
}

impl Carriage {
    fn on_attempt(mut self, attempt: u32) -> Self {
        self.passage.attempt = attempt;
        self
    }

    /// Sends an event once, signed by us: what the provider signed with a time
    /// has gone stale when it is sent again.
    pub(crate) async fn send(
        self,
        mut request: Request<Bytes>,
        granted: Option<Granted>,
    ) -> Result<Response<Body>, Unanswered> {
        let not_sent = |error: BoxError| Unanswered::NotSent(error);
        if let Some(granted) = &granted {
            let upstream = &self.passage.route.route.upstream;
            let config = &self.plan.config;
            let key = self.webhooks.signing_key(config, upstream).await;
            let key = key.map_err(|error| not_sent(Box::new(error)))?;
            let now = (self.clock.now().unix_ms() / 1000).cast_signed();
            let id = granted.id.to_string();
            let signature = sign(&key, &id, now, request.body());
            let headers = request.headers_mut();
            for (name, value) in [
                (WEBHOOK_ID, id),
                (WEBHOOK_TIMESTAMP, now.to_string()),
                (WEBHOOK_SIGNATURE, signature),
            ] {
                let value = HeaderValue::try_from(value);
                headers.insert(name, value.map_err(|error| not_sent(Box::new(error)))?);
            }
        }
        let forwarder = &self.passage.route.forwarder;
        forwarder.protected(request, granted, &self.passage).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(seconds: u64) -> Turn {
        Turn::Later(Duration::from_secs(seconds))
    }

    #[test]
    fn an_upstream_has_its_share_and_leaves_the_rest_to_others() {
        let mut lanes = Lanes::default();
        for _ in 0..2 {
            assert_eq!(lanes.enter("slow", 2), Turn::Now);
        }
        assert_eq!(lanes.enter("slow", 2), later(1));
        assert_eq!(lanes.enter("quick", 2), Turn::Now);
        lanes.leave("slow", Turn::Now);
        assert_eq!(lanes.enter("slow", 2), Turn::Now);
        assert_eq!(lanes.under_way, 4, "what is put back has a place in all");
        lanes.leave("slow", later(1));
        assert_eq!(lanes.under_way, 3);
    }

    #[test]
    fn the_more_wait_the_longer_they_are_put_back() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.enter("slow", 1), Turn::Now);
        let rests: Vec<_> = (0..100)
            .map(|_| match lanes.enter("slow", 1) {
                Turn::Now => Duration::ZERO,
                Turn::Later(rest) => rest,
            })
            .collect();
        assert!(rests.is_sorted());
        assert_eq!(rests.first(), Some(&Duration::from_secs(2)));
        assert_eq!(rests.last(), Some(&PUT_BACK_MAX));
    }

    #[test]
    fn nothing_is_kept_of_an_upstream_that_is_done() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.enter("one", 1), Turn::Now);
        let put_back = lanes.enter("one", 1);
        lanes.leave("one", put_back);
        assert_eq!(lanes.by_upstream.len(), 1);
        lanes.leave("one", Turn::Now);
        assert!(lanes.by_upstream.is_empty());
        assert_eq!(lanes.under_way, 0);
    }
}
