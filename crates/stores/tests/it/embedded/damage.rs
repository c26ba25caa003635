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
use tempfile::TempDir;

use crate::fixture::*;

const DATABASE: &str = "onceward.db";
const WAL: &str = "onceward.db-wal";
const SEGMENT: &str = "log/segment-1";
const MARK: &str = "log/mark";
/// The first block of a segment is its header, and batches begin at blocks.
const BLOCK: usize = 4096;

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

/// Copies a store, without its lock, as it is at this moment.
fn copy(from: &Path, to: &Path) {
    for name in [DATABASE, WAL] {
        fs::copy(from.join(name), to.join(name)).expect("copied");
    }
    fs::create_dir(to.join("log")).expect("made");
    for entry in fs::read_dir(from.join("log")).expect("listed").flatten() {
        fs::copy(entry.path(), to.join("log").join(entry.file_name())).expect("copied");
    }
}

/// A store with four operations, as a power cut leaves it whose disk kept everything.
async fn cut_off() -> TempDir {
    let (home, image) = (directory(), directory());
    let store = open(home.path(), &clock());
    for number in 1..=4 {
        complete(&store, number).await;
    }
    copy(home.path(), image.path());
    image
}

/// Where the batches of a log end, and its bytes.
fn segment(home: &Path) -> (usize, Vec<u8>) {
    let bytes = fs::read(home.join(SEGMENT)).expect("it is there");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("batches");
    (end + 1, bytes)
}

/// A power cut may leave any part of what was written to the log last. The mark of
/// what was durable may be as old.
#[tokio::test]
async fn log_cut_anywhere_opens_with_the_first_commits_and_no_wrong_record() {
    let image = cut_off().await;
    let (end, log) = segment(image.path());
    let mut seen = 0;
    for cut in (BLOCK..=end).step_by(512).chain([end]) {
        let home = directory();
        copy(image.path(), home.path());
        fs::remove_file(home.path().join(MARK)).expect("removed");
        let mut left = log.clone();
        left[cut..].fill(0);
        fs::write(home.path().join(SEGMENT), left).expect("written");
        let there = first_commits(&open(home.path(), &clock())).await;
        assert!(there >= seen, "cut at {cut}: {there} after {seen}");
        seen = there;
    }
    assert_eq!(seen, 8, "the whole log has every commit");
}

/// What is below the mark was durable and acknowledged: without it the store must not
/// start.
#[tokio::test]
async fn a_log_that_lost_what_was_durable_is_refused_and_left_as_it_is() {
    let image = cut_off().await;
    let (end, log) = segment(image.path());
    for cut in (BLOCK..end).step_by(BLOCK / 2) {
        let home = directory();
        copy(image.path(), home.path());
        let mut left = log.clone();
        left[cut..].fill(0);
        fs::write(home.path().join(SEGMENT), &left).expect("written");
        let refused = refusal(home.path());
        assert!(refused.contains("the commit log lacks batch"), "{refused}");
        let after = fs::read(home.path().join(SEGMENT)).expect("it is there");
        assert!(after == left, "cut at {cut}: changed");
    }
}

/// Each batch is written after the one before it was synced, so a hole is damage even
/// where the mark is lost.
#[tokio::test]
async fn a_hole_in_the_log_is_refused_without_the_mark_too() {
    let image = cut_off().await;
    let (end, log) = segment(image.path());
    let last = (end - 1) / BLOCK * BLOCK;
    for block in (BLOCK..last).step_by(BLOCK) {
        let home = directory();
        copy(image.path(), home.path());
        fs::remove_file(home.path().join(MARK)).expect("removed");
        let mut holed = log.clone();
        holed[block + 20] ^= 0x40;
        fs::write(home.path().join(SEGMENT), holed).expect("written");
        let refused = refusal(home.path());
        assert!(refused.contains("the commit log lacks batch"), "{refused}");
    }
}

#[tokio::test]
async fn bits_flipped_in_the_log_never_make_a_wrong_record() {
    let image = cut_off().await;
    let (end, log) = segment(image.path());
    for place in (0..end).step_by(97) {
        let home = directory();
        copy(image.path(), home.path());
        let mut flipped = log.clone();
        flipped[place] ^= 0x10;
        fs::write(home.path().join(SEGMENT), flipped).expect("written");
        match EmbeddedStore::open(home.path(), clock()) {
            // The bit means nothing there.
            Ok(store) => assert_eq!(first_commits(&store).await, 8, "bit at {place}"),
            Err(OpenError::Damaged { .. }) => {}
            Err(other) => panic!("bit at {place}: {other}"),
        }
    }
}

/// It cannot be torn, because it is in one sector. A segment whose header is damaged may
/// have batches that were acknowledged, and the mark may be older.
#[tokio::test]
async fn a_segment_without_its_header_is_refused_by_its_name() {
    const SECOND: &str = "log/segment-2";
    let (home, image) = (directory(), directory());
    let store = open(home.path(), &clock());
    for number in 1..=140 {
        complete(&store, number).await;
    }
    copy(home.path(), image.path());
    fs::remove_file(image.path().join(MARK)).expect("removed");
    let good = fs::read(image.path().join(SECOND)).expect("it is there");
    assert_ne!(good[..BLOCK], [0; BLOCK], "it is in use");
    for place in [0, 20, 50] {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(image.path().join(SECOND), bad).expect("written");
        let refused = refusal(image.path());
        assert!(refused.contains("segment-2"), "{refused}");
    }
    let mut newer = good.clone();
    newer[11] = 2;
    fs::write(image.path().join(SECOND), newer).expect("written");
    let refused = EmbeddedStore::open(image.path(), clock()).map(drop);
    let is_newer = matches!(refused, Err(OpenError::Newer { layout: 2, .. }));
    assert!(is_newer, "{refused:?}");
    fs::write(image.path().join(SECOND), good).expect("written");
    assert!(is_replayed(&open(image.path(), &clock()), 140).await);
}

/// SQLite's own log is not synced; whatever is missing of it comes from the commit log.
#[tokio::test]
async fn a_cut_or_missing_log_of_sqlite_heals_from_the_commit_log() {
    let (home, image) = (directory(), directory());
    let store = open(home.path(), &clock());
    for number in 1..=4 {
        complete(&store, number).await;
        store.stats().await.expect("the database is filled");
    }
    copy(home.path(), image.path());
    drop(store);
    let wal = fs::read(image.path().join(WAL)).expect("it is there");
    assert!(wal.len() > 8 * BLOCK);
    for cut in (0..=wal.len()).step_by(3 * 512).chain([wal.len()]) {
        for flipped in [false, true] {
            let home = directory();
            copy(image.path(), home.path());
            let mut left = wal[..cut].to_vec();
            if let Some(byte) = left.last_mut().filter(|_| flipped) {
                *byte ^= 0x10;
            }
            fs::write(home.path().join(WAL), left).expect("written");
            let there = first_commits(&open(home.path(), &clock())).await;
            assert_eq!(there, 8, "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn a_database_without_its_log_is_refused_until_an_operator_says_so() {
    let home = directory();
    let store = open(home.path(), &clock());
    let before = grant(&store, &ask(9)).await;
    for number in 1..=4 {
        complete(&store, number).await;
    }
    drop(store);
    fs::remove_dir_all(home.path().join("log")).expect("removed");
    let refused = refusal(home.path());
    assert!(refused.contains("the commit log"), "{refused}");
    assert!(refused.contains("UPDATE meta SET log = NULL"), "{refused}");
    let db = Connection::open(home.path().join(DATABASE)).expect("SQLite opens it");
    assert_eq!(db.execute("UPDATE meta SET log = NULL", []), Ok(1));
    drop(db);
    for _ in 0..2 {
        let store = open(home.path(), &clock());
        assert_eq!(first_commits(&store).await, 8);
    }
    let after = grant(&open(home.path(), &clock()), &ask(10)).await;
    assert!(after.fence > before.fence, "numbers never go back");
}

/// The file as it is before its first fill, without the log of SQLite and without ours.
#[tokio::test]
async fn a_young_database_knows_its_log_and_does_not_count_from_the_start() {
    let (home, image) = (directory(), directory());
    let store = open(home.path(), &clock());
    fs::copy(home.path().join(DATABASE), image.path().join(DATABASE)).expect("copied");
    let before = grant(&store, &ask(1)).await;
    let refused = refusal(image.path());
    assert!(refused.contains("UPDATE meta SET log = NULL"), "{refused}");
    let db = Connection::open(image.path().join(DATABASE)).expect("SQLite opens it");
    assert_eq!(db.execute("UPDATE meta SET log = NULL", []), Ok(1));
    drop(db);
    let after = grant(&open(image.path(), &clock()), &ask(2)).await;
    assert!(after.fence > before.fence, "numbers never go back");
}

/// An old copy of the database beside a log that no longer has what the copy lacks.
#[tokio::test]
async fn a_database_that_is_older_than_its_log_is_refused() {
    let (home, image) = (directory(), directory());
    let store = open(home.path(), &clock());
    complete(&store, 1).await;
    store.stats().await.expect("the database is filled");
    copy(home.path(), image.path());
    // Until the segment that follows the copy is used again.
    for number in 2..=800 {
        complete(&store, number).await;
        if number % 50 == 0 {
            store.stats().await.expect("the database is filled");
        }
    }
    drop(store);
    for name in [DATABASE, WAL] {
        fs::copy(image.path().join(name), home.path().join(name)).expect("copied");
    }
    let refused = refusal(home.path());
    assert!(refused.contains("the commit log lacks batch"), "{refused}");
}

fn refusal(home: &Path) -> String {
    match EmbeddedStore::open(home, clock()) {
        Err(error @ OpenError::Damaged { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{} opened", home.display()),
    }
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
