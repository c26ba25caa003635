//! Finished operations are found in the file: through the tail in memory and
//! through the index.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::class::AfterLoss;
use onceward_core::identity::OperationId;
use onceward_core::record::Answer;
use onceward_core::store::{Changed, Claim, ClaimRequest, Force, Inspect, Store};
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

/// The same key under another id.
fn as_new(ask: &ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        id: OperationId::new(&ask.digest, 1 << 32),
        ..retry(ask)
    }
}

/// The database still has the row of the purged operation, because it is not filled.
#[tokio::test]
async fn purging_the_id_of_an_earlier_operation_leaves_the_present_one() {
    let home = directory();
    let store = open_cold(home.path());
    complete(&*store, 1).await;
    store.stats().await.expect("it is filled");
    let (old, new) = (ask(1), as_new(&ask(1)));
    let purge = async || store.purge(old.id, Force::No).await.expect("it answers");
    assert_eq!(purge().await, Changed::Done);
    let grant = grant(&*store, &new).await;
    settle(&*store, &grant, completed(1)).await;
    assert_eq!(store.show(old.id).await.expect("it answers"), None);
    assert_eq!(purge().await, Changed::Absent);
    let claimed = store.claim(&retry(&new)).await.expect("it answers");
    assert!(matches!(claimed, Claim::Finished(_)), "{claimed:?}");
}

/// The same for an expired operation that operators still see.
#[tokio::test]
async fn purging_a_trace_leaves_the_operation_that_replaced_it() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    let terms = terms(AfterLoss::Hold).with(|terms| {
        terms.retention = HOUR;
        terms.remember = HOUR;
        terms.keep_expired = 24 * HOUR;
    });
    let old = ask_with(1, terms);
    let first = grant(&store, &old).await;
    settle(&store, &first, completed(1)).await;
    store.stats().await.expect("it is filled");
    clock.advance(2 * HOUR);
    let trace = store.show(old.id).await.expect("it answers");
    assert!(trace.is_some());
    let new = as_new(&old);
    let second = grant(&store, &new).await;
    settle(&store, &second, completed(2)).await;
    let purged = store.purge(old.id, Force::No).await.expect("it answers");
    assert_eq!(purged, Changed::Absent);
    let claimed = store.claim(&retry(&new)).await.expect("it answers");
    assert!(matches!(claimed, Claim::Finished(_)), "{claimed:?}");
}
