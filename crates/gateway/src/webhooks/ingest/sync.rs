//! `deliver = "sync"`: events are forwarded within the provider's request, and
//! the upstream's answer is the answer.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use onceward_core::class::{Class, InFlight};
use onceward_core::key::Key;
use onceward_http::body::Body;
use onceward_http::problem::Problem;
use onceward_http::rules::KeySource;
use onceward_http::run::{Call, Outcome, ProtectedResponse, run};
use onceward_webhooks::Event;

use super::acknowledgement::{EventResult, acknowledged, answer_of_sync};
use super::same_bytes::SameBytesCheck;
use super::{IngestContext, key_of};
use crate::request::Seen;
use crate::runtime::Runtime;
use crate::webhooks::delivery::forwarder::rules;

impl Runtime {
    /// Forwards events one after the other. Returns the upstream's answer to the
    /// last, or to the first that it did not accept.
    pub(super) async fn forward(
        &self,
        context: &IngestContext<'_>,
        sent: (&Parts, &Bytes),
        events: &[Event],
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let ack = context.webhook.provider.acknowledgement();
        let mut last = acknowledged(&ack, &[]);
        for event in events {
            let key = key_of(event)?;
            let work = self.check_and_run(context, sent, event, key.clone());
            let outcome_of = |ended: &ProtectedResponse| (ended.outcome, ended.id);
            let ended = self
                .count_and_log(context, &key, seen, work, outcome_of)
                .await;
            let ended = ended.inspect_err(|problem| {
                seen.outcome = Some(problem.code().as_str());
            })?;
            (seen.outcome, seen.id) = (Some(ended.outcome.as_str()), ended.id);
            last = answer_of_sync(ended, &ack)?;
            if !last.status().is_success() {
                break;
            }
        }
        Ok(last)
    }

    async fn check_and_run(
        &self,
        context: &IngestContext<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<ProtectedResponse, Problem> {
        // Before the bytes are checked: a refused event remembers nothing.
        let running = self.limiter().begin(context.caller.tenant());
        let running = running.map_err(|limit| self.limited(&context.caller, limit))?;
        let check = match self.check_same_bytes(context, event).await? {
            SameBytesCheck::Refused => {
                let ack = context.webhook.provider.acknowledgement();
                let result = EventResult::same_bytes();
                return Ok(ProtectedResponse {
                    outcome: result.outcome,
                    id: None,
                    response: Ok(acknowledged(&ack, &[result])),
                });
            }
            check => check,
        };
        let event = context.queued_event(sent, event, &check);
        let forwarder = self.event_forwarder(context.plan, context.route, &event, &context.caller);
        let call = Call {
            caller: context.caller.clone(),
            endpoint: context.endpoint.clone(),
            key,
            source: KeySource::Provider,
            // The provider itself retries, and does not wait for a duplicate.
            class: Arc::new(Class::clone(&context.class).with(|class| {
                class.in_flight = InFlight::Reject;
                class.max_attempts = 1;
            })),
            rules: rules(context.route, &context.class),
            held: Some(Box::new(running)),
            request: event.into_request(),
        };
        let forward = move |request, granted| {
            let forwarder = forwarder.clone();
            async move { forwarder.send(request, granted).await }
        };
        let protection = self.protection().clone();
        self.run_detached(async move {
            let ended = Box::pin(run(&protection, call, forward)).await;
            check.remember(is_on_record(ended.outcome)).await;
            ended
        })
        .await
    }
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
