//! Finished operations are found in the file: through the tail in memory and
//! through the index.

use std::sync::Arc;

use onceward_core::record::Answer;
use onceward_core::store::{Claim, Store};
use onceward_stores::embedded::{EmbeddedStore, Limits};

use crate::fixture::*;

/// More than stay in the tail of an index, so that some are sealed.
const MANY: u64 = 17_000;
const CALLERS: u64 = 250;

/// A store that keeps no reply in memory.
fn open_cold(path: &std::path::Path) -> Arc<EmbeddedStore> {
    let limits = {
        let mut limits = Limits::default();
        limits.hot_bytes_max = 1;
        limits
    };
    let store = EmbeddedStore::open_within(path, clock(), limits);
    Arc::new(store.expect("the store opens"))
}

async fn complete_many(store: &Arc<EmbeddedStore>) {
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in (caller..MANY).step_by(CALLERS as usize) {
                complete(&*store, number).await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("every operation completes");
    }
}

async fn assert_replays(store: &EmbeddedStore) {
    for number in (0..MANY).step_by(97).chain([MANY - 1]) {
        let again = retry(&ask(number));
        match store.claim(&again).await.expect("the store answers") {
            Claim::Finished(record) => {
                assert_eq!(record.answer, Some(Answer::Kept(reply(number))));
                let found = store.find(record.id).await.expect("the store answers");
                assert_eq!(found, Some(record));
            }
            other => panic!("number {number}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_are_found_while_others_are_written_and_after_each_opening() {
    let home = directory();
    let store = open_cold(home.path());
    complete_many(&store).await;
    assert_replays(&store).await;
    drop(store);
    for opening in 1..=2 {
        let store = open_cold(home.path());
        assert_replays(&store).await;
        complete(&*store, MANY + opening).await;
        assert!(is_replayed(&*store, MANY + opening).await);
    }
}
