//! The application's own connections, of either driver. A bound store borrows one
//! only while it is used, so that the application's statements run in between.
//!
//! On tokio-postgres, statements are not prepared by name: the lifetime of the
//! connection is unknown, and poolers in transaction mode lose names. sqlx keeps
//! prepared statements for the life of a connection, unless a pooler would lose them;
//! that costs one more round trip each.

use std::fmt;

use async_trait::async_trait;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Transaction};

use super::super::driver::{Cells, Driver, Statement, Value, cells};
use super::super::error::Error;

/// A borrowed connection, in a transaction or not.
pub struct Connection<'c> {
    kind: ConnectionKind<'c>,
    pub(super) naming: Naming,
}

/// Whether statements may be prepared by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// The driver's default.
    Usual,
    /// Never: a pooler would lose them.
    Unnamed,
}

impl<'c> Connection<'c> {
    fn of(kind: ConnectionKind<'c>) -> Self {
        let naming = Naming::Usual;
        Self { kind, naming }
    }
}

enum ConnectionKind<'c> {
    Client(&'c Client),
    Transaction(&'c Transaction<'c>),
    #[cfg(feature = "sqlx")]
    Sqlx(&'c mut sqlx::PgConnection),
}

/// A borrowed transaction.
pub struct Tx<'c>(Connection<'c>);

impl<'c> From<&'c Client> for Connection<'c> {
    fn from(client: &'c Client) -> Self {
        Self::of(ConnectionKind::Client(client))
    }
}

impl<'c> From<&'c mut Client> for Connection<'c> {
    fn from(client: &'c mut Client) -> Self {
        Self::of(ConnectionKind::Client(client))
    }
}

impl<'c> From<Tx<'c>> for Connection<'c> {
    fn from(tx: Tx<'c>) -> Self {
        tx.0
    }
}

impl<'c> From<&'c Transaction<'_>> for Tx<'c> {
    fn from(tx: &'c Transaction<'_>) -> Self {
        Self(Connection::of(ConnectionKind::Transaction(tx)))
    }
}

impl<'c> From<&'c mut Transaction<'_>> for Tx<'c> {
    fn from(tx: &'c mut Transaction<'_>) -> Self {
        Self(Connection::of(ConnectionKind::Transaction(tx)))
    }
}

#[cfg(feature = "sqlx")]
impl<'c> From<&'c mut sqlx::PgConnection> for Connection<'c> {
    fn from(connection: &'c mut sqlx::PgConnection) -> Self {
        Self::of(ConnectionKind::Sqlx(connection))
    }
}

#[cfg(feature = "sqlx")]
impl<'c> From<&'c mut sqlx::pool::PoolConnection<sqlx::Postgres>> for Connection<'c> {
    fn from(connection: &'c mut sqlx::pool::PoolConnection<sqlx::Postgres>) -> Self {
        Self::of(ConnectionKind::Sqlx(connection))
    }
}

#[cfg(feature = "sqlx")]
impl<'c> From<&'c mut sqlx::Transaction<'_, sqlx::Postgres>> for Tx<'c> {
    fn from(tx: &'c mut sqlx::Transaction<'_, sqlx::Postgres>) -> Self {
        Self(Connection::of(ConnectionKind::Sqlx(tx)))
    }
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ConnectionKind::Client(_) | ConnectionKind::Transaction(_) => {
                "Connection(tokio-postgres)"
            }
            #[cfg(feature = "sqlx")]
            ConnectionKind::Sqlx(_) => "Connection(sqlx)",
        })
    }
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tx({:?})", self.0)
    }
}

#[async_trait]
impl Driver for Connection<'_> {
    async fn rows(&mut self, statement: &Statement, values: &[Value]) -> Result<Vec<Cells>, Error> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = values
            .iter()
            .zip(&statement.types)
            .map(|(value, ty)| (value as &(dyn ToSql + Sync), ty.clone()))
            .collect();
        let rows: Vec<Row> = match &mut self.kind {
            ConnectionKind::Client(client) => client.query_typed(&statement.sql, &typed).await?,
            ConnectionKind::Transaction(tx) => tx.query_typed(&statement.sql, &typed).await?,
            #[cfg(feature = "sqlx")]
            ConnectionKind::Sqlx(connection) => {
                let naming = self.naming;
                return super::sqlx::rows(connection, naming, statement, values).await;
            }
        };
        rows.iter().map(cells).collect()
    }
}
