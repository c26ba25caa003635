//! Carries queued events to their upstreams.
//!
//! One task takes what is due, as much as there is room for, and each delivery
//! is a task of the engine's own. What has no place at its upstream is put back,
//! without counting as an attempt. Order is not promised.

mod lanes;
pub(crate) mod sending;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward_core::class::Class;
use onceward_core::clock::Clock;
use onceward_core::store::Due;
use onceward_http::delivery::deliver;
use onceward_http::rules::{Credentials, Rules};
use onceward_http::run::Unanswered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::lanes::{Bounds, Lanes, Place, WAIT_MAX, lock};
use crate::runtime::Runtime;
use crate::runtime::plan::Plan;
use crate::webhooks::delivery::sending::rules;
use crate::webhooks::event::Parcel;

/// How many events are taken in one step.
const TAKEN_MAX: usize = 64;
/// How long the courier rests at most: others may have queued something, or
/// have died with something in their hands.
const REST_MAX: Duration = Duration::from_secs(1);
/// How long at least, where something is due soon.
const REST_MIN: Duration = Duration::from_millis(5);
/// How long the courier rests when the store does not answer.
const REST_AWAY: Duration = Duration::from_secs(1);

/// Carries events.
pub(crate) struct Courier {
    runtime: Arc<Runtime>,
    clock: Arc<dyn Clock>,
    lanes: Arc<Mutex<Lanes>>,
}

impl Courier {
    pub(crate) fn new(runtime: Arc<Runtime>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            runtime,
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
                () = self.runtime.courier_wakeup().notified() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Takes what is due and tells how long there is nothing to do.
    async fn take(self: &Arc<Self>, stop: &CancellationToken) -> Duration {
        while !stop.is_cancelled() {
            let plan = self.runtime.plan();
            let room = lock(&self.lanes).room(Bounds::of(&plan));
            if room == 0 {
                return REST_MAX;
            }
            let taken = Instant::now();
            let due = match self.runtime.take_due(room.min(TAKEN_MAX)).await {
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
        match self.runtime.next_due().await {
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
        let engine = self.runtime.engine().clone();
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
        let (bounds, courier_wakeup) = (Bounds::of(plan), self.runtime.courier_wakeup());
        let mut place = Place::enter(&self.lanes, &parcel.upstream, bounds, courier_wakeup);
        let (courier, plan) = (self.clone(), plan.clone());
        engine.clone().spawn(async move {
            // Well within the lease, which nobody renews before it is carried.
            let limit = WAIT_MAX.min(due.record.terms.lease / 4);
            match place.at_upstream(bounds, limit).await {
                Ok(()) => Box::pin(courier.deliver(&plan, (due, taken), parcel)).await,
                Err(rest) => drop(engine.take(&due).defer(rest).await),
            }
            drop(place);
        });
    }

    async fn deliver(&self, plan: &Arc<Plan>, (due, taken): (Due, Instant), parcel: Parcel) {
        let runtime = &self.runtime;
        let class = runtime.classes().get(&due.record.terms.class);
        let class = class.unwrap_or_else(|| Arc::new(Class::webhook()));
        let upstream = parcel.upstream.clone();
        let route = plan.event_routes.get(&*upstream);
        let caller = &due.record.identity.caller;
        let carriage = route.map(|route| runtime.carriage(plan, route, &parcel, caller));
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
            runtime.protection(),
            (due, taken),
            (class, rules),
            request,
            forward,
        );
        let delivered = delivered.await;
        runtime.count_delivery(&upstream, delivered);
    }
}

/// The upstream of an event is no longer configured.
#[derive(Debug, thiserror::Error)]
#[error("the event's upstream is not configured")]
struct NoUpstream;
