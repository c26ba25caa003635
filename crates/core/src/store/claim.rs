//! A claim and its answer.

use std::sync::Arc;

use crate::class::Terms;
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, Identity, OperationId};
use crate::judge::{Judgement, judge};
use crate::record::{Attempt, Fence, Record, Rendered, State};

/// A request to run an operation.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The digest of the identity.
    pub digest: Digest,
    /// Caller, endpoint and key.
    pub identity: Identity,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The settings of its class that the record keeps.
    pub terms: Terms,
    /// The holder's name for this claim.
    pub attempt: Attempt,
    /// The id of the operation, if it is new.
    pub id: OperationId,
}

impl ClaimRequest {
    /// The record of this claim, before any grant. An operation that was released
    /// or lost keeps its id and its count of attempts; an absent one begins anew.
    pub fn to_record_after(&self, before: Option<&Record>, now: Timestamp) -> Record {
        let before = before.filter(|record| record.state_at(now).is_some());
        Record {
            id: before.map_or(self.id, |record| record.id),
            digest: self.digest,
            identity: self.identity.clone(),
            fingerprint: self.fingerprint,
            terms: self.terms.clone(),
            state: State::Queued,
            fence: Fence(0),
            attempt: self.attempt,
            attempts: before.map_or(0, |record| record.attempts),
            delivered: false,
            created_at: before.map_or(now, |record| record.created_at),
            until: now,
            completed_at: None,
            touched_at: None,
            answer: None,
            rendered: Rendered::default(),
        }
    }
}

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Claim {
    /// This attempt may run.
    Granted(Grant),
    /// The operation finished; the record holds its answer.
    Finished(Arc<Record>),
    /// Another attempt runs, or the operation is queued.
    Busy(Arc<Record>),
    /// The key belongs to a different request, of which nothing is disclosed.
    Mismatch,
    /// The operation may have run.
    Unknown(Arc<Record>),
    /// Its attempts are used up.
    Paused(Arc<Record>),
    /// It finished and its reply is gone.
    Expired(Arc<Record>),
}

impl Claim {
    /// The answer that a record gives to a claim; `None` where the key is free.
    pub fn on(record: &Arc<Record>, request: &ClaimRequest, now: Timestamp) -> Option<Self> {
        let ClaimRequest {
            fingerprint,
            attempt,
            terms,
            ..
        } = request;
        let judgement = judge(Some(record), fingerprint, *attempt, terms, now);
        let seen = record.seen_at(now)?;
        match judgement {
            Judgement::Free => None,
            Judgement::Ours => Some(Self::Granted(seen.as_grant())),
            Judgement::Mismatch => Some(Self::Mismatch),
            Judgement::Busy => Some(Self::Busy(seen)),
            Judgement::Finished => Some(Self::Finished(seen)),
            Judgement::Expired => Some(Self::Expired(seen)),
            Judgement::Unknown => Some(Self::Unknown(seen)),
            Judgement::Paused => Some(Self::Paused(seen)),
        }
    }
}

/// A granted claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The operation's digest.
    pub digest: Digest,
    /// The operation's id.
    pub id: OperationId,
    /// This grant's fence.
    pub fence: Fence,
}
