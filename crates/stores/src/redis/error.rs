//! What can go wrong between us and Redis, in our own words, and the one place
//! where they become a [`StoreError`].

use onceward_core::store::StoreError;
use onceward_core::wire::WireError;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a step was not taken. No word of it holds the URL.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// It does not answer, or not as it should.
    #[error("Redis: {0}")]
    Redis(#[source] RedisError),
    /// Nothing was written; the next write may find room.
    #[error(
        "Redis is at its maxmemory: nothing was recorded; raise it, or wait until room is reclaimed"
    )]
    Full(#[source] RedisError),
    /// What it is given now may be gone before anybody asks for it.
    #[error(
        "Redis has maxmemory-policy {policy}, which throws operations away to make room, so nothing new is recorded until it is noeviction again"
    )]
    Evicts {
        /// Which policy.
        policy: String,
    },
    /// It takes no writes: the one behind this address was a primary before.
    #[error("this Redis is a replica now and takes no writes; looking for the primary again")]
    Replica(#[source] RedisError),
    /// The step is recorded on the primary alone.
    #[error("a write reached {reached} of {wanted} replicas in time")]
    Unconfirmed {
        /// How many confirmed.
        reached: u64,
        /// How many had to.
        wanted: u32,
    },
    /// A script gave what none of ours gives.
    #[error("Redis gave an answer that cannot be read: {0}")]
    Answer(&'static str),
    /// Others changed the record again and again while we tried.
    #[error("the record is changed by others without end")]
    Contended,
    /// The head of a record is damaged.
    #[error("the head of the record is damaged")]
    Head,
    /// The record is damaged where it tells whose it is.
    #[error("a record that may be this one is damaged")]
    Whose,
    /// A later program wrote it.
    #[error("the layout {0} was written by a newer Onceward")]
    Newer(u8),
    /// The record says that its reply is kept.
    #[error("the reply of the record is missing")]
    NoReply,
    /// Queued work is recorded with its request.
    #[error("the request of queued work is missing")]
    NoRequest,
    /// A document has a name and no content.
    #[error("the content of a document is missing")]
    NoDocument,
    /// The name of a document is damaged.
    #[error("the name of a document is damaged")]
    DocumentName,
    /// The bytes behind the head, the reply, the request or a document are damaged.
    #[error(transparent)]
    Bytes(#[from] WireError),
}

/// What a step comes to.
pub(super) type Step<T> = Result<T, Fault>;

impl Fault {
    /// Whether it is of one record alone.
    pub(super) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Head
                | Self::Whose
                | Self::Newer(_)
                | Self::NoReply
                | Self::NoRequest
                | Self::NoDocument
                | Self::DocumentName
                | Self::Bytes(_)
        )
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        match (error.kind(), error.code()) {
            (ErrorKind::Server(ServerErrorKind::ReadOnly), _) => Self::Replica(error),
            (_, Some("DAMAGED")) => Self::Whose,
            (_, Some("OOM")) => Self::Full(error),
            // Before version 7 a script hides the code in its words.
            (_, Some("ERR")) if has_word(&error, "OOM command not allowed") => Self::Full(error),
            (_, Some("ERR")) if has_word(&error, "READONLY You can't write") => {
                Self::Replica(error)
            }
            _ => Self::Redis(error),
        }
    }
}

fn has_word(error: &RedisError, word: &str) -> bool {
    error.detail().is_some_and(|detail| detail.contains(word))
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        if fault.is_damage() {
            Self::Damaged(fault.into())
        } else {
            Self::Unavailable(fault.into())
        }
    }
}
