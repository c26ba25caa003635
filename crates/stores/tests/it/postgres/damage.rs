//! A damaged row does not affect other rows.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Settlement, State};
use onceward_core::store::{
    Changed, Enqueued, Filter, Inspect as _, PageRequest, Queue as _, Store as _, StoreError,
};
use onceward_stores::postgres::PostgresStore;

use crate::fixture::postgres::{server, settings, store};
use crate::fixture::{ask, completed, get, grant, settle};

async fn enqueue(store: &PostgresStore, number: u64) {
    let request = Bytes::from_static(b"work");
    let queued = store.enqueue(&ask(number), request, Duration::ZERO).await;
    assert!(matches!(queued, Ok(Enqueued::Accepted(_))), "{queued:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_leave_out_damaged_rows_only() {
    let postgres = server().await;
    let store = store(&settings(&postgres.url())).await;
    for number in 1..=3 {
        enqueue(&store, number).await;
    }
    grant(&store, &ask(4)).await;
    let damage = "UPDATE idempotency_record SET request_hash = 'short' WHERE key_value = 'key-2'";
    postgres.sql("postgres", damage);

    let page = PageRequest::first(10);
    let page = store
        .list(&Filter::default(), page)
        .await
        .expect("it lists");
    let keys: Vec<_> = page
        .records
        .iter()
        .map(|record| record.identity.key.as_str())
        .collect();
    assert_eq!(keys, ["key-4", "key-3", "key-1"]);
    let due = store.due(10).await.expect("there is work");
    let due: Vec<_> = due
        .iter()
        .map(|due| due.record.identity.key.as_str().to_owned())
        .collect();
    assert_eq!(due, ["key-1", "key-3"]);
    let claim = store.claim(&ask(2)).await;
    assert!(
        matches!(claim, Err(StoreError::Damaged(_))),
        "it is never taken for free"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_request_is_damage_and_never_an_empty_one() {
    let postgres = server().await;
    let store = store(&settings(&postgres.url())).await;
    let words = [completed(1), Settlement::Paused, completed(3)];
    for (number, word) in (1..).zip(words) {
        enqueue(&store, number).await;
        let due = store.due(1).await.expect("there is work");
        settle(&store, &due[0].grant, word).await;
    }
    enqueue(&store, 4).await;
    let damage = "UPDATE idempotency_record SET request = NULL WHERE key_value <> 'key-3'";
    postgres.sql("postgres", damage);

    for number in [1, 2] {
        let before = get(&store, &ask(number)).await.expect("on record");
        let mut told = vec![store.redeliver(before.id).await];
        if before.state == State::Paused {
            told.push(store.resume(before.id).await);
        }
        let all_damaged = told
            .iter()
            .all(|told| matches!(told, Err(StoreError::Damaged(_))));
        assert!(all_damaged, "{number}: {told:?}");
        assert_eq!(get(&store, &ask(number)).await, Some(before));
    }
    let told = store.redeliver(ask(3).id).await;
    assert_eq!(told.expect("the store answers"), Changed::Done);
    let due = store.due(10).await.expect("there is work");
    let given: Vec<_> = due
        .iter()
        .map(|due| (due.grant.digest, &*due.request))
        .collect();
    assert_eq!(given, [(ask(3).digest, &b"work"[..])]);
}
