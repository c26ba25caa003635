//! The settings of a class.

use std::time::Duration;

use http_body_util::Full;
use onceward_core::class::{Backoff, Class, InFlight, OnError, OnMismatch, OnUnknown};
use rstest::rstest;

use crate::harness::{Origin, memory, post, protect, until};

fn class(change: impl FnOnce(&mut Class)) -> Class {
    let mut class = Class::interactive();
    change(&mut class);
    class
}

#[tokio::test]
async fn wait_gives_the_reply_of_the_run_under_way() {
    let origin = Origin::status(201).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.spawn_post("k", "a");
    origin.called(1).await;
    let second = service.spawn_post("k", "a");
    until(|| service.engine.waiters() == 1).await;
    origin.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(first.body, second.body);
    assert!(!first.is_replay() && second.is_replay());
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_wait_that_runs_out_is_in_progress() {
    let origin = Origin::status(201).gated();
    let short = class(|class| class.wait = Duration::from_millis(20));
    let service = protect(&origin, short, memory());
    let _first = service.spawn_post("k", "a");
    origin.called(1).await;
    let second = service.post("k", "a").await;
    assert_eq!(
        (second.status, second.code().as_str()),
        (409, "in-progress")
    );
    assert_eq!(second.header("retry-after"), "1");
    assert_eq!(second.header("idempotency-status"), "processing");
}

#[tokio::test]
async fn the_caller_may_wait_for_less() {
    let origin = Origin::status(201).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let _first = service.spawn_post("k", "a");
    origin.called(1).await;
    let mut request = post("k", "a");
    request
        .headers_mut()
        .insert("prefer", "wait=0".parse().unwrap());
    assert_eq!(service.send(request).await.code(), "in-progress");
}

#[tokio::test]
async fn reject_refuses_at_once() {
    let origin = Origin::status(201).gated();
    let service = protect(&origin, class(|c| c.in_flight = InFlight::Reject), memory());
    let _first = service.spawn_post("k", "a");
    origin.called(1).await;
    let second = service.post("k", "a").await;
    assert_eq!(
        (second.status, second.code().as_str()),
        (409, "in-progress")
    );
}

#[tokio::test]
async fn accept_answers_with_the_status_url() {
    let origin = Origin::status(201).gated();
    let service = protect(&origin, class(|c| c.in_flight = InFlight::Accept), memory());
    let first = service.spawn_post("k", "a");
    origin.called(1).await;
    let second = service.post("k", "a").await;
    assert_eq!(second.status, 202);
    let place = second.header("location").to_owned();
    assert_eq!(place, "/pay/by-idempotency-key/k/status");
    assert!(
        service
            .get(&place)
            .await
            .body
            .contains("\"status\":\"processing\"")
    );
    origin.open();
    first.await.unwrap();
    assert!(
        service
            .get(&place)
            .await
            .body
            .contains("\"status\":\"completed\"")
    );
}

#[tokio::test]
async fn a_mismatch_beats_busy_and_discloses_nothing() {
    let origin = Origin::status(201).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let _first = service.spawn_post("k", "a");
    origin.called(1).await;
    let other = service.post("k", "b").await;
    assert_eq!((other.status, other.code().as_str()), (422, "key-reused"));
    assert_eq!(other.header("x-operation-id"), "");
}

#[tokio::test]
async fn a_mismatch_may_be_a_conflict_or_a_replay() {
    let origin = Origin::status(201);
    let conflict = protect(
        &origin,
        class(|c| c.mismatch = OnMismatch::Conflict),
        memory(),
    );
    conflict.post("k", "a").await;
    assert_eq!(conflict.post("k", "b").await.status, 409);
    let replay = protect(
        &origin,
        class(|c| c.mismatch = OnMismatch::Replay),
        memory(),
    );
    let first = replay.post("k", "a").await;
    let other = replay.post("k", "b").await;
    assert_eq!(
        (
            other.body,
            other.headers.contains_key("idempotent-replayed")
        ),
        (first.body, true)
    );
}

#[tokio::test]
async fn a_release_answers_sixty_waiters_and_runs_once() {
    let origin = Origin::status(503).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.spawn_post("k", "a");
    origin.called(1).await;
    let waiting: Vec<_> = (0..60).map(|_| service.spawn_post("k", "a")).collect();
    until(|| service.engine.waiters() == 60).await;
    origin.open();
    assert_eq!(first.await.unwrap().body, "run 1");
    for waiter in waiting {
        let answer = waiter.await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "run 1"));
        assert_eq!(answer.header("idempotency-status"), "released");
    }
    assert_eq!(origin.runs(), 1, "no waiter runs by itself");
    origin.open();
    assert_eq!(
        service.post("k", "a").await.body,
        "run 2",
        "a retry runs again"
    );
}

#[tokio::test]
async fn an_unknown_outcome_reaches_all_waiters_at_once() {
    let origin = Origin::answering(|_| panic!("the handler breaks")).gated();
    let service = protect(&origin, Class::interactive(), memory());
    let first = service.spawn_post("k", "a");
    origin.called(1).await;
    let waiting: Vec<_> = (0..10).map(|_| service.spawn_post("k", "a")).collect();
    until(|| service.engine.waiters() == 10).await;
    origin.open();
    assert_eq!(first.await.unwrap().status, 504);
    for waiter in waiting {
        let answer = waiter.await.unwrap();
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (409, "outcome-unknown")
        );
    }
}

#[tokio::test]
async fn retry_runs_an_unknown_operation_again_under_a_new_fence() {
    let origin = Origin::answering(|run| {
        assert!(run > 1, "the first run breaks");
        http::Response::new(Full::from(format!("run {run}")))
    });
    let service = protect(
        &origin,
        class(|c| c.on_unknown = OnUnknown::Retry),
        memory(),
    );
    assert_eq!(service.post("k", "a").await.status, 504);
    until(|| service.engine.tasks().is_empty()).await;
    assert_eq!(service.post("k", "a").await.body, "run 2");
}

#[tokio::test]
async fn a_mismatch_is_never_a_replay_for_another_client() {
    let origin = Origin::status(201);
    let service = protect(
        &origin,
        class(|c| c.mismatch = OnMismatch::Replay),
        memory(),
    );
    let from = |token: &'static str, body: &'static str| {
        let mut request = post("k", body);
        let token = token.parse().unwrap();
        request.headers_mut().insert("authorization", token);
        service.send(request)
    };
    assert_eq!(from("Bearer one", "a").await.status, 201);
    assert!(from("Bearer one", "b").await.is_replay(), "its own client");
    let thief = from("Bearer two", "a").await;
    assert_eq!((thief.status, thief.code().as_str()), (422, "key-reused"));
}

/// The runs of the service count the charges.
#[rstest]
#[case::money(Class::financial(), &["500 unknown", "409 unknown", "409 unknown"], 1)]
#[case::default(Class::interactive(), &["500 released", "500 released", "500 released"], 3)]
#[tokio::test]
async fn a_service_that_charges_and_throws_charges_as_often_as_on_error_allows(
    #[case] class: Class,
    #[case] want: &[&str],
    #[case] charges: usize,
) {
    let origin = Origin::status(500);
    let service = protect(&origin, class, memory());
    let mut got = Vec::new();
    for _ in want {
        let answer = service.post("k", "a").await;
        let status = answer.header("idempotency-status");
        got.push(format!("{} {status}", answer.status));
    }
    assert_eq!(got, want);
    assert_eq!(origin.runs(), charges);
    let last = service.post("k", "a").await;
    if charges == 1 {
        assert_eq!(last.code(), "outcome-unknown");
    }
}

#[tokio::test]
async fn a_kept_error_is_replayed() {
    let origin = Origin::status(500);
    let service = protect(&origin, class(|c| c.on_error = OnError::Keep), memory());
    let (first, again) = (service.post("k", "a").await, service.post("k", "a").await);
    assert_eq!((first.status, first.is_replay()), (500, false));
    assert_eq!((again.status, again.is_replay()), (500, true));
    assert_eq!(first.header("idempotency-status"), "failed");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn an_unknown_error_that_streams_is_unknown_too_and_not_repeated() {
    let large = "x".repeat(2000);
    let origin = Origin::answering(move |_| {
        let mut response = http::Response::new(Full::from(large.clone()));
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    let several = class(|class| {
        class.on_error = OnError::Unknown;
        class.max_attempts = 3;
        class.backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    });
    let service = protect(&origin, several, memory());
    let first = service.post("k", "a").await;
    assert_eq!((first.status, first.body.len()), (500, 2000));
    assert_eq!(first.header("idempotency-status"), "unknown");
    until(|| service.engine.tasks().is_empty()).await;
    assert_eq!(service.post("k", "a").await.code(), "outcome-unknown");
    assert_eq!(origin.runs(), 1);
}
