//! Errors of a migration. Each message says what to do.

use tokio_postgres::error::SqlState;

use super::super::address::AddressError;
use super::super::connect::ConnectError;
use super::super::error::words;
use super::options::OptionError;

/// The SQLSTATE of the migration's own refusals, whose message is a complete
/// sentence.
const REFUSED: &str = "OW001";

/// Why a migration failed. Nothing was changed. Each message contains that of the
/// server, so the server's error is a field and not a further cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The options are invalid.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Another kind of store. Only the scheme is shown: the rest may contain a
    /// password.
    #[error(
        "store: `{scheme}:` is not PostgreSQL and needs no migration; write postgres://user:password@host:5432/database, for example"
    )]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// Not a URL at all.
    #[error(
        "store: this is not a URL; write postgres://user:password@host:5432/database, for example"
    )]
    NoUrl,
    /// The URL is not a valid address.
    #[error("store: {0}")]
    Address(#[from] AddressError),
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The schema in the name does not exist.
    #[error(
        "there is no schema {schema} in database {database}; create it, or use another one (--table)"
    )]
    NoSchema {
        /// Which.
        schema: String,
        /// Where.
        database: String,
    },
    /// The search path has no schema, or one whose name needs quotes.
    #[error(
        "the search path of database {database} has no usable schema for the table; add the schema (--table schema.{table})"
    )]
    SearchPath {
        /// Where.
        database: String,
        /// Which table.
        table: String,
    },
    /// The referenced table or column does not exist.
    #[error("resource {name}: there is no {what} in database {database}")]
    NoResource {
        /// The resource.
        name: String,
        /// Table or column.
        what: String,
        /// Where.
        database: String,
    },
    /// The existing tables or the options do not allow it.
    #[error("{sentence}")]
    Refused {
        /// The message of the migration's SQL.
        sentence: String,
        /// The server's message.
        error: tokio_postgres::Error,
    },
    /// The user lacks a right.
    #[error(
        "this user lacks a right ({words}); use the owner of the table, or for a new table a user with the CREATE right in its schema"
    )]
    Denied {
        /// The server's message.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
    /// Another transaction has locked the table.
    #[error(
        "another transaction holds the table for too long ({words}); nothing was changed: try again later"
    )]
    Busy {
        /// The server's message.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
    /// The server accepts no writes.
    #[error("the server accepts no writes ({words}); connect to the primary")]
    ReadOnly {
        /// The server's message.
        words: String,
        /// The same.
        error: tokio_postgres::Error,
    },
    /// Any other error, or no answer.
    #[error("the migration failed: {words}")]
    Server {
        /// The message.
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
