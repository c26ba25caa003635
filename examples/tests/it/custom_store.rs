//! A custom store.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward::{ManualClock, Timestamp};
use onceward_core::conformance::{Restart, Trial, differential, run_all};
use onceward_core::record::{Answer, Reply, Settlement};
use onceward_core::store::{Claim, Collection, Registry as _, Store as _};
use onceward_examples::journal::JournalStore;
use tempfile::TempDir;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)))
}

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

fn open(home: &TempDir, clock: &Arc<ManualClock>) -> JournalStore {
    let opened = JournalStore::open(&home.path().join("journal"), clock.clone());
    opened.expect("the journal can be read")
}

#[test]
fn every_promise_is_kept() {
    let output = Command::new(env!("CARGO_BIN_EXE_custom_store")).output();
    let output = output.expect("the example can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_is_kept_by_one_that_is_never_emptied() {
    let (home, clock) = (directory(), clock());
    let shared = Trial::new(Arc::new(open(&home, &clock)), clock);
    run_all(async || shared.clone()).await;
}

#[test]
fn journal_equals_the_model() {
    differential(24, Restart::KeepsLeases, || {
        let home = directory();
        async move |clock: Arc<ManualClock>| Trial::new(Arc::new(open(&home, &clock)), clock)
    });
}

fn reply() -> Arc<Reply> {
    Arc::new(Reply {
        status: 201,
        headers: Vec::new(),
        body: Bytes::from_static(b"paid"),
        trailers: Vec::new(),
    })
}

#[tokio::test]
async fn acknowledged_steps_survive_a_restart() {
    let (home, clock) = (directory(), clock());
    let trial = Trial::new(Arc::new(open(&home, &clock)), clock.clone());
    let (done, gone) = (trial.ask(), trial.ask());
    let mut fences = Vec::new();
    for ask in [&done, &gone] {
        let claim = trial.store.claim(ask).await.expect("the store answers");
        let Claim::Granted(grant) = claim else {
            panic!("not granted: {claim:?}");
        };
        fences.push(grant.fence);
        let word = Settlement::Completed(Answer::Kept(reply()));
        let settled = trial.store.settle(&ask.digest, grant.fence, word).await;
        settled.expect("the store answers");
    }
    let record = trial
        .store
        .get(&gone.digest)
        .await
        .expect("answers")
        .expect("there");
    let purged = trial
        .inspect
        .purge(record.id, onceward_core::store::Force::No)
        .await;
    purged.expect("the store answers");
    trial
        .registry
        .put(Collection::Audit, "a", Bytes::from_static(b"1"))
        .await
        .expect("answers");
    drop(trial);

    // A crash in the middle of a frame that was not acknowledged.
    let journal = home.path().join("journal");
    let mut bytes = std::fs::read(&journal).expect("the journal can be read");
    bytes.extend([0, 0, 1, 0, 9, 9]);
    std::fs::write(&journal, &bytes).expect("the journal can be written");

    for _ in 0..2 {
        let store = open(&home, &clock);
        let again = store.claim(&done).await.expect("the store answers");
        assert!(matches!(again, Claim::Finished(record)
            if record.answer == Some(Answer::Kept(reply()))));
        let document = store.read(Collection::Audit, "a").await.expect("answers");
        assert_eq!(document.as_deref(), Some(b"1".as_slice()));
        clock.advance(Duration::from_millis(1));
    }
    let store = open(&home, &clock);
    let Claim::Granted(grant) = store.claim(&gone).await.expect("answers") else {
        panic!("what was purged is free");
    };
    assert!(
        fences.iter().all(|fence| grant.fence > *fence),
        "numbers go on"
    );
    drop(store);

    // A damaged frame is an error, never an absent operation.
    let mut bytes = std::fs::read(&journal).expect("the journal can be read");
    bytes[20] ^= 1;
    std::fs::write(&journal, &bytes).expect("the journal can be written");
    assert!(JournalStore::open(&journal, clock).is_err());
}
