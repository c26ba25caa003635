//! A PostgreSQL of our own with the tables made, and stores on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward_core::clock::{ManualClock, Timestamp};
use onceward_core::conformance::Trial;
use onceward_core::namespace::Namespace;
use onceward_servers::Postgres;
use onceward_stores::Settings;
use onceward_stores::postgres::migrate::{Options, apply};
use onceward_stores::postgres::{PostgresStore, Time};
use tokio_postgres::{Client, NoTls};

/// A server with the tables in the database `postgres`.
pub(super) async fn server() -> Arc<Postgres> {
    server_with(&Options::default()).await
}

pub(super) async fn server_with(options: &Options) -> Arc<Postgres> {
    let postgres = Postgres::start();
    apply(&postgres.url(), options)
        .await
        .expect("the tables are made");
    Arc::new(postgres)
}

/// Settings with a namespace that nobody used before.
pub(super) fn settings(url: &str) -> Settings {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let number = DRAWN.fetch_add(1, Ordering::Relaxed);
    let mut settings = Settings::at(url);
    settings.namespace = Namespace::new(&format!("n{number}")).expect("a good namespace");
    // The machine may be busy; how long a step takes is not what is tested.
    settings.deadline = std::time::Duration::from_secs(20);
    settings.connections = 8;
    settings
}

pub(super) async fn store(settings: &Settings) -> PostgresStore {
    let store = PostgresStore::open(settings).await;
    store.unwrap_or_else(|error| panic!("the store opens: {error}"))
}

/// A store on trial, which judges by this clock.
pub(super) async fn trial(settings: &Settings, clock: Arc<ManualClock>) -> Trial {
    let time = Time::Given(clock.clone());
    let store = PostgresStore::judged_by(settings, time).await;
    let store = store.unwrap_or_else(|error| panic!("the store opens: {error}"));
    Trial::new(Arc::new(store), clock)
}

pub(super) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)))
}

/// Makes this many copies of one of the operations, under other digests and
/// with these changes, as `jsonb_build_object` takes them.
pub(super) fn copy_one(postgres: &Postgres, count: u64, changes: &str) {
    let copies = format!(
        "INSERT INTO idempotency_record SELECT (jsonb_populate_record(one.r, jsonb_build_object(\
             'digest', '\\x' || encode(sha256(n::text::bytea), 'hex'), {changes}))).* \
         FROM (SELECT r FROM idempotency_record AS r LIMIT 1) AS one, generate_series(1, {count}) AS n"
    );
    postgres.sql("postgres", &copies);
}

/// A connection of which a test can hear errors.
pub(super) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect(url);
    // It ends with the client.
    tokio::spawn(connection);
    client
}
