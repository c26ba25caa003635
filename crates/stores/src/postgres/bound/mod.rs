//! Records in the application's own transaction: the effects of a request and its
//! record are committed together, or not at all.
//!
//! The application owns the connection. Nothing here begins or ends a transaction,
//! and `begin` never waits: an uncommitted claim of another transaction is not
//! visible, but its advisory lock is, and is tried in the same statement.
//!
//! ```no_run
//! use onceward_core::application::{Begun, Minter};
//! use onceward_core::entropy::Entropy;
//! use onceward_core::namespace::Namespace;
//! use onceward_stores::postgres::Records;
//!
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let namespace = Namespace::new("payments")?;
//! let records = Records::new(namespace.clone(), Entropy::system()?);
//! let key = Minter::new(namespace).mint(&["tenant-1", "order-7"])?;
//!
//! let tx = client.transaction().await?;
//! let mut charges = records.with_tx(&tx).typed::<u32, String>();
//! let receipt = match charges.begin(&key, &100).await? {
//!     Begun::Fresh(fresh) => {
//!         tx.execute("INSERT INTO payment (amount) VALUES (100)", &[]).await?;
//!         let receipt = "paid".to_owned();
//!         charges.commit(fresh, &receipt).await?;
//!         receipt
//!     }
//!     Begun::PriorResult(receipt) => receipt,
//!     other => return Err(format!("refused: {other:?}").into()),
//! };
//! tx.commit().await?;
//! # drop(receipt);
//! # Ok(())
//! # }
//! ```

mod connection;
mod error;
mod joined;
#[cfg(feature = "sqlx")]
mod sqlx;
mod store;

use std::fmt;
use std::sync::Arc;

use onceward_core::application::{Error, RawStore, RecordOptions, RecordOptionsError, Scope};
use onceward_core::entropy::Entropy;
use onceward_core::namespace::Namespace;
use tokio_postgres::types::Type;

use self::connection::Naming;
pub use self::connection::{Connection, Tx};
pub use self::joined::{JoinedRecords, JoinedStore};
pub use self::store::BoundStore;
use super::driver::{Driver as _, Statement};
use super::statements::{Statements, without_comments};
use super::table::Table;

/// Records of one namespace in a table. It holds no connection and is cheap to
/// clone.
#[derive(Clone)]
pub struct Records {
    shared: Arc<RecordsShared>,
}

/// The state that all bound stores of one [`Records`] share.
#[derive(Clone)]
struct RecordsShared {
    scope: Scope,
    statements: Arc<TableStatements>,
    entropy: Arc<Entropy>,
    naming: Naming,
}

/// The statements of one table.
struct TableStatements {
    table: Table,
    operations: Statements,
    /// Fails outside of a transaction.
    inside: Statement,
    /// The request of a record.
    request: Statement,
    /// The names of the columns that refer to resources.
    resources: Statement,
    /// Whether a fence is still valid.
    current: Statement,
}

impl Records {
    /// Records of this namespace in the table `idempotency_record`, kept as
    /// [`RecordOptions::default`] says. `entropy` names operations.
    pub fn new(namespace: Namespace, entropy: Entropy) -> Self {
        let shared = RecordsShared {
            scope: Scope::new(namespace),
            statements: Arc::new(TableStatements::new(Table::default())),
            entropy: Arc::new(entropy),
            naming: Naming::Usual,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The same in another table.
    #[must_use]
    pub fn table(self, table: Table) -> Self {
        self.with(|shared| shared.statements = Arc::new(TableStatements::new(table)))
    }

    /// The same with other options.
    pub fn with_options(self, options: &RecordOptions) -> Result<Self, RecordOptionsError> {
        let scope = self.shared.scope.clone().with_options(options)?;
        Ok(self.with(|shared| shared.scope = scope))
    }

    /// The same for connections through a pooler in transaction mode (PgBouncer):
    /// sqlx prepares no statement by name, which the next connection of the
    /// server would not know.
    #[must_use]
    pub fn behind_pooler(self) -> Self {
        self.with(|shared| shared.naming = Naming::Unnamed)
    }

    fn with(self, change: impl FnOnce(&mut RecordsShared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.shared);
        change(&mut shared);
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Binds to a transaction: the type says that it is one. Two statements,
    /// one for `begin` and one for the outcome, are all that is added to it.
    pub fn with_tx<'c>(&'c self, tx: impl Into<Tx<'c>>) -> RawStore<BoundStore<'c>> {
        self.on_connection(tx.into())
    }

    /// Binds to a connection that must be in a transaction. One more statement checks
    /// that, before anything is written.
    pub async fn in_transaction<'c>(
        &'c self,
        connection: impl Into<Connection<'c>>,
    ) -> Result<RawStore<BoundStore<'c>>, Error> {
        let mut connection: Connection<'c> = connection.into();
        connection.naming = self.shared.naming;
        let statements = &self.shared.statements;
        let inside = connection.rows(&statements.inside, &[]).await;
        inside.map_err(|error| statements.error(error))?;
        Ok(self.on_connection(connection))
    }

    /// Binds to a connection in any state. Outside of a transaction each step
    /// is committed by itself: a claim whose process dies stays, and at the end
    /// of its lease its outcome is unknown (or the key free, where running twice
    /// is safe).
    pub fn on_connection<'c>(
        &'c self,
        connection: impl Into<Connection<'c>>,
    ) -> RawStore<BoundStore<'c>> {
        let mut connection: Connection<'c> = connection.into();
        connection.naming = self.shared.naming;
        RawStore::new(BoundStore {
            shared: &self.shared,
            connection,
        })
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, table) = (self.shared.scope.namespace(), &self.shared.statements.table);
        write!(f, "Records({namespace} in {table})")
    }
}

impl TableStatements {
    fn new(table: Table) -> Self {
        let fill = |sql: &str, types: Vec<Type>| Statement {
            sql: table.fill(&without_comments(sql)),
            types,
        };
        Self {
            operations: Statements::new(&table),
            inside: fill(include_str!("sql/inside.sql"), Vec::new()),
            request: fill(
                include_str!("sql/request.sql"),
                vec![Type::TEXT, Type::BYTEA, Type::INT8],
            ),
            resources: fill(include_str!("sql/resources.sql"), Vec::new()),
            current: fill(
                include_str!("sql/current.sql"),
                vec![
                    Type::TEXT,
                    Type::BYTEA,
                    Type::BYTEA,
                    Type::BYTEA,
                    Type::INT8,
                ],
            ),
            table,
        }
    }

    /// Refers to one resource and clears other references, which may be those of an
    /// earlier operation.
    fn refer(&self, column: &str, all: &[String]) -> Statement {
        let others = all.iter().filter(|name| *name != column);
        let others: String = others.map(|name| format!("\"{name}\" = NULL, ")).collect();
        let sql = without_comments(include_str!("sql/refer.sql"))
            .replace("{others}", &others)
            .replace("{column}", column);
        Statement {
            sql: self.table.fill(&sql),
            types: vec![Type::TEXT, Type::BYTEA, Type::INT8, Type::TEXT],
        }
    }
}
