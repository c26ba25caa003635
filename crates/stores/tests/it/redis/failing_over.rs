//! What a failover may lose, as in `docs/redis.md`, and how `wait:N` refuses
//! instead.

use std::time::Duration;

use onceward_core::record::State;
use onceward_core::store::{Claim, Store};
use onceward_servers::Redis;
use onceward_stores::redis::RedisStore;

use crate::fixture::redis::*;
use crate::fixture::{ask, complete, completed, get, grant, is_replayed, retry};

/// How long `WAIT` is waited for; twice this is the deadline.
const BRIEF: Duration = Duration::from_millis(1_500);

#[tokio::test]
async fn a_claim_of_a_cut_off_primary_is_granted_again_by_the_promoted_replica() {
    let primary = Redis::start();
    let settings = settings(&primary.url());
    let old = open(&settings).await;
    complete(&*old, 1).await;
    let before = grant(&*old, &ask(2)).await;
    let replica = primary.replica();
    replica.promote();
    let cut_off = grant(&*old, &ask(3)).await;

    let new = open(&at(&settings, &replica.url())).await;
    assert!(is_replayed(&*new, 1).await, "what the replica had is kept");
    match new.claim(&retry(&ask(2))).await {
        Ok(Claim::Busy(_)) => {}
        other => panic!("what the replica had runs: {other:?}"),
    }
    let again = grant(&*new, &ask(3)).await;
    assert!(
        again.fence > cut_off.fence,
        "the fence tells which is later"
    );
    assert!(again.fence > before.fence);
}

#[tokio::test]
async fn where_a_replica_must_confirm_the_claim_is_refused_instead() {
    let primary = Redis::start();
    let replica = primary.replica();
    let settings = confirmed(&primary.url(), 1, BRIEF);
    let old = open(&settings).await;
    let held = grant(&*old, &ask(1)).await;
    complete(&*old, 2).await;
    replica.promote();
    let words = unavailable(old.claim(&ask(3)).await);
    assert_eq!(words, "a write was confirmed by 0 of 1 replicas in time");
    // A repeated claim finds the step done on the primary; that alone does not
    // confirm it.
    for _ in 0..3 {
        let settled = old.settle(&held.digest, held.fence, completed(1)).await;
        unavailable(settled);
        unavailable(old.claim(&ask(3)).await);
    }
    unavailable(old.get(&ask(1).digest).await);

    let new = open(&at(&settings, &replica.url())).await;
    let record = get(&*new, &ask(1)).await.expect("it was confirmed");
    assert_eq!(record.state, State::Running);
    assert!(is_replayed(&*new, 2).await);
    grant(&*new, &ask(3)).await;
}

#[tokio::test]
async fn a_replica_that_lags_confirms_when_it_has_caught_up() {
    let primary = Redis::start();
    let replica = primary.replica();
    let store = open(&confirmed(&primary.url(), 1, BRIEF)).await;
    let held = grant(&*store, &ask(1)).await;
    replica.pause();
    unavailable(store.claim(&ask(2)).await);
    let settled = store.settle(&held.digest, held.fence, completed(1)).await;
    unavailable(settled);
    replica.resume();
    let settled = until("the replica confirms", async || {
        let settled = store.settle(&held.digest, held.fence, completed(1)).await;
        settled.ok()
    });
    assert!(settled.await.is_recorded());
    // The claim was recorded, and is recognised.
    let claim = until("the replica confirms", async || {
        store.claim(&ask(2)).await.ok()
    });
    assert!(matches!(claim.await, Claim::Granted(_)));
}

/// A full server records nothing new. Existing records are answered, and confirmed
/// as on any other server.
#[tokio::test]
async fn a_full_primary_still_replays_confirmed_replies() {
    let primary = Redis::start();
    let replica = primary.replica();
    let settings = confirmed(&primary.url(), 1, BRIEF);
    let store = open(&settings).await;
    complete(&*store, 1).await;
    let held = grant(&*store, &ask(2)).await;
    replica.pause();
    let settled = store.settle(&held.digest, held.fence, completed(2)).await;
    unavailable(settled);
    primary.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    for number in [1, 2] {
        let words = unavailable(store.get(&ask(number).digest).await);
        assert_eq!(words, "a write was confirmed by 0 of 1 replicas in time");
        unavailable(store.claim(&retry(&ask(number))).await);
    }
    replica.resume();
    for number in [1, 2] {
        let replayed = until("the replica confirms", async || {
            store.claim(&retry(&ask(number))).await.ok()
        });
        let replayed = replayed.await;
        assert!(matches!(replayed, Claim::Finished(_)), "{replayed:?}");
        assert!(is_replayed(&*store, number).await);
    }
    let words = unavailable(store.claim(&ask(3)).await);
    assert!(words.contains("maxmemory"), "{words}");
    // The answered record is on the replica.
    replica.promote();
    let new = open(&at(&settings, &replica.url())).await;
    assert!(is_replayed(&*new, 2).await);
}

#[tokio::test]
async fn a_claim_that_was_not_confirmed_can_be_taken_back() {
    let primary = Redis::start();
    let replica = primary.replica();
    let store = open(&confirmed(&primary.url(), 1, BRIEF)).await;
    replica.pause();
    unavailable(store.claim(&ask(1)).await);
    replica.resume();
    until("the replica confirms", async || {
        let withdrawn = store.withdraw(&ask(1).digest, ask(1).attempt).await;
        withdrawn.ok()
    })
    .await;
    grant(&*store, &retry(&ask(1))).await;
}

#[tokio::test]
async fn a_primary_that_became_a_replica_is_unavailable_until_it_is_one_again() {
    let server = Redis::start();
    let other = Redis::start();
    let store = open(&settings(&server.url())).await;
    complete(&*store, 1).await;
    let port = other.port().to_string();
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    let words = unavailable(store.claim(&ask(2)).await);
    assert!(words.contains("replica"), "{words}");
    server.promote();
    until("it takes writes again", async || {
        store.claim(&ask(2)).await.ok()
    })
    .await;
}

#[tokio::test]
async fn too_few_replicas_are_refused_at_the_start() {
    let primary = Redis::start();
    let replica = primary.replica();
    let refused = RedisStore::open(&confirmed(&primary.url(), 2, BRIEF)).await;
    let words = refused.expect_err("one replica is not two").to_string();
    assert!(
        words.contains("durability is wait:2, but Redis at 127.0.0.1:")
            && words.contains("has 1 replicas connected"),
        "{words}"
    );
    drop(replica);
}
