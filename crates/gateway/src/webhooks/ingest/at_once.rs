//! Events that are delivered within the provider's request, whose answer is the
//! upstream's.

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

use super::receipt::{Receipt, acknowledged, told_at_once};
use super::same_bytes::Met;
use super::{Arriving, key_of};
use crate::request::Seen;
use crate::runtime::Runtime;
use crate::webhooks::delivery::sending::rules;

impl Runtime {
    /// Forwards events within the request, one after the other; the answer is
    /// the upstream's to the last, or to the first that it did not take.
    pub(super) async fn forward(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        events: &[Event],
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let ack = arriving.webhook.provider.acknowledgement();
        let mut last = acknowledged(&ack, &[]);
        for event in events {
            let key = key_of(event)?;
            let work = self.meet_and_run(arriving, sent, event, key.clone());
            let told = |ended: &ProtectedResponse| (ended.outcome, ended.id);
            let ended = self.follow(arriving, &key, seen, work, told).await;
            let ended = ended.inspect_err(|problem| {
                seen.outcome = Some(problem.code().as_str());
            })?;
            (seen.outcome, seen.id) = (Some(ended.outcome.as_str()), ended.id);
            last = told_at_once(ended, &ack)?;
            if !last.status().is_success() {
                break;
            }
        }
        Ok(last)
    }

    async fn meet_and_run(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<ProtectedResponse, Problem> {
        // Before its bytes are met: who has no place remembers nothing.
        let running = self.limiter().begin(arriving.caller.tenant());
        let running = running.map_err(|limit| self.limited(&arriving.caller, limit))?;
        let met = match self.meet(arriving, event).await? {
            Met::Before => {
                let ack = arriving.webhook.provider.acknowledgement();
                let receipt = Receipt::same_bytes();
                return Ok(ProtectedResponse {
                    outcome: receipt.outcome,
                    id: None,
                    response: Ok(acknowledged(&ack, &[receipt])),
                });
            }
            met => met,
        };
        let parcel = arriving.parcel(sent, event, &met);
        let carriage = self.carriage(arriving.plan, arriving.route, &parcel, &arriving.caller);
        let call = Call {
            caller: arriving.caller.clone(),
            endpoint: arriving.endpoint.clone(),
            key,
            source: KeySource::Provider,
            // The provider itself tries again, and does not wait for others.
            class: Arc::new(Class::clone(&arriving.class).with(|class| {
                class.in_flight = InFlight::Reject;
                class.max_attempts = 1;
            })),
            rules: rules(arriving.route, &arriving.class),
            held: Some(Box::new(running)),
            request: parcel.into_request(),
        };
        let forward = move |request, granted| {
            let carriage = carriage.clone();
            async move { carriage.send(request, granted).await }
        };
        let protection = self.protection().clone();
        self.outliving(async move {
            let ended = Box::pin(run(&protection, call, forward)).await;
            met.remember(is_on_record(ended.outcome)).await;
            ended
        })
        .await
    }
}

/// Whether what became of an event is kept, so that it does not run again by
/// itself.
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
