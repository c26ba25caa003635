//! An operation's record and the rules of its life.
//!
//! The rules are pure functions on [`Record`]: effects of time (`passing`), of
//! holders (`settling`) and of operators (`operating`). The memory
//! and the embedded store call them; the SQL and Lua of the others are compared
//! with them.

mod operating;
mod passing;
mod rendered;
mod settling;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::rendered::Rendered;
use crate::class::Terms;
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, Identity, OperationId};

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Recorded with its request, to be delivered by the gateway.
    Queued,
    /// Claimed; an attempt runs.
    Running,
    /// The reply is kept; it was a success.
    Completed,
    /// The reply is kept; it was a failure for good.
    Failed,
    /// The key is free again; shown for the length of one lease.
    Released,
    /// It may have run.
    Unknown,
    /// Its attempts are used up.
    Paused,
    /// The reply is gone, the key still remembered.
    Expired,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Released,
        Self::Unknown,
        Self::Paused,
        Self::Expired,
    ];

    /// The state of an operation that was answered with this status for good.
    pub fn of_status(status: u16) -> Self {
        if status < 400 {
            Self::Completed
        } else {
            Self::Failed
        }
    }

    /// The word in answers, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Unknown => "unknown",
            Self::Paused => "paused",
            Self::Expired => "expired",
        }
    }
}

/// A number that rises with every grant; it survives release, purge and restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// The holder's own name for its claim, so that a repeated claim after a lost
/// answer is recognised as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u128);

/// A header or trailer line, as bytes.
pub type Field = (Bytes, Bytes);

/// A complete answer of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The kept headers, in order, with all lines of a repeated name.
    pub headers: Vec<Field>,
    /// The body.
    pub body: Bytes,
    /// The trailers.
    pub trailers: Vec<Field>,
}

/// The part of the upstream's answer that a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Kept(Arc<Reply>),
    /// Only its status: the body was too large, or a stream.
    NotKept {
        /// The HTTP status.
        status: u16,
    },
    /// Only its status: retention is over.
    Gone {
        /// The HTTP status.
        status: u16,
    },
}

impl Answer {
    /// The upstream's status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Kept(reply) => reply.status,
            Self::NotKept { status } | Self::Gone { status } => *status,
        }
    }
}

/// One operation, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The public id.
    pub id: OperationId,
    /// The digest of the identity.
    pub digest: Digest,
    /// Caller, endpoint and key.
    pub identity: Identity,
    /// The fingerprint of its request.
    pub fingerprint: Fingerprint,
    /// The settings of its class that it keeps.
    pub terms: Terms,
    /// The state as last written; [`Record::state_at`] is the current one.
    pub state: State,
    /// The fence of the last grant.
    pub fence: Fence,
    /// The attempt of the last grant.
    pub attempt: Attempt,
    /// How often it was granted, without the grants that were
    /// [deferred](Settlement::Deferred).
    pub attempts: u32,
    /// Whether the gateway delivers it: then a release queues it again.
    pub delivered: bool,
    /// When it was first recorded.
    pub created_at: Timestamp,
    /// Running: when the lease ends. Released: until when it is shown. Queued:
    /// when it is due.
    pub until: Timestamp,
    /// When it was completed or failed.
    pub completed_at: Option<Timestamp>,
    /// When a replay was last noted, where retention counts from that.
    pub touched_at: Option<Timestamp>,
    /// The upstream's answer; present when completed or failed.
    pub answer: Option<Answer>,
    /// What was made of this record to answer with it.
    pub rendered: Rendered,
}

/// The end of a claim, as its holder reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It ran; this answer is to be replayed.
    Completed(Answer),
    /// It failed for good; this answer is to be replayed.
    Failed(Answer),
    /// Nothing was done, or trying again was declared safe: the key is free.
    Released,
    /// Queued work is to be tried again later. An operation that was never
    /// enqueued is released instead.
    Requeued {
        /// How much later.
        after: Duration,
    },
    /// Queued work was granted and not tried, such as where no slot was free for it. It is
    /// requeued, and the grant does not count among its attempts.
    Deferred {
        /// How much later it is due again.
        after: Duration,
    },
    /// It may have run. Queued work is due again where running twice was declared
    /// safe.
    Lost,
    /// Its attempts are used up.
    Paused,
}

/// The answer to a settlement or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The outcome is recorded: the answer to [`Settlement::Completed`] and
    /// [`Settlement::Failed`].
    Finished(Completion),
    /// Every other settlement, and a renewal, is recorded.
    Done,
    /// The operation was granted again, resolved or purged since. Nothing changed.
    Stale,
}

impl Settled {
    /// Whether the store has recorded it.
    pub fn is_recorded(self) -> bool {
        self != Self::Stale
    }
}

/// The times of an outcome, by the store's clock. They equal those of the record
/// that [`Store::get`](crate::store::Store::get) returns afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// When the outcome was recorded.
    pub completed_at: Timestamp,
    /// When the reply expires.
    pub expires_at: Timestamp,
}
