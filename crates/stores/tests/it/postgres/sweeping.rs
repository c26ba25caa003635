//! Room is reclaimed from what is over, however much it is.

use std::time::Duration;

use onceward_core::record::Settled;
use onceward_core::store::{Inspect as _, Store as _};
use tokio::time::timeout;

use super::house::{connect, copy_one, server, settings, store};
use crate::house::{ask, completed, grant};

/// More than one batch takes.
const OVER: u64 = 4_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_over_goes_at_once_but_what_somebody_works_on() {
    let postgres = server().await;
    let store = store(&settings(&postgres.url())).await;
    let granted = grant(&store, &ask(1)).await;
    let settled = store.settle(&granted.digest, granted.fence, completed(1));
    assert_eq!(settled.await.expect("the store answers"), Settled::Done);
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
