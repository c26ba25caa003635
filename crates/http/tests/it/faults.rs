//! A store that fails at the worst moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onceward_core::class::{Class, OnStoreFailure};
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::memory::MemoryStore;
use onceward_core::record::{Attempt, Fence, Record, Settled, Settlement};
use onceward_core::store::{Claim, ClaimRequest, Store, StoreError};
use onceward_http::layer::IdempotencyLayer;

use crate::harness::{Origin, Protected, memory, protect, protect_with, until};

/// A memory store, some of whose acknowledgements never arrive.
pub(crate) struct Faulty {
    pub(crate) inner: Arc<MemoryStore>,
    /// The claim is made, and its answer lost.
    lose_claims: AtomicBool,
    /// How many claims were made.
    claims: AtomicUsize,
    /// How often a record was read.
    reads: AtomicUsize,
    /// Outcomes are refused.
    pub(crate) refuse_outcomes: AtomicBool,
    /// Settlements never return.
    pub(crate) stall_outcomes: AtomicBool,
    /// The number of settlements.
    pub(crate) outcomes: AtomicUsize,
    /// Nothing works.
    pub(crate) away: AtomicBool,
    /// Records are damaged.
    damaged: AtomicBool,
}

impl Faulty {
    pub(crate) fn new() -> Arc<Self> {
        Self::over(memory())
    }

    /// On a store that others use too, without its faults.
    pub(crate) fn over(inner: Arc<MemoryStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            lose_claims: AtomicBool::new(false),
            claims: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            refuse_outcomes: AtomicBool::new(false),
            stall_outcomes: AtomicBool::new(false),
            outcomes: AtomicUsize::new(0),
            away: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
        })
    }

    fn fault(&self, fault: &AtomicBool) -> Result<(), StoreError> {
        if fault.load(Ordering::SeqCst) || self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("injected".into()));
        }
        Ok(())
    }
}

static NEVER: AtomicBool = AtomicBool::new(false);

#[async_trait]
impl Store for Faulty {
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError> {
        self.fault(&NEVER)?;
        if self.damaged.load(Ordering::SeqCst) {
            return Err(StoreError::Damaged("injected".into()));
        }
        let claim = self.inner.claim(ask).await;
        self.claims.fetch_add(1, Ordering::SeqCst);
        if self.lose_claims.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        claim
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        self.fault(&self.lose_claims)?;
        self.inner.withdraw(digest, attempt).await
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        self.fault(&NEVER)?;
        self.inner.renew(digest, fence).await
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        self.outcomes.fetch_add(1, Ordering::SeqCst);
        if self.stall_outcomes.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.fault(&self.refuse_outcomes)?;
        self.inner.settle(digest, fence, settlement).await
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.fault(&NEVER)?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.get(digest).await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.fault(&NEVER)?;
        self.inner.find(id).await
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        self.fault(&NEVER)?;
        self.inner.touch(digest).await
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        self.fault(&NEVER)?;
        self.inner.wait(digest, limit).await
    }
}

#[tokio::test]
async fn a_kept_first_run_knows_its_expiry_without_reading_its_record() {
    let (origin, store) = (Origin::status(200), Faulty::new());
    let service = protect(&origin, Class::interactive(), store.clone());
    let first = service.post("k", "a").await;
    assert_eq!(store.reads.load(Ordering::SeqCst), 0);
    let again = service.post("k", "a").await;
    assert!(again.is_replay());
    let expires = first.header("idempotency-expires");
    assert!(!expires.is_empty());
    assert_eq!(again.header("idempotency-expires"), expires);
}

#[tokio::test]
async fn a_lost_acknowledgement_of_a_claim_strands_and_repeats_nothing() {
    let (origin, store) = (Origin::status(200), Faulty::new());
    let service = protect(&origin, Class::interactive(), store.clone());
    store.lose_claims.store(true, Ordering::SeqCst);
    let first = service.post("k", "a").await;
    assert_eq!(
        (first.status, first.code().as_str()),
        (503, "store-unavailable")
    );
    assert_eq!(origin.runs(), 0, "nothing was forwarded");
    store.lose_claims.store(false, Ordering::SeqCst);
    until(|| service.engine.tasks().is_empty()).await;
    assert_eq!(
        service.post("k", "a").await.body,
        "run 1",
        "the key is not stranded"
    );
    assert!(service.post("k", "a").await.is_replay());
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_caller_that_goes_during_its_claim_strands_nothing() {
    let (origin, store) = (Origin::status(200), Faulty::new());
    let service = protect(&origin, Class::interactive(), store.clone());
    store.lose_claims.store(true, Ordering::SeqCst);
    let gone = service.spawn_post("k", "a");
    until(|| store.claims.load(Ordering::SeqCst) == 1).await;
    gone.abort();
    assert!(gone.await.is_err());
    store.lose_claims.store(false, Ordering::SeqCst);
    until(|| service.engine.tasks().is_empty()).await;
    assert_eq!(service.post("k", "a").await.body, "run 1");
}

#[tokio::test]
async fn an_unavailable_store_lets_nothing_through() {
    let (origin, store) = (Origin::status(200), Faulty::new());
    let service = protect(&origin, Class::interactive(), store.clone());
    store.away.store(true, Ordering::SeqCst);
    let answer = service.post("k", "a").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "store-unavailable")
    );
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(origin.runs(), 0);
}

#[tokio::test]
async fn bypass_forwards_and_says_so() {
    let (origin, store) = (Origin::status(200), Faulty::new());
    let mut class = Class::interactive();
    class.on_store_failure = OnStoreFailure::Bypass;
    let service = protect(&origin, class, store.clone());
    store.away.store(true, Ordering::SeqCst);
    let answer = service.post("k", "a").await;
    assert_eq!(
        (answer.status, answer.header("idempotency-status")),
        (200, "bypassed")
    );
}

#[tokio::test]
async fn an_outcome_that_is_not_recorded_is_answered_and_written_again() {
    let (origin, store) = (Origin::status(200).gated(), Faulty::new());
    let service = protect(&origin, Class::interactive(), store.clone());
    let first = service.spawn_post("k", "a");
    origin.called(1).await;
    let waiter = service.spawn_post("k", "a");
    until(|| service.engine.waiters() == 1).await;
    store.refuse_outcomes.store(true, Ordering::SeqCst);
    origin.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.body.as_str()), (200, "run 1"));
    assert_eq!(first.header("idempotency-status"), "unknown");
    assert_eq!(
        waiter.await.unwrap().body,
        "run 1",
        "who waited gets it too"
    );
    store.refuse_outcomes.store(false, Ordering::SeqCst);
    until(|| service.engine.tasks().is_empty()).await;
    let again = service.post("k", "a").await;
    assert_eq!((again.body.as_str(), again.is_replay()), ("run 1", true));
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_damaged_record_is_not_bypassed() {
    let (origin, store) = (Origin::status(200), Faulty::new());
    let mut class = Class::interactive();
    class.on_store_failure = OnStoreFailure::Bypass;
    let service = protect(&origin, class, store.clone());
    store.damaged.store(true, Ordering::SeqCst);
    let answer = service.post("k", "a").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "60"));
    assert_eq!(origin.runs(), 0, "it may have run before");
}

/// Another process on the store.
fn restarted(origin: &Origin, store: Arc<dyn Store>) -> Protected {
    let engine = Engine::new(store, Entropy::seeded(8), Limits::default());
    let layer = IdempotencyLayer::builder(engine.clone()).build().unwrap();
    protect_with(origin, &layer, engine)
}

#[tokio::test]
async fn a_claim_after_a_cut_shutdown_sends_nothing_and_leaves_its_key_free() {
    let (origin, store) = (Origin::status(201), memory());
    let ended = protect(&origin, Class::interactive(), store.clone());
    ended.engine.abandon();
    assert_eq!(ended.post("k", "a").await.code(), "outcome-unknown");
    until(|| ended.engine.tasks().is_empty()).await;
    assert_eq!(origin.runs(), 0);
    let next = restarted(&origin, store).post("k", "a").await;
    assert_eq!((next.status, next.body.as_str()), (201, "run 1"));
}

#[tokio::test]
async fn a_call_that_a_shutdown_cuts_off_stays_unknown() {
    let (origin, store) = (Origin::status(201).gated(), memory());
    let ended = protect(&origin, Class::interactive(), store.clone());
    let cut = ended.spawn_post("k", "a");
    origin.called(1).await;
    ended.engine.abandon();
    assert_eq!(cut.await.unwrap().code(), "outcome-unknown");
    until(|| ended.engine.tasks().is_empty()).await;
    let next = restarted(&origin, store).post("k", "a").await;
    assert_eq!(next.code(), "outcome-unknown");
    assert_eq!(origin.runs(), 1);
}
