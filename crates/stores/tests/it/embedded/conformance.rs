//! Every promise of the contract, and the model, for the embedded store.

use std::sync::Arc;

use futures_util::FutureExt as _;
use onceward_core::clock::ManualClock;
use onceward_core::conformance::{Restart, Trial, differential, run_all};
use onceward_core::record::State;
use onceward_core::store::Store as _;
use onceward_stores::embedded::EmbeddedStore;
use tempfile::TempDir;

use crate::fixture::{self, clock};

fn trial(directory: Arc<TempDir>, clock: Arc<ManualClock>) -> Trial {
    let store = EmbeddedStore::open(directory.path(), clock.clone()).expect("the store opens");
    Trial::new(Arc::new(store), clock).holding(directory)
}

fn directory() -> Arc<TempDir> {
    Arc::new(fixture::directory())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_keeps_every_promise() {
    run_all(async || trial(directory(), clock())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_keeps_every_promise_when_it_is_never_emptied() {
    let shared = trial(directory(), clock());
    run_all(async || shared.clone()).await;
}

/// On a runtime with one thread, the steps of one turn reach the writer together.
#[tokio::test]
async fn embedded_keeps_every_promise_on_one_thread() {
    run_all(async || trial(directory(), clock())).await;
}

#[tokio::test]
async fn claim_that_was_given_up_in_its_turn_is_not_made() {
    let (home, clock) = (directory(), clock());
    let store = fixture::open(home.path(), &clock);
    let ask = fixture::ask(1);
    let given_up = store.claim(&ask).now_or_never();
    assert!(given_up.is_none(), "nothing is granted within the turn");
    // The key is free although nothing was withdrawn.
    fixture::grant(&store, &fixture::retry(&ask)).await;
}

#[tokio::test]
async fn settlement_is_recorded_although_its_caller_gave_up_and_the_store_was_closed() {
    let (home, clock) = (directory(), clock());
    let store = fixture::open(home.path(), &clock);
    let (kept, closed) = (fixture::ask(1), fixture::ask(2));
    for ask in [&kept, &closed] {
        let grant = fixture::grant(&store, ask).await;
        let settled = store.settle(&grant.digest, grant.fence, fixture::completed(1));
        assert!(settled.now_or_never().is_none(), "it waits for its turn");
        if ask.digest == kept.digest {
            tokio::task::yield_now().await;
        }
    }
    drop(store);
    let store = fixture::open(home.path(), &clock);
    for ask in [&kept, &closed] {
        let record = fixture::get(&store, ask).await.expect("it is on record");
        assert_eq!(record.state, State::Completed);
    }
}

#[test]
fn embedded_equals_the_model() {
    differential(96, Restart::EndsLeases, || {
        let directory = directory();
        async move |clock: Arc<ManualClock>| trial(directory.clone(), clock)
    });
}
