//! Errors of the PostgreSQL store, and the one place where they become a
//! [`StoreError`].

use onceward_core::store::StoreError;
use onceward_core::wire::WireError;
use tokio_postgres::error::SqlState;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The server refused, or does not answer.
    #[error("{}", words(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// No connection is available.
    #[error("no connection to PostgreSQL: {0}")]
    Pool(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The same with sqlx.
    #[cfg(feature = "sqlx")]
    #[error("{0}")]
    Sqlx(#[source] sqlx::Error),
    /// A column has an invalid value.
    #[error("the column {0} cannot be read")]
    Column(&'static str),
    /// A reply is damaged.
    #[error("the reply cannot be read: {0}")]
    Reply(#[from] WireError),
    /// It took too long.
    #[error("PostgreSQL did not answer within {0:?}")]
    TooSlow(std::time::Duration),
    /// Another step in the same statement failed.
    #[error("{0}")]
    Together(#[source] std::sync::Arc<Error>),
    /// The store is closing.
    #[error("the store is closed")]
    Ended,
    /// Another transaction holds the record.
    #[error("the record is locked by another transaction")]
    Locked,
    /// Other transactions changed the record in every attempt.
    #[error("the record is changed by others too often")]
    Contended,
}

impl Error {
    /// Whether a row was locked by another transaction for too long.
    pub(crate) fn is_locked(&self) -> bool {
        let code = match self {
            Self::Postgres(error) => error.code(),
            _ => None,
        };
        code == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Column(_) | Error::Reply(_) => Self::Damaged(Box::new(error)),
            _ => Self::Unavailable(Box::new(error)),
        }
    }
}

/// tokio-postgres prints only `db error`; the message is in the source.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{}: {}", db.code().code(), db.message()),
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                text.push_str(": ");
                text.push_str(&cause.to_string());
                source = cause.source();
            }
            text
        }
    }
}
