//! `deliver = "sync"`: events are forwarded within the provider's request, and
//! the upstream's answer is the answer.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use onceward_core::class::{Class, InFlight};
use onceward_core::key::Key;
use onceward_core::record::State;
use onceward_http::problem::Code;
use onceward_http::rules::KeySource;
use onceward_http::run::{Call, Outcome, ProtectedResponse, run};
use onceward_webhooks::Event;

use super::acknowledgement::{EventResult, acknowledged, answer_of_sync};
use super::same_bytes::SameBytesCheck;
use super::{IngestContext, Ingested, key_of};
use crate::callers::WallClock;
use crate::observe::metrics::Metrics;
use crate::observe::report::Refused;
use crate::request::admit::refuse_over_limit;
use crate::runtime::Runtime;
use crate::webhooks::delivery::forwarder::{EventForwarder, rules};
use crate::webhooks::registry::Webhook;
use crate::webhooks::warnings::WarningLimiter;

impl IngestContext<'_> {
    /// Forwards events one after the other. Returns the answer to the first that
    /// was not accepted, else to the last. One event does not hold back those
    /// behind it, unless the reason concerns them all.
    pub(super) async fn forward(&self, sent: (&Parts, &Bytes), events: &[Event]) -> Ingested {
        let ack = self.webhook.provider.acknowledgement();
        let mut last = Ingested {
            outcome: None,
            id: None,
            response: Ok(acknowledged(&ack, &[])),
        };
        let mut not_accepted = None;
        for event in events {
            let ingested = self.forward_one(sent, event).await;
            match &ingested.response {
                Ok(response) if response.status().is_success() => last = ingested,
                Err(refused) if concerns_all_events(refused.code()) => {
                    return not_accepted.unwrap_or(ingested);
                }
                Ok(_) | Err(_) => _ = not_accepted.get_or_insert(ingested),
            }
        }
        not_accepted.unwrap_or(last)
    }

    async fn forward_one(&self, sent: (&Parts, &Bytes), event: &Event) -> Ingested {
        let key = match key_of(event) {
            Ok(key) => key,
            Err(problem) => {
                return Ingested {
                    outcome: None,
                    id: None,
                    response: Err(problem.into()),
                };
            }
        };
        let work = self.check_and_run(sent, event, key.clone());
        let outcome_of = |ended: &ProtectedResponse| (ended.outcome, ended.id);
        match self.count_and_log(&key, work, outcome_of).await {
            Ok(ended) => {
                let ack = self.webhook.provider.acknowledgement();
                Ingested {
                    outcome: Some(ended.outcome.as_str()),
                    id: ended.id,
                    response: answer_of_sync(ended, &ack).map_err(Refused::from),
                }
            }
            Err(refused) => Ingested {
                outcome: Some(refused.code().as_str()),
                id: None,
                response: Err(refused),
            },
        }
    }

    async fn check_and_run(
        &self,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<ProtectedResponse, Refused> {
        // Before the bytes are checked: a refused event remembers nothing.
        let running = self.runtime.limiter().begin(self.caller.tenant());
        let running = running.map_err(|limit| refuse_over_limit(&self.caller, limit))?;
        let check = match self.check_same_bytes(event).await? {
            SameBytesCheck::Refused => {
                let ack = self.webhook.provider.acknowledgement();
                let result = EventResult::same_bytes();
                return Ok(ProtectedResponse {
                    outcome: result.outcome,
                    id: None,
                    response: Ok(acknowledged(&ack, &[result])),
                });
            }
            check => check,
        };
        let event = self.queued_event(sent, event, &check);
        let forwarder =
            EventForwarder::new(self.runtime, self.plan, self.route, &event, &self.caller);
        // The provider itself retries, and does not wait for a duplicate.
        let class = Class::clone(&self.class).with(|class| {
            class.in_flight = InFlight::Reject;
            class.max_attempts = 1;
        });
        let settings = (Arc::new(class), rules(self.route, &self.class));
        let sender = (self.caller.clone(), self.endpoint.clone());
        let call = Call::new(sender, key, settings, event.into_request())
            .with_source(KeySource::Provider)
            .holding(running);
        let forward = move |request, granted| {
            let forwarder = forwarder.clone();
            async move { forwarder.send(request, granted).await }
        };
        let protection = self.runtime.protection().clone();
        let observer = SyncObserver::of(self.runtime, self.webhook);
        let ended = self.run_detached(async move {
            let ended = Box::pin(run(&protection, call, forward)).await;
            observer.note(&ended);
            check.remember(is_on_record(ended.outcome)).await;
            ended
        });
        Ok(ended.await?)
    }
}

/// Counts and logs events that were not accepted. It belongs to the detached work,
/// because the provider may have hung up.
struct SyncObserver {
    metrics: Arc<Metrics>,
    warnings: Arc<WarningLimiter>,
    clock: WallClock,
    webhook_id: Arc<str>,
    upstream: Arc<str>,
}

impl SyncObserver {
    fn of(runtime: &Runtime, webhook: &Webhook) -> Self {
        Self {
            metrics: runtime.metrics().clone(),
            warnings: runtime.delivery_warnings().clone(),
            clock: runtime.clock().clone(),
            webhook_id: webhook.id.clone(),
            upstream: webhook.upstream.clone(),
        }
    }

    /// Counts an event that failed for good, and warns of one that was forwarded now
    /// and not answered 2xx, at most once per webhook and status a minute.
    fn note(&self, ended: &ProtectedResponse) {
        if let (Outcome::Ran(State::Failed), Some(id)) = (ended.outcome, ended.id) {
            self.metrics.event_failed(id);
        }
        let status = ended.response.as_ref().ok().map(Response::status);
        let accepted = status.is_some_and(|status| status.is_success());
        let Some(message) = warning_of(ended.outcome).filter(|_| !accepted) else {
            return;
        };
        let status = status.map(|status| status.as_u16());
        let now = self.clock.now();
        let Some(suppressed) = self.warnings.allow(&self.webhook_id, status, now) else {
            return;
        };
        tracing::warn!(
            webhook_id = &*self.webhook_id,
            upstream = &*self.upstream,
            operation_id = ended.id.map(tracing::field::display),
            status,
            outcome = ended.outcome.as_str(),
            suppressed,
            "{message}"
        );
    }
}

/// The warning about an event that was forwarded and not accepted; none if it was not
/// forwarded within this request.
fn warning_of(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Released | Outcome::NotSent => {
            Some("event not delivered; the provider must resend it")
        }
        Outcome::Lost | Outcome::NotRecorded => {
            Some("event may have been delivered; outcome unknown")
        }
        Outcome::Ran(_) | Outcome::RanNotKept => Some("event failed for good"),
        Outcome::Bypassed => Some("event not delivered, and not recorded"),
        _ => None,
    }
}

/// Whether the next event of the batch would be refused as well.
fn concerns_all_events(code: Code) -> bool {
    matches!(
        code,
        Code::StoreUnavailable | Code::UpstreamUnreachable | Code::TooManyRequests
    )
}

/// Whether the event's outcome is on record, so that a duplicate does not run.
fn is_on_record(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Ran(_)
            | Outcome::RanNotKept
            | Outcome::Replayed(_)
            | Outcome::NotRecorded
            | Outcome::Lost
    )
}
