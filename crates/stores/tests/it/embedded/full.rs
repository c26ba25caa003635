//! A full disk: steps are refused, nothing is lost, and the store serves again when
//! there is space.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::store::{Claim, Inspect, Queue, Store, StoreError};
use onceward_stores::embedded::{EmbeddedStore, Limits};

use crate::fixture::*;

/// Runs operations until the store refuses one; how many were completed.
async fn fill(store: &EmbeddedStore, from: u64) -> (u64, StoreError) {
    for number in from.. {
        let grant = match store.claim(&ask(number)).await {
            Ok(Claim::Granted(grant)) => grant,
            Ok(other) => panic!("number {number}: {other:?}"),
            Err(error) => return (number - 1, error),
        };
        let settled = store
            .settle(&grant.digest, grant.fence, completed(number))
            .await;
        if let Err(error) = settled {
            return (number - 1, error);
        }
    }
    unreachable!("numbers do not end")
}

#[tokio::test]
async fn a_full_file_refuses_writes_keeps_records_and_serves_again_after_a_sweep() {
    let (home, clock) = (directory(), clock());
    let limits = {
        let mut limits = Limits::default();
        limits.pages_max = Some(64);
        limits
    };
    let open = || EmbeddedStore::open_within(home.path(), clock.clone(), limits);
    let store = open().expect("the store opens");
    let (last, error) = fill(&store, 1).await;
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(last > 100, "{last}");
    for number in 1..=last {
        assert!(is_replayed(&store, number).await, "number {number}");
    }
    drop(store);

    let store = open().expect("a full store opens");
    assert!(is_replayed(&store, last).await);
    clock.advance(Duration::from_secs(2 * 24 * 60 * 60));
    let swept = store
        .sweep(usize::MAX)
        .await
        .expect("sweeping needs no room");
    assert_eq!(swept as u64, last);
    complete(&store, last + 100).await;
}

/// The first step after a start raises the high-water mark of the numbers. If that
/// step fails, the next one must raise it: otherwise a later start would use the
/// numbers again, as fences and row ids.
#[tokio::test]
async fn numbers_rise_although_the_first_step_after_a_start_failed() {
    let (home, clock) = (directory(), clock());
    let limits = {
        let mut limits = Limits::default();
        limits.pages_max = Some(64);
        limits
    };
    let open = || EmbeddedStore::open_within(home.path(), clock.clone(), limits).expect("opens");
    let store = open();
    let too_large = Bytes::from(vec![0; 1 << 20]);
    let refused = store.enqueue(&ask(1), too_large, Duration::ZERO).await;
    assert!(refused.is_err(), "there is no room for it");
    for number in 2..22 {
        complete(&store, number).await;
    }
    let before = grant(&store, &ask(30)).await;
    drop(store);

    let store = open();
    let after = grant(&store, &ask(31)).await;
    assert!(after.fence > before.fence, "{after:?} after {before:?}");
    complete(&store, 40).await;
    drop(store);
    let store = open();
    for number in (2..22).chain([40]) {
        assert!(is_replayed(&store, number).await, "number {number}");
    }
}

/// Fills a store until the disk is full, waits for space, and continues.
#[tokio::test]
async fn child_fills() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let store = open(&home.join("store"), &clock());
    let (last, error) = fill(&store, 1).await;
    fs::create_dir(home.join(format!("refused {last} {error}").replace('/', " "))).expect("told");
    for number in 1..=last {
        assert!(is_replayed(&store, number).await, "number {number}");
    }
    let mut number = last + 1000;
    while store.claim(&ask(number)).await.is_err() {
        number += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_replayed(&store, last).await);
    fs::create_dir(home.join("went on")).expect("told");
}

/// The system refuses to let the log grow, in the middle of a commit, and later
/// allows it: a limit on the size of files, which applies to root too.
#[tokio::test]
async fn refused_writes_are_rolled_back_and_accepted_when_there_is_space() {
    let home = directory();
    // Blocks of 512 bytes. The signal would end the process before the error does.
    let limit = "trap '' XFSZ; ulimit -S -f 600;";
    let mut child = child("embedded::full::child_fills", home.path(), limit);
    let told = |word: &str| {
        let names = fs::read_dir(home.path()).expect("listed").flatten();
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| name.starts_with(word))
    };
    let refused = until("the child was refused", async || told("refused")).await;
    assert!(refused.contains("the store is unavailable"), "{refused}");
    let lifted = Command::new("prlimit")
        .arg(format!("--pid={}", child.0.id()))
        .arg("--fsize=unlimited")
        .status();
    assert!(lifted.expect("prlimit is part of util-linux").success());
    until("the child went on", async || told("went on")).await;
    let ended = child.0.wait().expect("the child ends");
    assert!(ended.success());
    assert_intact(&home.path().join("store"));
}

fn assert_intact(home: &Path) {
    drop(open(home, &clock()));
    let db = rusqlite::Connection::open(home.join("onceward.db")).expect("SQLite opens it");
    let check: String = db
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("SQLite checks");
    assert_eq!(check, "ok");
}
