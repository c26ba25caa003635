//! The engine on a memory store, by subject. `Fixture` has two engines on one
//! store, as two gateways would be, and one operation that they run.

mod delivering;
mod detaching;
mod following;
mod leading;
mod withdrawing;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Awaited, Engine, Entered, Follow, Lead, Limits, NewLead};
use crate::class::{AfterLoss, TtlBasis};
use crate::clock::ManualClock;
use crate::entropy::Entropy;
use crate::identity::{Digest, OperationId};
use crate::memory::MemoryStore;
use crate::record::tests::{START, fingerprint, record};
use crate::record::{Answer, Attempt, Fence, Record, Reply, Settled, Settlement, State};
use crate::store::{Claim, ClaimRequest, Enqueued, Queue, Store, StoreError};

struct Fixture {
    clock: Arc<ManualClock>,
    memory: Arc<MemoryStore>,
    store: Arc<CountingStore>,
    here: Arc<Engine>,
    there: Arc<Engine>,
    /// The request; its fingerprint is number 1.
    operation: Record,
}

impl Fixture {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let memory = Arc::new(MemoryStore::new(clock.clone()));
        let store = Arc::new(CountingStore::new(&memory, ClaimFault::None));
        let engine = |seed| Engine::new(store.clone(), Entropy::seeded(seed), Limits::default());
        Self {
            here: engine(1),
            there: engine(2),
            clock,
            memory,
            store,
            operation: record(State::Running, AfterLoss::Hold),
        }
    }

    fn counting_from(ttl_basis: TtlBasis) -> Self {
        let mut fixture = Self::new();
        fixture.operation.terms.ttl_basis = ttl_basis;
        fixture
    }

    fn after_loss(after_loss: AfterLoss) -> Self {
        let mut fixture = Self::new();
        fixture.operation.terms.after_loss = after_loss;
        fixture
    }

    /// Enters the operation's key with the request of this number.
    async fn enter_with(&self, engine: &Arc<Engine>, request: u8) -> Entered {
        let Record {
            identity, terms, ..
        } = self.operation.clone();
        let entered = engine.enter(identity, fingerprint(request), terms).await;
        entered.expect("the store answers")
    }

    async fn enter(&self) -> Entered {
        self.enter_with(&self.here, 1).await
    }

    /// Leads the operation, whose work has begun.
    async fn lead(&self, engine: &Arc<Engine>, request: u8) -> Lead {
        self.new_lead(engine, request).await.begin()
    }

    async fn new_lead(&self, engine: &Arc<Engine>, request: u8) -> NewLead {
        match self.enter_with(engine, request).await {
            Entered::Lead(lead) => lead,
            other => panic!("it was to be led, not {other:?}"),
        }
    }

    async fn follow(&self, engine: &Arc<Engine>, request: u8) -> Follow {
        match self.enter_with(engine, request).await {
            Entered::Follow(follow) => follow,
            other => panic!("it was to be followed, not {other:?}"),
        }
    }

    /// A request that follows the operation and has begun to wait.
    async fn waiter(&self, limit: Duration) -> JoinHandle<Result<Awaited, StoreError>> {
        let follow = self.follow(&self.here, 1).await;
        let before = self.here.waiters();
        let waiting = tokio::spawn(async move { follow.settled(limit).await });
        until(|| self.here.waiters() > before).await;
        waiting
    }

    async fn enqueue(&self, queue: &dyn Queue) -> Result<Enqueued, StoreError> {
        let Record {
            identity,
            fingerprint,
            terms,
            ..
        } = self.operation.clone();
        let request = Bytes::from_static(b"request");
        self.here
            .enqueue(queue, identity, fingerprint, terms, request)
            .await
    }

    /// Enqueues the operation for the first time.
    async fn enqueue_new(&self) {
        let enqueued = self.enqueue(&*self.memory).await;
        assert!(matches!(enqueued, Ok(Enqueued::Accepted(_))));
    }

    /// Takes the one piece of work that is due, and begins it.
    async fn take(&self) -> Lead {
        self.take_new().await.begin()
    }

    async fn take_new(&self) -> NewLead {
        let due = self.memory.due(10).await.expect("the store answers");
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].request, "request");
        self.here.take(&due[0])
    }

    async fn record(&self) -> Arc<Record> {
        let record = self.here.look(&self.operation.digest).await;
        record.expect("the store answers").expect("on record")
    }

    /// Waits until nothing runs in the background.
    async fn rest(&self) {
        self.here.tasks().close();
        self.here.tasks().wait().await;
        self.here.tasks().reopen();
    }
}

/// Polls once; `None` while it waits.
async fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A runtime that is current only within its `block_on`.
fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

fn reply() -> Arc<Reply> {
    Arc::new(Reply {
        status: 503,
        headers: Vec::new(),
        body: Bytes::from_static(b"of another request"),
        trailers: Vec::new(),
    })
}

fn completed() -> Settlement {
    Settlement::Completed(Answer::NotKept { status: 200 })
}

/// A memory store that counts the waits at it, and the renewals.
struct CountingStore {
    memory: Arc<MemoryStore>,
    waits: AtomicUsize,
    renewals: AtomicUsize,
    fault: ClaimFault,
}

/// What is wrong with every claim.
#[derive(Clone, Copy)]
enum ClaimFault {
    None,
    /// It is granted and never answered.
    Silent,
    /// It is answered with an error, and granted this much later.
    Late(Duration),
}

impl CountingStore {
    fn new(memory: &Arc<MemoryStore>, fault: ClaimFault) -> Self {
        Self {
            memory: memory.clone(),
            waits: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
            fault,
        }
    }
}

#[async_trait::async_trait]
impl Store for CountingStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let late = match self.fault {
            ClaimFault::None => return self.memory.claim(request).await,
            ClaimFault::Silent => {
                let claim = self.memory.claim(request).await;
                assert!(matches!(claim, Ok(Claim::Granted(_))));
                return std::future::pending().await;
            }
            ClaimFault::Late(late) => late,
        };
        let (memory, request) = (self.memory.clone(), request.clone());
        tokio::spawn(async move {
            sleep(late).await;
            let claim = memory.claim(&request).await;
            assert!(matches!(claim, Ok(Claim::Granted(_))));
        });
        Err(StoreError::Unavailable("the connection was lost".into()))
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        self.memory.withdraw(digest, attempt).await
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.memory.renew(digest, fence).await
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        self.memory.settle(digest, fence, settlement).await
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.memory.get(digest).await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.memory.find(id).await
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        self.memory.touch(digest).await
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.memory.wait(digest, limit).await
    }
}
