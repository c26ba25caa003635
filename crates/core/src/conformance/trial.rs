//! A store on trial, and the steps that the promises are made of.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::caller::{Caller, Subject, SubjectKind};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::clock::ManualClock;
use crate::fingerprint::{Algorithm, Fingerprint};
use crate::identity::{Endpoint, Identity, KeySpace, OperationId};
use crate::key::Key;
use crate::record::{Answer, Attempt, Completion, Record, Reply, Settled, Settlement, State};
use crate::store::{
    Changed, Claim, ClaimRequest, Due, Enqueued, Filter, Force, Grant, Inspect, PAGE_MAX,
    PageRequest, Queue, Registry, Stats, Store,
};

/// The lease of every operation on trial.
pub const LEASE: Duration = Duration::from_secs(60);
/// How long replies on trial are kept.
pub const RETENTION: Duration = Duration::from_secs(60 * 60);
/// How long keys on trial are remembered.
pub const REMEMBER: Duration = Duration::from_secs(2 * 60 * 60);

/// A store on trial. Clones share the store, the clock and the counter of names.
#[derive(Clone)]
pub struct Trial {
    /// The store's main side.
    pub store: Arc<dyn Store>,
    /// Its queue.
    pub queue: Arc<dyn Queue>,
    /// Its operator's side.
    pub inspect: Arc<dyn Inspect>,
    /// Its documents.
    pub registry: Arc<dyn Registry>,
    /// The clock of the store.
    pub clock: Arc<ManualClock>,
    /// The last number that a new key, attempt or id got.
    drawn: Arc<AtomicU64>,
    /// Dropped with the last clone, such as the store's directory.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial")
            .field("clock", &self.clock)
            .field("drawn", &self.drawn)
            .finish_non_exhaustive()
    }
}

impl Trial {
    /// A trial of a store whose clock is `clock`.
    pub fn new<S>(store: Arc<S>, clock: Arc<ManualClock>) -> Self
    where
        S: Store + Queue + Inspect + Registry,
    {
        Self {
            store: store.clone(),
            queue: store.clone(),
            inspect: store.clone(),
            registry: store,
            clock,
            drawn: Arc::default(),
            held: None,
        }
    }

    /// Keeps a value, such as a directory, as long as the trial.
    #[must_use]
    pub fn holding(mut self, held: impl Any + Send + Sync) -> Self {
        self.held = Some(Arc::new(held));
        self
    }

    /// A claim of a new operation, which stays unknown when it is lost.
    pub fn ask(&self) -> ClaimRequest {
        self.ask_with(terms(AfterLoss::Hold))
    }

    /// A claim of a new operation under these terms, by a tenant of its own.
    pub fn ask_with(&self, terms: Terms) -> ClaimRequest {
        let number = self.draw();
        self.ask_as(
            identity(
                &format!("tenant-{number}"),
                "shop",
                "payments.create",
                "key",
            ),
            terms,
        )
    }

    /// The first request for this identity.
    pub(super) fn ask_as(&self, identity: Identity, terms: Terms) -> ClaimRequest {
        let digest = identity.digest();
        ClaimRequest {
            digest,
            identity,
            fingerprint: fingerprint(1),
            terms,
            attempt: Attempt(u128::from(self.draw())),
            id: OperationId::new(&digest, self.draw()),
        }
    }

    /// The same request again, by another attempt.
    pub fn retry(&self, ask: &ClaimRequest) -> ClaimRequest {
        ClaimRequest {
            attempt: Attempt(u128::from(self.draw())),
            id: OperationId::new(&ask.digest, self.draw()),
            ..ask.clone()
        }
    }

    /// A different request under the same key.
    pub fn other_request(&self, ask: &ClaimRequest) -> ClaimRequest {
        ClaimRequest {
            fingerprint: fingerprint(2),
            ..self.retry(ask)
        }
    }

    /// A number that was not drawn before.
    pub(super) fn draw(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Claims. What the store recalls must be what it answers.
    pub(super) async fn claim(&self, ask: &ClaimRequest) -> Claim {
        let recalled = self.store.recall(ask);
        let claim = self.store.claim(ask).await;
        let claim = claim.expect("the store answers a claim");
        if let Some(recalled) = recalled {
            assert_eq!(describe(&recalled), describe(&claim), "recalled");
        }
        claim
    }

    pub(super) async fn grant(&self, ask: &ClaimRequest) -> Grant {
        granted(self.claim(ask).await)
    }

    pub(super) async fn settle(&self, grant: &Grant, settlement: Settlement) -> Settled {
        let has_outcome = matches!(settlement, Settlement::Completed(_) | Settlement::Failed(_));
        let settled = self
            .store
            .settle(&grant.digest, grant.fence, settlement)
            .await;
        let settled = settled.expect("the store answers a settlement");
        assert!(
            settled == Settled::Stale || has_outcome == matches!(settled, Settled::Finished(_)),
            "an outcome, and nothing else, is answered with its times: {settled:?}"
        );
        settled
    }

    /// Records an outcome, and returns its times.
    pub(super) async fn finish(&self, grant: &Grant, settlement: Settlement) -> Completion {
        match self.settle(grant, settlement).await {
            Settled::Finished(completion) => completion,
            settled => panic!("the outcome was to be recorded, not {settled:?}"),
        }
    }

    pub(super) async fn renew(&self, grant: &Grant) -> Settled {
        let renewed = self.store.renew(&grant.digest, grant.fence).await;
        renewed.expect("the store answers a renewal")
    }

    pub(super) async fn withdraw(&self, ask: &ClaimRequest) {
        let withdrawn = self.store.withdraw(&ask.digest, ask.attempt).await;
        withdrawn.expect("the store answers a withdrawal");
    }

    pub(super) async fn get(&self, ask: &ClaimRequest) -> Option<Arc<Record>> {
        let record = self.store.get(&ask.digest).await;
        record.expect("the store gives a record")
    }

    pub(super) async fn touch(&self, ask: &ClaimRequest) {
        let touched = self.store.touch(&ask.digest).await;
        touched.expect("the store notes a replay");
    }

    pub(super) async fn show(&self, id: OperationId) -> Option<Arc<Record>> {
        let record = self.inspect.show(id).await;
        record.expect("the store shows a record")
    }

    /// Sweeps everything. It repeats the step, because a store may sweep in slices.
    pub(super) async fn sweep(&self) {
        for _ in 0..4 {
            self.inspect.sweep(10_000).await.expect("the store sweeps");
        }
    }

    pub(super) async fn find(&self, id: OperationId) -> Option<Arc<Record>> {
        let record = self.store.find(id).await;
        record.expect("the store finds a record")
    }

    pub(super) async fn state(&self, ask: &ClaimRequest) -> Option<State> {
        self.get(ask).await.map(|record| record.state)
    }

    pub(super) async fn id(&self, ask: &ClaimRequest) -> OperationId {
        self.get(ask).await.expect("the operation is on record").id
    }

    pub(super) async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: &'static [u8],
        after: Duration,
    ) -> Enqueued {
        let enqueued = self
            .queue
            .enqueue(ask, Bytes::from_static(request), after)
            .await;
        enqueued.expect("the store answers an enqueueing")
    }

    pub(super) async fn due(&self, limit: usize) -> Vec<Due> {
        let due = self.queue.due(limit).await;
        due.expect("the store grants due work")
    }

    /// Purges the work that other promises left in the queue.
    pub(super) async fn clear_queue(&self) {
        for state in [State::Queued, State::Running] {
            let filter = Filter {
                state: Some(state),
                ..Filter::default()
            };
            for record in self.list(&filter).await {
                if record.delivered {
                    done(self.inspect.purge(record.id, Force::Yes).await);
                }
            }
        }
    }

    pub(super) async fn list(&self, filter: &Filter) -> Vec<Arc<Record>> {
        let page = PageRequest::first(PAGE_MAX);
        let page = self.inspect.list(filter, page).await;
        page.expect("the store lists").records
    }

    pub(super) async fn stats(&self) -> Stats {
        self.inspect.stats().await.expect("the store counts")
    }

    pub(super) fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// A new operation that was brought into this state.
    pub(super) async fn operation_in(&self, state: State) -> ClaimRequest {
        let ask = self.ask();
        if state == State::Queued {
            accepted(&self.enqueue(&ask, b"request", LEASE).await);
            return ask;
        }
        let grant = self.grant(&ask).await;
        let settlement = match state {
            State::Queued | State::Running => None,
            State::Completed | State::Expired => Some(completed(201)),
            State::Failed => Some(failed(422)),
            State::Released => Some(Settlement::Released),
            State::Unknown => Some(Settlement::Lost),
            State::Paused => Some(Settlement::Paused),
        };
        if let Some(settlement) = settlement {
            assert!(self.settle(&grant, settlement).await.is_recorded());
        }
        if state == State::Expired {
            self.advance(RETENTION);
        }
        assert_eq!(
            self.state(&ask).await,
            Some(state),
            "brought into {state:?}"
        );
        ask
    }
}

pub(super) fn terms(after_loss: AfterLoss) -> Terms {
    Terms {
        class: "trial".into(),
        lease: LEASE,
        retention: RETENTION,
        remember: REMEMBER,
        after_loss,
        ttl_basis: TtlBasis::Completion,
        expiry: Expiry::Strict,
        keep_expired: Duration::ZERO,
    }
}

pub(super) fn identity(tenant: &str, project: &str, endpoint: &str, key: &str) -> Identity {
    let subject = Subject::new(SubjectKind::User, "1").expect("a good subject");
    Identity {
        caller: Caller::trusted(tenant, project, subject).expect("a good caller"),
        endpoint: Endpoint::new(endpoint),
        key: Key::parse(key).expect("a good key"),
        space: KeySpace::Endpoint,
    }
}

pub(super) fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint {
        algorithm: Algorithm::Json1,
        digest: [number; 32],
        sender: [0; 16],
    }
}

/// A reply with everything that is easily lost: a repeated header, bytes that are
/// not UTF-8, trailers.
pub(super) fn reply(status: u16, body: impl Into<Bytes>) -> Arc<Reply> {
    let line = |name: &'static str, value: &'static [u8]| {
        (
            Bytes::from_static(name.as_bytes()),
            Bytes::from_static(value),
        )
    };
    Arc::new(Reply {
        status,
        headers: vec![
            line("content-type", b"application/octet-stream"),
            line("link", b"</b>; rel=next"),
            line("x-bytes", b"\x80\xff\xfe"),
            line("link", b"</a>; rel=prev"),
            line("x-empty", b""),
        ],
        body: body.into(),
        trailers: vec![line("grpc-status", b"0"), line("grpc-status", b"1")],
    })
}

pub(super) fn completed(status: u16) -> Settlement {
    Settlement::Completed(Answer::Kept(reply(status, "done")))
}

pub(super) fn failed(status: u16) -> Settlement {
    Settlement::Failed(Answer::Kept(reply(status, "refused")))
}

#[track_caller]
pub(super) fn granted(claim: Claim) -> Grant {
    match claim {
        Claim::Granted(grant) => grant,
        other => panic!("the claim was to be granted, not {other:?}"),
    }
}

#[track_caller]
pub(super) fn accepted(enqueued: &Enqueued) -> OperationId {
    match enqueued {
        Enqueued::Accepted(id) => *id,
        Enqueued::Known(claim) => panic!("it was to be accepted, not known as {claim:?}"),
    }
}

#[track_caller]
pub(super) fn done(changed: Result<Changed, crate::store::StoreError>) {
    assert_eq!(
        changed.expect("the store answers an operator"),
        Changed::Done
    );
}

/// The answer's name and its record, so that claims can be compared.
pub(super) fn describe(claim: &Claim) -> (&'static str, Option<Arc<Record>>) {
    match claim {
        Claim::Granted(_) => ("granted", None),
        Claim::Mismatch => ("mismatch", None),
        Claim::Finished(record) => ("finished", Some(record.clone())),
        Claim::Busy(record) => ("busy", Some(record.clone())),
        Claim::Unknown(record) => ("unknown", Some(record.clone())),
        Claim::Paused(record) => ("paused", Some(record.clone())),
        Claim::Expired(record) => ("expired", Some(record.clone())),
    }
}

/// Asserts the answer to a claim, and returns its record.
#[track_caller]
pub(super) fn expect(claim: &Claim, want: &str) -> Arc<Record> {
    let (got, record) = describe(claim);
    assert_eq!(got, want, "{claim:?}");
    record.expect("every answer but a grant and a mismatch has a record")
}
