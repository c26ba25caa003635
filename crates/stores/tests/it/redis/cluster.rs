//! A Cluster: operations on all of its nodes, messages between them, a node that
//! dies, and slots that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onceward_core::store::Store;
use onceward_servers::{Redis, RedisCluster};
use onceward_stores::redis::RedisStore;

use crate::fixture::redis::*;
use crate::fixture::{ask, complete, completed, grant, is_replayed, settle};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_lie_on_all_nodes_and_waiters_wake_across_them() {
    let cluster = RedisCluster::start(3);
    let settings = settings(&cluster.url());
    let (leader, other) = (open(&settings).await, open(&settings).await);
    let mut delays = Vec::new();
    for number in 0..12 {
        let grant = grant(&*leader, &ask(number)).await;
        let waiter = {
            let other = other.clone();
            tokio::spawn(async move {
                let waited = other
                    .wait(&ask(number).digest, Duration::from_secs(30))
                    .await;
                waited.expect("the store answers a wait");
                Instant::now()
            })
        };
        until_awaited(cluster.nodes()).await;
        settle(&*leader, &grant, completed(number)).await;
        let settled = Instant::now();
        let woken = waiter.await.expect("the waiter does not panic");
        delays.push(woken.saturating_duration_since(settled));
    }
    delays.sort_unstable();
    assert!(delays[6] < Duration::from_millis(100), "{delays:?}");
    for node in cluster.nodes() {
        let keys: usize = node.cli(&["DBSIZE"]).parse().expect("a number");
        assert!(keys > 0, "a node has nothing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_goes_on_by_itself_when_a_node_is_back() {
    let mut cluster = RedisCluster::start(3);
    let mut settings = settings(&cluster.url());
    settings.deadline = Duration::from_secs(2);
    let store = open(&settings).await;
    for node in cluster.nodes() {
        // Otherwise a kill may lose the last second.
        node.cli(&["CONFIG", "SET", "appendfsync", "always"]);
    }
    for number in 0..32 {
        complete(&*store, number).await;
    }
    cluster.nodes_mut()[1].kill();
    let mut refused = 0;
    for number in 32..64 {
        refused += usize::from(store.claim(&ask(number)).await.is_err());
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "a third of the slots is gone");
    cluster.nodes_mut()[1].restart();
    cluster.wait_until_ok();
    for number in 0..32 {
        until("the store answers", async || {
            store.get(&ask(number).digest).await.ok()
        })
        .await;
        assert!(is_replayed(&*store, number).await, "number {number}");
    }
}

/// Slots move from node to node while operations run in them: none is refused,
/// and none runs twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load() {
    let cluster = RedisCluster::start(3);
    let store = open(&settings(&cluster.url())).await;
    let done = Arc::new(AtomicBool::default());
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (store, done) = (store.clone(), done.clone());
            tokio::spawn(async move {
                let mut number = worker;
                while !done.load(Ordering::Relaxed) {
                    complete(&*store, number).await;
                    assert!(is_replayed(&*store, number).await);
                    number += 8;
                }
                number
            })
        })
        .collect();
    let id = |node: usize| cluster.nodes()[node].cli(&["CLUSTER", "MYID"]);
    let (from, to) = (id(0), id(2));
    let address = format!("127.0.0.1:{}", cluster.nodes()[0].port());
    let moved = tokio::task::spawn_blocking(move || {
        let order = [
            "--cluster",
            "reshard",
            &address,
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
            "--cluster-slots",
            "800",
            "--cluster-yes",
        ];
        std::process::Command::new("redis-cli").args(order).output()
    });
    let moved = moved.await.expect("no panic").expect("redis-cli runs");
    assert!(moved.status.success(), "{moved:?}");
    done.store(true, Ordering::Relaxed);
    for (first, worker) in (0..).zip(workers) {
        let end = worker.await.expect("every step is answered");
        for number in (first..end).step_by(8) {
            assert!(is_replayed(&*store, number).await, "number {number}");
        }
    }
}

/// A replica for every primary.
async fn replicas(cluster: &RedisCluster) -> Vec<Redis> {
    let mut replicas = Vec::new();
    for primary in cluster.nodes() {
        let replica = Redis::start_with(&["--cluster-enabled", "yes"]);
        let port = primary.port().to_string();
        replica.cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        let id = primary.cli(&["CLUSTER", "MYID"]);
        until("the replica has met its primary", async || {
            (replica.cli(&["CLUSTER", "REPLICATE", &id]) == "OK").then_some(())
        })
        .await;
        until("the replica is there", async || {
            let told = primary.cli(&["INFO", "replication"]);
            told.contains("state=online").then_some(())
        })
        .await;
        replicas.push(replica);
    }
    replicas
}

/// Each write is confirmed by the replica of the node that took it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_confirm_in_a_cluster_too() {
    let cluster = RedisCluster::start(3);
    let settings = confirmed(&cluster.url(), 1, Duration::from_secs(4));
    let refused = RedisStore::open(&settings).await;
    let words = refused.expect_err("no replica confirms").to_string();
    assert!(words.contains("has 0 replicas connected"), "{words}");

    let replicas = replicas(&cluster).await;
    let store = open(&settings).await;
    for number in 0..24 {
        complete(&*store, number).await;
    }
    // Every step has a write to confirm, also on a full server.
    for room in ["1mb", "0"] {
        for node in cluster.nodes() {
            node.cli(&["CONFIG", "SET", "maxmemory", room]);
        }
        for number in 0..24 {
            assert!(is_replayed(&*store, number).await, "number {number}");
        }
    }
    replicas[1].pause();
    let (mut granted, mut refused) = (0, 0);
    for number in 24..48 {
        match store.claim(&ask(number)).await {
            Ok(_) => granted += 1,
            Err(error) => {
                assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
                refused += 1;
            }
        }
        if granted > 0 && refused > 0 {
            break;
        }
    }
    assert!(granted > 0, "the others are confirmed");
    assert!(refused > 0, "one in three is not");
    replicas[1].resume();
}
