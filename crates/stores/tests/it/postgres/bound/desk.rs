//! An application at its database, six ways: two drivers with three bindings
//! each. A test says what is done at a desk and never which way it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onceward_core::application::{
    Begun, Error, Fresh, Keeping, RawStore, ScopedKey, StoredError, parse_key,
};
use onceward_core::entropy::Entropy;
use onceward_core::namespace::Namespace;
use onceward_servers::Postgres;
use onceward_stores::postgres::{Records, Tied};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tokio_postgres::{Client, Transaction};

use super::super::house::server;

/// A driver and a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    TokioWithTx,
    TokioInTransaction,
    TokioOnConnection,
    SqlxWithTx,
    SqlxInTransaction,
    SqlxOnConnection,
}

impl Way {
    pub(super) const ALL: [Self; 6] = [
        Self::TokioWithTx,
        Self::TokioInTransaction,
        Self::TokioOnConnection,
        Self::SqlxWithTx,
        Self::SqlxInTransaction,
        Self::SqlxOnConnection,
    ];
    /// One of each driver.
    pub(super) const BOTH: [Self; 2] = [Self::TokioWithTx, Self::SqlxWithTx];
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Rollback,
}

/// An application's place at a connection.
#[async_trait]
pub(super) trait Desk: Send {
    /// The library on it.
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error>;
    /// A statement of the application's own; whether it was done.
    async fn sql(&mut self, sql: &str) -> bool;
}

pub(super) type Found = Begun<Value, Value>;

/// What an application does there. It binds anew each time.
impl dyn Desk + '_ {
    pub(super) async fn begin(&mut self, key: &ScopedKey, request: &Value) -> Result<Found, Error> {
        self.store().await?.begin(key, request).await
    }

    pub(super) async fn commit(&mut self, fresh: Fresh, result: &Value) -> Result<(), Error> {
        self.store().await?.commit(fresh, result).await
    }

    pub(super) async fn fail_permanent(
        &mut self,
        fresh: Fresh,
        error: &StoredError,
    ) -> Result<(), Error> {
        self.store().await?.fail_permanent(fresh, error).await
    }

    pub(super) async fn fail_transient(&mut self, fresh: Fresh) -> Result<(), Error> {
        self.store().await?.fail_transient(fresh).await
    }

    pub(super) async fn renew(&mut self, fresh: &Fresh) -> Result<(), Error> {
        self.store().await?.renew(fresh).await
    }

    pub(super) async fn refer(
        &mut self,
        fresh: &Fresh,
        resource: &str,
        id: &str,
    ) -> Result<(), Error> {
        self.store().await?.refer(fresh, resource, id).await
    }

    pub(super) async fn purge_expired(&mut self) -> Result<u64, Error> {
        self.store().await?.purge_expired().await
    }
}

struct TokioWithTx<'a>(&'a Records, Transaction<'a>);

#[async_trait]
impl Desk for TokioWithTx<'_> {
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error> {
        Ok(self.0.with_tx(&self.1))
    }

    async fn sql(&mut self, sql: &str) -> bool {
        self.1.batch_execute(sql).await.is_ok()
    }
}

struct TokioInTransaction<'a>(&'a Records, &'a mut Client);

#[async_trait]
impl Desk for TokioInTransaction<'_> {
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error> {
        self.0.in_transaction(&mut *self.1).await
    }

    async fn sql(&mut self, sql: &str) -> bool {
        self.1.batch_execute(sql).await.is_ok()
    }
}

struct TokioOnConnection<'a>(&'a Records, &'a Client);

#[async_trait]
impl Desk for TokioOnConnection<'_> {
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error> {
        Ok(self.0.on_connection(self.1))
    }

    async fn sql(&mut self, sql: &str) -> bool {
        self.1.batch_execute(sql).await.is_ok()
    }
}

struct SqlxWithTx<'a>(&'a Records, sqlx::Transaction<'a, sqlx::Postgres>);

#[async_trait]
impl Desk for SqlxWithTx<'_> {
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error> {
        Ok(self.0.with_tx(&mut self.1))
    }

    async fn sql(&mut self, sql: &str) -> bool {
        run(&mut self.1, sql).await
    }
}

struct SqlxInTransaction<'a>(&'a Records, &'a mut PgConnection);

#[async_trait]
impl Desk for SqlxInTransaction<'_> {
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error> {
        self.0.in_transaction(&mut *self.1).await
    }

    async fn sql(&mut self, sql: &str) -> bool {
        run(self.1, sql).await
    }
}

struct SqlxOnConnection<'a>(&'a Records, &'a mut PgConnection);

#[async_trait]
impl Desk for SqlxOnConnection<'_> {
    async fn store(&mut self) -> Result<RawStore<Tied<'_>>, Error> {
        Ok(self.0.on_connection(&mut *self.1))
    }

    async fn sql(&mut self, sql: &str) -> bool {
        run(self.1, sql).await
    }
}

async fn run(connection: &mut PgConnection, sql: &str) -> bool {
    let sql = sqlx::AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(connection).await.is_ok()
}

/// Where tests are done: a server with the tables, and a table of the
/// application's own.
pub(super) struct House {
    pub(super) postgres: Arc<Postgres>,
    pub(super) url: String,
    pub(super) records: Records,
}

pub(super) const NAMESPACE: &str = "payments";

pub(super) fn namespace() -> Namespace {
    Namespace::new(NAMESPACE).expect("a good name")
}

pub(super) fn key(name: &str) -> ScopedKey {
    let key = parse_key(&namespace(), Some(name));
    key.expect("a good key").expect("a key")
}

pub(super) fn entropy() -> Entropy {
    Entropy::system().expect("the system has some")
}

impl House {
    pub(super) async fn new() -> Self {
        Self::at(server().await)
    }

    pub(super) fn at(postgres: Arc<Postgres>) -> Self {
        postgres.sql(
            "postgres",
            "CREATE TABLE payment (key text NOT NULL, amount bigint NOT NULL)",
        );
        Self {
            url: postgres.url(),
            records: Records::new(namespace(), entropy()),
            postgres,
        }
    }

    pub(super) fn keeping(&self, keeping: &Keeping) -> Records {
        let records = self.records.clone().keeping(keeping);
        records.expect("good choices")
    }

    /// Does something in a transaction of its own, on a connection of its own.
    pub(super) async fn transact<T>(
        &self,
        way: Way,
        end: End,
        work: impl AsyncFnOnce(&mut dyn Desk) -> T,
    ) -> T {
        transact(&self.records, &self.url, way, end, work).await
    }

    /// The same, where each statement is committed by itself.
    pub(super) async fn alone<T>(&self, way: Way, work: impl AsyncFnOnce(&mut dyn Desk) -> T) -> T {
        alone(&self.records, &self.url, way, work).await
    }

    /// How a key is found, and nothing of it stays.
    pub(super) async fn find(&self, key: &ScopedKey, request: &Value) -> Result<Found, Error> {
        let look = async |desk: &mut dyn Desk| desk.begin(key, request).await;
        self.transact(Way::TokioWithTx, End::Rollback, look).await
    }

    /// How many rows the application has, and how many records there are.
    pub(super) fn counts(&self, key: &ScopedKey) -> (u64, u64) {
        let sql = format!(
            "SELECT (SELECT count(*) FROM payment WHERE key = '{key}'), \
             (SELECT count(*) FROM idempotency_record WHERE key_value = '{key}' AND state <> 'released')"
        );
        let printed = self.postgres.sql("postgres", &sql);
        let (rows, records) = printed.split_once('|').expect("two columns");
        let number = |text: &str| text.parse().expect("a number");
        (number(rows), number(records))
    }
}

pub(super) use super::super::house::connect as client;

pub(super) async fn transact<T>(
    records: &Records,
    url: &str,
    way: Way,
    end: End,
    work: impl AsyncFnOnce(&mut dyn Desk) -> T,
) -> T {
    match way {
        Way::TokioWithTx => {
            let mut client = client(url).await;
            let tx = client.transaction().await.expect("a transaction");
            let mut desk = TokioWithTx(records, tx);
            let done = work(&mut desk).await;
            match end {
                End::Commit => desk.1.commit().await.expect("it commits"),
                End::Rollback => desk.1.rollback().await.expect("it rolls back"),
            }
            done
        }
        Way::TokioInTransaction | Way::TokioOnConnection => {
            let mut client = client(url).await;
            client.batch_execute("BEGIN").await.expect("a transaction");
            let done = match way {
                Way::TokioInTransaction => {
                    work(&mut TokioInTransaction(records, &mut client)).await
                }
                _ => work(&mut TokioOnConnection(records, &client)).await,
            };
            client.batch_execute(sql_of(end)).await.expect("it ends");
            done
        }
        Way::SqlxWithTx => {
            let mut connection = PgConnection::connect(url).await.expect(url);
            let tx = connection.begin().await.expect("a transaction");
            let mut desk = SqlxWithTx(records, tx);
            let done = work(&mut desk).await;
            match end {
                End::Commit => desk.1.commit().await.expect("it commits"),
                End::Rollback => desk.1.rollback().await.expect("it rolls back"),
            }
            done
        }
        Way::SqlxInTransaction | Way::SqlxOnConnection => {
            let mut connection = PgConnection::connect(url).await.expect(url);
            assert!(run(&mut connection, "BEGIN").await);
            let done = match way {
                Way::SqlxInTransaction => {
                    work(&mut SqlxInTransaction(records, &mut connection)).await
                }
                _ => work(&mut SqlxOnConnection(records, &mut connection)).await,
            };
            assert!(run(&mut connection, sql_of(end)).await);
            done
        }
    }
}

fn sql_of(end: End) -> &'static str {
    match end {
        End::Commit => "COMMIT",
        End::Rollback => "ROLLBACK",
    }
}

pub(super) async fn alone<T>(
    records: &Records,
    url: &str,
    way: Way,
    work: impl AsyncFnOnce(&mut dyn Desk) -> T,
) -> T {
    match way {
        Way::TokioWithTx | Way::SqlxWithTx => panic!("{way:?} is always in a transaction"),
        Way::TokioInTransaction => {
            let mut client = client(url).await;
            work(&mut TokioInTransaction(records, &mut client)).await
        }
        Way::TokioOnConnection => {
            let client = client(url).await;
            work(&mut TokioOnConnection(records, &client)).await
        }
        Way::SqlxInTransaction => {
            let mut connection = PgConnection::connect(url).await.expect(url);
            work(&mut SqlxInTransaction(records, &mut connection)).await
        }
        Way::SqlxOnConnection => {
            let mut connection = PgConnection::connect(url).await.expect(url);
            work(&mut SqlxOnConnection(records, &mut connection)).await
        }
    }
}

/// What must be ours to run.
pub(super) fn fresh(found: Result<Found, Error>) -> Fresh {
    match found {
        Ok(Begun::Fresh(fresh)) => fresh,
        other => panic!("not fresh: {other:?}"),
    }
}

/// An outcome in a word.
pub(super) fn word(found: &Result<Found, Error>) -> String {
    match found {
        Ok(Begun::Fresh(_)) => "fresh".to_owned(),
        Ok(Begun::InFlight) => "in flight".to_owned(),
        Ok(Begun::PriorResult(result)) => format!("result {result}"),
        Ok(Begun::PriorError(error)) => format!("error {}: {error}", error.class),
        Ok(Begun::Mismatch(_)) => "mismatch".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// A statement of the application's own.
pub(super) fn pay(key: &ScopedKey) -> String {
    format!("INSERT INTO payment (key, amount) VALUES ('{key}', 100)")
}

/// Nothing here takes longer, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something to be seen.
pub(super) async fn wait_until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
