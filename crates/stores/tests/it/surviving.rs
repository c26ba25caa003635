//! What is there again after the store was closed and opened.

use bytes::Bytes;
use onceward_core::class::AfterLoss;
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::{Enqueued, Filter, Inspect, PageAsk, Queue};
use std::time::Duration;

use crate::house::*;

#[tokio::test]
async fn every_state_but_running_survives_as_it_was() {
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    let words = [
        completed(1),
        Settlement::Failed(Answer::Kept(reply(2))),
        Settlement::Completed(Answer::NotKept { status: 200 }),
        Settlement::Released,
        Settlement::Lost,
        Settlement::Paused,
    ];
    for (number, word) in (1..).zip(words) {
        let grant = grant(&store, &ask(number)).await;
        settle(&store, &grant, word).await;
    }
    let queued = store
        .enqueue(&ask(7), Bytes::from_static(b"request"), Duration::ZERO)
        .await;
    assert!(matches!(queued, Ok(Enqueued::Accepted(_))), "{queued:?}");
    let mut before = Vec::new();
    for number in 1..=7 {
        before.push(get(&store, &ask(number)).await.expect("it is on record"));
    }
    let stats = store.stats().await.expect("the store counts");
    let listed = store
        .list(&Filter::default(), PAGE)
        .await
        .expect("the store lists");
    drop(store);

    let store = open(home.path(), &clock);
    for (number, before) in (1..).zip(before) {
        assert_eq!(
            get(&store, &ask(number)).await,
            Some(before),
            "number {number}"
        );
    }
    let after = store.stats().await.expect("the store counts");
    assert_eq!(
        (after.operations, after.queued, after.unknown, after.paused),
        (7, 1, 1, 1)
    );
    assert_eq!(after.operations, stats.operations);
    let again = store
        .list(&Filter::default(), PAGE)
        .await
        .expect("the store lists");
    assert_eq!(again.records, listed.records);
    let due = store.due(10).await.expect("the store delivers");
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].request, "request");
}

const PAGE: PageAsk = PageAsk {
    limit: 100,
    after: None,
};

#[tokio::test]
async fn leases_of_an_earlier_process_are_lost_at_once() {
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    let held = ask_with(1, terms(AfterLoss::Hold));
    let free = ask_with(2, terms(AfterLoss::Free));
    let delivered = ask_with(3, terms(AfterLoss::Free));
    let lost = grant(&store, &held).await;
    grant(&store, &free).await;
    let request = Bytes::from_static(b"request");
    store
        .enqueue(&delivered, request.clone(), Duration::ZERO)
        .await
        .expect("enqueued");
    assert_eq!(store.due(1).await.expect("the store delivers").len(), 1);
    drop(store);

    let store = open(home.path(), &clock);
    let state = async |ask| get(&store, ask).await.map(|record| record.state);
    assert_eq!(state(&held).await, Some(State::Unknown));
    assert_eq!(state(&free).await, None);
    assert_eq!(state(&delivered).await, Some(State::Queued));
    let due = store.due(1).await.expect("the store delivers");
    assert_eq!(due[0].request, request);
    assert!(due[0].grant.fence > lost.fence, "numbers never go back");
    let again = grant(&store, &free).await;
    assert!(again.fence > due[0].grant.fence);
}

#[tokio::test]
async fn numbers_rise_over_many_openings() {
    let (home, clock) = (directory(), clock());
    let mut last = None;
    for number in 1..6 {
        let store = open(home.path(), &clock);
        let grant = grant(&store, &ask(number)).await;
        assert!(last < Some(grant.fence));
        last = Some(grant.fence);
    }
}
