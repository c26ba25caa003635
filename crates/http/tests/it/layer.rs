//! The promises of the layer in every class.

use http::{Request, Response};
use http_body_util::Full;
use onceward_core::caller::{Caller, Subject};
use onceward_core::class::Class;
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_http::layer::IdempotencyLayer;

use crate::harness::{Origin, memory, post, protect, protect_with, until};

#[tokio::test]
async fn a_second_request_is_replayed_and_does_not_run() {
    let origin = Origin::status(201);
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.post("k", "a").await;
    let again = service.post("k", "a").await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(first.body, again.body);
    assert_eq!(
        first.header("x-operation-id"),
        again.header("x-operation-id")
    );
    assert_eq!(again.header("idempotency-status"), "completed");
    assert_eq!(again.header("cache-control"), "no-store");
    assert_eq!(origin.runs(), 1);
}

/// Bodies above 64 KiB are compared on another thread.
#[tokio::test]
async fn large_bodies_are_compared_like_small_ones() {
    let origin = Origin::status(201);
    let service = protect(&origin, Class::interactive(), memory());
    let [large, other] = ["a", "b"].map(|letter| letter.repeat(100_000));
    assert!(!service.post("k", &large).await.is_replay());
    assert!(service.post("k", &large).await.is_replay());
    assert_eq!(service.post("k", &other).await.code(), "key-reused");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn without_a_key_everything_passes() {
    let origin = Origin::status(200);
    let service = protect(&origin, Class::interactive(), memory());
    for _ in 0..2 {
        let request = Request::post("/pay").body(Full::default()).unwrap();
        assert!(!service.send(request).await.is_replay());
    }
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn a_required_key_that_is_missing_is_refused() {
    let origin = Origin::status(200);
    let engine = Engine::new(memory(), Entropy::seeded(1), Limits::default());
    let layer = IdempotencyLayer::builder(engine.clone())
        .required()
        .build()
        .unwrap();
    let service = protect_with(&origin, &layer, engine);
    let request = Request::post("/pay").body(Full::default()).unwrap();
    let answer = service.send(request).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "key-missing")
    );
    assert_eq!(origin.runs(), 0);
}

#[tokio::test]
async fn callers_never_see_each_others_replies() {
    let origin = Origin::status(200);
    let engine = Engine::new(memory(), Entropy::seeded(1), Limits::default());
    let layer = IdempotencyLayer::builder(engine.clone())
        .caller(|parts| {
            let user = parts.headers["x-user"].to_str().unwrap();
            Caller::trusted("acme", "shop", Subject::parse(user).unwrap()).unwrap()
        })
        .build()
        .unwrap();
    let service = protect_with(&origin, &layer, engine);
    let ask = |user: &'static str| {
        let mut request = post("k", "a");
        request
            .headers_mut()
            .insert("x-user", user.parse().unwrap());
        service.send(request)
    };
    assert_eq!(ask("user:1").await.body, "run 1");
    assert_eq!(ask("user:2").await.body, "run 2");
    assert_eq!(ask("user:1").await.body, "run 1");
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn without_callers_clients_differ_by_their_credentials() {
    let origin = Origin::status(200);
    let service = protect(&origin, Class::interactive(), memory());
    let as_client = |token: &'static str| {
        let mut request = post("k", "a");
        request
            .headers_mut()
            .insert("authorization", token.parse().unwrap());
        request
    };
    let first = service.send(as_client("Bearer one")).await;
    let thief = service.send(as_client("Bearer two")).await;
    assert_eq!(first.status, 200);
    assert_eq!((thief.status, thief.code().as_str()), (422, "key-reused"));

    let recover = |token: &'static str| {
        let request = Request::get("/pay/by-idempotency-key/k")
            .header("host", "shop.example")
            .header("authorization", token);
        service.send(request.body(Full::default()).unwrap())
    };
    assert_eq!(recover("Bearer one").await.body, first.body);
    assert_eq!(recover("Bearer two").await.code(), "no-operation");
    assert_eq!(
        service.get("/pay/by-idempotency-key/k").await.code(),
        "no-operation"
    );
}

#[tokio::test]
async fn a_caller_that_goes_cancels_nothing() {
    let origin = Origin::status(200).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let gone = service.spawn_post("k", "a");
    origin.called(1).await;
    gone.abort();
    origin.open();
    until(|| service.engine.running() == 0).await;
    let again = service.post("k", "a").await;
    assert_eq!((again.body.as_str(), again.is_replay()), ("run 1", true));
}

#[tokio::test]
async fn a_panic_is_an_unknown_outcome_and_is_not_repeated() {
    let origin = Origin::answering(|_| panic!("the handler breaks"));
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.post("k", "a").await;
    assert_eq!(
        (first.status, first.code().as_str()),
        (504, "outcome-unknown")
    );
    until(|| service.engine.tasks().is_empty()).await;
    let again = service.post("k", "a").await;
    assert_eq!(
        (again.status, again.code().as_str()),
        (409, "outcome-unknown")
    );
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn the_hint_of_the_upstream_beats_the_status() {
    let said = |word: &'static str, status: u16| {
        Origin::answering(move |run| {
            let mut response = Response::new(Full::from(format!("run {run}")));
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            let headers = response.headers_mut();
            headers.insert("idempotency-outcome", word.parse().unwrap());
            response
        })
    };
    for (origin, runs) in [(said("permanent", 503), 1), (said("transient", 200), 2)] {
        let service = protect(&origin, Class::interactive(), memory());
        let first = service.post("k", "a").await;
        assert_eq!(
            first.header("idempotency-outcome"),
            "",
            "it is not forwarded"
        );
        service.post("k", "a").await;
        assert_eq!(origin.runs(), runs);
    }
}

#[tokio::test]
async fn a_reply_over_the_limit_goes_to_the_first_caller_only() {
    let origin = Origin::answering(|_| Response::new(Full::from("x".repeat(5000))));
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.post("k", "a").await;
    assert_eq!((first.status, first.body.len()), (200, 5000));
    let again = service.post("k", "a").await;
    assert_eq!(
        (again.status, again.code().as_str()),
        (410, "reply-not-kept")
    );
    assert!(
        again.body.contains("\"original_status\":200"),
        "{}",
        again.body
    );
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn recovery_returns_the_reply_and_the_status() {
    let origin = Origin::status(201).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.spawn_post("k", "a");
    origin.called(1).await;
    let early = service.get("/pay/by-idempotency-key/k/output").await;
    assert_eq!(early.status, 202);
    assert!(
        early.body.contains("\"state\":\"running\""),
        "{}",
        early.body
    );
    let waiting = {
        let service = service.clone();
        tokio::spawn(async move { service.get("/pay/by-idempotency-key/k").await })
    };
    origin.open();
    let first = first.await.unwrap();
    assert_eq!(waiting.await.unwrap().body, first.body);
    let output = service.get("/pay/by-idempotency-key/k/output").await;
    assert_eq!((output.status, output.body.as_str()), (201, "run 1"));
    let status = service.get("/pay/by-idempotency-key/k/status").await;
    assert!(
        status.body.contains("\"original_status\":201"),
        "{}",
        status.body
    );
    assert_eq!(
        service.get("/pay/by-idempotency-key/none").await.code(),
        "no-operation"
    );
    assert_eq!(
        service.get("/pay/by-idempotency-key/a%20b").await.code(),
        "key-invalid"
    );
}
