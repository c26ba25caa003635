//! Sweeping removes the reply and the key, each at its time, and leaves nothing
//! behind.

use std::time::Duration;

use bytes::Bytes;
use onceward_core::class::Expiry;
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::{Changed, Claim, Inspect, Queue, Store};
use onceward_servers::Redis;

use crate::fixture::redis::*;
use crate::fixture::{ask, ask_with, completed, get, grant, is_replayed, retry, settle};

const MANY: u64 = 600;

fn fields(server: &Redis) -> usize {
    let script = "local count = 0 \
                  for _, key in ipairs(redis.call('KEYS', '*:operations')) do \
                    count = count + redis.call('HLEN', key) - redis.call('HEXISTS', key, 'floor') \
                  end \
                  return count";
    let count = server.cli(&["EVAL", script, "0"]);
    count.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_operation_leaves_nothing_behind() {
    let server = Redis::start();
    let clock = clock();
    let store = open_with_time(&settings(&server.url()), clock.clone()).await;
    for number in 0..MANY {
        crate::fixture::complete(&*store, number).await;
    }
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(0));
    assert_eq!(fields(&server), 2 * MANY as usize, "records and replies");
    clock.advance(ask(1).terms.remember - Duration::from_millis(1));
    crate::fixture::complete(&*store, MANY).await;
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(0));
    clock.advance(Duration::from_millis(1));
    let some = store.sweep(100).await.expect("the store sweeps");
    assert!((100..200).contains(&some), "about a hundred, not {some}");
    let rest = store.sweep(usize::MAX).await.expect("the store sweeps");
    assert_eq!(some + rest, MANY as usize);
    assert!(is_replayed(&*store, MANY).await);
    assert_eq!(fields(&server), 2);
    let stats = store.stats().await.expect("the store counts");
    assert_eq!(stats.operations, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_goes_before_its_key() {
    let server = Redis::start();
    let clock = clock();
    let store = open_with_time(&settings(&server.url()), clock.clone()).await;
    let mut terms = ask(1).terms;
    terms.remember = terms.retention * 3;
    for number in 0..MANY {
        let grant = grant(&*store, &ask_with(number, terms.clone())).await;
        settle(&*store, &grant, completed(number)).await;
    }
    clock.advance(terms.retention);
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(0));
    assert_eq!(fields(&server), MANY as usize, "records alone");
    let record = get(&*store, &ask(1)).await.expect("its key is remembered");
    assert_eq!(record.state, State::Expired);
    assert_eq!(record.answer, Some(Answer::Gone { status: 201 }));
    clock.advance(terms.remember - terms.retention);
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(MANY as usize));
    assert_eq!(fields(&server), 0);
}

/// Whether or not the reply was kept, and for every way in which its time ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_goes_with_the_reply() {
    let server = Redis::start();
    let clock = clock();
    let store = open_with_time(&settings(&server.url()), clock.clone()).await;
    let retention = ask(1).terms.retention;
    let not_kept = Settlement::Completed(Answer::NotKept { status: 200 });
    let words = [completed(1), not_kept.clone(), completed(3), not_kept];
    for (number, word) in (0..).zip(words) {
        let terms = ask(1).terms.with(|terms| {
            terms.remember = retention * 3;
            terms.expiry = if number < 2 {
                Expiry::Strict
            } else {
                Expiry::Lazy
            };
        });
        let request = Bytes::from_static(b"request");
        let asked = ask_with(number, terms);
        let enqueued = store.enqueue(&asked, request, Duration::ZERO).await;
        enqueued.expect("the store answers");
        let due = store.due(1).await.expect("the store gives what is due");
        settle(&*store, &due[0].grant, word).await;
    }
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(0));
    assert_eq!(fields(&server), 4 + 2 + 4, "records, replies and requests");
    clock.advance(retention);
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(0));
    assert_eq!(fields(&server), 4, "records alone");
    for number in 0..4 {
        let told = store.redeliver(ask(number).id).await;
        let refused = Changed::Refused(State::Expired);
        assert_eq!(told.expect("the store answers"), refused, "{number}");
    }
    clock.advance(retention * 2);
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(4));
    assert_eq!(fields(&server), 0);
}

/// A sweep changes no answer: a repeated settlement is recognised, and an expired
/// operation stays expired, also on a server whose clock was set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_changes_no_answer() {
    let server = Redis::start();
    let clock = clock();
    let settings = settings(&server.url());
    let store = open_with_time(&settings, clock.clone()).await;
    let mut terms = ask(1).terms;
    terms.remember = terms.retention * 3;
    let words = [
        completed(0),
        Settlement::Failed(Answer::NotKept { status: 422 }),
    ];
    let mut said = Vec::new();
    for (number, word) in (0..).zip(words) {
        let grant = grant(&*store, &ask_with(number, terms.clone())).await;
        settle(&*store, &grant, word.clone()).await;
        said.push((grant, word));
    }
    clock.advance(terms.retention);
    assert_eq!(store.sweep(usize::MAX).await.ok(), Some(0));
    for (grant, word) in said {
        settle(&*store, &grant, word).await;
    }
    let early = open_with_time(&settings, crate::fixture::redis::clock()).await;
    for store in [&store, &early] {
        let claim = store.claim(&retry(&ask_with(0, terms.clone()))).await;
        assert!(matches!(claim, Ok(Claim::Expired(_))), "{claim:?}");
    }
}

/// Two concurrent sweeps remove each operation once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_sweeps_remove_each_record_once() {
    let server = Redis::start();
    let clock = clock();
    let settings = settings(&server.url());
    let one = open_with_time(&settings, clock.clone()).await;
    let other = open_with_time(&settings, clock.clone()).await;
    for number in 0..MANY {
        crate::fixture::complete(&*one, number).await;
    }
    clock.advance(ask(1).terms.remember);
    let (first, second) = tokio::join!(one.sweep(usize::MAX), other.sweep(usize::MAX));
    let swept = first.expect("it sweeps") + second.expect("it sweeps");
    assert_eq!(swept, MANY as usize);
    assert_eq!(fields(&server), 0);
}
