//! A connection of the pool in use.

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use tokio_postgres::types::{ToSql, Type};

use super::address::Pooler;
use super::driver::{Cells, Driver, Statement, Value, cells};
use super::error::Error;

/// How long a statement of several steps may wait for a locked row; a step alone may
/// wait longer.
const LOCK_MS: u32 = 50;

/// Each statement must see all committed data; behind a pooler only this ensures
/// it.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// A borrowed connection. If its user is cancelled during a statement, the server
/// still works on the connection: it is closed rather than returned to the pool,
/// where the next user would wait for an abandoned statement.
pub(crate) struct Session {
    object: Option<Object>,
    pooler: Pooler,
    rest: SessionState,
}

/// Whether a connection may go back to the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionState {
    Idle,
    Busy,
}

impl Session {
    pub(crate) async fn borrow(pool: &Pool, pooler: Pooler) -> Result<Self, Error> {
        let object = pool.get().await;
        Ok(Self {
            object: Some(object.map_err(|error| Error::Pool(Box::new(error)))?),
            pooler,
            rest: SessionState::Idle,
        })
    }

    /// Begins a transaction; one that is not ended is rolled back with the
    /// connection.
    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        self.rest = SessionState::Busy;
        self.object().batch_execute(BEGIN).await?;
        Ok(())
    }

    /// A statement that does not wait long for locked rows, in a transaction of its
    /// own: its rows, and whether they are committed. Everything is sent at once. It
    /// is planned once, without sequential scans, which would seem best while the
    /// table is empty.
    pub(crate) async fn run_without_waiting(
        &mut self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<(Result<Vec<Cells>, Error>, Result<(), Error>), Error> {
        self.rest = SessionState::Busy;
        if self.pooler == Pooler::None {
            // Prepared first: preparing would interrupt the pipeline.
            let types = &statement.types;
            let prepared = self.object().prepare_typed_cached(&statement.sql, types);
            prepared.await?;
        }
        let begin = format!(
            "{BEGIN}; SET LOCAL lock_timeout = {LOCK_MS}; \
             SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_generic_plan"
        );
        // Polled in this order, they are sent in this order.
        let (begun, rows, committed) = tokio::join!(
            biased;
            self.object().batch_execute(&begin),
            self.run(statement, values),
            self.object().batch_execute("COMMIT")
        );
        begun?;
        if committed.is_ok() {
            self.rest = SessionState::Idle;
        }
        Ok((rows, committed.map_err(Error::from)))
    }

    pub(crate) async fn commit(&mut self) -> Result<(), Error> {
        self.object().batch_execute("COMMIT").await?;
        self.rest = SessionState::Idle;
        Ok(())
    }

    /// One statement within a transaction.
    pub(crate) async fn run(
        &self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<Cells>, Error> {
        let object = self.object();
        let rows = match self.pooler {
            Pooler::None => {
                let types = &statement.types;
                let prepared = object.prepare_typed_cached(&statement.sql, types).await?;
                let values: Vec<_> = values.iter().map(|v| v as &(dyn ToSql + Sync)).collect();
                object.query(&prepared, &values).await?
            }
            Pooler::Transactions => self.plan_anew(statement, values).await?,
        };
        rows.iter().map(cells).collect()
    }

    /// One statement by itself, planned for these values.
    pub(crate) async fn look(
        &mut self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<Cells>, Error> {
        self.rest = SessionState::Busy;
        let rows = self.plan_anew(statement, values).await;
        self.rest = SessionState::Idle;
        rows?.iter().map(cells).collect()
    }

    async fn plan_anew(
        &self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = values
            .iter()
            .zip(&statement.types)
            .map(|(value, ty)| (value as &(dyn ToSql + Sync), ty.clone()))
            .collect();
        Ok(self.object().query_typed(&statement.sql, &typed).await?)
    }

    fn object(&self) -> &Object {
        self.object
            .as_ref()
            .expect("the connection is there until it is dropped")
    }
}

#[async_trait]
impl Driver for Session {
    async fn rows(&mut self, statement: &Statement, values: &[Value]) -> Result<Vec<Cells>, Error> {
        self.rest = SessionState::Busy;
        let rows = self.run(statement, values).await;
        self.rest = SessionState::Idle;
        rows
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.rest == SessionState::Busy
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}
