//! A process that is killed in the middle of its work loses nothing that it
//! acknowledged, and the times of an outcome stay as they were acknowledged.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use onceward_core::record::State;

use crate::fixture::*;

const ACKNOWLEDGED: &str = "acknowledged";
const CALLERS: u64 = 16;
const ENOUGH: usize = 600;

/// Works until it is killed, and records each acknowledged step. Does nothing
/// unless it runs as a child, because only a child has a directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_works() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let list = File::options()
        .append(true)
        .create(true)
        .open(home.join(ACKNOWLEDGED));
    let list = Arc::new(Mutex::new(list.expect("the list can be written")));
    let store = Arc::new(open(&home.join("store"), &clock()));
    let work = (0..CALLERS).map(|caller| {
        let (store, list) = (store.clone(), list.clone());
        tokio::spawn(async move {
            let write = |word: &str, number: u64, times: &str| {
                let mut list = list.lock().expect("no panic");
                let line = format!("{word} {number} {times}\n");
                list.write_all(line.as_bytes())
                    .expect("the list can be written");
            };
            for number in (caller..).step_by(CALLERS as usize) {
                let grant = grant(&*store, &ask(number)).await;
                write("claimed", number, "");
                let completion = finish(&*store, &grant, number).await;
                write("completed", number, &format!("{completion:?}"));
            }
        })
    });
    for work in work.collect::<Vec<_>>() {
        work.await.expect("it works until it is killed");
    }
}

/// Each acknowledged step: its name, its number and its times.
fn acknowledged(home: &Path) -> Vec<(String, u64, String)> {
    let list = fs::read_to_string(home.join(ACKNOWLEDGED)).unwrap_or_default();
    let whole = list.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let entry = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let mut next = || parts.next().expect("a word, a number and times");
        let (word, number, times) = (next(), next(), next());
        let number = number.parse().expect("a number");
        (word.to_owned(), number, times.to_owned())
    };
    whole.lines().map(entry).collect()
}

#[tokio::test]
async fn killed_process_loses_nothing_that_it_acknowledged() {
    let home = directory();
    for round in 1..=3 {
        let begun_with = acknowledged(home.path()).len();
        let _ = fs::remove_dir_all(home.path().join("store"));
        let _ = fs::remove_file(home.path().join(ACKNOWLEDGED));
        let mut child = child("embedded::killed::child_works", home.path(), "");
        until("enough is acknowledged", async || {
            (acknowledged(home.path()).len() >= ENOUGH * round).then_some(())
        })
        .await;
        child.kill();
        check(home.path()).await;
        assert!(round == 1 || begun_with > 0);
    }
}

async fn check(home: &Path) {
    let store = open(&home.join("store"), &clock());
    for (word, number, times) in acknowledged(home) {
        let record = get(&store, &ask(number)).await;
        let state = record.map(|record| record.state);
        match word.as_str() {
            "completed" => {
                assert!(is_replayed(&store, number).await, "{number}: {state:?}");
                let completion = completion(&store, number).await;
                assert_eq!(format!("{:?}", completion.expect("it is finished")), times);
            }
            _ => assert!(
                matches!(state, Some(State::Unknown | State::Completed)),
                "{number} was claimed and is {state:?}"
            ),
        }
    }
}
