//! Virtual hosts in one service, and records that were made before hosts were
//! compared.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use onceward_core::caller::Caller;
use onceward_core::class::{Class, OnMismatch, OnUnknown};
use onceward_core::engine::{Engine, Entered, Lead, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::{ComparedParts, Fingerprinter, Selection};
use onceward_core::identity::{Endpoint, Identity, KeySpace};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Reply, Settlement, State};
use onceward_core::store::Store;
use onceward_http::layer::IdempotencyLayer;
use rstest::rstest;

use crate::faults::Faulty;
use crate::harness::{Origin, Protected, memory, protect, protect_with, until};

fn at(host: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::post("/pay")
        .header("host", host)
        .header("idempotency-key", "k");
    request.body(Full::new(body.into())).unwrap()
}

fn ignoring_hosts(origin: &Origin, store: Arc<dyn Store>) -> Protected {
    let engine = Engine::new(store, Entropy::seeded(7), Limits::default());
    let layer = IdempotencyLayer::builder(engine.clone()).ignore_host();
    protect_with(origin, &layer.build().unwrap(), engine)
}

#[tokio::test]
async fn virtual_hosts_never_share_a_reply() {
    let origin = Origin::status(201);
    let mut replaying = Class::interactive();
    replaying.mismatch = OnMismatch::Replay;
    for class in [Class::interactive(), replaying] {
        let service = protect(&origin, class, memory());
        let first = service.send(at("a.example", "1")).await;
        assert_eq!(first.status, 201);
        let other = service.send(at("b.example", "1")).await;
        assert_eq!(other.code(), "key-reused");
        let again = service.send(at("A.example:8080", "1")).await;
        assert!(again.is_replay());
        // HTTP/2 names the host in the target.
        let mut absolute = at("a.example", "1");
        absolute.headers_mut().remove("host");
        *absolute.uri_mut() = "http://a.example/pay".parse().unwrap();
        assert!(service.send(absolute).await.is_replay());
        for (host, status) in [("a.example", 201), ("b.example", 404)] {
            let asked = Request::get("/pay/by-idempotency-key/k").header("host", host);
            let asked = asked.body(Full::default()).unwrap();
            assert_eq!(service.send(asked).await.status, status, "{host}");
            let url = format!("http://{host}/pay/by-idempotency-key/k");
            let asked = Request::get(url).body(Full::default()).unwrap();
            assert_eq!(service.send(asked).await.status, status, "{host}");
        }
    }
}

#[tokio::test]
async fn a_service_that_is_the_same_under_every_name_ignores_hosts() {
    let origin = Origin::status(201);
    let service = ignoring_hosts(&origin, memory());
    service.send(at("a.example", "1")).await;
    assert!(service.send(at("b.example", "1")).await.is_replay());
    assert_eq!(origin.runs(), 1);
}

fn earlier_identity() -> Identity {
    Identity {
        caller: Caller::local(),
        endpoint: Endpoint::new("POST /pay"),
        key: Key::parse("k").unwrap(),
        space: KeySpace::Endpoint,
    }
}

/// The claim of a version that did not compare hosts.
async fn claim_as_before(store: Arc<dyn Store>) -> Lead {
    let engine = Engine::new(store, Entropy::seeded(8), Limits::default());
    let fingerprint = Fingerprinter::plain().fingerprint(&ComparedParts {
        method: "POST",
        path: "/pay",
        query: None,
        content_type: None,
        body: b"1",
        host: None,
        credentials: &[],
        identity_parts: &[],
        selection: Selection::EVERYTHING,
        headers: &[],
    });
    assert_eq!(fingerprint.algorithm.as_str(), "raw-1");
    let terms = Class::interactive().terms();
    let entered = engine.enter(earlier_identity(), fingerprint, terms).await;
    let Ok(Entered::Lead(lead)) = entered else {
        panic!("the key is free");
    };
    lead.begin()
}

async fn write_earlier_record(store: Arc<dyn Store>) {
    let reply = Arc::new(Reply {
        status: 201,
        headers: Vec::new(),
        body: Bytes::from_static(b"from before"),
        trailers: Vec::new(),
    });
    let settlement = Settlement::Completed(Answer::Kept(reply.clone()));
    let lead = claim_as_before(store).await;
    lead.finish(settlement, Some(reply)).await;
}

#[tokio::test]
async fn a_record_made_before_hosts_were_compared_still_replays() {
    let (origin, store) = (Origin::status(201), memory());
    write_earlier_record(store.clone()).await;
    let service = protect(&origin, Class::interactive(), store);
    let again = service.send(at("a.example", "1")).await;
    assert_eq!(
        (again.body.as_str(), again.is_replay()),
        ("from before", true)
    );
    let other = service.send(at("a.example", "2")).await;
    assert_eq!(other.code(), "key-reused");
    let asked = Request::get("/pay/by-idempotency-key/k").header("host", "a.example");
    let asked = asked.body(Full::default()).unwrap();
    assert_eq!(service.send(asked).await.body, "from before");
    assert_eq!(origin.runs(), 0);
}

/// A record is compared as it was made: with its host, or without one.
#[rstest]
#[case::small(1)]
#[case::worked_on_by_another_thread(100 << 10)]
#[tokio::test]
async fn records_are_compared_as_they_were_made(#[case] body_bytes: usize) {
    let (origin, store) = (Origin::status(201), memory());
    let ignoring = ignoring_hosts(&origin, store.clone());
    let comparing = protect(&origin, Class::interactive(), store);
    let with_key = |key: &'static str, host, body: &str| {
        let mut request = at(host, body.repeat(body_bytes));
        let key = http::HeaderValue::from_static(key);
        request.headers_mut().insert("idempotency-key", key);
        request
    };
    let first = ignoring.send(with_key("without", "a.example", "1")).await;
    assert_eq!(first.status, 201);
    let again = comparing.send(with_key("without", "a.example", "1")).await;
    assert!(again.is_replay());
    let other = comparing.send(with_key("without", "a.example", "2")).await;
    assert_eq!(other.code(), "key-reused");

    let first = comparing.send(with_key("with", "a.example", "1")).await;
    assert_eq!(first.status, 201);
    let again = ignoring.send(with_key("with", "a.example", "1")).await;
    assert!(again.is_replay());
    let other = ignoring.send(with_key("with", "b.example", "1")).await;
    assert_eq!(other.code(), "key-reused");
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn a_duplicate_of_a_run_that_ignores_hosts_waits_for_it() {
    let origin = Origin::status(201).gated();
    let earlier = ignoring_hosts(&origin, memory());
    let engine = earlier.engine.clone();
    let layer = IdempotencyLayer::builder(engine.clone()).build().unwrap();
    let service = protect_with(&origin, &layer, engine.clone());
    let first = tokio::spawn(async move { earlier.send(at("a.example", "1")).await });
    origin.called(1).await;
    let second = tokio::spawn(async move { service.send(at("a.example", "1")).await });
    until(|| engine.waiters() == 1).await;
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(second.await.unwrap().is_replay());
    assert_eq!(origin.runs(), 1);
}

/// A service whose lost operations may run again, and a lost operation from before
/// hosts were compared.
async fn repeating_what_was_lost(origin: &Origin) -> (Protected, Arc<Faulty>) {
    let store = Faulty::new();
    claim_as_before(store.inner.clone()).await.lose().await;
    let class = Class::interactive().with(|class| class.on_unknown = OnUnknown::Retry);
    (protect(origin, class, store.clone()), store)
}

#[tokio::test]
async fn a_lost_operation_from_before_runs_again_under_the_present_rule() {
    let origin = Origin::status(201);
    let (service, _) = repeating_what_was_lost(&origin).await;
    assert_eq!(service.send(at("a.example", "1")).await.body, "run 1");
    assert!(service.send(at("a.example", "1")).await.is_replay());
    let other = service.send(at("b.example", "1")).await;
    assert_eq!(other.code(), "key-reused");
}

#[tokio::test]
async fn a_claim_that_is_not_given_back_is_no_reused_key() {
    let origin = Origin::status(201);
    let (service, store) = repeating_what_was_lost(&origin).await;
    store.refuse_outcomes.store(true, Ordering::SeqCst);
    let answer = service.send(at("a.example", "1")).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "store-unavailable")
    );
    assert_eq!(origin.runs(), 0);
    store.refuse_outcomes.store(false, Ordering::SeqCst);
    until(|| service.engine.tasks().is_empty()).await;
    assert_eq!(service.send(at("a.example", "1")).await.body, "run 1");
}

#[tokio::test]
async fn a_caller_that_goes_while_its_claim_is_given_back_leaves_nothing_unknown() {
    let origin = Origin::status(201);
    let (service, store) = repeating_what_was_lost(&origin).await;
    store.stall_outcomes.store(true, Ordering::SeqCst);
    let caller = service.clone();
    let gone = tokio::spawn(async move { caller.send(at("a.example", "1")).await });
    until(|| store.outcomes.load(Ordering::SeqCst) == 1).await;
    store.stall_outcomes.store(false, Ordering::SeqCst);
    gone.abort();
    assert!(gone.await.is_err());
    until(|| service.engine.tasks().is_empty()).await;
    let record = store.inner.get(&earlier_identity().digest()).await.unwrap();
    let state = record.map_or(State::Released, |record| record.state);
    assert_eq!((state, origin.runs()), (State::Released, 0));
}
