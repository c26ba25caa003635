//! Duplicates that arrive while the first request runs.

use std::time::Duration;

use onceward_core::class::{Class, InFlight};
use tokio::task::JoinHandle;

use crate::harness::{Answer, Reply, Running, gateway, origin};

#[tokio::test]
async fn a_duplicate_waits_and_gets_the_answer() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let second = gateway.post("/payments", "k").spawn();
    gateway.waiting(1).await;
    origin.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.text(), first.is_replay()), ("paid", false));
    assert_eq!((second.text(), second.is_replay()), ("paid", true));
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_client_with_wait_0_is_answered_at_once() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let second = gateway
        .post("/payments", "k")
        .header("prefer", "wait=0")
        .send()
        .await;
    assert_eq!(second.problem(), (409, "in-progress".to_owned()));
    assert_eq!(second.header("retry-after"), "1");
    assert_eq!(second.header("idempotency-status"), "processing");
    assert_eq!(second.json()["retryable"], true);
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test]
async fn a_wait_that_times_out_is_answered_with_409() {
    let origin = origin().gated().run().await;
    let class = Class::interactive().with(|class| class.wait = Duration::from_millis(50));
    let gateway = gateway(&origin).class(class).run().await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let second = gateway.post("/payments", "k").send().await;
    assert_eq!(second.problem(), (409, "in-progress".to_owned()));
    origin.open();
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_class_may_answer_202_with_a_location() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let class = Class::interactive().with(|class| class.in_flight = InFlight::Accept);
    let gateway = gateway(&origin).class(class).run().await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let second = gateway.post("/payments", "k").send().await;
    assert_eq!(
        (second.status, second.header("location")),
        (202, "/payments/by-idempotency-key/k/status")
    );
    let status = gateway.get(second.header("location")).send().await;
    assert_eq!(status.json()["state"], "running");
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test]
async fn a_release_is_reported_to_all_sixty_waiters() {
    let origin = origin()
        .replying(|_, run| Reply::new(503, format!("run {run}")))
        .gated()
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let clients = sixty_and_one(&gateway).await;
    origin.open();
    for client in clients {
        let answer = client.await.unwrap();
        assert_eq!((answer.status, answer.text()), (503, "run 1"));
        assert_eq!(answer.header("idempotency-status"), "released");
    }
    assert_eq!(origin.runs(), 1, "no waiter runs by itself");
    origin.open();
    assert_eq!(gateway.post("/payments", "k").send().await.text(), "run 2");
}

#[tokio::test]
async fn a_lost_answer_is_reported_to_all_sixty_waiters_at_once() {
    let origin = origin().hanging_up().gated().run().await;
    let gateway = gateway(&origin).run().await;
    let clients = sixty_and_one(&gateway).await;
    origin.open();
    let mut statuses = Vec::new();
    for client in clients {
        let (status, code) = client.await.unwrap().problem();
        assert_eq!(code, "outcome-unknown");
        statuses.push(status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [[409; 60].as_slice(), &[504]].concat());
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_waiter_that_disconnects_does_not_affect_the_others() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let (gone, stays) = (
        gateway.post("/payments", "k").spawn(),
        gateway.post("/payments", "k").spawn(),
    );
    gateway.waiting(2).await;
    gone.abort();
    gateway.waiting(1).await;
    origin.open();
    assert_eq!(first.await.unwrap().text(), "paid");
    assert_eq!(stays.await.unwrap().text(), "paid");
}

/// One running request and sixty that wait for it.
async fn sixty_and_one(gateway: &Running) -> Vec<JoinHandle<Answer>> {
    let clients = (0..61)
        .map(|_| gateway.post("/payments", "k").spawn())
        .collect();
    gateway.waiting(60).await;
    clients
}
