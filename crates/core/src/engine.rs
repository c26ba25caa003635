//! The engine: from a claim to its record, whatever dies in between.
//!
//! It puts a deadline on every step of the store, takes back claims whose
//! answer was lost, renews leases while work goes on, tells those who wait, and
//! writes an outcome again and again until the store has it. It knows nothing
//! of HTTP; [`Reply`] is bytes to it.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::class::{Terms, TtlBasis};
use crate::entropy::Entropy;
use crate::fingerprint::Fingerprint;
use crate::flights::{Flights, Landed, Seat};
use crate::identity::{Digest, Identity, OperationId};
use crate::record::{Attempt, Fence, Record, Reply, Settled, Settlement, State};
use crate::store::{Ask, Claim, Grant, Store, StoreError};

/// The bounds of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long one step of the store may take.
    pub store_deadline: Duration,
    /// How many may wait for one operation.
    pub waiters_per_key: usize,
    /// How many may wait for the operations of one tenant.
    pub waiters_per_tenant: usize,
    /// How many may wait in all.
    pub waiters: usize,
    /// How often a waiter looks for itself, should a hint get lost.
    pub poll: Duration,
    /// How long an outcome that the store refused is tried again.
    pub record_again: Duration,
    /// How many claims whose answer was lost may be taken back at once.
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

/// However short a lease is, renewing it is not all that is done.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The store did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the store did not answer within {0:?}")]
struct TooSlow(Duration);

/// Runs operations at most once per granted claim.
pub struct Engine {
    store: Arc<dyn Store>,
    flights: Arc<Flights>,
    entropy: Entropy,
    limits: RwLock<Limits>,
    tasks: TaskTracker,
    ending: CancellationToken,
    /// Claims that are being taken back.
    withdrawals: Arc<AtomicUsize>,
    /// Replays that are being noted.
    touches: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
}

/// How many replays are noted at once; more are not.
const TOUCHES_MAX: usize = 1_000;

/// How an operation is found when it is entered.
pub enum Entry {
    /// It is ours to run.
    Lead(Lead),
    /// It runs elsewhere; one may wait.
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
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
            withdrawals: Arc::default(),
            touches: Arc::default(),
            running: Arc::default(),
        })
    }

    /// The bounds of now.
    pub fn limits(&self) -> Limits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the bounds. What waits already, or was begun, goes on under the
    /// bounds that it began with.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Where work that must outlive its client is spawned. Shutdown waits for it.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// A random number, for whoever must not come back together with all others.
    pub fn chance(&self) -> u64 {
        self.entropy.next_u64()
    }

    /// Runs work that must outlive its client. Shutdown waits for it, until it
    /// is [abandoned](Self::abandon).
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let ending = self.ending.clone();
        self.tasks.spawn(async move {
            ending.run_until_cancelled_owned(work).await;
        });
    }

    /// Gives up what still runs, at the end of a shutdown. Each operation that
    /// was under way is recorded as unknown, or released where the lead is
    /// [joined](Lead::joined); [`tasks`](Self::tasks) are done when that is
    /// written.
    pub fn abandon(&self) {
        self.ending.cancel();
    }

    /// How many operations this process runs.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many requests wait for an operation.
    pub fn waiters(&self) -> usize {
        self.flights.waiters()
    }

    /// Enters an operation: claims it, or tells how it stands.
    pub async fn enter(
        self: &Arc<Self>,
        identity: Identity,
        fingerprint: Fingerprint,
        terms: Terms,
    ) -> Result<Entry, StoreError> {
        let digest = identity.digest();
        let ask = Ask {
            id: OperationId::new(&digest, self.entropy.next_u64()),
            attempt: Attempt(self.entropy.next_u128()),
            digest,
            identity,
            fingerprint,
            terms,
        };
        // Seated before the claim: see `flights`.
        let seat = self.flights.board(&digest);
        let pending = Pending {
            engine: self,
            digest,
            attempt: ask.attempt,
        };
        let claim = self.within_deadline(self.store.claim(&ask)).await?;
        pending.answered();
        Ok(match claim {
            Claim::Granted(grant) => Entry::Lead(Lead::new(self, seat, grant, ask.terms.lease)),
            Claim::Busy(record) => Entry::Follow(Follow {
                engine: self.clone(),
                seat,
                record,
            }),
            Claim::Finished(record) => {
                self.note_replay(&record);
                Entry::Finished(record)
            }
            Claim::Mismatch => Entry::Mismatch,
            Claim::Unknown(record) => Entry::Unknown(record),
            Claim::Paused(record) => Entry::Paused(record),
            Claim::Expired(record) => Entry::Expired(record),
        })
    }

    /// Notes that an operation's reply is given again, where its retention
    /// counts from that. Nobody waits for it. [`Engine::enter`] does it by
    /// itself; whoever gives a reply that was [looked up](Engine::look) may too.
    pub fn note_replay(self: &Arc<Self>, record: &Record) {
        if record.terms.ttl_basis != TtlBasis::Access {
            return;
        }
        let Some(turn) = Turn::take(&self.touches, TOUCHES_MAX) else {
            // The reply expires a little earlier.
            return;
        };
        let engine = self.clone();
        let digest = record.digest;
        self.tasks.spawn(async move {
            if let Err(error) = engine.within_deadline(engine.store.touch(&digest)).await {
                tracing::warn!(%error, "a replay could not be noted; its reply expires earlier");
            }
            drop(turn);
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

    /// Waits for an operation that is known to run.
    pub fn follow(self: &Arc<Self>, record: Arc<Record>) -> Follow {
        Follow {
            engine: self.clone(),
            seat: self.flights.board(&record.digest),
            record,
        }
    }

    async fn within_deadline<T>(
        &self,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.limits().store_deadline;
        match timeout(limit, step).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::Unavailable(Box::new(TooSlow(limit)))),
        }
    }

    /// Takes back a claim that may have been granted without our knowing.
    /// Nothing was forwarded under it, so the key must not stay taken.
    ///
    /// While a store is away for long there are only so many who try: a claim
    /// that is not taken back is found out when its lease ends.
    fn withdraw(self: &Arc<Self>, digest: Digest, attempt: Attempt) {
        // Without a runtime the process is ending: the lease tells the rest.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let Some(turn) = Turn::take(&self.withdrawals, self.limits().withdrawals) else {
            tracing::error!("too many claims wait to be taken back; one is left to its lease");
            return;
        };
        let engine = self.clone();
        let work = async move {
            let step = || engine.store.withdraw(&digest, attempt);
            if let Err(error) = engine.until_recorded(step).await {
                tracing::error!(%error, "a claim whose answer was lost could not be taken back");
            }
            drop(turn);
        };
        self.tasks.spawn_on(work, &runtime);
    }

    /// Repeats a step until the store takes it, with growing pauses.
    async fn until_recorded<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let give_up = Instant::now() + self.limits().record_again;
        let mut pause = Duration::from_millis(50);
        loop {
            match self.within_deadline(step()).await {
                Ok(done) => return Ok(done),
                // What is damaged stays so.
                Err(error @ StoreError::Damaged(_)) => return Err(error),
                Err(error) if Instant::now() + pause > give_up => return Err(error),
                Err(error) => tracing::warn!(%error, "the store refused an outcome; trying again"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }
}

/// One of a bounded number of tasks.
struct Turn(Arc<AtomicUsize>);

impl Turn {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let turn = Self(taken.clone());
        let before = taken.fetch_add(1, Ordering::Relaxed);
        (before < max).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A claim whose answer has not come. If it never does, because the store
/// failed or whoever asked has gone, the claim is taken back.
struct Pending<'a> {
    engine: &'a Arc<Engine>,
    digest: Digest,
    attempt: Attempt,
}

impl Pending<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.engine.withdraw(self.digest, self.attempt);
    }
}

/// The right to run an operation, and the duty to say what became of it.
///
/// Dropped without a word (a panic, a cancelled task), it counts as lost; a
/// [joined](Self::joined) one is released.
pub struct Lead {
    engine: Arc<Engine>,
    seat: Option<Seat>,
    grant: Grant,
    lease: Duration,
    last_word: LastWord,
}

/// Who knows what became of an operation whose holder does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastWord {
    /// Nobody: it may have run.
    Nobody,
    /// The record, which is written together with what was done.
    Record,
}

/// What became of recording an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The store has it.
    Durably,
    /// The store has another word from somebody who came after us.
    Stale,
    /// The store did not take it; it is being tried again.
    NotYet,
}

/// Whether a lease is known to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "who begins something anew needs to know"]
pub enum Renewed {
    /// The store says so.
    Confirmed,
    /// Somebody else was granted, or the store did not say.
    NotConfirmed,
}

impl Lead {
    fn new(engine: &Arc<Engine>, seat: Seat, grant: Grant, lease: Duration) -> Self {
        engine.running.fetch_add(1, Ordering::Relaxed);
        Self {
            engine: engine.clone(),
            seat: Some(seat.lead()),
            grant,
            lease,
            last_word: LastWord::Nobody,
        }
    }

    /// The same for work that is done in one transaction with its record, by
    /// somebody else who has the fence too. Then nothing is done unless the
    /// record says so, and a release is certain: what is not committed before
    /// it finds its fence stale. So nothing is ever recorded as lost, and where
    /// the store did not take a word those who wait ask the record itself.
    #[must_use]
    pub fn joined(mut self) -> Self {
        self.last_word = LastWord::Record;
        self
    }

    /// The operation's id.
    pub fn id(&self) -> OperationId {
        self.grant.id
    }

    /// The operation's digest.
    pub fn digest(&self) -> Digest {
        self.grant.digest
    }

    /// The fence of this run.
    pub fn fence(&self) -> Fence {
        self.grant.fence
    }

    /// Does work under the lease, renewing it as long as the work takes.
    pub async fn holding<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep((self.lease / 3).max(RENEWAL_PAUSE_MIN)) => {
                    let _ = self.renew().await;
                }
            }
        }
    }

    /// Renews the lease. A failed renewal stops nothing that has begun: its
    /// outcome is judged by the fence when it comes. But whoever is about to
    /// begin something anew under the same grant must have it confirmed.
    pub async fn renew(&self) -> Renewed {
        let Grant { digest, fence, .. } = self.grant;
        let step = self.engine.store.renew(&digest, fence);
        match self.engine.within_deadline(step).await {
            Ok(Settled::Done) => Renewed::Confirmed,
            Ok(Settled::Stale) => {
                tracing::warn!(operation_id = %self.grant.id, "lost the lease");
                Renewed::NotConfirmed
            }
            Err(error) => {
                tracing::warn!(%error, "could not renew a lease");
                Renewed::NotConfirmed
            }
        }
    }

    /// Records that the operation finished, for good.
    pub async fn finish(self, settlement: Settlement, reply: Option<Arc<Reply>>) -> Recorded {
        let otherwise = reply.map_or(Landed::Lost, Landed::NotRecorded);
        self.settle(settlement, Landed::Recorded, otherwise).await
    }

    /// Records that the key is free again; those who wait get this run's answer.
    pub async fn release(self, reply: Option<Arc<Reply>>) -> Recorded {
        let landed = reply.map_or(Landed::Nothing, Landed::Released);
        self.settle(Settlement::Released, landed.clone(), landed)
            .await
    }

    /// Records that the operation may have run. All who wait are told at once.
    /// A [joined](Self::joined) lead releases it.
    pub async fn lose(self) -> Recorded {
        match self.last_word {
            LastWord::Record => self.release(None).await,
            LastWord::Nobody => {
                self.settle(Settlement::Lost, Landed::Lost, Landed::Lost)
                    .await
            }
        }
    }

    /// Records that the attempts are used up.
    pub async fn pause(self) -> Recorded {
        self.settle(Settlement::Paused, Landed::Recorded, Landed::Lost)
            .await
    }

    /// Records that the answer will not be kept, before it streams. The lead
    /// stays, to be [`landed`](Self::landed) or lost when the stream has ended.
    pub async fn mark_not_kept(&self, settlement: Settlement) -> Recorded {
        self.write(settlement).await
    }

    /// Ends a lead whose outcome is already recorded.
    pub fn landed(mut self) {
        self.leave(Landed::Recorded);
    }

    async fn settle(mut self, settlement: Settlement, then: Landed, otherwise: Landed) -> Recorded {
        let recorded = self.write(settlement.clone()).await;
        match recorded {
            Recorded::Durably => self.leave(then),
            Recorded::Stale => self.leave(Landed::Recorded),
            Recorded::NotYet => {
                self.leave(match self.last_word {
                    LastWord::Nobody => otherwise,
                    LastWord::Record => Landed::Recorded,
                });
                self.write_later(settlement);
            }
        }
        recorded
    }

    async fn write(&self, settlement: Settlement) -> Recorded {
        let Grant { digest, fence, .. } = self.grant;
        let step = self.engine.store.settle(&digest, fence, settlement);
        match self.engine.within_deadline(step).await {
            Ok(Settled::Done) => Recorded::Durably,
            Ok(Settled::Stale) => {
                tracing::warn!(operation_id = %self.grant.id, "an outcome came too late to count");
                Recorded::Stale
            }
            Err(error) => {
                tracing::error!(%error, operation_id = %self.grant.id, "an outcome was not recorded");
                Recorded::NotYet
            }
        }
    }

    fn write_later(&self, settlement: Settlement) {
        let engine = self.engine.clone();
        let Grant { digest, fence, id } = self.grant;
        self.engine.tasks.spawn(async move {
            let step = || engine.store.settle(&digest, fence, settlement.clone());
            if let Err(error) = engine.until_recorded(step).await {
                tracing::error!(%error, operation_id = %id, "gave up recording an outcome");
            }
        });
    }

    fn leave(&mut self, landed: Landed) {
        if let Some(seat) = self.seat.take() {
            seat.land(landed);
            self.engine.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.seat.is_some() {
            let (landed, word) = match self.last_word {
                LastWord::Nobody => (Landed::Lost, Settlement::Lost),
                LastWord::Record => (Landed::Recorded, Settlement::Released),
            };
            self.leave(landed);
            // Without a runtime the process is ending: the lease tells the rest.
            if tokio::runtime::Handle::try_current().is_ok() {
                self.write_later(word);
            }
        }
    }
}

/// A place among those who wait for an operation.
pub struct Follow {
    engine: Arc<Engine>,
    seat: Seat,
    record: Arc<Record>,
}

/// What waiting came to.
pub enum Awaited {
    /// The operation has another state now.
    Settled(Arc<Record>),
    /// The run that one waited for was answered, and its answer is not kept.
    Answered(Arc<Reply>, Recorded),
    /// It may have run.
    Lost,
    /// Nothing was done: the key is free again.
    Freed,
    /// It still runs.
    StillRunning,
    /// Too many wait already.
    TooMany,
}

impl Follow {
    /// The record of what one waits for.
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Waits for the operation to leave `running`, at most this long.
    pub async fn settled(&self, limit: Duration) -> Result<Awaited, StoreError> {
        let tenant = self.record.identity.caller.tenant();
        let counted = self.seat.wait_within(&self.engine.limits(), tenant);
        let Some(_waiting) = counted else {
            return Ok(Awaited::TooMany);
        };
        timeout(limit, self.watch())
            .await
            .unwrap_or(Ok(Awaited::StillRunning))
    }

    /// A leader in this process tells by itself; one elsewhere shows in the store.
    async fn watch(&self) -> Result<Awaited, StoreError> {
        let poll = self.engine.limits().poll;
        loop {
            tokio::select! {
                biased;
                landed = self.seat.landed() => return self.told(landed).await,
                hint = self.engine.store.wait(&self.record.digest, poll) => hint?,
            }
            // A leader of ours has already settled in the store and is about to
            // tell more than the store knows.
            if self.seat.is_led() {
                return self.told(self.seat.landed().await).await;
            }
            match self.seen().await? {
                Awaited::StillRunning => {}
                settled => return Ok(settled),
            }
        }
    }

    async fn told(&self, landed: Landed) -> Result<Awaited, StoreError> {
        match landed {
            Landed::Recorded => self.seen().await,
            Landed::Released(reply) => Ok(Awaited::Answered(reply, Recorded::Durably)),
            Landed::NotRecorded(reply) => Ok(Awaited::Answered(reply, Recorded::NotYet)),
            Landed::Lost => Ok(Awaited::Lost),
            Landed::Nothing => Ok(Awaited::Freed),
        }
    }

    async fn seen(&self) -> Result<Awaited, StoreError> {
        let record = self.engine.look(&self.record.digest).await?;
        Ok(match record {
            None => Awaited::Freed,
            Some(record) => match record.state {
                State::Queued | State::Running => Awaited::StillRunning,
                State::Released => Awaited::Freed,
                State::Unknown => Awaited::Lost,
                State::Completed | State::Failed | State::Paused | State::Expired => {
                    Awaited::Settled(record)
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::AfterLoss;
    use crate::clock::{Clock as _, ManualClock};
    use crate::memory::MemoryStore;
    use crate::record::Answer;
    use crate::record::tests::{RETENTION, START, record};

    /// An engine on a memory store, and an operation that is run through it.
    struct House {
        clock: Arc<ManualClock>,
        engine: Arc<Engine>,
        asked: Record,
    }

    impl House {
        fn new(ttl_basis: TtlBasis) -> Self {
            let clock = Arc::new(ManualClock::new(START));
            let store = Arc::new(MemoryStore::new(clock.clone()));
            let mut asked = record(State::Running, AfterLoss::Hold);
            asked.terms.ttl_basis = ttl_basis;
            Self {
                engine: Engine::new(store, Entropy::seeded(7), Limits::default()),
                clock,
                asked,
            }
        }

        async fn enter(&self) -> Entry {
            let Record {
                identity,
                fingerprint,
                terms,
                ..
            } = self.asked.clone();
            let entered = self.engine.enter(identity, fingerprint, terms).await;
            entered.expect("the store answers")
        }

        async fn complete(&self) {
            let Entry::Lead(lead) = self.enter().await else {
                panic!("it was to be led");
            };
            let word = Settlement::Completed(Answer::NotKept { status: 200 });
            assert_eq!(lead.finish(word, None).await, Recorded::Durably);
        }

        async fn expires_in(&self) -> Duration {
            let tasks = self.engine.tasks();
            tasks.close();
            tasks.wait().await;
            tasks.reopen();
            let record = self.engine.look(&self.asked.digest).await;
            let record = record.expect("the store answers").expect("on record");
            let expires = record.expires_at().expect("an outcome");
            expires.since(self.clock.now())
        }
    }

    #[tokio::test]
    async fn replays_are_noted_where_retention_counts_from_them() {
        for (basis, want) in [
            (TtlBasis::Access, RETENTION),
            (TtlBasis::Completion, RETENTION / 2),
            (TtlBasis::Creation, RETENTION / 2),
        ] {
            let house = House::new(basis);
            house.complete().await;
            house.clock.advance(RETENTION / 2);
            assert!(matches!(house.enter().await, Entry::Finished(_)));
            assert_eq!(house.expires_in().await, want, "{basis:?}");
        }
    }

    #[tokio::test]
    async fn what_becomes_of_a_lead_that_does_not_know() {
        for joined in [false, true] {
            for dropped in [false, true] {
                let house = House::new(TtlBasis::Completion);
                let Entry::Lead(lead) = house.enter().await else {
                    panic!("it was to be led");
                };
                let lead = if joined { lead.joined() } else { lead };
                match dropped {
                    true => drop(lead),
                    false => assert_eq!(lead.lose().await, Recorded::Durably),
                }
                let tasks = house.engine.tasks();
                tasks.close();
                tasks.wait().await;
                let record = house.engine.look(&house.asked.digest).await;
                let record = record.expect("the store answers").expect("on record");
                let want = if joined {
                    State::Released
                } else {
                    State::Unknown
                };
                assert_eq!(record.state, want, "joined {joined}, dropped {dropped}");
            }
        }
    }

    #[tokio::test]
    async fn limits_change_while_others_wait() {
        let house = House::new(TtlBasis::Completion);
        let Entry::Lead(lead) = house.enter().await else {
            panic!("it was to be led");
        };
        let follow = async || match house.enter().await {
            Entry::Follow(follow) => follow,
            _ => panic!("it was to be followed"),
        };
        let (first, second) = (follow().await, follow().await);
        let waiting = tokio::spawn(async move { first.settled(Duration::MAX).await });
        while house.engine.waiters() == 0 {
            tokio::task::yield_now().await;
        }
        house.engine.set_limits(Limits {
            waiters_per_tenant: 1,
            ..house.engine.limits()
        });
        let refused = second.settled(Duration::ZERO).await;
        assert!(matches!(refused, Ok(Awaited::TooMany)));
        house.engine.set_limits(Limits::default());
        let waited = second.settled(Duration::ZERO).await;
        assert!(matches!(waited, Ok(Awaited::StillRunning)));
        lead.release(None).await;
        let first = waiting.await.expect("the first still waits");
        assert!(matches!(first, Ok(Awaited::Freed)));
    }
}
