//! Events that are delivered later: recorded with their requests, and
//! acknowledged.

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

use super::receipt::{Receipt, acknowledged};
use super::same_bytes::Met;
use super::{Arriving, key_of};
use crate::request::Seen;
use crate::runtime::Runtime;

/// How many events of one request are recorded at once.
const AT_ONCE_MAX: usize = 16;

impl Runtime {
    /// Records events to be delivered later, all of them before any is
    /// acknowledged.
    pub(super) async fn enqueue(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        events: &[Event],
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let mut receipts = Vec::with_capacity(events.len());
        for some in events.chunks(AT_ONCE_MAX) {
            let receiving = some
                .iter()
                .map(|event| self.receive(arriving, sent, event, seen));
            receipts.extend(join_all(receiving).await);
        }
        self.courier_wakeup().notify_one();
        // What could not be recorded is sent again; what could be is known then.
        let receipts = receipts.into_iter().collect::<Result<Vec<_>, _>>();
        let receipts = receipts.inspect_err(|problem| {
            seen.outcome = Some(problem.code().as_str());
        })?;
        if let Some(first) = receipts.first() {
            (seen.outcome, seen.id) = (Some(first.outcome.as_str()), first.id);
        }
        let ack = arriving.webhook.provider.acknowledgement();
        Ok(acknowledged(&ack, &receipts))
    }

    /// Records one event, or learns what became of it.
    async fn receive(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        seen: &Seen,
    ) -> Result<Receipt, Problem> {
        let key = key_of(event)?;
        let work = self.meet_and_record(arriving, sent, event, key.clone());
        let told = |receipt: &Receipt| (receipt.outcome, receipt.id);
        self.follow(arriving, &key, seen, work, told).await
    }

    async fn meet_and_record(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<Receipt, Problem> {
        let met = match self.meet(arriving, event).await? {
            Met::Before => return Ok(Receipt::same_bytes()),
            met => met,
        };
        let identity = arriving.identity(key);
        identity.check_name().map_err(Problem::invalid_key)?;
        let recording = Recording {
            protection: self.protection().clone(),
            queue: self.queue().clone(),
            class: arriving.class.clone(),
            identity,
            request: arriving.parcel(sent, event, &met).to_bytes(),
        };
        let same_bytes = matches!(met, Met::InOtherName);
        let remembers = matches!(met, Met::First(Some(_)));
        let record = async move {
            let recorded = recording.record().await;
            met.remember(recorded.is_ok()).await;
            recorded
        };
        let mut receipt = match remembers {
            true => self.outliving(record).await??,
            false => record.await?,
        };
        receipt.same_bytes = same_bytes;
        Ok(receipt)
    }
}

/// An event about to be recorded with its request.
struct Recording {
    protection: Arc<Protection>,
    queue: Arc<dyn Queue>,
    class: Arc<Class>,
    identity: Identity,
    request: Bytes,
}

impl Recording {
    async fn record(&self) -> Result<Receipt, Problem> {
        onceward_core::crash_point!("before-enqueue");
        let mut enqueued = self.enqueue().await?;
        onceward_core::crash_point!("after-enqueue");
        if let Enqueued::Known(Claim::Unknown(record)) = &enqueued
            && self.protection.reconcile(record, &self.class).await == Reconciled::Settled
        {
            enqueued = self.enqueue().await?;
        }
        Ok(Receipt::of(&enqueued))
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
