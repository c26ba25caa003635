//! The errors of an application's steps. Each message says what to do.

use crate::identity::OperationId;
use crate::namespace::Namespace;
use crate::record::Fence;
use crate::store::StoreError;

use super::content::CONTENT_BYTES_MAX;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key belongs to another namespace.
    #[error("the key belongs to the namespace `{key}`, and these are the records of `{records}`")]
    OtherNamespace {
        /// The namespace of the key.
        key: Namespace,
        /// The namespace of the records.
        records: Namespace,
    },
    /// A request or a result cannot be written as JSON.
    #[error("the {what} cannot be written as JSON: {source}")]
    Encode {
        /// Which of the two.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A request nests too deeply to be compared.
    #[error("the request nests too deeply to be compared")]
    TooDeep,
    /// A request, a result or an error is too large to be kept.
    #[error("the {what} has {bytes} bytes, and at most {CONTENT_BYTES_MAX} are kept")]
    TooLarge {
        /// Which.
        what: &'static str,
        /// How large it is.
        bytes: usize,
    },
    /// A reply with an invalid status.
    #[error("a reply has a status from 200 to 599, not {0}")]
    Status(u16),
    /// The operation was granted again since, or an operator purged or resolved
    /// it. Nothing was recorded.
    #[error(
        "the claim on {operation} under fence {} is stale: nothing was recorded, so roll back the work that was done under it", .fence.0
    )]
    Stale {
        /// Which operation.
        operation: OperationId,
        /// Under which fence.
        fence: Fence,
    },
    /// A claim was abandoned: the operation may have run.
    #[error(
        "the outcome of {operation} is unknown: it was begun and never ended; resolve it (`onceward operations resolve`) before the key is used again"
    )]
    UnknownOutcome {
        /// Which operation.
        operation: OperationId,
    },
    /// The operation waits for an operator's decision.
    #[error("{operation} is paused; resume or purge it (`onceward operations resume`)")]
    Paused {
        /// Which operation.
        operation: OperationId,
    },
    /// It was done, and its outcome is no longer kept.
    #[error(
        "{operation} was done and its outcome is no longer kept, while the key is still remembered; it must not run again"
    )]
    OutcomeGone {
        /// Which operation.
        operation: OperationId,
    },
    /// The recorded outcome does not decode: the program's types changed while
    /// records of the old types were kept.
    #[error(
        "the recorded outcome of {operation} does not decode: {source}; drain or migrate the records before types change"
    )]
    IncompatibleState {
        /// Which operation.
        operation: OperationId,
        /// Why.
        source: serde_json::Error,
    },
    /// The connection is not in a transaction.
    #[error(
        "the connection is not in a transaction: begin one first, or bind with `on_connection`"
    )]
    NotInTransaction,
    /// The transaction has failed already.
    #[error(
        "the transaction has failed (25P02) and takes no more statements: use ROLLBACK TO SAVEPOINT to return to the savepoint that was set after `begin`, or roll back the whole transaction"
    )]
    TransactionFailed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another transaction conflicts with this one.
    #[error("another transaction conflicts with this one: roll back and run the transaction again")]
    Conflict(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The table is missing or of another version.
    #[error(
        "the table `{table}` is missing or is of another version: run `onceward migrate apply`, or add the SQL of `onceward migrate print` to your own migrations"
    )]
    NotMigrated {
        /// Which table.
        table: String,
        /// The error of the database.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The role lacks a privilege.
    #[error(
        "this role lacks a privilege on the table `{table}`: {source}; the table's owner can grant it"
    )]
    Rights {
        /// Which table.
        table: String,
        /// The error of the database.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Row-level security is on, and the transaction has no user.
    #[error(
        "row-level security is on for the table `{table}`, and this transaction has no user: set the value that the expression of `--rls-user` reads, in this transaction"
    )]
    MissingUser {
        /// Which table.
        table: String,
        /// The error of the database.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The table has no column for this resource.
    #[error(
        "the table `{table}` has no reference to a `{resource}`: add it with `onceward migrate apply --resource {resource}=TABLE(COLUMN)`"
    )]
    NoResource {
        /// Which table.
        table: String,
        /// The resource.
        resource: String,
    },
    /// Not a valid name of a resource.
    #[error(
        "`{0}` is not a valid name of a resource: use a-z, 0-9 and `_`, beginning with a letter"
    )]
    ResourceName(String),
    /// This store has no references to resources.
    #[error("only records in PostgreSQL refer to resources")]
    NoResources,
    /// The store failed; whether the step took effect is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
}
