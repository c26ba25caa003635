//! The courier: delivers queued events to their upstreams.
//!
//! One task takes events that are due from the queue, as many as there is
//! capacity for; each delivery is a task of the engine. An event whose upstream
//! has no free slot returns to the queue, without counting as an attempt. Order
//! is not promised.
//!
//! Each attempt uses the webhook's current destination, so that a corrected path
//! reaches events that are already queued. If the webhook was deleted or cannot be
//! served, the event goes to its recorded destination.

pub(crate) mod forwarder;
mod lanes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward_core::class::Class;
use onceward_core::clock::Clock;
use onceward_core::store::Due;
use onceward_http::delivery::{DeliveryOutcome, DeliveryReport, deliver};
use onceward_http::rules::{Credentials, Rules};
use onceward_http::run::Unanswered;
use onceward_http::span::operation_span;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use self::forwarder::{EventForwarder, rules};
use self::lanes::{DeliveryLimits, LaneSlot, Lanes, WAIT_MAX, lock};
use crate::runtime::Runtime;
use crate::runtime::plan::Plan;
use crate::webhooks::queued_event::QueuedEvent;
use crate::webhooks::registry::webhook_id_of;

/// How many events are taken from the queue in one step.
const TAKEN_MAX: usize = 64;
/// The longest pause between two reads of the queue: another gateway may have
/// queued an event, or may have stopped while it held one.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// The shortest, when an event is due soon.
const IDLE_MIN: Duration = Duration::from_millis(5);
/// The pause after the store failed.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Delivers queued events.
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

    /// Delivers events until `stop` is cancelled. A panic does not end it.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while let Err(error) = tokio::spawn(self.clone().work(stop.clone())).await {
            tracing::error!(%error, "courier task panicked; restarting it");
            tokio::time::sleep(STORE_RETRY).await;
        }
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let idle = self.take_due(&stop).await;
            self.log_untracked();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.runtime.courier_wakeup().notified() => {}
                () = tokio::time::sleep(idle) => {}
            }
        }
    }

    /// Starts the delivery of every due event, up to the capacity, and returns how
    /// long to wait before the next read. A taken event is always delivered or put
    /// back: until its lease ends, no other gateway would take it.
    async fn take_due(self: &Arc<Self>, stop: &CancellationToken) -> Duration {
        while !stop.is_cancelled() {
            let plan = self.runtime.plan();
            let capacity = lock(&self.lanes).capacity(DeliveryLimits::of(&plan));
            if capacity == 0 {
                return IDLE_MAX;
            }
            let taken = Instant::now();
            let due = match self.runtime.take_due(capacity.min(TAKEN_MAX)).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(%error, "queued events not read: store unavailable");
                    return STORE_RETRY;
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
            // This clock may be ahead of the store's.
            Ok(Some(next)) => next.since(self.clock.now()).clamp(IDLE_MIN, IDLE_MAX),
            Ok(None) => IDLE_MAX,
            Err(error) => {
                tracing::warn!(%error, "queue not read: store unavailable");
                STORE_RETRY
            }
        }
    }

    /// Starts the delivery of an event in a separate task.
    fn dispatch(self: &Arc<Self>, plan: &Arc<Plan>, due: Due, taken: Instant) {
        let engine = self.runtime.engine().clone();
        let span = operation_span(due.grant.id, due.grant.fence, &due.record.identity);
        let event = match QueuedEvent::from_bytes(due.request.clone()) {
            Ok(event) => self.redirected(plan, &due, event),
            Err(error) => {
                span.in_scope(|| tracing::error!(%error, "queued event cannot be read; paused"));
                let taker = engine.clone();
                let pausing = async move {
                    taker.take(&due).pause().await;
                };
                engine.spawn(pausing.instrument(span));
                return;
            }
        };
        let (limits, courier_wakeup) = (DeliveryLimits::of(plan), self.runtime.courier_wakeup());
        let mut slot = LaneSlot::enter(&self.lanes, &event.upstream, limits, courier_wakeup);
        let (courier, plan) = (self.clone(), plan.clone());
        let delivery = async move {
            // Well within the lease, which is not renewed before the attempt.
            let limit = WAIT_MAX.min(due.record.terms.lease / 4);
            match slot.wait(limits, limit).await {
                Ok(()) => Box::pin(courier.deliver(&plan, (due, taken), event)).await,
                Err(after) => drop(courier.runtime.engine().take(&due).defer(after).await),
            }
            drop(slot);
        };
        engine.spawn(delivery.instrument(span));
    }

    /// The event with the current destination of its webhook.
    fn redirected(&self, plan: &Plan, due: &Due, event: QueuedEvent) -> QueuedEvent {
        let webhook_id = webhook_id_of(&due.record.identity.endpoint);
        let webhooks = self.runtime.webhooks();
        match webhook_id.and_then(|id| webhooks.destination(&plan.config, id)) {
            Some((upstream, path)) => QueuedEvent {
                upstream: upstream.to_string(),
                path,
                ..event
            },
            None => event,
        }
    }

    /// Makes one attempt to deliver an event.
    async fn deliver(&self, plan: &Arc<Plan>, (due, taken): (Due, Instant), event: QueuedEvent) {
        let runtime = &self.runtime;
        let record = due.record.clone();
        let class = runtime.classes().get(&record.terms.class);
        let class = class.unwrap_or_else(|| Arc::new(Class::webhook()));
        let upstream = event.upstream.clone();
        let route = plan.event_routes.get(&*upstream);
        let caller = &record.identity.caller;
        let forwarder =
            route.map(|route| EventForwarder::new(runtime, plan, route, &event, caller));
        let rules = match route {
            Some(route) => rules(route, &class),
            None => Arc::new(Rules::new(Credentials::Trusted)),
        };
        let attempts = record.attempts;
        let forward = |request, granted| {
            let forwarder = forwarder.clone();
            async move {
                match forwarder {
                    Some(forwarder) => forwarder.on_attempt(attempts).send(request, granted).await,
                    None => Err(Unanswered::NotSent(Box::new(NoUpstream))),
                }
            }
        };
        let report = deliver(
            runtime.protection(),
            (due, taken),
            (class, rules),
            event.into_request(),
            forward,
        );
        // Boxed: the future of an attempt is large.
        let report = Box::pin(report).await;
        runtime.count_delivery(&upstream, record.id, report.outcome);
        self.log(webhook_id_of(&record.identity.endpoint), &upstream, &report);
    }

    /// Logs how many warnings about attempts were suppressed because too many
    /// webhooks failed within a minute.
    fn log_untracked(&self) {
        if let Some(suppressed) = self
            .runtime
            .delivery_warnings()
            .take_untracked(self.clock.now())
        {
            tracing::warn!(suppressed, "events of further webhooks not delivered");
        }
    }

    /// Logs an attempt: every one that was not answered 2xx is a warning, at
    /// most one per webhook and status a minute.
    fn log(&self, webhook_id: Option<&str>, upstream: &str, report: &DeliveryReport) {
        let DeliveryReport {
            outcome,
            attempts,
            status,
            error,
            retry_after,
        } = report;
        if *outcome == DeliveryOutcome::Completed {
            tracing::debug!(webhook_id, upstream, attempts, status, "event delivered");
            return;
        }
        if status.is_none() && error.is_none() {
            // No attempt was made.
            return;
        }
        let now = self.clock.now();
        let warnings = self.runtime.delivery_warnings();
        let Some(suppressed) = warnings.allow(webhook_id.unwrap_or_default(), *status, now) else {
            return;
        };
        let next_attempt = retry_after.map(|after| now.plus(after).to_string());
        tracing::warn!(
            webhook_id,
            upstream,
            attempts,
            status,
            error,
            outcome = outcome.as_str(),
            next_attempt,
            suppressed,
            "{}",
            message(*outcome)
        );
    }
}

fn message(outcome: DeliveryOutcome) -> &'static str {
    match outcome {
        DeliveryOutcome::Requeued => "event not delivered; retrying",
        DeliveryOutcome::Failed => "event failed for good: its upstream answered permanent",
        DeliveryOutcome::Paused => "event not delivered; paused after its last attempt",
        DeliveryOutcome::Killed => "event not delivered; dropped after its last attempt",
        DeliveryOutcome::Unknown => "event may have been delivered; outcome unknown",
        _ => "delivery not recorded",
    }
}

/// The upstream of an event is no longer configured.
#[derive(Debug, thiserror::Error)]
#[error("the event's upstream is not configured")]
struct NoUpstream;
