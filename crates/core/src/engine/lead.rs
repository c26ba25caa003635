//! The right to run an operation, and the duty to record its outcome.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::Engine;
use super::detached::runtime_after_drop;
use super::flights::{Landed, Seat};
use crate::class::AfterLoss;
use crate::deadline::{DeadlineExceeded, within};
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, OperationId};
use crate::record::{Completion, Fence, Reply, Settled, Settlement};
use crate::store::{Due, Grant};

/// The minimum interval between renewals, however short the lease is.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(10);
/// For queued work whose delivery ended before it began. A delivery that always ends so
/// uses up no attempts, and must not be repeated without a pause.
const NOT_BEGUN: Settlement = Settlement::Deferred {
    after: Duration::from_secs(1),
};

/// The right to run an operation, as long as nothing was done under it.
///
/// Work needs a [`Lead`], and only [`begin`](Self::begin) returns one. So an operation
/// whose new lead is dropped was certainly not run: a claim is released, and queued work
/// is due again.
#[must_use = "dropped, it gives the operation back"]
pub struct NewLead {
    /// Its consequence of a loss is that of work that has not begun.
    lead: Lead,
    /// The consequence once the work has begun.
    once_begun: OnLoss,
}

impl fmt::Debug for NewLead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewLead")
            .field("grant", &self.lead.grant)
            .field("lease", &self.lead.lease)
            .field("once_begun", &self.once_begun)
            .finish_non_exhaustive()
    }
}

impl NewLead {
    /// The lead of a claim that was granted.
    pub(super) fn of_claim(
        engine: &Arc<Engine>,
        seat: Seat,
        grant: Grant,
        fingerprint: Fingerprint,
        lease: Duration,
    ) -> Self {
        Self {
            lead: Lead::new(engine, seat, grant, fingerprint, lease, OnLoss::Released),
            once_begun: OnLoss::Unknown,
        }
    }

    /// The lead of queued work that is due.
    pub(super) fn of_delivery(engine: &Arc<Engine>, seat: Seat, due: &Due) -> Self {
        let Due { grant, record, .. } = due;
        let (fingerprint, lease) = (record.fingerprint, record.terms.lease);
        Self {
            lead: Lead::new(engine, seat, *grant, fingerprint, lease, OnLoss::Deferred),
            once_begun: match record.terms.after_loss {
                AfterLoss::Hold => OnLoss::Unknown,
                AfterLoss::Free => OnLoss::Redelivered,
            },
        }
    }

    /// Begins the work: from here on it may have run.
    pub fn begin(self) -> Lead {
        let mut lead = self.lead;
        lead.on_loss = self.once_begun;
        lead
    }

    /// The operation's id.
    pub fn id(&self) -> OperationId {
        self.lead.id()
    }

    /// The operation's digest.
    pub fn digest(&self) -> Digest {
        self.lead.digest()
    }

    /// The fence of this run.
    pub fn fence(&self) -> Fence {
        self.lead.fence()
    }

    /// The fingerprint of the request. See [`Lead::fingerprint`].
    pub fn fingerprint(&self) -> Fingerprint {
        self.lead.fingerprint()
    }

    /// Renews the lease. See [`Lead::renew`].
    pub async fn renew(&self) -> Renewed {
        self.lead.renew().await
    }

    /// Gives a claim back. The key is released even if this future is cancelled, or
    /// the store does not take it at once.
    pub async fn withdraw(self) -> Recorded {
        self.lead.release(None).await
    }

    /// Records that queued work was not tried and is due again later; this grant
    /// does not count among its attempts. Waiters go on waiting.
    pub async fn defer(self, after: Duration) -> Recorded {
        self.lead.put_back(Settlement::Deferred { after }).await
    }

    /// Records that the attempts are used up.
    pub async fn pause(self) -> Recorded {
        self.lead.pause().await
    }
}

/// The right to run an operation whose work has begun, and the duty to record its
/// outcome.
///
/// Dropped without an outcome (a panic, a cancelled task), it counts as lost; a
/// [joined](Self::joined) one is released, and queued work is due again where
/// running twice was declared safe.
pub struct Lead {
    engine: Arc<Engine>,
    /// That of the claim.
    runtime: Option<Handle>,
    seat: Option<Seat>,
    grant: Grant,
    fingerprint: Fingerprint,
    lease: Duration,
    on_loss: OnLoss,
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead")
            .field("grant", &self.grant)
            .field("lease", &self.lease)
            .field("on_loss", &self.on_loss)
            .finish_non_exhaustive()
    }
}

/// The consequence where the leader does not know the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnLoss {
    /// The operation is unknown.
    Unknown,
    /// The key is free: nothing was sent so far, or the record is written together with
    /// the work itself.
    Released,
    /// The queue delivers it again.
    Redelivered,
    /// The queue delivers it, because nothing was sent so far.
    Deferred,
}

impl OnLoss {
    fn settlement(self) -> Settlement {
        match self {
            Self::Unknown | Self::Redelivered => Settlement::Lost,
            Self::Released => Settlement::Released,
            Self::Deferred => NOT_BEGUN,
        }
    }
}

/// The result of recording an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The store has the outcome, and these are its times.
    Finished(Completion),
    /// The store has the settlement, which is not an outcome.
    Durably,
    /// The operation was granted again, resolved or purged since.
    Stale,
    /// The store did not take it; the write is being repeated.
    NotYet,
}

/// Whether a lease was extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "new work under the same grant needs a confirmed lease"]
pub enum Renewed {
    /// The store has extended it.
    Confirmed,
    /// The operation was granted again, resolved or purged since.
    Lost,
    /// The store did not answer.
    NotConfirmed,
}

impl Lead {
    fn new(
        engine: &Arc<Engine>,
        seat: Seat,
        grant: Grant,
        fingerprint: Fingerprint,
        lease: Duration,
        on_loss: OnLoss,
    ) -> Self {
        engine.running.fetch_add(1, Ordering::Relaxed);
        Self {
            engine: engine.clone(),
            runtime: Handle::try_current().ok(),
            seat: Some(seat.lead(fingerprint)),
            grant,
            fingerprint,
            lease,
            on_loss,
        }
    }

    /// The same lead for work that an application commits in one transaction with
    /// its record, under the same fence. The record shows whether the work was
    /// done, and a release is certain: a commit that comes after it finds its
    /// fence stale. So nothing is ever recorded as lost, and where the store did
    /// not take a settlement, waiters read the record.
    #[must_use]
    pub fn joined(mut self) -> Self {
        self.on_loss = OnLoss::Released;
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

    /// The fingerprint of the request. A record under this digest with another
    /// one belongs to a different request, which claimed the key later.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Does work under the lease, renewing it as long as the work takes.
    pub async fn holding<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match within(self.renewal_pause(), work.as_mut()).await {
                Ok(done) => return done,
                Err(_) => self.try_renew().await,
            }
        }
    }

    /// The same for work that may take this long at most. One timer serves both limits.
    pub async fn holding_within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, DeadlineExceeded> {
        let mut work = pin!(work);
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let pause = self.renewal_pause().min(left);
            match within(pause, work.as_mut()).await {
                Ok(done) => return Ok(done),
                Err(_) if pause == left => return Err(DeadlineExceeded(limit)),
                Err(_) => self.try_renew().await,
            }
        }
    }

    fn renewal_pause(&self) -> Duration {
        (self.lease / 3).max(RENEWAL_PAUSE_MIN)
    }

    /// Renews the lease of work that goes on in any case.
    async fn try_renew(&self) {
        // Boxed: most work ends before.
        let _ = Box::pin(self.renew()).await;
    }

    /// Renews the lease. A failed renewal stops nothing that has begun: its
    /// outcome is judged by the fence. But new work under the same grant may
    /// only begin once the renewal is confirmed.
    pub async fn renew(&self) -> Renewed {
        let Grant { digest, fence, .. } = self.grant;
        let step = self.engine.store.renew(&digest, fence);
        match self.engine.within_deadline(step).await {
            Ok(Settled::Done | Settled::Finished(_)) => Renewed::Confirmed,
            Ok(Settled::Stale) => {
                tracing::warn!("lease lost");
                Renewed::Lost
            }
            Err(error) => {
                tracing::warn!(%error, "lease not renewed");
                Renewed::NotConfirmed
            }
        }
    }

    /// Records that the operation finished, for good.
    pub async fn finish(self, settlement: Settlement, reply: Option<Arc<Reply>>) -> Recorded {
        let otherwise = reply.map_or(Landed::Lost, Landed::NotRecorded);
        self.settle(settlement, Landed::Recorded, otherwise).await
    }

    /// Records that the key is free again. Waiters get this run's answer.
    pub async fn release(self, reply: Option<Arc<Reply>>) -> Recorded {
        let landed = reply.map_or(Landed::Nothing, Landed::Released);
        self.settle(Settlement::Released, landed.clone(), landed)
            .await
    }

    /// Records that queued work is to be tried again later. Waiters go on
    /// waiting: the operation is not over.
    pub async fn requeue(self, after: Duration) -> Recorded {
        self.put_back(Settlement::Requeued { after }).await
    }

    /// Records that the operation may have run. All waiters get this outcome at once.
    /// A [joined](Self::joined) lead releases the key; queued work is due again
    /// where running twice was declared safe, and its waiters go on waiting.
    pub async fn lose(self) -> Recorded {
        match self.on_loss {
            OnLoss::Released => self.release(None).await,
            OnLoss::Redelivered | OnLoss::Deferred => {
                let settlement = self.on_loss.settlement();
                self.put_back(settlement).await
            }
            OnLoss::Unknown => {
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
        self.land(Landed::Recorded);
    }

    async fn settle(mut self, settlement: Settlement, then: Landed, otherwise: Landed) -> Recorded {
        let recorded = self.write(settlement.clone()).await;
        match recorded {
            Recorded::Finished(_) | Recorded::Durably => self.land(then),
            Recorded::Stale => self.land(Landed::Recorded),
            Recorded::NotYet => {
                self.land(match self.on_loss {
                    OnLoss::Unknown | OnLoss::Redelivered | OnLoss::Deferred => otherwise,
                    OnLoss::Released => Landed::Recorded,
                });
                self.write_later(settlement);
            }
        }
        recorded
    }

    /// Leaves queued work to its next delivery.
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
                tracing::warn!("outcome discarded: its fence is stale");
                Recorded::Stale
            }
            Err(error) => {
                tracing::error!(%error, "outcome not recorded; retrying");
                Recorded::NotYet
            }
        }
    }

    fn write_later(&self, settlement: Settlement) {
        let engine = self.engine.clone();
        let Grant { digest, fence, .. } = self.grant;
        let writing = async move {
            let step = || engine.store.settle(&digest, fence, settlement.clone());
            if let Err(error) = engine.until_recorded(step).await {
                tracing::error!(%error, "outcome not recorded; giving up");
            }
        };
        // Its log lines belong to the operation, whose span the caller is in.
        let writing = writing.instrument(Span::current());
        if let Some(runtime) = runtime_after_drop(self.runtime.as_ref()) {
            self.engine.tasks.spawn_on(writing, &runtime);
        }
    }

    /// Passes the outcome to the waiters, and ends the flight.
    fn land(&mut self, landed: Landed) {
        if let Some(seat) = self.seat.take() {
            seat.land(landed);
            self.engine.running.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Leaves the waiters to the store.
    fn pass_on(&mut self) {
        if let Some(seat) = self.seat.take() {
            seat.pass_on();
            self.engine.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.seat.is_none() {
            return;
        }
        match self.on_loss {
            OnLoss::Unknown => self.land(Landed::Lost),
            OnLoss::Released => self.land(Landed::Recorded),
            OnLoss::Redelivered | OnLoss::Deferred => self.pass_on(),
        }
        self.write_later(self.on_loss.settlement());
    }
}
