//! Operations whose digests have the same prefix are stored in a chain, and are
//! never confused.

use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Attempt, State};
use onceward_core::store::{Changed, Claim, ClaimRequest, Force, Inspect, Store};
use onceward_servers::Redis;
use onceward_stores::redis::RedisStore;

use crate::fixture::redis::*;
use crate::fixture::{completed, grant, reply, retry, settle};

/// One of several operations whose digests have the same first eight bytes.
fn twin(number: u8) -> ClaimRequest {
    let mut digest = [7; 32];
    digest[31] = number;
    let digest = Digest::from_bytes(digest);
    ClaimRequest {
        digest,
        attempt: Attempt(u128::from(number) << 8),
        id: OperationId::new(&digest, u64::from(number)),
        ..crate::fixture::ask(u64::from(number))
    }
}

async fn complete(store: &RedisStore, number: u8) {
    let grant = grant(store, &twin(number)).await;
    settle(store, &grant, completed(u64::from(number))).await;
}

async fn assert_replayed(store: &RedisStore, number: u8) {
    let record = match store.claim(&retry(&twin(number))).await {
        Ok(Claim::Finished(record)) => record,
        other => panic!("twin {number} was to be finished: {other:?}"),
    };
    assert_eq!(record.digest, twin(number).digest);
    assert_eq!(record.answer, Some(Answer::Kept(reply(u64::from(number)))));
    let found = store
        .find(twin(number).id)
        .await
        .expect("the store answers");
    assert_eq!(found, Some(record));
}

#[tokio::test]
async fn operations_with_one_prefix_are_independent() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    for number in 1..=3 {
        complete(&store, number).await;
    }
    for number in 1..=3 {
        assert_replayed(&store, number).await;
    }
    assert_eq!(store.get(&twin(4).digest).await.ok(), Some(None));
    assert_eq!(store.find(twin(4).id).await.ok(), Some(None));
}

#[tokio::test]
async fn the_later_twin_is_found_after_the_first_was_purged() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    for number in 1..=3 {
        complete(&store, number).await;
    }
    for gone in [1, 2] {
        let purged = store.purge(twin(gone).id, Force::No).await;
        assert_eq!(purged.ok(), Some(Changed::Done));
        assert_eq!(store.get(&twin(gone).digest).await.ok(), Some(None));
        for left in gone + 1..=3 {
            assert_replayed(&store, left).await;
        }
    }
    complete(&store, 1).await;
    for number in [1, 3] {
        assert_replayed(&store, number).await;
    }
    let stats = store.stats().await.expect("the store counts");
    assert_eq!(stats.operations, 2);
}

#[tokio::test]
async fn the_later_twin_is_found_after_the_first_was_swept() {
    let server = Redis::start();
    let clock = clock();
    let store = open_with_time(&settings(&server.url()), clock.clone()).await;
    complete(&store, 1).await;
    let terms = twin(1).terms;
    clock.advance(terms.remember / 2);
    complete(&store, 2).await;
    clock.advance(terms.remember / 2);
    assert_eq!(store.sweep(10).await.ok(), Some(1));
    assert_replayed(&store, 2).await;
    let again = grant(&*store, &retry(&twin(1))).await;
    let record = store.find(again.id).await.expect("the store answers");
    assert_eq!(record.map(|record| record.state), Some(State::Running));
}
