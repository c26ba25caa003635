//! Damaged files: refused loudly, or read without a wrong record.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Settlement, State};
use onceward_core::store::{Changed, Force, Inspect, Queue, Store, StoreError};
use onceward_stores::OpenError;
use onceward_stores::embedded::EmbeddedStore;
use rusqlite::Connection;

use crate::fixture::*;

const DATABASE: &str = "onceward.db";
const LOG: &str = "onceward.db-wal";

async fn filled(home: &Path, count: u64) {
    let store = open(home, &clock());
    for number in 1..=count {
        complete(&store, number).await;
    }
}

#[tokio::test]
async fn damaged_header_is_refused_and_left_as_it_is() {
    let home = directory();
    filled(home.path(), 3).await;
    let path = home.path().join(DATABASE);
    for (place, what) in [
        (0..16, "name"),
        (18..24, "versions"),
        (100..108, "first page"),
    ] {
        let good = fs::read(&path).expect("it is there");
        let mut bad = good.clone();
        bad[place].fill(0xa5);
        fs::write(&path, &bad).expect("written");
        match EmbeddedStore::open(home.path(), clock()) {
            Err(OpenError::Damaged { .. } | OpenError::NotWritable { .. }) => {}
            Err(other) => panic!("{what}: {other}"),
            Ok(_) => panic!("{what}: opened"),
        }
        assert!(
            fs::read(&path).expect("it is there") == bad,
            "{what}: changed"
        );
        fs::write(&path, &good).expect("written");
    }
    assert!(is_replayed(&open(home.path(), &clock()), 3).await);
}

#[tokio::test]
async fn a_damaged_record_is_an_error_for_its_key_alone() {
    let home = directory();
    filled(home.path(), 3).await;
    let db = Connection::open(home.path().join(DATABASE)).expect("SQLite opens it");
    let table: String = db
        .query_row(
            "SELECT name FROM sqlite_schema WHERE name GLOB 'kept_*[0-9]'",
            [],
            |row| row.get(0),
        )
        .expect("there is a bucket");
    flip(&db, &table, "record", "key-1");
    flip(&db, &table, "reply", "key-2");
    drop(db);
    let store = open(home.path(), &clock());
    for number in [1, 2] {
        let told = store.get(&ask(number).digest).await;
        assert!(
            matches!(told, Err(StoreError::Damaged(_))),
            "{number}: {told:?}"
        );
        let told = store.claim(&retry(&ask(number))).await;
        assert!(
            matches!(told, Err(StoreError::Damaged(_))),
            "{number}: {told:?}"
        );
    }
    assert!(is_replayed(&store, 3).await);
    complete(&store, 4).await;
}

#[tokio::test]
async fn a_damaged_open_record_is_an_error_for_its_key_alone() {
    let home = directory();
    let store = open(home.path(), &clock());
    grant(&store, &ask(1)).await;
    grant(&store, &ask(2)).await;
    drop(store);
    let db = Connection::open(home.path().join(DATABASE)).expect("SQLite opens it");
    flip(&db, "live", "record", "key-1");
    drop(db);
    let store = open(home.path(), &clock());
    let told = store.claim(&retry(&ask(1))).await;
    assert!(matches!(told, Err(StoreError::Damaged(_))), "{told:?}");
    let other = get(&store, &ask(2)).await.expect("it is on record");
    assert_eq!(other.state, State::Unknown);
}

async fn enqueue(store: &EmbeddedStore, number: u64) {
    let request = Bytes::from(format!("request {number}"));
    let enqueued = store.enqueue(&ask(number), request, Duration::ZERO).await;
    enqueued.expect("the store answers");
}

#[tokio::test]
async fn a_damaged_request_is_not_delivered_and_delays_no_other() {
    let home = directory();
    let store = open(home.path(), &clock());
    for number in 1..=4 {
        enqueue(&store, number).await;
    }
    drop(store);
    let db = Connection::open(home.path().join(DATABASE)).expect("SQLite opens it");
    let row = "(SELECT request FROM live WHERE key = ?1)";
    let flipped = format!("UPDATE request SET body = zeroblob(length(body)) WHERE id = {row}");
    let missing = format!("DELETE FROM request WHERE id = {row}");
    let unnamed = "UPDATE live SET request = NULL WHERE key = ?1";
    for (key, damage) in [
        ("key-1", &*flipped),
        ("key-2", &*missing),
        ("key-3", unnamed),
    ] {
        assert_eq!(db.execute(damage, [key]), Ok(1));
    }
    drop(db);
    let store = open(home.path(), &clock());
    let mut given = Vec::new();
    for _ in 0..5 {
        given.extend(store.due(1).await.expect("the store gives what is due"));
    }
    let given: Vec<_> = given.iter().map(|due| due.request.clone()).collect();
    assert_eq!(given, ["request 4"]);
    assert_eq!(store.next_due().await.expect("the store answers"), None);
    for number in 1..=3 {
        let record = get(&store, &ask(number)).await.expect("its record is good");
        assert_eq!(record.state, State::Queued, "{number}");
        let purged = store.purge(record.id, Force::No).await;
        assert_eq!(purged.expect("the store answers"), Changed::Done);
    }
}

#[tokio::test]
async fn redelivering_a_damaged_request_is_an_error() {
    let home = directory();
    let store = open(home.path(), &clock());
    for number in 1..=4 {
        enqueue(&store, number).await;
        let due = store.due(1).await.expect("the store gives what is due");
        let word = match number {
            4 => Settlement::Paused,
            number => completed(number),
        };
        settle(&store, &due[0].grant, word).await;
    }
    drop(store);
    let db = Connection::open(home.path().join(DATABASE)).expect("SQLite opens it");
    let table: String = db
        .query_row(
            "SELECT name FROM sqlite_schema WHERE name GLOB 'kept_*[0-9]'",
            [],
            |row| row.get(0),
        )
        .expect("there is a bucket");
    flip(&db, &table, "request", "key-1");
    let missing = format!("UPDATE {table} SET request = NULL WHERE key = 'key-2'");
    assert_eq!(db.execute(&missing, []), Ok(1));
    assert_eq!(db.execute("DELETE FROM request", []), Ok(1));
    drop(db);
    let store = open(home.path(), &clock());
    for number in [1, 2, 4] {
        let before = get(&store, &ask(number)).await.expect("on record");
        let told = store.redeliver(before.id).await;
        assert!(
            matches!(told, Err(StoreError::Damaged(_))),
            "{number}: {told:?}"
        );
        assert_eq!(get(&store, &ask(number)).await, Some(before));
    }
    let good = get(&store, &ask(3)).await.expect("on record");
    let told = store.redeliver(good.id).await;
    assert_eq!(told.expect("the store answers"), Changed::Done);
    drop(store);
    let store = open(home.path(), &clock());
    let due = store.due(10).await.expect("the store gives what is due");
    let requests: Vec<_> = due.iter().map(|due| due.request.clone()).collect();
    assert_eq!(requests, ["request 3"]);
    assert!(is_replayed(&store, 1).await && is_replayed(&store, 2).await);
}

/// Flips one bit in the middle of a blob.
fn flip(db: &Connection, table: &str, column: &str, key: &str) {
    let read = format!("SELECT {column} FROM {table} WHERE key = ?1");
    let mut bytes: Vec<u8> = db
        .query_row(&read, [key], |row| row.get(0))
        .expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let write = format!("UPDATE {table} SET {column} = ?2 WHERE key = ?1");
    assert_eq!(db.execute(&write, (key, bytes)), Ok(1));
}

/// A power cut may leave any part of the log.
#[tokio::test]
async fn log_cut_anywhere_opens_with_the_first_commits_and_no_wrong_record() {
    let home = directory();
    let store = open(home.path(), &clock());
    for number in 1..=4 {
        complete(&store, number).await;
    }
    let database = fs::read(home.path().join(DATABASE)).expect("it is there");
    let log = fs::read(home.path().join(LOG)).expect("it is there");
    drop(store);
    let mut seen = 0;
    for cut in (0..=log.len()).step_by(512).chain([log.len()]) {
        let copy = directory();
        fs::write(copy.path().join(DATABASE), &database).expect("written");
        fs::write(copy.path().join(LOG), &log[..cut]).expect("written");
        let store = open(copy.path(), &clock());
        let there = first_commits(&store).await;
        assert!(there >= seen, "cut at {cut}: {there} after {seen}");
        seen = there;
    }
    assert_eq!(seen, 8, "the whole log has every commit");
}

/// The number of commits in the store, claims and completions in turn. They must be
/// the first ones, and each record must be right.
async fn first_commits(store: &EmbeddedStore) -> usize {
    let mut there = 0;
    for number in 1..=4 {
        let state = get(store, &ask(number)).await.map(|record| record.state);
        let expected = 2 * (number as usize - 1);
        match state {
            None => continue,
            Some(State::Unknown) => there += 1,
            Some(State::Completed) if is_replayed(store, number).await => there += 2,
            other => panic!("number {number} is {other:?}"),
        }
        assert!(there > expected, "number {number} without those before it");
    }
    there
}

#[tokio::test]
async fn bits_flipped_in_the_log_never_make_a_wrong_record() {
    let home = directory();
    let store = open(home.path(), &clock());
    for number in 1..=4 {
        complete(&store, number).await;
    }
    let database = fs::read(home.path().join(DATABASE)).expect("it is there");
    let log = fs::read(home.path().join(LOG)).expect("it is there");
    drop(store);
    for place in (40..log.len()).step_by(3001) {
        let copy = directory();
        let mut flipped = log.clone();
        flipped[place] ^= 0x10;
        fs::write(copy.path().join(DATABASE), &database).expect("written");
        fs::write(copy.path().join(LOG), &flipped).expect("written");
        first_commits(&open(copy.path(), &clock())).await;
    }
}
