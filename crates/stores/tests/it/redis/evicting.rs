//! A server whose eviction policy changes while the store is open: nothing new is
//! recorded there, and existing records are still answered.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Settled, Settlement};
use onceward_core::store::{Claim, Enqueued, Queue, Store, StoreError};
use onceward_servers::{Redis, RedisCluster};

use crate::fixture::redis::*;
use crate::fixture::{ask, complete, completed, grant, is_replayed, retry, settle};

const WORDS: &str = "Redis has maxmemory-policy allkeys-lru, which evicts records when memory \
                     is full; nothing new is recorded until it is noeviction again";

fn evict(server: &Redis, policy: &str) {
    let set = server.cli(&["CONFIG", "SET", "maxmemory-policy", policy]);
    assert_eq!(set, "OK");
}

/// The message of a refused claim; `None` where it is granted.
#[track_caller]
fn refusal(claim: Result<Claim, StoreError>) -> Option<String> {
    match claim {
        Ok(Claim::Granted(_)) => None,
        other => Some(unavailable(other)),
    }
}

#[tokio::test]
async fn a_policy_that_is_set_later_is_noticed() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    let held = grant(&*store, &ask(2)).await;
    let freed = grant(&*store, &ask(3)).await;
    settle(&*store, &freed, Settlement::Released).await;
    evict(&server, "allkeys-lru");
    let mut number = 1_000;
    let words = until("it is noticed", async || {
        number += 1;
        refusal(store.claim(&ask(number)).await)
    });
    assert_eq!(words.await, WORDS);
    // Every new key is refused from now on.
    for new in 200..264 {
        assert_eq!(unavailable(store.claim(&ask(new)).await), WORDS);
    }
    assert_eq!(unavailable(store.claim(&retry(&ask(3))).await), WORDS);
    let enqueued = store.enqueue(&ask(300), Bytes::new(), Duration::ZERO).await;
    assert_eq!(unavailable(enqueued), WORDS);

    let replayed = store.claim(&retry(&ask(1))).await;
    assert!(matches!(replayed, Ok(Claim::Finished(_))), "{replayed:?}");
    let again = retry(&ask(2));
    let busy = store.enqueue(&again, Bytes::new(), Duration::ZERO).await;
    assert!(matches!(busy, Ok(Enqueued::Known(_))), "{busy:?}");
    assert!(is_replayed(&*store, 1).await);
    let settled = store.settle(&held.digest, held.fence, completed(2)).await;
    assert!(settled.is_ok_and(Settled::is_recorded));

    evict(&server, "noeviction");
    complete(&*store, 200).await;
    complete(&*store, 3).await;
}

/// The address may belong to another server by now.
#[tokio::test]
async fn a_new_connection_is_not_trusted() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    evict(&server, "allkeys-lru");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    // Waits until this process has noticed the cut.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let words = until("there is a new connection", async || {
        let words = refusal(store.claim(&ask(2)).await).expect("it is not granted");
        words.contains("maxmemory-policy").then_some(words)
    });
    assert_eq!(words.await, WORDS);
    assert!(is_replayed(&*store, 1).await);
}

#[tokio::test]
async fn a_node_that_evicts_is_refused_and_the_others_go_on() {
    let cluster = RedisCluster::start(3);
    let store = open(&settings(&cluster.url())).await;
    evict(&cluster.nodes()[1], "allkeys-lru");
    let mut number = 1_000;
    let words = until("it is noticed", async || {
        number += 1;
        refusal(store.claim(&ask(number)).await)
    });
    assert_eq!(words.await, WORDS);
    let mut granted = 0;
    for new in 0..64 {
        granted += usize::from(refusal(store.claim(&ask(new)).await).is_none());
    }
    assert!((1..64).contains(&granted), "{granted} of 64 were granted");
}
