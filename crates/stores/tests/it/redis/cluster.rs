//! A Cluster: operations on all of its nodes, messages between them, a node that
//! dies, and slots that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onceward_core::store::Store;
use onceward_servers::RedisCluster;

use super::house::*;
use crate::house::{ask, complete, completed, grant, is_replayed, settle};

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
                waited.expect("the store lets one wait");
                Instant::now()
            })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
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
        // Else a kill may lose the last second.
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
