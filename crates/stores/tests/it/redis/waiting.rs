//! A waiter in one process wakes when another process settles; without messages it
//! wakes at its limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::store::Store;
use onceward_servers::Redis;
use onceward_stores::redis::RedisStore;
use tokio::task::JoinHandle;

use crate::fixture::redis::*;
use crate::fixture::{ask, completed, grant, settle};

const LONG: Duration = Duration::from_secs(30);
const ROUNDS: u64 = 9;

/// Waits, and returns when the wait ended.
fn spawn_waiter(store: &Arc<RedisStore>, number: u64, limit: Duration) -> JoinHandle<Instant> {
    let store = store.clone();
    tokio::spawn(async move {
        let waited = store.wait(&ask(number).digest, limit).await;
        waited.expect("the store answers a wait");
        Instant::now()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_wakes_within_a_tenth_of_a_second() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let (leader, other) = (open(&settings).await, open(&settings).await);
    let mut delays = Vec::new();
    for number in 0..ROUNDS {
        let grant = grant(&*leader, &ask(number)).await;
        let waiter = spawn_waiter(&other, number, LONG);
        until_awaited(std::slice::from_ref(&server)).await;
        settle(&*leader, &grant, completed(number)).await;
        let settled = Instant::now();
        let woken = waiter.await.expect("the waiter does not panic");
        delays.push(woken.saturating_duration_since(settled));
    }
    delays.sort_unstable();
    let usual = delays[delays.len() / 2];
    assert!(usual < Duration::from_millis(100), "{delays:?}");
    assert!(delays.iter().all(|delay| *delay < LONG / 2), "{delays:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_messages_a_waiter_wakes_at_its_limit_and_later_hears_again() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let (leader, other) = (open(&settings).await, open(&settings).await);
    let first = grant(&*leader, &ask(1)).await;
    let limit = Duration::from_secs(1);
    let begun = Instant::now();
    let waiter = spawn_waiter(&other, 1, limit);
    until_awaited(std::slice::from_ref(&server)).await;
    // While PUBLISH is not allowed, no waiter is notified.
    server.cli(&["ACL", "SETUSER", "default", "resetchannels"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    settle(&*leader, &first, completed(1)).await;
    let woken = waiter.await.expect("the waiter does not panic");
    let waited = woken.duration_since(begun);
    assert!(waited >= limit, "woken after {waited:?} by nobody");
    assert!(waited < LONG / 2, "waited {waited:?}");

    server.cli(&["ACL", "SETUSER", "default", "allchannels"]);
    until_heard(&server).await;
    let second = grant(&*leader, &ask(2)).await;
    let waiter = spawn_waiter(&other, 2, LONG);
    until_awaited(std::slice::from_ref(&server)).await;
    settle(&*leader, &second, completed(2)).await;
    let settled = Instant::now();
    let woken = waiter.await.expect("the waiter does not panic");
    assert!(woken.saturating_duration_since(settled) < LONG / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_a_process_no_message_is_needed() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    server.cli(&["ACL", "SETUSER", "default", "resetchannels"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let grant = grant(&*store, &ask(1)).await;
    let waiter = spawn_waiter(&store, 1, LONG);
    until_awaited(std::slice::from_ref(&server)).await;
    settle(&*store, &grant, completed(1)).await;
    let settled = Instant::now();
    let woken = waiter.await.expect("the waiter does not panic");
    assert!(woken.saturating_duration_since(settled) < LONG / 2);
}

/// Nothing is published for an operation without a waiter.
#[tokio::test]
async fn nothing_is_published_without_a_waiter() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    let published = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let line = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_publish:"));
        line.map(str::to_owned)
    };
    for number in 0..10 {
        crate::fixture::complete(&*store, number).await;
    }
    assert_eq!(published(), None);
    let grant = grant(&*store, &ask(11)).await;
    let waiter = spawn_waiter(&store, 11, LONG);
    until_awaited(std::slice::from_ref(&server)).await;
    settle(&*store, &grant, completed(11)).await;
    waiter.await.expect("the waiter does not panic");
    assert!(published().is_some_and(|line| line.contains("calls=1,")));
}
