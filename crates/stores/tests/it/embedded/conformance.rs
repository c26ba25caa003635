//! Every promise of the contract, and the model, for the embedded store.

use std::sync::Arc;

use onceward_core::clock::ManualClock;
use onceward_core::conformance::{Restart, Trial, differential, run_all};
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

#[test]
fn embedded_equals_the_model() {
    differential(96, Restart::EndsLeases, || {
        let directory = directory();
        async move |clock: Arc<ManualClock>| trial(directory.clone(), clock)
    });
}
