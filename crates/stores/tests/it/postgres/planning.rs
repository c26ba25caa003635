//! Plans that were made while the table was empty must be good for a full table.

use std::time::Duration;

use futures_util::future::join_all;
use onceward_core::store::{Inspect as _, Queue as _, Store};
use onceward_servers::Postgres;
use onceward_stores::postgres::PostgresStore;
use onceward_stores::postgres::migrate::{Options, apply};

use crate::fixture::postgres::{copy_one, settings, store};
use crate::fixture::{ask, completed, grant, retry};

/// How many operations the table has besides those of the test.
const MANY: u64 = 20_000;
/// How many rows and index entries a step may read.
const READS_PER_STEP: u64 = 60;

/// Each step finds its row by the primary key, in a table whose rows the
/// planner has never counted. Had it chosen anything else when there were none,
/// each step would read thousands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_on_a_table_that_has_grown_read_their_own_rows() {
    let postgres = Postgres::start_with(&[("autovacuum", "off")]);
    let made = apply(&postgres.url(), &Options::default()).await;
    made.expect("the tables are made");
    let settings = settings(&postgres.url());
    let store = store(&settings).await;
    // Often enough for every connection to keep its plans.
    work(&store, 0, 40).await;

    copy_one(&postgres, MANY, "'changed', 1000000 + n");
    let before = reads(&postgres);
    let steps = work(&store, 1_000_000, 10).await;
    drop(store);

    // The server reports the reads of a connection when it ends.
    let mut told = reads(&postgres);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let next = reads(&postgres);
        if next == told && told > before {
            break;
        }
        told = next;
    }
    let read = told - before;
    assert!(
        read < steps * READS_PER_STEP,
        "{read} rows and entries were read in {steps} steps"
    );
}

/// All steps of requests, one at a time and concurrently. Returns the number of
/// steps.
async fn work(store: &PostgresStore, from: u64, rounds: u64) -> u64 {
    let mut steps = 0;
    for round in 0..rounds {
        let first = from + round * 100;
        let together = join_all((0..16).map(|number| pair(store, first + number)));
        together.await;
        pair(store, first + 50).await;
        let waited = store.wait(&ask(first + 50).digest, Duration::ZERO).await;
        waited.expect("the store answers a wait");
        store.due(10).await.expect("the store looks for work");
        store.sweep(10).await.expect("the store sweeps");
        steps += 17 * 3 + 3;
    }
    steps
}

/// A claim, its completion and a replay.
async fn pair(store: &PostgresStore, number: u64) {
    let asked = ask(number);
    let granted = grant(store, &asked).await;
    let settled = store.settle(&granted.digest, granted.fence, completed(number));
    assert!(settled.await.expect("the store answers").is_recorded());
    store
        .claim(&retry(&asked))
        .await
        .expect("the store answers");
}

fn reads(postgres: &Postgres) -> u64 {
    let told = postgres.sql(
        "postgres",
        "SELECT sum(t.seq_tup_read) + sum(i.entries) FROM pg_stat_user_tables AS t \
         JOIN (SELECT relid, sum(idx_tup_read) AS entries FROM pg_stat_user_indexes GROUP BY relid) AS i \
         USING (relid) WHERE t.relname = 'idempotency_record'",
    );
    told.trim().parse().expect("a number")
}
