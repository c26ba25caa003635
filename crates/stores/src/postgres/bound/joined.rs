//! One record shared by the gateway and the application behind it, on the same
//! database: the gateway claims and forwards operation id and fence, the
//! application commits its reply together with its own rows, and the gateway
//! answers from the record. A crash before the commit leaves nothing done.

use std::fmt;
use std::sync::Arc;

use onceward_core::application::{CONTENT_BYTES_MAX, Error};
use onceward_core::identity::OperationId;
use onceward_core::namespace::Namespace;
use onceward_core::record::{Answer, Fence, Reply, Settlement, State};

use super::super::driver::{Driver as _, Value};
use super::super::row::fence_value;
use super::super::table::Table;
use super::TableStatements;
use super::connection::{Connection, Naming, Tx};
use super::store::outcome;

/// The records of a gateway, as the application behind it sees them. It holds
/// no connection and is cheap to clone.
#[derive(Clone)]
pub struct JoinedRecords {
    namespace: Namespace,
    statements: Arc<TableStatements>,
    naming: Naming,
}

/// The records of a gateway with default settings: namespace `edge`, table
/// `idempotency_record`.
impl Default for JoinedRecords {
    fn default() -> Self {
        Self::new(Namespace::edge(), Table::default())
    }
}

impl JoinedRecords {
    /// The records of a gateway with this namespace and this table.
    pub fn new(namespace: Namespace, table: Table) -> Self {
        Self {
            namespace,
            statements: Arc::new(TableStatements::new(table)),
            naming: Naming::Usual,
        }
    }

    /// The same for connections through a pooler in transaction mode; see
    /// [`Records::behind_pooler`](super::Records::behind_pooler).
    #[must_use]
    pub fn behind_pooler(self) -> Self {
        Self {
            naming: Naming::Unnamed,
            ..self
        }
    }

    /// Binds to a transaction.
    pub fn with_tx<'c>(&'c self, tx: impl Into<Tx<'c>>) -> JoinedStore<'c> {
        let mut connection: Connection<'c> = tx.into().into();
        connection.naming = self.naming;
        JoinedStore {
            records: self,
            connection,
        }
    }
}

impl fmt::Debug for JoinedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "JoinedRecords({} in {})",
            self.namespace, self.statements.table
        )
    }
}

/// The records of a gateway on one transaction.
#[derive(Debug)]
pub struct JoinedStore<'c> {
    records: &'c JoinedRecords,
    connection: Connection<'c>,
}

impl JoinedStore<'_> {
    /// Whether the gateway still waits for this run, without a lock: an early
    /// look, so that a run that came too late need not begin. Only
    /// [`complete`](Self::complete) decides.
    pub async fn is_current(
        &mut self,
        operation: OperationId,
        fence: Fence,
    ) -> Result<bool, Error> {
        let mut values = self.about(operation);
        values.push(fence_value(fence));
        let statements = &self.records.statements;
        let rows = self.connection.rows(&statements.current, &values).await;
        let rows = rows.map_err(|error| statements.error(error))?;
        Ok(!rows.is_empty())
    }

    /// Records the reply, to be committed with the application's own rows. After a
    /// stale fence, which is an error, the transaction must be rolled back: another
    /// attempt was granted the operation and may do the same.
    pub async fn complete(
        &mut self,
        operation: OperationId,
        fence: Fence,
        reply: Reply,
    ) -> Result<(), Error> {
        check(&reply)?;
        let state = State::of_status(reply.status);
        let answer = Answer::Kept(Arc::new(reply));
        let settlement = match state {
            State::Failed => Settlement::Failed(answer.clone()),
            _ => Settlement::Completed(answer.clone()),
        };
        let mut values = self.about(operation);
        values.extend([Value::Null, fence_value(fence)]);
        values.extend(outcome(&settlement, &answer));
        let statements = &self.records.statements;
        let rows = self
            .connection
            .rows(&statements.operations.finish, &values)
            .await;
        match rows.map_err(|error| statements.error(error))?.is_empty() {
            true => Err(Error::Stale { operation, fence }),
            false => Ok(()),
        }
    }

    /// `$1` to `$4` of the statements about one operation.
    fn about(&self, operation: OperationId) -> Vec<Value> {
        let (low, high) = operation.digests();
        vec![
            self.records.namespace.as_str().into(),
            Value::bytes(low.as_bytes()),
            Value::bytes(high.as_bytes()),
            Value::bytes(operation.as_bytes()),
        ]
    }
}

/// A reply must be one that the gateway can send, and must fit into a record.
fn check(reply: &Reply) -> Result<(), Error> {
    if !(200..=599).contains(&reply.status) {
        return Err(Error::Status(reply.status));
    }
    let bytes = reply.body.len();
    if bytes > CONTENT_BYTES_MAX {
        let what = "reply";
        return Err(Error::TooLarge { what, bytes });
    }
    Ok(())
}
