//! Errors of the Redis store, and the one place where they become a
//! [`StoreError`].

use onceward_core::store::StoreError;
use onceward_core::wire::WireError;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a step failed. No message contains the URL.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Redis did not answer, or answered with an error.
    #[error("Redis: {0}")]
    Redis(#[source] RedisError),
    /// Nothing was written; a later write may succeed.
    #[error(
        "Redis has reached maxmemory; nothing was recorded: raise maxmemory, or wait until expired records are swept"
    )]
    Full(#[source] RedisError),
    /// A new record might be evicted.
    #[error(
        "Redis has maxmemory-policy {policy}, which evicts records when memory is full; nothing new is recorded until it is noeviction again"
    )]
    Evicts { policy: String },
    /// The server was a primary before.
    #[error("this Redis is now a replica and takes no writes; reconnecting to find the primary")]
    Replica(#[source] RedisError),
    /// The step is recorded on the primary alone.
    #[error("a write was confirmed by {reached} of {wanted} replicas in time")]
    Unconfirmed { reached: u64, wanted: u32 },
    /// An answer that none of our scripts returns.
    #[error("unexpected answer from Redis: expected {0}")]
    Response(&'static str),
    /// Others changed the record in every attempt.
    #[error("the record is changed by others too often")]
    Contended,
    #[error("the head of the record is damaged")]
    Head,
    /// The damaged part includes the operation's identity.
    #[error("a record that may be this one is damaged")]
    Whose,
    #[error("record layout {0} was written by a newer Onceward")]
    Newer(u8),
    #[error("the reply of the record is missing")]
    NoReply,
    #[error("the request of the queued operation is missing")]
    NoRequest,
    #[error("the content of a document is missing")]
    NoDocument,
    #[error("the name of a document is damaged")]
    DocumentName,
    /// The bytes behind the head, a reply, a request or a document are damaged.
    #[error(transparent)]
    Bytes(#[from] WireError),
}

/// The result of a step.
pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether it concerns a single record; other records are readable.
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

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        match (error.kind(), error.code()) {
            (ErrorKind::Server(ServerErrorKind::ReadOnly), _) => Self::Replica(error),
            (_, Some("DAMAGED")) => Self::Whose,
            (_, Some("OOM")) => Self::Full(error),
            // Before version 7 a script's error has the code inside its message.
            (_, Some("ERR")) if mentions(&error, "OOM command not allowed") => Self::Full(error),
            (_, Some("ERR")) if mentions(&error, "READONLY You can't write") => {
                Self::Replica(error)
            }
            _ => Self::Redis(error),
        }
    }
}

fn mentions(error: &RedisError, text: &str) -> bool {
    error.detail().is_some_and(|detail| detail.contains(text))
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        if error.is_damage() {
            Self::Damaged(error.into())
        } else {
            Self::Unavailable(error.into())
        }
    }
}
