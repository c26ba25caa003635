//! The process is aborted before, within and after a commit of the log, within and
//! after a fill of the database, and before log is given back: acknowledged steps
//! survive with their times, and other steps survive completely or not at all.

use std::fs;
use std::path::Path;

use onceward_core::record::State;
use onceward_core::store::{Filter, Inspect, PageRequest};

use crate::fixture::*;

const OPERATIONS: u64 = 3;
/// A claim and a completion each.
const COMMITS: u64 = 2 * OPERATIONS;

/// Runs operations, one after the other, until it is aborted; creates a file for
/// each acknowledged step.
#[tokio::test]
async fn child_steps() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let _points = fail::FailScenario::setup();
    let store = open(&home.join("store"), &clock());
    let acknowledge = |step: u64, times: String| {
        fs::write(home.join(step.to_string()), times).expect("written");
    };
    for number in 1..=OPERATIONS {
        let grant = grant(&store, &ask(number)).await;
        acknowledge(2 * number - 1, String::new());
        let completion = finish(&store, &grant, number).await;
        acknowledge(2 * number, format!("{completion:?}"));
    }
    if std::env::var_os(FILLS).is_some() {
        // Fills the database, and the log until a part of it is given back.
        for number in 100.. {
            complete(&store, number).await;
            let _ = store.stats().await;
        }
    }
}

/// Set for a child that goes on until it dies in a fill.
const FILLS: &str = "ONCEWARD_TEST_FILLS";

fn acknowledged(home: &Path) -> u64 {
    let steps = 1..=COMMITS;
    steps
        .take_while(|step| home.join(step.to_string()).exists())
        .count() as u64
}

/// How many steps are in the store.
async fn recorded(home: &Path) -> u64 {
    let store = open(&home.join("store"), &clock());
    let mut steps = 0;
    for number in 1..=OPERATIONS {
        if let Ok(times) = fs::read_to_string(home.join((2 * number).to_string())) {
            let completion = completion(&store, number).await;
            assert_eq!(format!("{:?}", completion.expect("it is finished")), times);
        }
        steps += match get(&store, &ask(number)).await.map(|record| record.state) {
            Some(State::Unknown) => 1,
            Some(State::Completed) if is_replayed(&store, number).await => 2,
            None => 0,
            other => panic!("number {number} is {other:?}"),
        };
    }
    steps
}

async fn crash_at(point: &str, before_it: u64) -> (u64, u64) {
    let home = directory();
    let points = format!("export FAILPOINTS='{point}={before_it}*off->return';");
    let mut child = child("embedded::crashing::child_steps", home.path(), &points);
    let ended = child.0.wait().expect("the child ends");
    assert!(!ended.success(), "it was aborted");
    (acknowledged(home.path()), recorded(home.path()).await)
}

#[tokio::test]
async fn a_crash_before_the_commit_keeps_acknowledged_steps() {
    for step in 0..COMMITS {
        assert_eq!(crash_at("store-before-commit", step).await, (step, step));
    }
}

#[tokio::test]
async fn a_crash_after_the_commit_keeps_steps_not_yet_acknowledged() {
    for step in 0..COMMITS {
        assert_eq!(crash_at("store-after-commit", step).await, (step, step + 1));
    }
}

/// The process dies, but what it wrote is still the system's.
#[tokio::test]
async fn a_crash_between_append_and_sync_keeps_acknowledged_steps() {
    for step in 0..COMMITS {
        assert_eq!(crash_at("store-after-append", step).await, (step, step + 1));
    }
}

/// Every acknowledged step is in the log or in the database, and nothing is listed
/// twice.
#[tokio::test]
async fn a_crash_in_or_after_a_fill_keeps_acknowledged_steps() {
    for point in [
        "fill-in-transaction",
        "fill-before-commit",
        "fill-after-commit",
        "log-before-give-back",
    ] {
        for before_it in 0..3 {
            let home = directory();
            let points = format!("export {FILLS}=1 FAILPOINTS='{point}={before_it}*off->return';");
            let mut child = child("embedded::crashing::child_steps", home.path(), &points);
            let ended = child.0.wait().expect("the child ends");
            assert!(!ended.success(), "{point}: it was aborted");
            let acknowledged = acknowledged(home.path());
            for _ in 0..2 {
                let recorded = recorded(home.path()).await;
                let next = recorded.checked_sub(acknowledged);
                assert!(matches!(next, Some(0 | 1)), "{point}: {next:?}");
            }
            let store = open(&home.path().join("store"), &clock());
            let all = PageRequest::first(1000);
            let listed = store.list(&Filter::default(), all).await.expect("listed");
            let mut digests: Vec<_> = listed.records.iter().map(|one| one.digest).collect();
            digests.sort_unstable();
            let count = digests.len();
            digests.dedup();
            assert_eq!(digests.len(), count, "{point}: nothing is listed twice");
        }
    }
}
