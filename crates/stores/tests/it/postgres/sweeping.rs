//! The space of expired operations is reclaimed, in as many batches as needed.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::{Changed, Inspect as _, Queue as _, Store as _};
use onceward_stores::postgres::{PostgresStore, Time};
use tokio::time::timeout;

use crate::fixture::postgres::{clock, connect, copy_one, server, settings, store};
use crate::fixture::{ask, ask_with, completed, grant, settle};

/// More than one batch takes.
const OVER: u64 = 4_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_removes_all_expired_rows_but_locked_ones() {
    let postgres = server().await;
    let store = store(&settings(&postgres.url())).await;
    let granted = grant(&store, &ask(1)).await;
    let settled = store.settle(&granted.digest, granted.fence, completed(1));
    assert!(settled.await.expect("the store answers").is_recorded());
    copy_one(
        &postgres,
        OVER,
        "'expires_ms', (one.r).retention_ms, 'free_ms', 1, 'sweep_ms', 1",
    );
    let left = || postgres.sql("postgres", "SELECT count(*) FROM idempotency_record");
    assert_eq!(left(), (OVER + 1).to_string());

    let holder = connect(&postgres.url()).await;
    let lock = "BEGIN; SELECT FROM idempotency_record WHERE sweep_ms = 1 LIMIT 3 FOR UPDATE";
    holder
        .batch_execute(lock)
        .await
        .expect("some can be locked");

    let swept = timeout(Duration::from_secs(30), store.sweep(50_000)).await;
    let swept = swept.expect("it waits for nobody").expect("it sweeps");
    assert_eq!(swept as u64, OVER - 3);
    assert_eq!(left(), "4");
    holder.batch_execute("ROLLBACK").await.expect("it lets go");
    assert_eq!(
        store.sweep(2).await.expect("it sweeps"),
        2,
        "no more than was asked"
    );
    assert_eq!(store.sweep(50_000).await.expect("it sweeps"), 1);
    assert_eq!(left(), "1", "what is not over stays");
}

/// Whether or not the reply was kept. An operation that was not delivered keeps its
/// request as long as its key: a mismatch shows it to the application.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_goes_with_the_reply() {
    let postgres = server().await;
    let clock = clock();
    let time = Time::Given(clock.clone());
    let store = PostgresStore::open_with_time(&settings(&postgres.url()), time).await;
    let store = store.unwrap_or_else(|error| panic!("the store opens: {error}"));
    let terms = ask(1)
        .terms
        .with(|terms| terms.remember = ask(1).terms.retention * 3);
    let not_kept = Settlement::Completed(Answer::NotKept { status: 200 });
    for (number, word) in (1..).zip([completed(1), not_kept, completed(3)]) {
        let asked = ask_with(number, terms.clone());
        let queued = store.enqueue(&asked, Bytes::from_static(b"work"), Duration::ZERO);
        queued.await.expect("the store answers");
        let due = store.due(1).await.expect("there is work");
        settle(&store, &due[0].grant, word).await;
    }
    let alone = "UPDATE idempotency_record SET delivered = false WHERE key_value = 'key-3'";
    postgres.sql("postgres", alone);
    let left = || {
        postgres.sql(
            "postgres",
            "SELECT count(request), count(*) FROM idempotency_record",
        )
    };
    assert_eq!(store.sweep(10).await.expect("it sweeps"), 0);
    assert_eq!(left(), "3|3");
    clock.advance(terms.retention);
    store.sweep(10).await.expect("it sweeps");
    assert_eq!(left(), "1|3");
    for number in [1, 2] {
        let told = store.redeliver(ask(number).id).await;
        let refused = Changed::Refused(State::Expired);
        assert_eq!(told.expect("the store answers"), refused, "{number}");
    }
    clock.advance(terms.retention * 2);
    store.sweep(10).await.expect("it sweeps");
    assert_eq!(left(), "0|0");
}
