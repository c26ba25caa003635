//! What survives closing and opening the store.

use bytes::Bytes;
use onceward_core::class::{AfterLoss, Expiry, TtlBasis};
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::{
    Collection, Enqueued, Filter, Inspect, PageRequest, Queue, Registry, SortOrder, Store,
};
use std::time::Duration;

use crate::fixture::*;

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

const PAGE: PageRequest = PageRequest::first(100);

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

#[tokio::test]
async fn documents_survive_as_they_were() {
    let (home, clock) = (directory(), clock());
    let store = open(home.path(), &clock);
    let name = |number: u32| format!("{number:04}\0é");
    for number in 0..50 {
        let document = Bytes::from(vec![number as u8; number as usize]);
        let put = store.put(Collection::Audit, &name(number), document).await;
        put.expect("the store takes a document");
    }
    let removed = store.remove(Collection::Audit, &name(7)).await;
    removed.expect("the store forgets a document");
    let all = async |store: &onceward_stores::embedded::EmbeddedStore| {
        let page = store.documents(Collection::Audit, SortOrder::Descending, None, 100);
        page.await.expect("the store lists documents")
    };
    let before = all(&store).await;
    assert_eq!(before.len(), 49);
    drop(store);
    assert_eq!(all(&open(home.path(), &clock)).await, before);
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of a class about time apply after a restart too, and sweeping
/// removes nothing that is still needed.
#[tokio::test]
async fn settings_of_retention_survive() {
    let (home, clock) = (directory(), clock());
    let plain = terms(AfterLoss::Hold);
    let choices = [
        plain
            .clone()
            .with(|terms| terms.ttl_basis = TtlBasis::Access),
        plain.clone().with(|terms| terms.expiry = Expiry::Lazy),
        plain.with(|terms| terms.keep_expired = 30 * DAY),
    ];
    let store = open(home.path(), &clock);
    let mut ids = Vec::new();
    for (number, terms) in (1..).zip(choices) {
        let grant = grant(&store, &ask_with(number, terms)).await;
        settle(&store, &grant, completed(number)).await;
        ids.push(grant.id);
    }
    drop(store);
    for _ in 0..3 {
        clock.advance(DAY - Duration::from_secs(1));
        let store = open(home.path(), &clock);
        store.touch(&ask(1).digest).await.expect("noted");
        drop(store);
        let store = open(home.path(), &clock);
        assert!(is_replayed(&store, 1).await, "it was asked for");
        assert!(is_replayed(&store, 2).await, "nobody has swept");
    }
    let store = open(home.path(), &clock);
    store.sweep(usize::MAX).await.expect("swept");
    drop(store);
    let store = open(home.path(), &clock);
    assert!(is_replayed(&store, 1).await, "it was asked for");
    assert_eq!(get(&store, &ask(2)).await, None, "it was swept");
    assert_eq!(get(&store, &ask(3)).await, None, "its key is forgotten");
    let trace = store.show(ids[2]).await.expect("the store answers");
    let trace = trace.expect("its trace is there");
    assert_eq!(trace.state, State::Expired);
    assert_eq!(trace.answer, Some(Answer::Gone { status: 201 }));
    clock.advance(31 * DAY);
    assert_eq!(store.show(ids[2]).await.expect("the store answers"), None);
}

#[tokio::test]
async fn delivered_request_is_not_lost_when_a_replay_is_noted() {
    let (home, clock) = (directory(), clock());
    let terms = terms(AfterLoss::Hold).with(|terms| {
        terms.ttl_basis = TtlBasis::Access;
        terms.remember = 30 * DAY;
    });
    let ask = ask_with(1, terms);
    let store = open(home.path(), &clock);
    let queued = store
        .enqueue(&ask, Bytes::from_static(b"request"), Duration::ZERO)
        .await;
    assert!(queued.is_ok());
    let due = store.due(1).await.expect("the store answers");
    let word = Settlement::Completed(Answer::NotKept { status: 200 });
    settle(&store, &due[0].grant, word).await;
    clock.advance(DAY / 2);
    store.touch(&ask.digest).await.expect("noted");
    settle(&store, &due[0].grant, Settlement::Lost).await;
    let resolved = store.resolve(
        due[0].grant.id,
        None,
        onceward_core::store::Resolution::NotRun,
    );
    resolved.await.expect("the store answers");
    let again = store.due(1).await.expect("the store answers");
    assert_eq!(again[0].request, b"request".as_slice());
}

/// A process whose clock is far in the past continues from the latest time that the
/// store has recorded, so that its records are not expired for the next process.
#[tokio::test]
async fn clock_that_was_set_back_forgets_nothing() {
    let (home, now, past) = (directory(), clock(), clock());
    now.advance(400 * DAY);
    complete(&open(home.path(), &now), 1).await;
    let store = open(home.path(), &past);
    complete(&store, 2).await;
    past.advance(DAY / 2);
    assert!(is_replayed(&store, 2).await);
    past.advance(DAY / 2);
    assert_eq!(get(&store, &ask(2)).await, None, "its time goes on");
    complete(&store, 3).await;
    drop(store);
    now.advance(DAY);
    assert!(is_replayed(&open(home.path(), &now), 3).await);
}
