//! Space is reclaimed by the bucket, and expired records never block a key.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::class::{Class, Expiry};
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::{Changed, Claim, Filter, Inspect, PageRequest, Queue, Store};
use rusqlite::Connection;

use crate::fixture::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn tables(home: &std::path::Path) -> Vec<String> {
    let db = Connection::open(home.join("onceward.db")).expect("SQLite opens it");
    let mut names = db
        .prepare("SELECT name FROM sqlite_schema WHERE name GLOB '*_[0-9]*' ORDER BY name")
        .expect("a good statement");
    let names = names.query_map([], |row| row.get(0)).expect("it runs");
    names.collect::<Result<_, _>>().expect("names")
}

#[tokio::test]
async fn sweeping_returns_how_many_it_reclaimed_and_leaves_no_table() {
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    for number in 1..=700 {
        complete(&store, number).await;
    }
    assert_eq!(store.sweep(usize::MAX).await.expect("swept"), 0);
    clock.advance(DAY + DAY);
    assert_eq!(store.stats().await.expect("counted").operations, 0);
    assert_eq!(store.sweep(300).await.expect("swept"), 300);
    assert_eq!(store.sweep(usize::MAX).await.expect("swept"), 400);
    drop(store);
    assert_eq!(tables(home.path()), Vec::<String>::new());
}

/// Without other traffic nothing else moves what SQLite logs into the file.
#[tokio::test]
async fn sweeping_leaves_the_log_of_sqlite_bounded() {
    const OPERATIONS: u64 = 8_000;
    const WAL_BYTES_MAX: u64 = 33 << 20;
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    let all = (1..=OPERATIONS).map(|number| complete(&store, number));
    futures_util::future::join_all(all).await;
    store.stats().await.expect("it is filled");
    clock.advance(DAY + DAY);
    let wal = home.path().join("onceward.db-wal");
    for _ in 0..OPERATIONS {
        assert_eq!(store.sweep(1).await.expect("swept"), 1);
        let bytes = std::fs::metadata(&wal).expect("it is there").len();
        assert!(bytes < WAL_BYTES_MAX, "{bytes}");
    }
}

#[tokio::test]
async fn released_keys_are_reclaimed_too() {
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    let grant = grant(&store, &ask(1)).await;
    settle(&store, &grant, onceward_core::record::Settlement::Released).await;
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.sweep(10).await.expect("swept"), 1);
    assert_eq!(store.sweep(10).await.expect("swept"), 0);
}

#[tokio::test]
async fn a_forgotten_key_runs_again_before_it_is_swept_and_the_newest_record_counts() {
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    complete(&store, 1).await;
    clock.advance(DAY);
    assert_eq!(get(&store, &ask(1)).await, None);
    let again = retry(&ask(1));
    let grant = grant(&store, &again).await;
    settle(&store, &grant, completed(99)).await;
    drop(store);
    let store = open(home.path(), &clock);
    let record = get(&store, &ask(1)).await.expect("it is on record");
    assert_eq!(record.answer, Some(Answer::Kept(reply(99))));
    let all = PageRequest::first(10);
    let listed = store.list(&Filter::default(), all).await.expect("listed");
    assert_eq!(listed.records.len(), 1);
    let counted = store.stats().await.expect("counted").operations;
    assert_eq!(
        counted, 2,
        "what is over counts until its room is reclaimed"
    );
    clock.advance(2 * DAY);
    store.sweep(usize::MAX).await.expect("swept");
    assert_eq!(store.stats().await.expect("counted").operations, 0);
}

#[tokio::test]
async fn reply_goes_before_its_key_and_a_late_retry_is_refused() {
    let (home, clock) = (directory(), clock());
    let terms = Class::financial().terms().with(|terms| {
        terms.retention = DAY;
        terms.remember = 30 * DAY;
    });
    let ask = ask_with(1, terms);
    let store = open(home.path(), &clock);
    let grant = grant(&store, &ask).await;
    settle(&store, &grant, completed(1)).await;
    drop(store);
    let store = open(home.path(), &clock);
    assert!(is_replayed(&store, 1).await, "read from two tables");
    clock.advance(3 * DAY);
    assert_eq!(
        store.sweep(usize::MAX).await.expect("swept"),
        0,
        "no operation is over"
    );
    drop(store);
    let left = tables(home.path());
    assert!(
        left.iter().all(|name| !name.starts_with("reply_")),
        "{left:?}"
    );

    // The reply stays gone, also if the wall clock is set back.
    for clock in [clock, crate::fixture::clock()] {
        let store = open(home.path(), &clock);
        match store.claim(&retry(&ask)).await.expect("the store answers") {
            Claim::Expired(record) => assert_eq!(record.state, State::Expired),
            other => panic!("{other:?}"),
        }
    }
}

/// Whether or not the reply was kept, and for every way in which its time ends.
#[tokio::test]
async fn request_goes_with_the_reply() {
    let not_kept = Settlement::Completed(Answer::NotKept { status: 200 });
    for expiry in [Expiry::Strict, Expiry::Lazy] {
        for word in [completed(1), not_kept.clone()] {
            let (home, clock) = (directory(), clock());
            let terms = Class::webhook().terms().with(|terms| {
                terms.retention = DAY;
                terms.remember = 30 * DAY;
                terms.expiry = expiry;
            });
            let ask = ask_with(1, terms);
            let store = open(home.path(), &clock);
            let request = Bytes::from_static(b"request");
            let enqueued = store.enqueue(&ask, request, Duration::ZERO).await;
            enqueued.expect("the store answers");
            let due = store.due(1).await.expect("the store gives what is due");
            settle(&store, &due[0].grant, word.clone()).await;
            clock.advance(3 * DAY);
            assert_eq!(store.sweep(usize::MAX).await.expect("swept"), 0);
            drop(store);
            let left = tables(home.path());
            assert!(
                left.iter().all(|name| !name.starts_with("reply_")),
                "{left:?}"
            );
            let store = open(home.path(), &clock);
            let told = store.redeliver(ask.id).await;
            assert_eq!(
                told.expect("the store answers"),
                Changed::Refused(State::Expired),
                "{expiry:?}, {word:?}"
            );
            let all = PageRequest::first(10);
            let listed = store.list(&Filter::default(), all).await.expect("listed");
            let states: Vec<_> = listed.records.iter().map(|one| one.state).collect();
            assert_eq!(states, [State::Expired]);
        }
    }
}
