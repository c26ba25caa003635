//! `deliver = "async"`: events are recorded with their requests, acknowledged,
//! and delivered by the courier.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use http::request::Parts;
use onceward_core::class::Class;
use onceward_core::identity::Identity;
use onceward_core::key::Key;
use onceward_core::store::{Claim, Enqueued, Queue};
use onceward_http::problem::Problem;
use onceward_http::run::{Protection, Reconciled, key_only_fingerprint, store_unavailable};
use onceward_webhooks::Event;

use super::acknowledgement::{EventResult, acknowledged};
use super::same_bytes::SameBytesCheck;
use super::{IngestContext, Ingested, key_of};
use crate::observe::report::Refused;

/// How many events of one request are recorded concurrently.
const CONCURRENT_MAX: usize = 16;

impl IngestContext<'_> {
    /// Records all events of a request, then acknowledges them.
    pub(super) async fn enqueue(&self, sent: (&Parts, &Bytes), events: &[Event]) -> Ingested {
        let mut results = Vec::with_capacity(events.len());
        for chunk in events.chunks(CONCURRENT_MAX) {
            let receiving = chunk.iter().map(|event| self.receive(sent, event));
            results.extend(join_all(receiving).await);
        }
        self.runtime.courier_wakeup().notify_one();
        // The provider resends the request if any event was not recorded; those
        // that were are duplicates then.
        match results.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(results) => {
                let ack = self.webhook.provider.acknowledgement();
                let first = results.first();
                Ingested {
                    outcome: first.map(|first| first.outcome.as_str()),
                    id: first.and_then(|first| first.id),
                    response: Ok(acknowledged(&ack, &results)),
                }
            }
            Err(refused) => Ingested {
                outcome: Some(refused.code().as_str()),
                id: None,
                response: Err(refused),
            },
        }
    }

    /// Records one event, or finds its existing record.
    async fn receive(&self, sent: (&Parts, &Bytes), event: &Event) -> Result<EventResult, Refused> {
        let key = key_of(event)?;
        let work = self.check_and_record(sent, event, key.clone());
        let outcome_of = |result: &EventResult| (result.outcome, result.id);
        self.count_and_log(&key, work, outcome_of).await
    }

    async fn check_and_record(
        &self,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<EventResult, Refused> {
        let check = match self.check_same_bytes(event).await? {
            SameBytesCheck::Refused => return Ok(EventResult::same_bytes()),
            check => check,
        };
        let identity = self.identity(key);
        identity.check_name().map_err(Problem::invalid_key)?;
        let recording = Recording {
            protection: self.runtime.protection().clone(),
            queue: self.runtime.queue().clone(),
            class: self.class.clone(),
            identity,
            request: self.queued_event(sent, event, &check).to_bytes(),
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
