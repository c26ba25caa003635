//! `deliver = "async"`: events are recorded with their requests, acknowledged,
//! and delivered by the courier.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use http::request::Parts;
use onceward_core::class::Class;
use onceward_core::identity::Identity;
use onceward_core::key::Key;
use onceward_core::store::{Claim, Enqueued, Queue};
use onceward_http::body::Body;
use onceward_http::problem::Problem;
use onceward_http::run::{Protection, Reconciled, key_only_fingerprint, store_unavailable};
use onceward_webhooks::Event;

use super::acknowledgement::{EventResult, acknowledged};
use super::same_bytes::SameBytesCheck;
use super::{IngestContext, key_of};
use crate::request::Seen;
use crate::runtime::Runtime;

/// How many events of one request are recorded concurrently.
const CONCURRENT_MAX: usize = 16;

impl Runtime {
    /// Records all events of a request, then acknowledges them.
    pub(super) async fn enqueue(
        &self,
        context: &IngestContext<'_>,
        sent: (&Parts, &Bytes),
        events: &[Event],
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let mut results = Vec::with_capacity(events.len());
        for chunk in events.chunks(CONCURRENT_MAX) {
            let receiving = chunk
                .iter()
                .map(|event| self.receive(context, sent, event, seen));
            results.extend(join_all(receiving).await);
        }
        self.courier_wakeup().notify_one();
        // The provider resends the request if any event was not recorded; those
        // that were are duplicates then.
        let results = results.into_iter().collect::<Result<Vec<_>, _>>();
        let results = results.inspect_err(|problem| {
            seen.outcome = Some(problem.code().as_str());
        })?;
        if let Some(first) = results.first() {
            (seen.outcome, seen.id) = (Some(first.outcome.as_str()), first.id);
        }
        let ack = context.webhook.provider.acknowledgement();
        Ok(acknowledged(&ack, &results))
    }

    /// Records one event, or finds what became of it.
    async fn receive(
        &self,
        context: &IngestContext<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        seen: &Seen,
    ) -> Result<EventResult, Problem> {
        let key = key_of(event)?;
        let work = self.check_and_record(context, sent, event, key.clone());
        let outcome_of = |result: &EventResult| (result.outcome, result.id);
        self.count_and_log(context, &key, seen, work, outcome_of)
            .await
    }

    async fn check_and_record(
        &self,
        context: &IngestContext<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<EventResult, Problem> {
        let check = match self.check_same_bytes(context, event).await? {
            SameBytesCheck::Refused => return Ok(EventResult::same_bytes()),
            check => check,
        };
        let identity = context.identity(key);
        identity.check_name().map_err(Problem::invalid_key)?;
        let recording = Recording {
            protection: self.protection().clone(),
            queue: self.queue().clone(),
            class: context.class.clone(),
            identity,
            request: context.queued_event(sent, event, &check).to_bytes(),
        };
        let same_bytes = matches!(check, SameBytesCheck::Repeated);
        let remembers = matches!(check, SameBytesCheck::New(Some(_)));
        let record = async move {
            let recorded = recording.record().await;
            check.remember(recorded.is_ok()).await;
            recorded
        };
        let mut result = match remembers {
            true => self.run_detached(record).await??,
            false => record.await?,
        };
        result.same_bytes = same_bytes;
        Ok(result)
    }
}

/// An event to be recorded with its request.
struct Recording {
    protection: Arc<Protection>,
    queue: Arc<dyn Queue>,
    class: Arc<Class>,
    identity: Identity,
    request: Bytes,
}

impl Recording {
    async fn record(&self) -> Result<EventResult, Problem> {
        onceward_core::crash_point!("before-enqueue");
        let mut enqueued = self.enqueue().await?;
        onceward_core::crash_point!("after-enqueue");
        if let Enqueued::Known(Claim::Unknown(record)) = &enqueued
            && self.protection.reconcile(record, &self.class).await == Reconciled::Settled
        {
            enqueued = self.enqueue().await?;
        }
        Ok(EventResult::of(&enqueued))
    }

    async fn enqueue(&self) -> Result<Enqueued, Problem> {
        let (identity, request) = (self.identity.clone(), self.request.clone());
        let (engine, terms) = (&self.protection.engine, self.class.terms());
        let enqueued = engine.enqueue(
            &*self.queue,
            identity,
            key_only_fingerprint(),
            terms,
            request,
        );
        enqueued.await.map_err(|error| store_unavailable(&error))
    }
}
