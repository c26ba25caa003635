//! Why nothing was migrated, in sentences that say what to do.

use tokio_postgres::error::SqlState;

use super::super::address::AddressError;
use super::super::connect::ConnectError;
use super::super::error::words;
use super::options::OptionError;

/// The state by which our own SQL refuses; its message is a whole sentence.
const REFUSED: &str = "OW001";

/// Why nothing was migrated. Nothing was changed. Each sentence is whole: what
/// the server said is in it, so it is kept beside and not as a further cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The options cannot be meant.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Another kind of store. Only the scheme is told: the rest may hold a password.
    #[error(
        "store: `{scheme}:` is not PostgreSQL and needs no migration; write postgres://user:password@host:5432/database, for example"
    )]
    Scheme {
        /// What stood before the colon.
        scheme: String,
    },
    /// Not a URL at all.
    #[error(
        "store: this is not a URL; write postgres://user:password@host:5432/database, for example"
    )]
    NoUrl,
    /// The URL is no address.
    #[error("store: {0}")]
    Address(#[from] AddressError),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The schema that the name says is not there.
    #[error(
        "there is no schema {schema} in database {database}; create it, or use another one (--table)"
    )]
    NoSchema {
        /// Which.
        schema: String,
        /// Where.
        database: String,
    },
    /// The search path leads nowhere, or where a name needs quotes.
    #[error(
        "the search path of database {database} has no usable schema for the table; add the schema (--table schema.{table})"
    )]
    SearchPath {
        /// Where.
        database: String,
        /// Which table.
        table: String,
    },
    /// What a resource refers to is not there.
    #[error("resource {name}: there is no {what} in database {database}")]
    NoResource {
        /// Of which.
        name: String,
        /// Table or column.
        what: String,
        /// Where.
        database: String,
    },
    /// What is there, or what is asked, does not allow it.
    #[error("{sentence}")]
    Refused {
        /// Our own SQL's words.
        sentence: String,
        /// What the server said.
        error: tokio_postgres::Error,
    },
    /// The user lacks a right.
    #[error(
        "this user lacks a right ({words}); use the owner of the table, or for a new table a user with the CREATE right in its schema"
    )]
    Denied {
        /// What the server said.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
    /// Others hold the table.
    #[error(
        "another transaction holds the table for too long ({words}); nothing was changed: try again later"
    )]
    Busy {
        /// What the server said.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
    /// The server takes no writes.
    #[error("the server accepts no writes ({words}); connect to the primary")]
    ReadOnly {
        /// What the server said.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
    /// Anything else that the server said, or its silence.
    #[error("the migration failed: {words}")]
    Server {
        /// What it said.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
}

impl From<tokio_postgres::Error> for MigrateError {
    fn from(error: tokio_postgres::Error) -> Self {
        let words = words(&error);
        let Some(said) = error.as_db_error() else {
            return Self::Server { words, error };
        };
        match *said.code() {
            SqlState::INSUFFICIENT_PRIVILEGE => Self::Denied { words, error },
            SqlState::LOCK_NOT_AVAILABLE => Self::Busy { words, error },
            SqlState::READ_ONLY_SQL_TRANSACTION => Self::ReadOnly { words, error },
            ref code if code.code() == REFUSED => Self::Refused {
                sentence: said.message().to_owned(),
                error,
            },
            _ => Self::Server { words, error },
        }
    }
}
