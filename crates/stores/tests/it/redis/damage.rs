//! A damaged record is an error, never an absent one and never another.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Settlement, State};
use onceward_core::store::{
    Changed, Enqueued, Filter, Inspect, PageRequest, Queue, Store, StoreError,
};
use onceward_servers::Redis;
use onceward_stores::Settings;

use crate::fixture::redis::*;
use crate::fixture::{ask, complete, completed, get, grant, is_replayed, retry, settle};

/// The distance between the bytes of which one bit is flipped. Tests in `layout.rs`
/// cover every bit without a server.
const STEP: usize = 5;

/// The key of the operations of this digest's shard.
fn operations(settings: &Settings, number: u64) -> String {
    let shard = ask(number).digest.as_bytes()[0] % 64;
    format!("onceward:{{{}.{shard}}}:operations", settings.namespace)
}

/// Flips a bit of a field: the record (the eight-byte field), or its reply or
/// request. Returns the length of the field.
fn flip(server: &Redis, key: &str, beside: &str, place: usize) -> usize {
    let script = "for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
                    if #field == 8 then \
                      field = field .. ARGV[1] \
                      local value, place = redis.call('HGET', KEYS[1], field), tonumber(ARGV[2]) \
                      if place > 0 and place <= #value then \
                        local flipped = bit.bxor(string.byte(value, place), 1) \
                        redis.call('HSET', KEYS[1], field, string.sub(value, 1, place - 1) \
                          .. string.char(flipped) .. string.sub(value, place + 1)) \
                      end \
                      return #value \
                    end \
                  end \
                  return 0";
    let place = place.to_string();
    let length = server.cli(&["EVAL", script, "1", key, beside, &place]);
    length.parse().expect("a length")
}

async fn assert_damaged(store: &dyn Store, number: u64, place: &str) {
    let told = store.claim(&retry(&ask(number))).await;
    assert!(
        matches!(told, Err(StoreError::Damaged(_))),
        "{place}: {told:?}"
    );
    let told = store.get(&ask(number).digest).await;
    assert!(
        matches!(told, Err(StoreError::Damaged(_))),
        "{place}: {told:?}"
    );
}

/// In a record as a claim leaves it, as a settlement leaves it, and as a rule
/// wrote it.
#[tokio::test]
async fn a_record_that_was_damaged_anywhere_is_an_error() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let store = open(&settings).await;
    let running = grant(&*store, &ask(1)).await;
    complete(&*store, 2).await;
    let lost = grant(&*store, &ask(3)).await;
    settle(&*store, &lost, Settlement::Lost).await;
    let word = onceward_core::store::Resolution::Ran(crate::fixture::reply(3));
    let resolved = store.resolve(lost.id, None, word).await;
    resolved.expect("the store answers");

    for (number, beside) in [(1, ""), (2, ""), (3, ""), (2, ":r"), (3, ":r")] {
        let key = operations(&settings, number);
        let length = flip(&server, &key, beside, 0);
        assert!(length > 50, "number {number} has {length} bytes");
        // The first byte of a record marks that a request waits; it is only a hint.
        for place in (2..=length).step_by(STEP) {
            flip(&server, &key, beside, place);
            assert_damaged(&*store, number, &format!("{number}{beside} at {place}")).await;
            flip(&server, &key, beside, place);
        }
    }
    assert!(is_replayed(&*store, 2).await && is_replayed(&*store, 3).await);
    settle(&*store, &running, completed(1)).await;
    assert!(is_replayed(&*store, 1).await);
}

#[tokio::test]
async fn a_missing_reply_is_damage_and_a_listing_goes_on_without_the_damaged() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let store = open(&settings).await;
    complete(&*store, 1).await;
    complete(&*store, 2).await;
    complete(&*store, 3).await;
    let script = "for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
                    if #field == 10 then redis.call('HDEL', KEYS[1], field) end \
                  end";
    server.cli(&["EVAL", script, "1", &operations(&settings, 1)]);
    assert_damaged(&*store, 1, "the reply").await;
    flip(&server, &operations(&settings, 2), "", 200);
    let page = PageRequest::first(10);
    let page = store.list(&Filter::default(), page).await.expect("a page");
    let keys = page
        .records
        .iter()
        .map(|record| record.identity.key.as_str());
    assert_eq!(keys.collect::<Vec<_>>(), ["key-3", "key-1"]);
    assert_eq!(page.next, None);
}

#[tokio::test]
async fn a_later_layout_is_refused_by_name() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let store = open(&settings).await;
    grant(&*store, &ask(1)).await;
    let script = "for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
                    local value = redis.call('HGET', KEYS[1], field) \
                    redis.call('HSET', KEYS[1], field, '0\\2' .. string.sub(value, 3)) \
                  end";
    server.cli(&["EVAL", script, "1", &operations(&settings, 1)]);
    match store.claim(&retry(&ask(1))).await {
        Err(StoreError::Damaged(why)) => {
            assert_eq!(
                why.to_string(),
                "record layout 2 was written by a newer Onceward"
            );
        }
        other => panic!("it is of a later layout: {other:?}"),
    }
}

#[tokio::test]
async fn damaged_work_does_not_hold_up_the_queue() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let store = open(&settings).await;
    for number in 1..=3 {
        let request = Bytes::from_static(b"request");
        let enqueued = store.enqueue(&ask(number), request, Duration::ZERO).await;
        assert!(
            matches!(enqueued, Ok(Enqueued::Accepted(_))),
            "{enqueued:?}"
        );
    }
    flip(&server, &operations(&settings, 1), ":q", 3);
    flip(&server, &operations(&settings, 2), "", 100);
    let mut given = Vec::new();
    for _ in 0..3 {
        given.extend(store.due(1).await.expect("the store gives what is due"));
    }
    let given: Vec<_> = given.iter().map(|due| due.grant.digest).collect();
    assert_eq!(given, [ask(3).digest]);
    let told = store.claim(&retry(&ask(2))).await;
    assert!(matches!(told, Err(StoreError::Damaged(_))), "{told:?}");
    let other = get(&*store, &ask(1)).await.expect("its record is good");
    assert_eq!(other.state, State::Queued);
}

#[tokio::test]
async fn redelivering_a_damaged_request_is_an_error() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let store = open(&settings).await;
    for (number, word) in [
        (1, completed(1)),
        (2, Settlement::Paused),
        (3, completed(3)),
    ] {
        let request = Bytes::from_static(b"request");
        let enqueued = store.enqueue(&ask(number), request, Duration::ZERO).await;
        enqueued.expect("the store answers");
        let due = store.due(1).await.expect("the store gives what is due");
        settle(&*store, &due[0].grant, word).await;
    }
    flip(&server, &operations(&settings, 1), ":q", 3);
    let script = "for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
                    if string.sub(field, -2) == ':q' then redis.call('HDEL', KEYS[1], field) end \
                  end";
    server.cli(&["EVAL", script, "1", &operations(&settings, 2)]);
    for number in [1, 2] {
        let before = get(&*store, &ask(number)).await.expect("on record");
        let told = store.redeliver(before.id).await;
        assert!(
            matches!(told, Err(StoreError::Damaged(_))),
            "{number}: {told:?}"
        );
        assert_eq!(get(&*store, &ask(number)).await, Some(before));
    }
    let told = store.redeliver(ask(3).id).await;
    assert_eq!(told.expect("the store answers"), Changed::Done);
    let due = store.due(10).await.expect("the store gives what is due");
    let given: Vec<_> = due.iter().map(|due| due.grant.digest).collect();
    assert_eq!(given, [ask(3).digest]);
}
