//! A row that cannot be read takes no other with it.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::store::{
    Enqueued, Filter, Inspect as _, PageAsk, Queue as _, Store as _, StoreError,
};

use super::house::{server, settings, store};
use crate::house::{ask, grant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_is_left_out_and_the_others_are_not() {
    let postgres = server().await;
    let store = store(&settings(&postgres.url())).await;
    for number in 1..=3 {
        let ask = ask(number);
        let queued = store.enqueue(&ask, Bytes::from_static(b"work"), Duration::ZERO);
        assert!(matches!(queued.await, Ok(Enqueued::Accepted(_))));
    }
    grant(&store, &ask(4)).await;
    let damage = "UPDATE idempotency_record SET request_hash = 'short' WHERE key_value = 'key-2'";
    postgres.sql("postgres", damage);

    let page = PageAsk {
        limit: 10,
        after: None,
    };
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
