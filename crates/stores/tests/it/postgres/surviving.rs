//! A server that is killed under load loses no acknowledged step, and the store
//! reconnects by itself.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use onceward_core::record::{Completion, Settled, State};
use onceward_core::store::{Claim, Store};

use crate::fixture::postgres::{settings, store};
use crate::fixture::{ask, completed, grant, until};
use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, apply};

const CALLERS: u64 = 16;
const ROUNDS: usize = 3;

#[derive(Default)]
struct Seen {
    claimed: Vec<u64>,
    completed: Vec<(u64, Completion)>,
    refused: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_nothing_acknowledged_and_is_found_again() {
    let mut postgres = Postgres::start();
    let made = apply(&postgres.url(), &Options::default()).await;
    made.expect("the tables are made");
    let mut settings = settings(&postgres.url());
    settings.deadline = Duration::from_secs(2);
    let store = Arc::new(store(&settings).await);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let work: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(work(store.clone(), seen.clone(), caller)))
        .collect();
    for _ in 0..ROUNDS {
        until_more_are_completed(&seen, 300).await;
        postgres.kill();
        until_more_are_refused(&seen).await;
        postgres.restart();
    }
    until_more_are_completed(&seen, 300).await;
    for work in work {
        work.abort();
    }
    let seen = std::mem::take(&mut *seen.lock().expect("no panic"));
    for number in seen.claimed {
        let record = store.get(&ask(number).digest).await.expect("it is found");
        record.unwrap_or_else(|| panic!("the claim of {number} was acknowledged"));
    }
    for (number, times) in seen.completed {
        let record = store.get(&ask(number).digest).await.expect("it is found");
        let known = record.map(|record| (record.state, record.completion()));
        let want = Some((State::Completed, Some(times)));
        assert_eq!(known, want, "{number} was acknowledged");
    }
}

/// Claims and completes operations, and continues with the next after an error.
async fn work(store: Arc<impl Store>, seen: Arc<Mutex<Seen>>, caller: u64) {
    let note = |what: &dyn Fn(&mut Seen)| what(&mut seen.lock().expect("no panic"));
    for number in (caller..).step_by(CALLERS as usize) {
        let claim = store.claim(&ask(number)).await;
        let Ok(Claim::Granted(grant)) = claim else {
            assert!(claim.is_err(), "a new key is granted: {claim:?}");
            note(&|seen| seen.refused += 1);
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        note(&|seen| seen.claimed.push(number));
        let settled = store.settle(&grant.digest, grant.fence, completed(number));
        match settled.await {
            Ok(Settled::Finished(times)) => note(&|seen| seen.completed.push((number, times))),
            Ok(settled) => panic!("the outcome was to be recorded, not {settled:?}"),
            Err(_) => note(&|seen| seen.refused += 1),
        }
    }
}

async fn until_more_are_completed(seen: &Mutex<Seen>, more: usize) {
    let count = || seen.lock().expect("no panic").completed.len();
    let enough = count() + more;
    until("enough are completed", async || {
        (count() >= enough).then_some(())
    })
    .await;
}

async fn until_more_are_refused(seen: &Mutex<Seen>) {
    let count = || seen.lock().expect("no panic").refused;
    let enough = count() + 1;
    until("one more is refused", async || {
        (count() >= enough).then_some(())
    })
    .await;
}

/// The setting is checked at the start. A later change must not make the store
/// acknowledge steps that a crash loses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synchronous_commit_off_at_runtime_loses_nothing_acknowledged() {
    let mut postgres = Postgres::start();
    let made = apply(&postgres.url(), &Options::default()).await;
    made.expect("the tables are made");
    let store = store(&settings(&postgres.url())).await;
    for change in [
        "ALTER SYSTEM SET synchronous_commit = off",
        "ALTER SYSTEM SET wal_writer_delay = '10s'",
        "SELECT pg_reload_conf()",
    ] {
        postgres.sql("postgres", change);
    }
    let shown = || postgres.sql("postgres", "SHOW synchronous_commit");
    until("the setting is off", async || {
        (shown() == "off").then_some(())
    })
    .await;
    let claimed = grant(&store, &ask(1)).await;
    let finished = grant(&store, &ask(2)).await;
    let settled = store.settle(&finished.digest, finished.fence, completed(2));
    assert!(settled.await.expect("it settles").is_recorded());
    postgres.kill();
    postgres.restart();
    for (digest, want) in [
        (claimed.digest, State::Running),
        (finished.digest, State::Completed),
    ] {
        let record = loop {
            match store.get(&digest).await {
                Ok(record) => break record,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        assert_eq!(record.map(|record| record.state), Some(want));
    }
}
