//! Errors of the embedded store, and the one place where they become a
//! [`StoreError`].

use std::sync::Arc;

use onceward_core::store::StoreError;
use onceward_core::wire::WireError;
use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};

use super::log::LogError;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Nothing was written; a later write may succeed.
    #[error("the disk is full; nothing was recorded: service resumes when there is room")]
    Full(#[source] Cause),
    /// The state of the file is unknown. A further try could report data as durable
    /// that is not.
    #[error("the disk did not confirm a write ({0}); restart the process to continue")]
    Unsynced(#[source] Cause),
    /// Any other error of the commit log.
    #[error("commit log: {0}")]
    Log(#[source] LogError),
    /// Any other error of SQLite.
    #[error("SQLite: {0}")]
    Sqlite(#[source] rusqlite::Error),
    /// The pages that hold a record are damaged.
    #[error("the file is damaged at this record: {0}")]
    Unreadable(#[source] rusqlite::Error),
    /// The bytes of a record are damaged, or of a later version.
    #[error(transparent)]
    Record(#[from] WireError),
    /// A leaf of an index is damaged; every key in it is unreadable.
    #[error("the index that leads to this record is damaged")]
    Index,
    /// The name of a document is damaged.
    #[error("the name of a document is damaged")]
    Name,
    /// A queued operation is always recorded with its request.
    #[error("the request of the queued operation is missing")]
    NoRequest,
    /// The record of an open operation was found damaged at the start.
    #[error("its record was damaged when the store was opened")]
    Lost,
    /// A failure that this step shares with others.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// The store was closed during the step.
    #[error("the store is closed")]
    Closed,
}

/// What the system or SQLite said.
pub(super) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The result of a step.
pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a read: damage concerns this record alone.
    pub(super) fn from_read(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Unreadable(error),
            _ => Self::from(error),
        }
    }

    /// Whether it concerns a single record.
    pub(super) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(_)
                | Self::Record(_)
                | Self::Index
                | Self::Name
                | Self::NoRequest
                | Self::Lost
        )
    }

    /// Whether all later steps must fail.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Unsynced(_))
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let Some(cause) = error.sqlite_error() else {
            return Self::Sqlite(error);
        };
        match (cause.code, cause.extended_code) {
            (ErrorCode::DiskFull, _) => Self::Full(error.into()),
            (_, SQLITE_IOERR_FSYNC | SQLITE_IOERR_DIR_FSYNC) => Self::Unsynced(error.into()),
            _ => Self::Sqlite(error),
        }
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Full(source) => Self::Full(source.into()),
            LogError::Unsynced(source) => Self::Unsynced(source.into()),
            error => Self::Log(error),
        }
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            error if error.is_damage() => Self::Damaged(error.into()),
            error => Self::Unavailable(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn only_a_sync_that_failed_is_final() {
        let cases = [
            (ffi::SQLITE_IOERR_FSYNC, true),
            (ffi::SQLITE_IOERR_DIR_FSYNC, true),
            (ffi::SQLITE_FULL, false),
            (ffi::SQLITE_IOERR_WRITE, false),
            (ffi::SQLITE_IOERR_READ, false),
            (ffi::SQLITE_BUSY, false),
        ];
        for (code, want) in cases {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let error = Error::from(error);
            assert_eq!(error.is_final(), want, "{error:?}");
            assert!(!error.is_damage(), "{error:?}");
            assert!(matches!(
                StoreError::from(error),
                StoreError::Unavailable(_)
            ));
        }
    }
}
