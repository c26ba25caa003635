//! Waiting for an operation that another request runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::flights::{Landed, Lookout, NextLook, Seat};
use super::{Engine, Recorded};
use crate::deadline;
use crate::fingerprint::Fingerprint;
use crate::record::{Record, Reply, State};
use crate::store::StoreError;

/// A request that may wait for an operation.
pub struct Follow {
    engine: Arc<Engine>,
    seat: Seat,
    record: Arc<Record>,
    /// Of the waiting request. A released key may be claimed for a different
    /// request, whose reply is not for this one.
    fingerprint: Fingerprint,
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow")
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

/// The result of waiting.
#[derive(Debug)]
pub enum Awaited {
    /// The operation has left `running`; this is its record.
    Settled(Arc<Record>),
    /// The run was answered, and its answer is not kept.
    Answered(Arc<Reply>, Recorded),
    /// It may have run.
    Lost,
    /// Nothing was done: the key is free again.
    Freed,
    /// It still runs.
    StillRunning,
    /// Too many requests wait already.
    TooMany,
}

impl Follow {
    pub(super) fn new(
        engine: Arc<Engine>,
        seat: Seat,
        record: Arc<Record>,
        fingerprint: Fingerprint,
    ) -> Self {
        Self {
            engine,
            seat,
            record,
            fingerprint,
        }
    }

    /// The record of the operation, as it was when the wait began.
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
        let watched = deadline::within(limit, self.watch()).await;
        watched.unwrap_or(Ok(Awaited::StillRunning))
    }

    /// A leader in this process announces its outcome, so that its waiters need not
    /// ask the store; the outcome of a leader elsewhere is read from the store.
    async fn watch(&self) -> Result<Awaited, StoreError> {
        let mut lookout = self.seat.lookout();
        loop {
            if let Some(landed) = self.seat.announced(&self.fingerprint).await {
                return self.judge_landing(landed).await;
            }
            let record = tokio::select! {
                biased;
                landed = self.seat.landed(&self.fingerprint) => {
                    return self.judge_landing(landed).await;
                }
                record = self.look_in_turn(&mut lookout) => record?,
            };
            // A leader that has come meanwhile knows more than the store.
            if self.seat.is_led(&self.fingerprint) {
                continue;
            }
            match self.judge_record(record) {
                Awaited::StillRunning => {}
                settled => return Ok(settled),
            }
        }
    }

    /// Of all requests that wait here for a leader elsewhere, one asks the store, and
    /// the others share its answer.
    async fn look_in_turn(
        &self,
        lookout: &mut Lookout<'_>,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        match lookout.next().await {
            NextLook::Seen(record) => Ok(record),
            NextLook::Own(turn) => {
                let digest = &self.record.digest;
                let poll = self.engine.limits().poll;
                self.engine.store.wait(digest, poll).await?;
                let record = self.engine.look(digest).await?;
                turn.share(record.clone());
                Ok(record)
            }
        }
    }

    async fn judge_landing(&self, landed: Landed) -> Result<Awaited, StoreError> {
        match landed {
            Landed::Recorded => {
                let record = self.engine.look(&self.record.digest).await?;
                Ok(self.judge_record(record))
            }
            Landed::Released(reply) => Ok(Awaited::Answered(reply, Recorded::Durably)),
            Landed::NotRecorded(reply) => Ok(Awaited::Answered(reply, Recorded::NotYet)),
            Landed::Lost => Ok(Awaited::Lost),
            Landed::Nothing => Ok(Awaited::Freed),
        }
    }

    fn judge_record(&self, record: Option<Arc<Record>>) -> Awaited {
        match record {
            None => Awaited::Freed,
            // The key was released and claimed for a different request, of which
            // nothing is disclosed.
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
