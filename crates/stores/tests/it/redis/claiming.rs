//! Two processes, as two handles, on one server.

use onceward_core::record::{Settlement, State};
use onceward_core::store::{Changed, Claim, Filter, Force, Inspect, PageRequest, Store};
use onceward_servers::Redis;
use tokio::task::JoinSet;

use crate::fixture::redis::*;
use crate::fixture::{ask, complete, completed, get, grant, is_replayed, retry, settle};

const KEYS: u64 = 8;
const CLAIMS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_at_once_by_two_processes_grant_one() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let handles = [open(&settings).await, open(&settings).await];
    for number in 0..KEYS {
        let mut claims = JoinSet::new();
        let mut next = ask(number);
        for place in 0..CLAIMS {
            next = retry(&next);
            let (store, ask) = (handles[place % 2].clone(), next.clone());
            claims.spawn(async move { store.claim(&ask).await.expect("the store answers") });
        }
        let answers = claims.join_all().await;
        let granted = answers
            .iter()
            .filter(|claim| matches!(claim, Claim::Granted(_)));
        assert_eq!(granted.count(), 1, "key {number}");
        let busy = answers
            .iter()
            .filter(|claim| matches!(claim, Claim::Busy(_)));
        assert_eq!(busy.count(), CLAIMS - 1, "key {number}");
    }
}

#[tokio::test]
async fn a_completion_of_one_process_is_replayed_by_another() {
    let server = Redis::start();
    let settings = settings(&server.url());
    let (one, other) = (open(&settings).await, open(&settings).await);
    complete(&*one, 1).await;
    assert!(is_replayed(&*other, 1).await);
    match other.claim(&retry(&ask(1))).await {
        Ok(Claim::Finished(record)) => assert_eq!(record.state, State::Completed),
        answer => panic!("it was to be finished: {answer:?}"),
    }
}

#[tokio::test]
async fn namespaces_on_one_server_do_not_mix() {
    let server = Redis::start();
    let one = open(&settings(&server.url())).await;
    let other = open(&settings(&server.url())).await;
    let first = grant(&*one, &ask(1)).await;
    let second = grant(&*other, &ask(1)).await;
    assert_eq!(first.id, second.id);
    complete(&*one, 2).await;
    assert_eq!(get(&*other, &ask(2)).await, None);
}

/// The next fence is above that of a purged operation, although the server's clock
/// was set back in between.
#[tokio::test]
async fn fences_rise_when_the_clock_goes_back() {
    use onceward_core::clock::{ManualClock, Timestamp};
    use std::sync::Arc;

    let server = Redis::start();
    let settings = settings(&server.url());
    let clock_at = |ms| Arc::new(ManualClock::new(Timestamp::from_unix_ms(ms)));
    let late = open_with_time(&settings, clock_at(1_700_000_000_000)).await;
    let early = open_with_time(&settings, clock_at(1_600_000_000_000)).await;
    let first = grant(&*late, &ask(1)).await;
    let purged = late.purge(first.id, Force::Yes).await;
    purged.expect("the store answers");
    let second = grant(&*early, &ask(1)).await;
    assert!(second.fence > first.fence, "{first:?} {second:?}");
    let purged = early.purge(second.id, Force::Yes).await;
    purged.expect("the store answers");
    let third = grant(&*early, &ask(1)).await;
    assert!(third.fence > second.fence, "{second:?} {third:?}");
}

/// Listings show no operation as changed that was not.
#[tokio::test]
async fn a_repeated_settlement_keeps_its_position() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    for word in [Settlement::Lost, Settlement::Paused, completed(1)] {
        let first = grant(&*store, &retry(&ask(1))).await;
        settle(&*store, &first, word.clone()).await;
        let last = grant(&*store, &retry(&ask(2))).await;
        settle(&*store, &first, word.clone()).await;
        let page = PageRequest::first(2);
        let page = store.list(&Filter::default(), page).await;
        let page = page.expect("the store lists").records;
        let listed: Vec<_> = page.iter().map(|record| record.id).collect();
        assert_eq!(listed, [last.id, first.id], "{word:?}");
        for id in listed {
            let purged = store.purge(id, Force::Yes).await;
            assert_eq!(purged.ok(), Some(Changed::Done));
        }
    }
}

/// Counts the calls of each step, so that an additional one is noticed.
#[tokio::test]
async fn claims_renewals_settlements_and_replays_are_one_call_each() {
    let server = Redis::start();
    let store = open(&settings(&server.url())).await;
    // The server learns the scripts.
    complete(&*store, 1).await;
    let calls = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let line = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"));
        let count = line.and_then(|line| line.split(['=', ',']).nth(1));
        count
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or_default()
    };
    let held = grant(&*store, &ask(2)).await;
    let renewed = store.renew(&held.digest, held.fence).await;
    renewed.expect("the store answers");
    let before = calls();
    let held = grant(&*store, &ask(3)).await;
    assert_eq!(calls() - before, 1, "a claim");
    let renewed = store.renew(&held.digest, held.fence).await;
    renewed.expect("the store answers");
    assert_eq!(calls() - before, 2, "a renewal");
    settle(&*store, &held, completed(3)).await;
    assert_eq!(calls() - before, 3, "a settlement");
    let replay = store.claim(&retry(&ask(3))).await;
    assert!(matches!(replay, Ok(Claim::Finished(_))), "{replay:?}");
    assert_eq!(calls() - before, 4, "a replay");
    assert!(is_replayed(&*store, 3).await);
    assert_eq!(calls() - before, 5, "a look");
}
