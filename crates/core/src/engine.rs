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

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::class::{AfterLoss, Terms, TtlBasis};
use crate::entropy::Entropy;
use crate::fingerprint::Fingerprint;
use crate::flights::{Flights, Landed, Lookout, Next, Seat};
use crate::identity::{Digest, Identity, OperationId};
use crate::record::{Attempt, Completion, Fence, Record, Reply, Settled, Settlement, State};
use crate::store::{Ask, Claim, Due, Enqueued, Grant, Queue, Store, StoreError};

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

/// The pauses after which claims are looked for that came behind their withdrawal.
const LATECOMERS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
];
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
        let ask = self.ask(identity, fingerprint, terms);
        let digest = ask.digest;
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
            Claim::Granted(grant) => {
                Entry::Lead(Lead::new(self, seat, grant, fingerprint, ask.terms.lease))
            }
            Claim::Busy(record) => Entry::Follow(Follow {
                engine: self.clone(),
                seat,
                record,
                fingerprint,
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

    fn ask(&self, identity: Identity, fingerprint: Fingerprint, terms: Terms) -> Ask {
        let digest = identity.digest();
        Ask {
            id: OperationId::new(&digest, self.entropy.next_u64()),
            attempt: Attempt(self.entropy.next_u128()),
            digest,
            identity,
            fingerprint,
            terms,
        }
    }

    /// Records an operation with its request, to be delivered by whoever asks
    /// the queue for what is due; or tells how it stands. An answer that is lost
    /// is no claim to be taken back: what was recorded is delivered, and the
    /// sender's retry finds it known.
    pub async fn enqueue(
        self: &Arc<Self>,
        queue: &dyn Queue,
        identity: Identity,
        fingerprint: Fingerprint,
        terms: Terms,
        request: Bytes,
    ) -> Result<Enqueued, StoreError> {
        let ask = self.ask(identity, fingerprint, terms);
        let step = queue.enqueue(&ask, request, Duration::ZERO);
        let enqueued = self.within_deadline(step).await?;
        if let Enqueued::Known(Claim::Finished(record)) = &enqueued {
            self.note_replay(record);
        }
        Ok(enqueued)
    }

    /// Takes the lead of queued work whose turn has come.
    pub fn take(self: &Arc<Self>, due: &Due) -> Lead {
        let Due { grant, record, .. } = due;
        let seat = self.flights.board(&grant.digest);
        let mut lead = Lead::new(self, seat, *grant, record.fingerprint, record.terms.lease);
        lead.last_word = match record.terms.after_loss {
            AfterLoss::Hold => LastWord::Nobody,
            AfterLoss::Free => LastWord::Queue,
        };
        lead
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

    /// Waits for an operation that is known to run. What runs under its key
    /// afterwards and was asked for differently is another's.
    pub fn follow(self: &Arc<Self>, record: Arc<Record>) -> Follow {
        Follow {
            engine: self.clone(),
            seat: self.flights.board(&record.digest),
            fingerprint: record.fingerprint,
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
    /// Nothing was forwarded under it, so the key must not stay taken. It is done
    /// again after a while: what was sent on a connection that was given up, or
    /// waited for a standby to commit, may arrive behind the withdrawal.
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
                return;
            }
            // Nobody waits for these when the process ends.
            tokio::spawn(async move {
                for pause in LATECOMERS {
                    sleep(pause).await;
                    let step = engine.store.withdraw(&digest, attempt);
                    if let Err(error) = engine.within_deadline(step).await {
                        tracing::warn!(%error, "a claim that may have come late is left to its lease");
                    }
                }
                drop(turn);
            });
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
/// [joined](Self::joined) one is released, and queued work is due again where
/// running twice was declared safe.
pub struct Lead {
    engine: Arc<Engine>,
    seat: Option<Seat>,
    grant: Grant,
    fingerprint: Fingerprint,
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
    /// Nobody, and it does not matter: the queue delivers it again.
    Queue,
}

/// What became of recording an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The store has the outcome, and these are its times.
    Finished(Completion),
    /// The store has every other settlement.
    Durably,
    /// The operation was granted again, resolved or purged since.
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
    /// It is another's by now.
    Lost,
    /// The store did not say.
    NotConfirmed,
}

impl Lead {
    fn new(
        engine: &Arc<Engine>,
        seat: Seat,
        grant: Grant,
        fingerprint: Fingerprint,
        lease: Duration,
    ) -> Self {
        engine.running.fetch_add(1, Ordering::Relaxed);
        Self {
            engine: engine.clone(),
            seat: Some(seat.lead(fingerprint)),
            grant,
            fingerprint,
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

    /// What was asked for. A record under this digest that says otherwise is of
    /// another request, which claimed the key after us.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
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
            Ok(Settled::Done | Settled::Finished(_)) => Renewed::Confirmed,
            Ok(Settled::Stale) => {
                tracing::warn!(operation_id = %self.grant.id, "lost the lease");
                Renewed::Lost
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

    /// Records that queued work is to be tried again later. Those who wait go on
    /// waiting: it is not over.
    pub async fn requeue(self, after: Duration) -> Recorded {
        self.put_back(Settlement::Requeued { after }).await
    }

    /// Records that queued work was not tried and has its turn later; this one
    /// does not count among its attempts. Those who wait go on waiting.
    pub async fn defer(self, after: Duration) -> Recorded {
        self.put_back(Settlement::Deferred { after }).await
    }

    /// Records that the operation may have run. All who wait are told at once.
    /// A [joined](Self::joined) lead releases it; queued work is due again where
    /// running twice was declared safe, and those who wait go on waiting.
    pub async fn lose(self) -> Recorded {
        match self.last_word {
            LastWord::Record => self.release(None).await,
            LastWord::Queue => self.put_back(Settlement::Lost).await,
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
            Recorded::Finished(_) | Recorded::Durably => self.leave(then),
            Recorded::Stale => self.leave(Landed::Recorded),
            Recorded::NotYet => {
                self.leave(match self.last_word {
                    LastWord::Nobody | LastWord::Queue => otherwise,
                    LastWord::Record => Landed::Recorded,
                });
                self.write_later(settlement);
            }
        }
        recorded
    }

    /// Leaves queued work to whoever has the next turn.
    async fn put_back(mut self, settlement: Settlement) -> Recorded {
        let recorded = self.write(settlement.clone()).await;
        self.pass_on();
        if recorded == Recorded::NotYet {
            self.write_later(settlement);
        }
        recorded
    }

    async fn write(&self, settlement: Settlement) -> Recorded {
        let Grant { digest, fence, .. } = self.grant;
        let step = self.engine.store.settle(&digest, fence, settlement);
        match self.engine.within_deadline(step).await {
            Ok(Settled::Finished(completion)) => Recorded::Finished(completion),
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

    /// Leaves those who wait to the store.
    fn pass_on(&mut self) {
        if let Some(seat) = self.seat.take() {
            seat.pass_on();
            self.engine.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.seat.is_some() {
            let word = match self.last_word {
                LastWord::Nobody | LastWord::Queue => Settlement::Lost,
                LastWord::Record => Settlement::Released,
            };
            match self.last_word {
                LastWord::Nobody => self.leave(Landed::Lost),
                LastWord::Record => self.leave(Landed::Recorded),
                LastWord::Queue => self.pass_on(),
            }
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
    /// What whoever waits asked for: a key that was freed may be claimed for
    /// something else, and the reply to that is for others.
    fingerprint: Fingerprint,
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

    /// A leader in this process tells by itself, and who waits for it leaves the
    /// store alone; one elsewhere shows in the store.
    async fn watch(&self) -> Result<Awaited, StoreError> {
        let mut lookout = self.seat.lookout();
        loop {
            if let Some(landed) = self.seat.word(&self.fingerprint).await {
                return self.told(landed).await;
            }
            let record = tokio::select! {
                biased;
                landed = self.seat.landed(&self.fingerprint) => return self.told(landed).await,
                record = self.look_in_turn(&mut lookout) => record?,
            };
            // A leader that has come meanwhile will tell more than the store knows.
            if self.seat.is_led(&self.fingerprint) {
                continue;
            }
            match self.judged(record) {
                Awaited::StillRunning => {}
                settled => return Ok(settled),
            }
        }
    }

    /// However many wait here for one elsewhere, the store is asked by one.
    async fn look_in_turn(
        &self,
        lookout: &mut Lookout<'_>,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        match lookout.next().await {
            Next::Seen(record) => Ok(record),
            Next::Turn(turn) => {
                let digest = &self.record.digest;
                self.engine
                    .store
                    .wait(digest, self.engine.limits().poll)
                    .await?;
                let record = self.engine.look(digest).await?;
                turn.tell(record.clone());
                Ok(record)
            }
        }
    }

    async fn told(&self, landed: Landed) -> Result<Awaited, StoreError> {
        match landed {
            Landed::Recorded => Ok(self.judged(self.engine.look(&self.record.digest).await?)),
            Landed::Released(reply) => Ok(Awaited::Answered(reply, Recorded::Durably)),
            Landed::NotRecorded(reply) => Ok(Awaited::Answered(reply, Recorded::NotYet)),
            Landed::Lost => Ok(Awaited::Lost),
            Landed::Nothing => Ok(Awaited::Freed),
        }
    }

    /// What a look at the record means for who waits.
    fn judged(&self, record: Option<Arc<Record>>) -> Awaited {
        match record {
            None => Awaited::Freed,
            // Ours was freed, and the key is another's now: whatever its state,
            // nothing of it is told.
            Some(record) if record.fingerprint != self.fingerprint => Awaited::Freed,
            Some(record) => match record.state {
                State::Queued | State::Running => Awaited::StillRunning,
                State::Released => Awaited::Freed,
                State::Unknown => Awaited::Lost,
                State::Completed | State::Failed | State::Paused | State::Expired => {
                    Awaited::Settled(record)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::AfterLoss;
    use crate::clock::{Clock as _, ManualClock};
    use crate::memory::MemoryStore;
    use crate::record::Answer;
    use crate::record::tests::{RETENTION, START, fingerprint, record};

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
            let recorded = lead.finish(word, None).await;
            assert!(matches!(recorded, Recorded::Finished(_)));
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

    /// Two gateways on one store.
    struct Pair {
        store: Arc<Watched>,
        here: Arc<Engine>,
        there: Arc<Engine>,
    }

    /// A memory store that counts those who wait at it.
    struct Watched {
        store: Arc<MemoryStore>,
        waits: AtomicUsize,
        /// How much later than its answer a claim arrives.
        late: Option<Duration>,
    }

    #[async_trait::async_trait]
    impl Store for Watched {
        async fn claim(&self, ask: &Ask) -> Result<Claim, StoreError> {
            let Some(late) = self.late else {
                return self.store.claim(ask).await;
            };
            let (store, ask) = (self.store.clone(), ask.clone());
            tokio::spawn(async move {
                sleep(late).await;
                let claim = store.claim(&ask).await;
                assert!(matches!(claim, Ok(Claim::Granted(_))));
            });
            Err(StoreError::Unavailable("the connection was lost".into()))
        }

        async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
            self.store.withdraw(digest, attempt).await
        }

        async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
            self.store.renew(digest, fence).await
        }

        async fn settle(
            &self,
            digest: &Digest,
            fence: Fence,
            settlement: Settlement,
        ) -> Result<Settled, StoreError> {
            self.store.settle(digest, fence, settlement).await
        }

        async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
            self.store.get(digest).await
        }

        async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
            self.store.find(id).await
        }

        async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
            self.store.touch(digest).await
        }

        async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.store.wait(digest, limit).await
        }
    }

    impl Pair {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(START));
            let store = Arc::new(Watched {
                store: Arc::new(MemoryStore::new(clock)),
                waits: AtomicUsize::new(0),
                late: None,
            });
            let engine = |seed| {
                let store: Arc<dyn Store> = store.clone();
                Engine::new(store, Entropy::seeded(seed), Limits::default())
            };
            Self {
                here: engine(1),
                there: engine(2),
                store,
            }
        }

        /// Enters one and the same key, asking for this.
        async fn enter(engine: &Arc<Engine>, asked: u8) -> Entry {
            let Record {
                identity, terms, ..
            } = record(State::Running, AfterLoss::Hold);
            let entered = engine.enter(identity, fingerprint(asked), terms).await;
            entered.expect("the store answers")
        }

        async fn lead(engine: &Arc<Engine>, asked: u8) -> Lead {
            match Self::enter(engine, asked).await {
                Entry::Lead(lead) => lead,
                _ => panic!("it was to be led"),
            }
        }

        async fn follow(engine: &Arc<Engine>, asked: u8) -> Follow {
            match Self::enter(engine, asked).await {
                Entry::Follow(follow) => follow,
                _ => panic!("it was to be followed"),
            }
        }
    }

    fn reply() -> Arc<Reply> {
        Arc::new(Reply {
            status: 503,
            headers: Vec::new(),
            body: bytes::Bytes::from_static(b"of somebody else"),
            trailers: Vec::new(),
        })
    }

    fn completed() -> Settlement {
        Settlement::Completed(Answer::NotKept { status: 200 })
    }

    /// However far the other request is, whoever waits for the first is told
    /// that it was freed, and nothing else.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_told_nothing_of_another_request_under_its_key() {
        for by_record in [false, true] {
            for done in [false, true] {
                let pair = Pair::new();
                let first = Pair::lead(&pair.there, 1).await;
                let follow = Pair::follow(&pair.here, 1).await;
                let follow = match by_record {
                    true => pair.here.follow(follow.record().clone()),
                    false => follow,
                };
                first.release(None).await;
                let second = Pair::lead(&pair.there, 2).await;
                let second = match done {
                    true => {
                        let recorded = second.finish(completed(), None).await;
                        assert!(matches!(recorded, Recorded::Finished(_)));
                        None
                    }
                    false => Some(second),
                };
                let waited = follow.settled(Duration::from_secs(5)).await;
                assert!(
                    matches!(waited, Ok(Awaited::Freed)),
                    "by record {by_record}, done {done}"
                );
                drop(second);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_still_gets_the_outcome_of_the_same_request_run_anew() {
        let pair = Pair::new();
        let first = Pair::lead(&pair.there, 1).await;
        let follow = Pair::follow(&pair.here, 1).await;
        first.release(None).await;
        let again = Pair::lead(&pair.there, 1).await;
        again.finish(completed(), None).await;
        let waited = follow.settled(Duration::from_secs(5)).await;
        assert!(matches!(waited, Ok(Awaited::Settled(_))));
    }

    /// The waiter sits in the flight that a request of another kind comes to
    /// lead: its answer is told there, and is not for the waiter.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_not_told_the_answer_of_another_leader_beside_it() {
        for told_first in [false, true] {
            let pair = Pair::new();
            let first = Pair::lead(&pair.there, 1).await;
            let follow = Pair::follow(&pair.here, 1).await;
            first.release(None).await;
            let other = Pair::lead(&pair.here, 2).await;
            let listener = Pair::follow(&pair.here, 2).await;
            let limit = Duration::from_secs(5);
            let waited = if told_first {
                other.release(Some(reply())).await;
                follow.settled(limit).await
            } else {
                let waited = follow.settled(limit).await;
                other.release(Some(reply())).await;
                waited
            };
            assert!(matches!(waited, Ok(Awaited::Freed)), "{told_first}");
            let shared = listener.settled(limit).await;
            assert!(
                matches!(shared, Ok(Awaited::Answered(_, Recorded::Durably))),
                "who asked the same gets that answer"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_leader_beside_it_leaves_the_store_alone() {
        for dropped in [false, true] {
            let pair = Pair::new();
            let lead = Pair::lead(&pair.here, 1).await;
            let follow = Pair::follow(&pair.here, 1).await;
            let early = follow.settled(Duration::from_secs(30)).await;
            assert!(matches!(early, Ok(Awaited::StillRunning)), "it is bounded");
            let waiting = tokio::spawn(async move { follow.settled(Duration::MAX).await });
            while pair.here.waiters() == 0 {
                tokio::task::yield_now().await;
            }
            match dropped {
                true => drop(lead),
                false => {
                    lead.release(Some(reply())).await;
                }
            }
            match waiting.await.expect("the waiter goes on") {
                Ok(Awaited::Lost) => assert!(dropped),
                Ok(Awaited::Answered(..)) => assert!(!dropped),
                _ => panic!("a leader's word is heard, dropped {dropped}"),
            }
            assert_eq!(pair.store.waits.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_leader_elsewhere_asks_the_store() {
        let pair = Pair::new();
        let lead = Pair::lead(&pair.there, 1).await;
        let follow = Pair::follow(&pair.here, 1).await;
        let early = follow.settled(Duration::from_secs(30)).await;
        assert!(matches!(early, Ok(Awaited::StillRunning)));
        assert!(pair.store.waits.load(Ordering::Relaxed) > 0);
        lead.finish(completed(), None).await;
        let waited = follow.settled(Duration::from_secs(5)).await;
        assert!(matches!(waited, Ok(Awaited::Settled(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_arrives_behind_its_withdrawal_is_taken_back() {
        for late in [3, 9, 30] {
            let clock = Arc::new(ManualClock::new(START));
            let store = Arc::new(MemoryStore::new(clock));
            let watched = Arc::new(Watched {
                store: store.clone(),
                waits: AtomicUsize::new(0),
                late: Some(Duration::from_secs(late)),
            });
            let engine = Engine::new(watched, Entropy::seeded(1), Limits::default());
            let Record {
                identity, terms, ..
            } = record(State::Running, AfterLoss::Hold);
            let digest = identity.digest();
            let entered = engine.enter(identity, fingerprint(1), terms).await;
            assert!(entered.is_err());
            sleep(Duration::from_millis(late * 1000 + 1)).await;
            let state = async || {
                let record = store.get(&digest).await.expect("the store answers");
                record.map(|record| record.state)
            };
            assert_eq!(state().await, Some(State::Running), "{late} s late");
            sleep(Duration::from_secs(80)).await;
            assert!(
                matches!(state().await, None | Some(State::Released)),
                "{late} s late"
            );
        }
    }

    /// A crowd asks the store as often as one would, also when those who looked
    /// for the others have gone.
    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_waits_for_a_leader_elsewhere_asks_the_store_as_one() {
        let pair = Pair::new();
        let lead = Pair::lead(&pair.there, 1).await;
        let poll = pair.here.limits().poll;
        let mut crowd = Vec::new();
        for number in 0..300 {
            let follow = Pair::follow(&pair.here, 1).await;
            // Every third has less patience than a look takes.
            let limit = if number % 3 == 0 {
                poll / 2
            } else {
                poll * 100
            };
            crowd.push((
                limit,
                tokio::spawn(async move { follow.settled(limit).await }),
            ));
        }
        tokio::time::sleep(poll * 10).await;
        let asked = pair.store.waits.load(Ordering::Relaxed);
        // The impatient pass their turn on once, all at the same moment.
        assert!(
            asked <= 20,
            "the store was asked {asked} times in ten polls"
        );
        lead.finish(completed(), None).await;
        for (limit, waiter) in crowd {
            match waiter.await.expect("nobody panics") {
                Ok(Awaited::StillRunning) => assert!(limit < poll),
                Ok(Awaited::Settled(_)) => assert!(limit > poll),
                _ => panic!("neither settled nor out of patience"),
            }
        }
    }

    /// A gateway that delivers by itself.
    struct Office {
        store: Arc<MemoryStore>,
        engine: Arc<Engine>,
        asked: Record,
    }

    impl Office {
        fn new(after_loss: AfterLoss) -> Self {
            let clock = Arc::new(ManualClock::new(START));
            let store = Arc::new(MemoryStore::new(clock));
            Self {
                engine: Engine::new(store.clone(), Entropy::seeded(7), Limits::default()),
                asked: record(State::Queued, after_loss),
                store,
            }
        }

        async fn enqueue(&self, queue: &dyn Queue) -> Result<Enqueued, StoreError> {
            let Record {
                identity,
                fingerprint,
                terms,
                ..
            } = self.asked.clone();
            let request = Bytes::from_static(b"request");
            self.engine
                .enqueue(queue, identity, fingerprint, terms, request)
                .await
        }

        async fn enqueued(&self) {
            let enqueued = self.enqueue(&*self.store).await;
            assert!(matches!(enqueued, Ok(Enqueued::Accepted(_))));
        }

        /// Takes the one piece of work that is due.
        async fn take(&self) -> Lead {
            let due = self.store.due(10).await.expect("the store answers");
            assert_eq!(due.len(), 1);
            assert_eq!(due[0].request, "request");
            self.engine.take(&due[0])
        }

        /// Somebody who asks for the same, and waits.
        async fn follow(&self) -> tokio::task::JoinHandle<Result<Awaited, StoreError>> {
            let Record {
                identity,
                fingerprint,
                terms,
                ..
            } = self.asked.clone();
            let before = self.engine.waiters();
            let entered = self.engine.enter(identity, fingerprint, terms).await;
            let Ok(Entry::Follow(follow)) = entered else {
                panic!("it was to be followed");
            };
            let limit = Duration::from_secs(60);
            let waiting = tokio::spawn(async move { follow.settled(limit).await });
            while self.engine.waiters() == before {
                tokio::task::yield_now().await;
            }
            waiting
        }

        async fn record(&self) -> Arc<Record> {
            let record = self.engine.look(&self.asked.digest).await;
            record.expect("the store answers").expect("on record")
        }

        async fn rest(&self) {
            self.engine.tasks().close();
            self.engine.tasks().wait().await;
            self.engine.tasks().reopen();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_enqueued_is_led_by_whoever_takes_it() {
        let office = Office::new(AfterLoss::Free);
        office.enqueued().await;
        let early = office.follow().await;
        let lead = office.take().await;
        let late = office.follow().await;
        assert_eq!(office.engine.running(), 1);
        assert_eq!(lead.fingerprint(), office.asked.fingerprint);
        let known = office.enqueue(&*office.store).await;
        assert!(matches!(known, Ok(Enqueued::Known(Claim::Busy(_)))));
        let recorded = lead.finish(completed(), None).await;
        assert!(matches!(recorded, Recorded::Finished(_)));
        assert_eq!(office.engine.running(), 0);
        for waiter in [early, late] {
            let waited = waiter.await.expect("nobody panics");
            assert!(matches!(waited, Ok(Awaited::Settled(_))));
        }
        let known = office.enqueue(&*office.store).await;
        assert!(matches!(known, Ok(Enqueued::Known(Claim::Finished(_)))));
    }

    /// A queue that is asked, and whose answer never comes.
    struct Mute(Arc<MemoryStore>);

    #[async_trait::async_trait]
    impl Queue for Mute {
        async fn enqueue(
            &self,
            ask: &Ask,
            request: Bytes,
            after: Duration,
        ) -> Result<Enqueued, StoreError> {
            self.0.enqueue(ask, request, after).await?;
            std::future::pending().await
        }

        async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
            self.0.due(limit).await
        }

        async fn next_due(&self) -> Result<Option<crate::clock::Timestamp>, StoreError> {
            self.0.next_due().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_enqueueing_whose_answer_is_lost_is_delivered_once() {
        let office = Office::new(AfterLoss::Free);
        let begun = Instant::now();
        let enqueued = office.enqueue(&Mute(office.store.clone())).await;
        assert!(matches!(enqueued, Err(StoreError::Unavailable(_))));
        assert_eq!(begun.elapsed(), office.engine.limits().store_deadline);
        sleep(Duration::from_secs(100)).await;
        office.rest().await;
        let again = office.enqueue(&*office.store).await;
        assert!(matches!(again, Ok(Enqueued::Known(Claim::Busy(_)))));
        office.take().await.finish(completed(), None).await;
        let due = office.store.due(10).await;
        assert!(due.expect("the store answers").is_empty());
    }

    /// Those who wait go on waiting, and hear what came of it in the end: of a
    /// delivery here, or of one elsewhere.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_delivery_waits_while_it_is_put_back() {
        for elsewhere in [false, true] {
            let office = Office::new(AfterLoss::Free);
            office.enqueued().await;
            let first = office.take().await;
            let waiting = office.follow().await;
            assert_eq!(first.requeue(Duration::ZERO).await, Recorded::Durably);
            let second = office.take().await;
            assert_eq!(second.defer(Duration::ZERO).await, Recorded::Durably);
            assert_eq!(office.record().await.attempts, 1);
            let third = office.take().await;
            assert_eq!(third.lose().await, Recorded::Durably);
            drop(office.take().await);
            office.rest().await;
            assert_eq!(office.engine.running(), 0);
            let record = office.record().await;
            assert_eq!((record.state, record.attempts), (State::Queued, 3));
            sleep(Duration::from_secs(30)).await;
            assert!(!waiting.is_finished());
            if elsewhere {
                let due = office.store.due(1).await.expect("the store answers");
                let Grant { digest, fence, .. } = due[0].grant;
                let settled = office.store.settle(&digest, fence, completed()).await;
                assert!(settled.expect("the store answers").is_recorded());
            } else {
                office.take().await.finish(completed(), None).await;
            }
            let waited = waiting.await.expect("nobody panics");
            let Ok(Awaited::Settled(record)) = waited else {
                panic!("it was to be settled, elsewhere {elsewhere}");
            };
            assert_eq!(record.attempts, 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_delivery_that_is_put_back_is_told_at_its_limit() {
        let office = Office::new(AfterLoss::Hold);
        office.enqueued().await;
        let lead = office.take().await;
        let begun = Instant::now();
        let waiting = office.follow().await;
        lead.requeue(Duration::ZERO).await;
        let waited = waiting.await.expect("nobody panics");
        assert!(matches!(waited, Ok(Awaited::StillRunning)));
        assert_eq!(begun.elapsed(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_delivery_that_nobody_knows_of_is_unknown_where_that_is_held() {
        for dropped in [false, true] {
            let office = Office::new(AfterLoss::Hold);
            office.enqueued().await;
            let lead = office.take().await;
            let waiting = office.follow().await;
            match dropped {
                true => drop(lead),
                false => assert_eq!(lead.lose().await, Recorded::Durably),
            }
            office.rest().await;
            let waited = waiting.await.expect("nobody panics");
            assert!(matches!(waited, Ok(Awaited::Lost)), "{dropped}");
            assert_eq!(office.record().await.state, State::Unknown);
        }
    }
}
