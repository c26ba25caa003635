//! Connecting to a server, with errors that say what to do. They do not repeat the
//! URL, which may contain a password.

use std::time::Duration;

use onceward_core::deadline::within;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::address::Address;
use super::error::words;

/// The time limit of a connection with its login: a server that is not PostgreSQL
/// may never answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server answers.
    #[error(
        "cannot reach PostgreSQL at {server} ({words}); check host and port in the URL, and that the server runs"
    )]
    Away {
        /// Its address.
        server: String,
        /// The cause.
        words: String,
    },
    /// The server speaks another protocol.
    #[error(
        "the server at {server} does not speak the PostgreSQL protocol ({words}); check host and port in the URL"
    )]
    Foreign {
        /// Its address.
        server: String,
        /// The cause.
        words: String,
    },
    /// The server accepts no more connections, or not yet.
    #[error(
        "PostgreSQL at {server} accepts no connections at the moment ({words}); try again later"
    )]
    Busy {
        /// Its address.
        server: String,
        /// The server's message.
        words: String,
    },
    /// A pooler refuses the startup parameters.
    #[error(
        "the server at {server} refuses the startup parameters ({words}); if it is PgBouncer, add pgbouncer=true to the URL"
    )]
    Pooler {
        /// Its address.
        server: String,
        /// The server's message.
        words: String,
    },
    /// The TLS handshake failed.
    #[error(
        "cannot set up TLS with PostgreSQL at {server} ({words}); check sslmode and sslrootcert in the URL"
    )]
    Tls {
        /// Its address.
        server: String,
        /// The cause.
        words: String,
    },
    /// The password is wrong or missing.
    #[error(
        "PostgreSQL at {server} rejects the password of user {user} ({words}); check it in the URL"
    )]
    Password {
        /// Its address.
        server: String,
        /// The user.
        user: String,
        /// The server's message.
        words: String,
    },
    /// The server does not know the user, or refuses it from this address.
    #[error(
        "PostgreSQL at {server} rejects user {user} ({words}); check the user in the URL, and the server's pg_hba.conf"
    )]
    User {
        /// Its address.
        server: String,
        /// The user.
        user: String,
        /// The server's message.
        words: String,
    },
    /// There is no such database.
    #[error(
        "database {database} does not exist on PostgreSQL at {server}; create it, or use another one in the URL"
    )]
    Database {
        /// Its address.
        server: String,
        /// The database.
        database: String,
    },
    /// The user may not use the database.
    #[error(
        "user {user} may not connect to database {database} on PostgreSQL at {server} ({words}); grant it CONNECT, or use another user"
    )]
    Denied {
        /// Its address.
        server: String,
        /// The database.
        database: String,
        /// The user.
        user: String,
        /// The server's message.
        words: String,
    },
}

impl ConnectError {
    /// The meaning of an error of tokio-postgres during the connection.
    pub(crate) fn of(error: &tokio_postgres::Error, address: &Address) -> Self {
        let server = address.server();
        let words = words(error);
        let user = || address.user().to_owned();
        let database = || address.database().to_owned();
        let Some(code) = error.code() else {
            // tokio-postgres exposes the kind of an error only in its text.
            return match error.to_string().as_str() {
                "error connecting to server" => Self::Away { server, words },
                "error performing TLS handshake" => Self::Tls { server, words },
                // The server requires a password, and the URL has none.
                "invalid configuration" => Self::Password {
                    server,
                    user: user(),
                    words,
                },
                _ => Self::Foreign { server, words },
            };
        };
        match *code {
            SqlState::INVALID_PASSWORD => Self::Password {
                server,
                user: user(),
                words,
            },
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Self::User {
                server,
                user: user(),
                words,
            },
            SqlState::INVALID_CATALOG_NAME => Self::Database {
                server,
                database: database(),
            },
            SqlState::INSUFFICIENT_PRIVILEGE => Self::Denied {
                server,
                database: database(),
                user: user(),
                words,
            },
            SqlState::PROTOCOL_VIOLATION => Self::Pooler { server, words },
            _ => Self::Busy { server, words },
        }
    }
}

/// Connects, driven by a task of its own.
pub(crate) async fn connect(address: &Address) -> Result<(Client, JoinHandle<()>), ConnectError> {
    match within(CONNECT_MAX, address.connect()).await {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err(error)) => Err(ConnectError::of(&error, address)),
        Err(_) => Err(ConnectError::Foreign {
            server: address.server(),
            words: format!("no answer in {} seconds", CONNECT_MAX.as_secs()),
        }),
    }
}
