//! The engine takes an operation from its claim to its record, even if the client
//! disconnects, the store fails for a while, or the process ends in between.
//!
//! It puts a deadline on every step of the store, withdraws claims whose answer
//! was lost, renews leases while work goes on, passes the outcome to waiters, and
//! repeats the write of an outcome until the store has it. It knows nothing of
//! HTTP; a [`Reply`](crate::record::Reply) is bytes to it.
//!
//! - [`Engine`] claims operations and looks them up.
//! - [`NewLead`] is the right to run one, before anything was done under it.
//! - [`Lead`] is that right from then on: it renews the lease and records the outcome.
//! - [`Follow`] waits for one that runs.
//! - `flights` connects the leads and follows of this process.
//! - `withdrawal` takes back claims whose answer was lost.

mod detached;
mod flights;
mod follow;
mod lead;
#[cfg(test)]
mod tests;
mod withdrawal;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::detached::Detached;
use self::detached::Work;
use self::flights::Flights;
pub use self::follow::{Awaited, Follow};
pub use self::lead::{Lead, NewLead, Recorded, Renewed};
use self::withdrawal::PendingClaim;
use crate::class::{Terms, TtlBasis};
use crate::deadline;
use crate::entropy::Entropy;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, Identity, OperationId};
use crate::record::{Attempt, Record};
use crate::store::{Claim, ClaimRequest, Due, Enqueued, Queue, Store, StoreError};

/// How many replays are noted at once; further ones are not noted.
const TOUCHES_MAX: usize = 1_000;
/// The pause before a refused step of the store is repeated, at first and at most.
const REPEAT_PAUSE: Duration = Duration::from_millis(50);
const REPEAT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long recording abandoned operations may take at the end of a shutdown.
const ABANDON_LIMIT: Duration = Duration::from_secs(3);
const ENDINGS: usize = 16;

/// The bounds of an engine.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// How long one step of the store may take.
    pub store_deadline: Duration,
    /// How many requests may wait for one operation.
    pub waiters_per_key: usize,
    /// How many requests may wait for the operations of one tenant.
    pub waiters_per_tenant: usize,
    /// How many requests may wait in all.
    pub waiters: usize,
    /// How often a waiter looks at the store, should a notification get lost.
    pub poll: Duration,
    /// For how long the write of an outcome is repeated.
    pub record_again: Duration,
    /// How many claims whose answer was lost may be withdrawn at once.
    pub withdrawals: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            store_deadline: Duration::from_secs(2),
            waiters_per_key: 10_000,
            waiters_per_tenant: 20_000,
            waiters: 100_000,
            poll: Duration::from_secs(1),
            record_again: Duration::from_secs(10 * 60),
            withdrawals: 10_000,
        }
    }
}

impl Limits {
    /// The same limits with changes:
    /// `Limits::default().with(|limits| limits.waiters = 10)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Runs operations at most once per granted claim.
pub struct Engine {
    store: Arc<dyn Store>,
    flights: Arc<Flights>,
    entropy: Entropy,
    limits: RwLock<Limits>,
    /// That of the limits, in microseconds. Every step of the store reads it, and even
    /// reading through the lock would write to it.
    store_deadline_us: AtomicU64,
    tasks: TaskTracker,
    /// Cancelled together. Several, because all work of one waits in one list.
    endings: [CancellationToken; ENDINGS],
    /// How many claims are being withdrawn.
    withdrawals: Arc<AtomicUsize>,
    /// How many withdrawals are being repeated.
    repeated_withdrawals: Arc<AtomicUsize>,
    /// How many replays are being noted.
    touches: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("running", &self.running())
            .field("waiters", &self.waiters())
            .field("limits", &self.limits())
            .finish_non_exhaustive()
    }
}

/// How draining ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All work ended and was recorded.
    Whole,
    /// The limit came first.
    Cut {
        /// How many operations still ran.
        running: usize,
    },
}

/// The state of an operation that a request enters.
#[derive(Debug)]
pub enum Entered {
    /// The claim was granted: this request runs the operation.
    Lead(NewLead),
    /// Another request runs it; this one may wait.
    Follow(Follow),
    /// It finished; the record holds its answer.
    Finished(Arc<Record>),
    /// The key belongs to a different request.
    Mismatch,
    /// It may have run.
    Unknown(Arc<Record>),
    /// Its attempts are used up.
    Paused(Arc<Record>),
    /// It finished and its reply is gone.
    Expired(Arc<Record>),
}

impl Engine {
    /// An engine on this store.
    pub fn new(store: Arc<dyn Store>, entropy: Entropy, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            store,
            flights: Arc::new(Flights::new()),
            entropy,
            limits: RwLock::new(limits),
            store_deadline_us: AtomicU64::new(microseconds(limits.store_deadline)),
            tasks: TaskTracker::new(),
            endings: Default::default(),
            withdrawals: Arc::default(),
            repeated_withdrawals: Arc::default(),
            touches: Arc::default(),
            running: Arc::default(),
        })
    }

    /// The current bounds.
    pub fn limits(&self) -> Limits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the bounds. Work and waits that have begun keep the bounds that
    /// they began with.
    pub fn set_limits(&self, limits: Limits) {
        let deadline = microseconds(limits.store_deadline);
        self.store_deadline_us.store(deadline, Ordering::Relaxed);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// The tasks that outlive their client. Shutdown waits for them.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// A random number, to spread retries over time.
    pub fn chance(&self) -> u64 {
        self.entropy.next_u64()
    }

    /// Runs work that must outlive its client. Shutdown waits for it, until it
    /// is [abandoned](Self::abandon).
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.to_task(0, work));
    }

    /// Runs the work of an operation that must outlive its client, in the client's
    /// own task as long as the client waits. The work itself sends the `answer`.
    pub fn run_detached<T>(
        &self,
        id: OperationId,
        work: impl Future<Output = ()> + Send + 'static,
        answer: oneshot::Receiver<T>,
    ) -> Detached<T> {
        let [.., random] = *id.as_bytes();
        Detached::new(self.to_task(usize::from(random) % ENDINGS, work), answer)
    }

    /// Work that counts among the tasks and ends when it is abandoned.
    fn to_task(&self, ending: usize, work: impl Future<Output = ()> + Send + 'static) -> Work {
        let ending = self.endings[ending].clone();
        // Boxed: the work is large, and each future around it would hold it twice, as
        // its argument and where it waits.
        let work = Box::pin(work);
        Box::pin(self.tasks.track_future(async move {
            ending.run_until_cancelled_owned(work).await;
        }))
    }

    /// Shuts down: waits up to `limit` for `ending`, which completes when the
    /// [`tasks`](Self::tasks) and everything else that the process stops have
    /// ended. Work that still runs then is [abandoned](Self::abandon).
    pub async fn drain(&self, limit: Duration, ending: impl Future<Output = ()>) -> Drained {
        self.tasks.close();
        if deadline::within(limit, ending).await.is_ok() {
            return Drained::Whole;
        }
        let running = self.running();
        self.abandon();
        // If the store does not take them in time, the next start finds them
        // unknown.
        let _ = deadline::within(ABANDON_LIMIT, self.tasks.wait()).await;
        Drained::Cut { running }
    }

    /// Cancels spawned work, at the end of a shutdown. Each operation that was
    /// under way is recorded as unknown, or released where the lead is
    /// [joined](Lead::joined) or nothing had [begun](NewLead::begin);
    /// [`tasks`](Self::tasks) end when that is written.
    pub fn abandon(&self) {
        for ending in &self.endings {
            ending.cancel();
        }
    }

    /// How many operations this process runs.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many requests wait for an operation.
    pub fn waiters(&self) -> usize {
        self.flights.waiters()
    }

    /// Enters an operation: claims it, or returns its state.
    pub async fn enter(
        self: &Arc<Self>,
        identity: Identity,
        fingerprint: Fingerprint,
        terms: Terms,
    ) -> Result<Entered, StoreError> {
        let request = self.claim_request(identity, fingerprint, terms);
        match self.recall(&request) {
            Some(record) => Ok(Entered::Finished(record)),
            None => self.claim(&request).await,
        }
    }

    /// The finished operation that answers a claim, where the store has it in memory.
    pub fn recall(self: &Arc<Self>, request: &ClaimRequest) -> Option<Arc<Record>> {
        match self.store.recall(request)? {
            Claim::Finished(record) => {
                self.note_replay(&record);
                Some(record)
            }
            _ => None,
        }
    }

    /// Claims an operation that cannot be [recalled](Self::recall).
    pub async fn claim(self: &Arc<Self>, request: &ClaimRequest) -> Result<Entered, StoreError> {
        let ClaimRequest {
            digest,
            fingerprint,
            ..
        } = *request;
        // The seat is taken before the claim: see `flights`.
        let seat = self.flights.board(&digest);
        let pending = PendingClaim::new(self, digest, request.attempt);
        let claim = self.within_deadline(self.store.claim(request)).await?;
        pending.answered();
        Ok(match claim {
            Claim::Granted(grant) => {
                let lease = request.terms.lease;
                Entered::Lead(NewLead::of_claim(self, seat, grant, fingerprint, lease))
            }
            Claim::Busy(record) => {
                Entered::Follow(Follow::new(self.clone(), seat, record, fingerprint))
            }
            Claim::Finished(record) => {
                self.note_replay(&record);
                Entered::Finished(record)
            }
            Claim::Mismatch => Entered::Mismatch,
            Claim::Unknown(record) => Entered::Unknown(record),
            Claim::Paused(record) => Entered::Paused(record),
            Claim::Expired(record) => Entered::Expired(record),
        })
    }

    /// A claim of a new attempt.
    pub fn claim_request(
        &self,
        identity: Identity,
        fingerprint: Fingerprint,
        terms: Terms,
    ) -> ClaimRequest {
        let digest = identity.digest();
        let [id, high, low] = self.entropy.next();
        ClaimRequest {
            id: OperationId::new(&digest, id),
            attempt: Attempt((u128::from(high) << 64) | u128::from(low)),
            digest,
            identity,
            fingerprint,
            terms,
        }
    }

    /// Records an operation with its request, for delivery by the gateway that
    /// takes it from the queue; or returns its state. A lost answer needs no
    /// withdrawal: a recorded operation is delivered, and the sender's retry is
    /// answered with its state.
    pub async fn enqueue(
        self: &Arc<Self>,
        queue: &dyn Queue,
        identity: Identity,
        fingerprint: Fingerprint,
        terms: Terms,
        request: Bytes,
    ) -> Result<Enqueued, StoreError> {
        let claim = self.claim_request(identity, fingerprint, terms);
        let step = queue.enqueue(&claim, request, Duration::ZERO);
        let enqueued = self.within_deadline(step).await?;
        if let Enqueued::Known(Claim::Finished(record)) = &enqueued {
            self.note_replay(record);
        }
        Ok(enqueued)
    }

    /// Takes the lead of queued work that is due.
    pub fn take(self: &Arc<Self>, due: &Due) -> NewLead {
        let seat = self.flights.board(&due.grant.digest);
        NewLead::of_delivery(self, seat, due)
    }

    /// Notes that an operation's reply is given again, where its retention
    /// counts from that, without waiting for the store. [`Engine::enter`] does so
    /// itself; call it for a reply that was [looked up](Engine::look).
    pub fn note_replay(self: &Arc<Self>, record: &Record) {
        if record.terms.ttl_basis != TtlBasis::Access {
            return;
        }
        let Some(permit) = Permit::take(&self.touches, TOUCHES_MAX) else {
            // The reply expires a little earlier.
            return;
        };
        let engine = self.clone();
        let digest = record.digest;
        self.tasks.spawn(async move {
            if let Err(error) = engine.within_deadline(engine.store.touch(&digest)).await {
                tracing::warn!(%error, "replay not noted; its reply expires earlier");
            }
            drop(permit);
        });
    }

    /// Looks an operation up.
    pub async fn look(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.within_deadline(self.store.get(digest)).await
    }

    /// Looks an operation up by its id.
    pub async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.within_deadline(self.store.find(id)).await
    }

    /// Waits for an operation that is known to run. A later run under the same
    /// key with another fingerprint belongs to a different request.
    pub fn follow(self: &Arc<Self>, record: Arc<Record>) -> Follow {
        let seat = self.flights.board(&record.digest);
        let fingerprint = record.fingerprint;
        Follow::new(self.clone(), seat, record, fingerprint)
    }

    /// Takes a step of the store within its deadline.
    async fn within_deadline<T>(
        &self,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = self.store_deadline_us.load(Ordering::Relaxed);
        deadline::store_within(Duration::from_micros(deadline), step).await
    }

    /// Repeats a step until the store takes it, with growing pauses.
    async fn until_recorded<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let give_up = Instant::now() + self.limits().record_again;
        let mut pause = REPEAT_PAUSE;
        loop {
            match self.within_deadline(step()).await {
                Ok(done) => return Ok(done),
                // A damaged record stays damaged.
                Err(error @ StoreError::Damaged(_)) => return Err(error),
                Err(error) if Instant::now() + pause > give_up => return Err(error),
                Err(error) => tracing::warn!(%error, "outcome refused by the store; retrying"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(REPEAT_PAUSE_MAX);
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// One of a bounded number of tasks.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let permit = Self(taken.clone());
        let before = taken.fetch_add(1, Ordering::Relaxed);
        (before < max).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
