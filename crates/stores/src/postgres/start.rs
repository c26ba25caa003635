//! Checks before a store on PostgreSQL opens. Each error is one sentence that says
//! what to do.

use tokio_postgres::Client;

use super::address::{Address, AddressError};
use super::connect::{ConnectError, connect};
use super::error::words;
use super::migrate::{Version, version};
use super::table::{Table, TableError};

/// The oldest supported server, as `server_version_num`.
const SERVER_MIN: i32 = 130_000;

/// Why a store on PostgreSQL does not open. No message contains the URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresOpenError {
    /// The URL is not valid.
    #[error("store: {0}")]
    Address(#[from] AddressError),
    /// The name of the table is not valid.
    #[error("store: {0}")]
    Table(#[from] TableError),
    /// The server does not answer, or refuses the connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server is too old.
    #[error("this server is PostgreSQL {0}; 13 or newer is required")]
    TooOld(String),
    /// The server accepts no writes.
    #[error("this server is a standby and accepts no writes; use the primary in the URL")]
    Standby,
    /// The database cannot store every character.
    #[error("database {database:?} has the encoding {encoding}; UTF8 is required")]
    Encoding {
        /// The database.
        database: String,
        /// Its encoding.
        encoding: String,
    },
    /// Transactions are read-only.
    #[error(
        "transactions of this user in database {database:?} are read-only; allow writes (ALTER ROLE … SET default_transaction_read_only = off)"
    )]
    ReadOnly {
        /// The database.
        database: String,
    },
    /// Commits are acknowledged before they are durable.
    #[error(
        "synchronous_commit is off for this user in database {database:?}: a crash would lose acknowledged records; switch it on (ALTER ROLE … SET synchronous_commit = on)"
    )]
    NotDurable {
        /// The database.
        database: String,
    },
    /// The table is missing, or has another version.
    #[error("{}", version.refusal(table, database).unwrap_or_default())]
    Version {
        /// Its version.
        version: Version,
        /// Which.
        table: Table,
        /// Where.
        database: String,
    },
    /// A privilege is missing.
    #[error(
        "the user {user:?} lacks the right to {right} {what}; the owner of the table can grant it"
    )]
    Rights {
        /// The user.
        user: String,
        /// The privilege.
        right: String,
        /// The object.
        what: String,
    },
    /// Anything else.
    #[error("PostgreSQL: {}", words(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// Checks the server, the table and the user's privileges.
pub(crate) async fn check(address: &Address, table: &Table) -> Result<(), PostgresOpenError> {
    let (client, driven) = connect(address).await?;
    let checked = check_all(&client, address, table).await;
    drop(client);
    driven.abort();
    checked
}

async fn check_all(
    client: &Client,
    address: &Address,
    table: &Table,
) -> Result<(), PostgresOpenError> {
    check_server(client, address).await?;
    let found = version(client, table).await;
    let version = found.map_err(PostgresOpenError::Database)?;
    if version != Version::Current {
        return Err(PostgresOpenError::Version {
            version,
            table: table.clone(),
            database: address.database().to_owned(),
        });
    }
    check_rights(client, table).await
}

async fn check_server(client: &Client, address: &Address) -> Result<(), PostgresOpenError> {
    let asked = "SELECT current_setting('server_version_num')::int, \
                 current_setting('server_version'), pg_is_in_recovery(), \
                 current_setting('synchronous_commit'), current_setting('fsync'), \
                 current_setting('server_encoding'), current_setting('transaction_read_only')";
    let row = client.query_typed_one(asked, &[]).await;
    let row = row.map_err(PostgresOpenError::Database)?;
    let (number, version): (i32, String) = (row.get(0), row.get(1));
    if number < SERVER_MIN {
        return Err(PostgresOpenError::TooOld(version));
    }
    if row.get::<_, bool>(2) {
        return Err(PostgresOpenError::Standby);
    }
    let encoding: String = row.get(5);
    if encoding != "UTF8" {
        return Err(PostgresOpenError::Encoding {
            database: address.database().to_owned(),
            encoding,
        });
    }
    if row.get::<_, String>(6) == "on" {
        return Err(PostgresOpenError::ReadOnly {
            database: address.database().to_owned(),
        });
    }
    if row.get::<_, String>(3) == "off" {
        return Err(PostgresOpenError::NotDurable {
            database: address.database().to_owned(),
        });
    }
    if row.get::<_, String>(4) == "off" {
        tracing::warn!(
            "fsync is off on this PostgreSQL server; a crash of the machine loses records"
        );
    }
    Ok(())
}

async fn check_rights(client: &Client, table: &Table) -> Result<(), PostgresOpenError> {
    let asked = table.fill(include_str!("sql/rights.sql"));
    let row = client.query_typed_opt(&asked, &[]).await;
    let Some(row) = row.map_err(PostgresOpenError::Database)? else {
        return Ok(());
    };
    Err(PostgresOpenError::Rights {
        user: row.get(0),
        right: row.get(1),
        what: row.get(2),
    })
}
