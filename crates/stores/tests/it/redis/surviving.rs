//! A server that dies, is suspended, is full or closes connections: acknowledged
//! steps survive, and the store recovers by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward_core::record::{Completion, Settled, State};
use onceward_core::store::{Changed, Claim, Force, Inspect as _, Store};
use onceward_servers::Redis;
use onceward_stores::redis::{RedisStore, Time};
use tokio::task::JoinSet;

use crate::fixture::redis::*;
use crate::fixture::{ask, complete, completed, completion, get, grant, is_replayed, retry};

/// Claims and completes until the store is unavailable; returns the acknowledged
/// operations.
async fn work_until_gone(store: Arc<RedisStore>, drawn: Arc<AtomicU64>) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    loop {
        let number = drawn.fetch_add(1, Ordering::Relaxed);
        let Ok(Claim::Granted(grant)) = store.claim(&ask(number)).await else {
            return acknowledged;
        };
        acknowledged.claimed.insert(number);
        let settled = store.settle(&grant.digest, grant.fence, completed(number));
        let Ok(Settled::Finished(completion)) = settled.await else {
            return acknowledged;
        };
        acknowledged.completed.insert(number, completion);
    }
}

#[derive(Default)]
struct Acknowledged {
    claimed: BTreeSet<u64>,
    completed: BTreeMap<u64, Completion>,
}

/// With `appendfsync always` nothing that was acknowledged is lost, also when
/// the machine dies with the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_operations_survive_a_kill() {
    let mut server = Redis::start_with(&["--appendfsync", "always"]);
    let store = open(&settings(&server.url())).await;
    let drawn = Arc::<AtomicU64>::default();
    let mut workers = JoinSet::new();
    for _ in 0..16 {
        workers.spawn(work_until_gone(store.clone(), drawn.clone()));
    }
    until("there is something to lose", async || {
        (drawn.load(Ordering::Relaxed) > 400).then_some(())
    })
    .await;
    server.kill();
    let all = workers.join_all().await;
    server.restart();
    let mut completed = 0;
    for acknowledged in all {
        for (number, times) in &acknowledged.completed {
            assert!(is_replayed(&*store, *number).await, "number {number}");
            let on_record = completion(&*store, *number).await;
            assert_eq!(on_record, Some(*times), "number {number}");
            completed += 1;
        }
        for number in acknowledged.claimed.iter() {
            let answer = store.claim(&retry(&ask(*number))).await;
            let answer = answer.expect("the store answers");
            assert!(!matches!(answer, Claim::Granted(_)), "number {number}");
        }
    }
    assert!(completed > 100, "only {completed} were completed");
}

#[tokio::test]
async fn the_store_goes_on_by_itself_after_a_restart() {
    let mut server = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    server.kill();
    unavailable(store.claim(&ask(2)).await);
    unavailable(store.get(&ask(1).digest).await);
    server.restart();
    // The new process does not know the scripts, but has the records.
    let record = until("the store answers", async || {
        store.get(&ask(1).digest).await.ok()
    })
    .await;
    assert_eq!(record.map(|record| record.state), Some(State::Completed));
    complete(&*store, 2).await;
}

/// The client does not notice that the server closed an idle connection.
#[tokio::test]
async fn a_cut_connection_loses_no_step() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    for number in 2..5 {
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        // Waits until this process has noticed the cut.
        tokio::time::sleep(Duration::from_millis(100)).await;
        complete(&*store, number).await;
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_unavailable_in_time() {
    let server = Redis::start();
    let mut settings = settings(&server.url());
    settings.deadline = Duration::from_millis(500);
    let store = open(&settings).await;
    complete(&*store, 1).await;
    server.pause();
    let begun = std::time::Instant::now();
    unavailable(store.claim(&ask(2)).await);
    assert!(begun.elapsed() < Duration::from_secs(10));
    server.resume();
    until("the store answers", async || {
        store.get(&ask(1).digest).await.ok()
    })
    .await;
    // The step may have taken effect; then it is recognised.
    let again = until("the store answers", async || {
        store.claim(&ask(2)).await.ok()
    })
    .await;
    assert!(matches!(again, Claim::Granted(_)), "{again:?}");
}

/// The command of a caller that has gone is not sent after a reconnect: the caller
/// may have withdrawn its claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_without_a_caller_is_not_started() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.pause();
    // Waits until this process has noticed the cut.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut claims = JoinSet::new();
    for number in 2..100 {
        let store = store.clone();
        claims.spawn(async move { store.claim(&ask(number)).await });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    claims.shutdown().await;
    server.resume();
    for number in 2..100 {
        assert_eq!(get(&*store, &ask(number)).await, None, "number {number}");
    }
}

#[tokio::test]
async fn a_full_server_refuses_and_forgets_nothing() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    let held = grant(&*store, &ask(2)).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let words = unavailable(store.claim(&ask(3)).await);
    assert!(words.contains("maxmemory"), "{words}");
    let settled = store.settle(&held.digest, held.fence, completed(2)).await;
    unavailable(settled);
    assert!(is_replayed(&*store, 1).await, "reading needs no room");
    let waited = store.wait(&ask(2).digest, Duration::from_millis(10)).await;
    waited.expect("waiting needs no room");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    complete(&*store, 3).await;
    let record = get(&*store, &ask(2)).await.expect("it is on record");
    assert_eq!(record.state, State::Running);
    let settled = store.settle(&held.digest, held.fence, completed(2)).await;
    settled.expect("there is room");
}

#[tokio::test]
async fn a_full_server_is_swept_and_purged_all_the_same() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let time = clock();
    let judged = RedisStore::open_with_time(&settings, Time::Given(time.clone())).await;
    let store = judged.expect("the store opens");
    for number in 1..4 {
        complete(&store, number).await;
    }
    let record = get(&store, &ask(1)).await.expect("it is on record");
    server.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    unavailable(store.claim(&ask(9)).await);
    let purged = store.purge(record.id, Force::No).await;
    assert_eq!(purged.expect("purging needs no room"), Changed::Done);
    time.advance(Duration::from_secs(40 * 24 * 60 * 60));
    let mut swept = 0;
    // A sweep handles some shards at a time.
    for _ in 0..64 {
        swept += store.sweep(1_000).await.expect("sweeping needs no room");
    }
    assert_eq!(swept, 2);
}
