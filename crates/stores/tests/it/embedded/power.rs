//! A power cut at any moment, on a disk that drops, reorders and tears what was not
//! synced: everything that was acknowledged is there, and nothing wrong.
//!
//! A process that is killed shows none of this, because the system keeps what the
//! process wrote.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Fence, State};
use onceward_core::store::{
    Changed, Claim, Collection, Enqueued, Force, Inspect, Queue, Registry, Store,
};
use onceward_stores::embedded::{EmbeddedStore, Limits};
use tempfile::TempDir;

use super::disk::{Luck, RecordingDisk};
use crate::fixture::*;

/// Enough batches that segments of the log are filled, given back and used again.
const OPERATIONS: u64 = 500;
/// Every so many operations the database is filled.
const FILL_EVERY: u64 = 45;
/// Every so many operations one is purged.
const PURGE_EVERY: u64 = 10;

/// A step that was acknowledged.
#[derive(Clone, Debug)]
enum Step {
    Claimed(u64, Fence),
    Completed(u64),
    Purged(u64),
    Enqueued(u64),
    Documented(u64),
    Filled,
}

struct Recorded {
    home: TempDir,
    disk: Arc<RecordingDisk>,
    steps: Vec<Step>,
    /// The events before the first step.
    begun: usize,
}

fn open_on(disk: &Arc<RecordingDisk>, path: &Path) -> EmbeddedStore {
    EmbeddedStore::open_on(path, clock(), Limits::default(), disk.clone()).expect("it opens")
}

async fn enqueue(store: &EmbeddedStore, number: u64) {
    let request = Bytes::from(format!("request {number}"));
    let queued = store.enqueue(&ask(number), request, Duration::ZERO).await;
    assert!(matches!(queued, Ok(Enqueued::Accepted(_))), "{queued:?}");
}

/// Runs the store on a recording disk, and closes it.
async fn record() -> Recorded {
    let home = directory();
    let disk = RecordingDisk::over(home.path());
    let store = open_on(&disk, home.path());
    let begun = disk.length();
    let mut steps = Vec::new();
    let mut done = |step: Step| {
        disk.acknowledge();
        steps.push(step);
    };
    for number in 1..=OPERATIONS {
        if number % 7 == 0 {
            enqueue(&store, number).await;
            done(Step::Enqueued(number));
            continue;
        }
        let grant = grant(&store, &ask(number)).await;
        done(Step::Claimed(number, grant.fence));
        if number % 5 != 0 {
            finish(&store, &grant, number).await;
            done(Step::Completed(number));
        }
        if number % PURGE_EVERY == 3 && number > PURGE_EVERY && (number - 1) % 7 != 0 {
            let purged = store.purge(ask(number - 1).id, Force::No).await;
            assert_eq!(purged.expect("it answers"), Changed::Done);
            done(Step::Purged(number - 1));
        }
        if number % 50 == 1 {
            let document = Bytes::from(format!("document {number}"));
            let name = number.to_string();
            let put = store.put(Collection::Audit, &name, document);
            put.await.expect("it answers");
            done(Step::Documented(number));
        }
        if number % FILL_EVERY == 0 {
            store.stats().await.expect("it answers");
            done(Step::Filled);
        }
    }
    drop(store);
    Recorded {
        home,
        disk,
        steps,
        begun,
    }
}

/// Runs a small store, closes it, and runs it again. Its one segment of the log is used
/// again, and has more batches of its first use than of its second.
async fn record_twice() -> Recorded {
    let home = directory();
    let disk = RecordingDisk::over(home.path());
    let mut steps = Vec::new();
    let mut begun = 0;
    for numbers in [1..=4, 5..=6] {
        begun = disk.length();
        let store = open_on(&disk, home.path());
        // Behind the filler's first checkpoint, which gives the segment back.
        store.sweep(1).await.expect("it answers");
        for number in numbers {
            let grant = grant(&store, &ask(number)).await;
            disk.acknowledge();
            steps.push(Step::Claimed(number, grant.fence));
            finish(&store, &grant, number).await;
            disk.acknowledge();
            steps.push(Step::Completed(number));
        }
    }
    Recorded {
        home,
        disk,
        steps,
        begun,
    }
}

impl Recorded {
    /// Cuts the power after so many events and checks what is left.
    async fn cut_at(&self, place: usize, luck: Luck) {
        let copy = directory();
        let acknowledged = self.disk.cut(place, self.home.path(), copy.path(), luck);
        let store = match EmbeddedStore::open(copy.path(), clock()) {
            Ok(store) => store,
            Err(error) => panic!("cut at {place} with {luck:?}: {error}"),
        };
        let what = format!("cut at {place} after {acknowledged} steps with {luck:?}");
        self.check(&store, acknowledged, &what).await;
        // What was found stays as it was, whatever is filled now.
        store.stats().await.expect("it answers");
        self.check(&store, acknowledged, &what).await;
        drop(store);
        self.check(&open(copy.path(), &clock()), acknowledged, &what)
            .await;
    }

    async fn check(&self, store: &EmbeddedStore, acknowledged: usize, what: &str) {
        let (done, later) = self.steps.split_at(acknowledged);
        let purged = |steps: &[Step], number| {
            let is_meant = |step: &Step| matches!(step, Step::Purged(other) if *other == number);
            steps.iter().any(is_meant)
        };
        let mut highest = Fence(0);
        for step in done {
            match step {
                Step::Claimed(number, fence) if !purged(done, *number) => {
                    highest = highest.max(*fence);
                    let state = get(store, &ask(*number)).await.map(|record| record.state);
                    // The next step may have become durable, although it was not
                    // acknowledged.
                    let is_gone = state.is_none() && purged(later, *number);
                    let is_held = matches!(state, Some(State::Unknown | State::Completed));
                    assert!(is_held || is_gone, "{what}: {number} is {state:?}");
                }
                Step::Completed(number) if !purged(done, *number) => {
                    let is_gone =
                        purged(later, *number) && get(store, &ask(*number)).await.is_none();
                    let is_there = is_gone || is_replayed(store, *number).await;
                    assert!(is_there, "{what}: {number}");
                }
                Step::Purged(number) => {
                    assert_eq!(get(store, &ask(*number)).await, None, "{what}: {number}");
                }
                Step::Enqueued(number) => {
                    let state = get(store, &ask(*number)).await.map(|record| record.state);
                    assert_eq!(state, Some(State::Queued), "{what}: {number}");
                }
                Step::Documented(number) => {
                    let read = store.read(Collection::Audit, &number.to_string()).await;
                    let document = Bytes::from(format!("document {number}"));
                    assert_eq!(read.expect("it answers"), Some(document), "{what}");
                }
                Step::Claimed(..) | Step::Completed(_) | Step::Filled => {}
            }
        }
        let next = OPERATIONS + 1 + acknowledged as u64;
        match store.claim(&ask(next)).await {
            Ok(Claim::Granted(grant)) => assert!(grant.fence > highest, "{what}"),
            Ok(Claim::Unknown(_)) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

/// Different sectors are lost each time; all are named when a check fails.
const LUCKS: [u64; 4] = [0, 1, 3, 4];

#[tokio::test]
async fn a_power_cut_at_any_moment_loses_nothing_acknowledged() {
    let recorded = record().await;
    let length = recorded.disk.length();
    assert!(length > 3000, "{length} events");
    let step = (length - recorded.begun) / 60;
    for (turn, place) in (recorded.begun..=length).step_by(step).enumerate() {
        let luck = Luck {
            seed: turn as u64,
            kept_of_four: LUCKS[turn % LUCKS.len()],
        };
        recorded.cut_at(place, luck).await;
    }
}

#[tokio::test]
async fn a_power_cut_after_the_store_was_opened_again_loses_nothing_acknowledged() {
    let recorded = record_twice().await;
    for place in recorded.begun..=recorded.disk.length() {
        for (seed, kept_of_four) in (0..).zip(LUCKS) {
            recorded.cut_at(place, Luck { seed, kept_of_four }).await;
        }
    }
}

/// Before and after each sync of the database and of its log: in the middle of fills
/// and checkpoints, and before segments are given back.
#[tokio::test]
async fn a_power_cut_around_each_sync_of_the_database_loses_nothing_acknowledged() {
    let recorded = record().await;
    let syncs = recorded.disk.syncs_of("onceward.db");
    let places = syncs.into_iter().filter(|place| *place >= recorded.begun);
    let places: Vec<_> = places.collect();
    assert!(places.len() > 4, "{places:?}");
    for (turn, place) in places.into_iter().enumerate() {
        let luck = Luck {
            seed: turn as u64,
            kept_of_four: LUCKS[turn % LUCKS.len()],
        };
        recorded.cut_at(place, luck).await;
    }
}

/// After a sync that failed nothing is acknowledged, and a new process has everything
/// that was acknowledged before.
#[tokio::test]
async fn a_failed_sync_stops_the_store_until_it_is_opened_again() {
    let home = directory();
    let disk = RecordingDisk::over(home.path());
    let store = open_on(&disk, home.path());
    for number in 1..=5 {
        complete(&store, number).await;
    }
    disk.fail_after(3);
    let mut last = 5;
    let error = loop {
        let claimed = store.claim(&ask(last + 1)).await;
        let grant = match claimed {
            Ok(Claim::Granted(grant)) => grant,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        };
        let word = completed(last + 1);
        match store.settle(&grant.digest, grant.fence, word).await {
            Ok(_) => last += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("restart the process"), "{error}");
    assert_eq!(last, 6);
    disk.fail_after(-1);
    for number in 1..=10 {
        assert!(store.claim(&ask(number)).await.is_err(), "{number}");
        assert!(store.get(&ask(number).digest).await.is_err(), "{number}");
    }
    assert!(store.stats().await.is_err());
    drop(store);
    let store = open(home.path(), &clock());
    for number in 1..=last {
        assert!(is_replayed(&store, number).await, "{number}");
    }
    complete(&store, 100).await;
}

/// The same for a sync of the database: only a checkpoint needs one, and nothing is
/// given back before it.
#[tokio::test]
async fn a_failed_checkpoint_loses_nothing_and_stops_the_store() {
    let home = directory();
    let disk = RecordingDisk::over(home.path());
    let store = open_on(&disk, home.path());
    let mut last = 0;
    let mut syncs = 0;
    loop {
        let Ok(Claim::Granted(grant)) = store.claim(&ask(last + 1)).await else {
            break;
        };
        let word = completed(last + 1);
        let settled = store.settle(&grant.digest, grant.fence, word).await;
        if settled.is_err() {
            break;
        }
        last += 1;
        if last == 130 {
            // The first segment is full: the next fill is followed by a checkpoint.
            disk.fail_database_syncs();
            syncs = disk.syncs_of("onceward.db").len();
            let _ = store.stats().await;
        }
        assert!(last < 5000, "no checkpoint failed");
    }
    assert_eq!(disk.syncs_of("onceward.db").len(), syncs);
    drop(store);
    let copy = directory();
    let luck = Luck {
        seed: 1,
        kept_of_four: 2,
    };
    disk.cut(disk.length(), home.path(), copy.path(), luck);
    for home in [home.path(), copy.path()] {
        let store = open(home, &clock());
        for number in 1..=last {
            assert!(is_replayed(&store, number).await, "{number}");
        }
    }
}
