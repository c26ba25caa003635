//! A retry gets the first answer and does not run.

use std::time::Duration;

use jiff::Timestamp;
use rstest::rstest;

use crate::harness::{Reply, gateway, origin};

#[tokio::test]
async fn a_retry_gets_the_first_answer() {
    let origin = origin()
        .reply(201, "paid")
        .header("location", "/payments/1")
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").body("a").send().await;
    let again = gateway.post("/payments", "k").body("a").send().await;

    assert_eq!(
        (first.status, first.text(), first.is_replay()),
        (201, "paid", false)
    );
    assert_eq!(
        (again.status, again.text(), again.is_replay()),
        (201, "paid", true)
    );
    assert_eq!(again.header("cache-control"), "no-store");
    assert!(first.header("x-operation-id").starts_with("op_"));
    for name in [
        "location",
        "x-operation-id",
        "idempotency-status",
        "idempotency-expires",
    ] {
        assert_ne!(first.header(name), "", "{name}");
        assert_eq!(first.header(name), again.header(name), "{name}");
    }
    assert_eq!(again.header("idempotency-status"), "completed");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_reply_is_kept_for_its_classs_retention() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).run().await;
    let before = Timestamp::now();
    let first = gateway.post("/payments", "k").send().await;
    let day = Duration::from_secs(24 * 60 * 60);
    let expires: Timestamp = first.header("idempotency-expires").parse().unwrap();
    // Documents have a precision of a millisecond.
    assert!(
        expires >= before + day - Duration::from_millis(1),
        "{expires}"
    );
    assert!(expires <= Timestamp::now() + day, "{expires}");
}

#[tokio::test]
async fn two_hundred_clients_with_one_key_run_once() {
    let origin = origin()
        .replying(|_, run| Reply::new(201, format!("run {run}")))
        .gated()
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let clients: Vec<_> = (0..200)
        .map(|_| gateway.post("/payments", "k").body("a").spawn())
        .collect();
    gateway.waiting(199).await;
    origin.open();
    let mut replays = 0;
    for client in clients {
        let answer = client.await.unwrap();
        assert_eq!((answer.status, answer.text()), (201, "run 1"));
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((replays, origin.runs()), (199, 1));
}

#[tokio::test]
async fn a_mismatch_beats_in_progress() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").body("a").spawn();
    origin.called(1).await;
    let other = gateway.post("/payments", "k").body("b").send().await;
    assert_eq!(other.problem(), (422, "key-reused".to_owned()));

    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    let other = gateway.post("/payments", "k").body("b").send().await;
    assert_eq!(other.problem(), (422, "key-reused".to_owned()));
    assert!(!other.text().contains("paid"), "the reply is not revealed");
    assert_eq!(other.header("x-operation-id"), "", "nor of the operation");
    let again = gateway.post("/payments", "k").body("a").send().await;
    assert_eq!(
        (again.text(), origin.runs()),
        ("paid", 1),
        "the reply is not touched"
    );
}

#[rstest]
#[case::member_order(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#, 201)]
#[case::white_space(r#"{"a":[1,2]}"#, "{ \"a\" :\n[1, 2] }", 201)]
#[case::notation(r#"{"a":1.0}"#, r#"{"a":1}"#, 201)]
#[case::value(r#"{"a":1}"#, r#"{"a":2}"#, 422)]
#[case::element_order(r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#, 422)]
#[case::big_integers(r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#, 422)]
#[case::repeated_members(r#"{"a":1,"a":2}"#, r#"{"a":2}"#, 422)]
#[tokio::test]
async fn json_bodies_are_compared_by_value(
    #[case] first: &'static str,
    #[case] second: &'static str,
    #[case] status: u16,
) {
    let origin = origin().reply(201, "").run().await;
    let gateway = gateway(&origin).run().await;
    assert_eq!(
        gateway
            .post("/payments", "k")
            .json(first)
            .send()
            .await
            .status,
        201
    );
    let again = gateway.post("/payments", "k").json(second).send().await;
    assert_eq!((again.status, origin.runs()), (status, 1));
}

#[rstest]
#[case::query_order("/payments?b=2&a=1", "text/plain", 201)]
#[case::query_value("/payments?a=1&b=3", "text/plain", 422)]
#[case::content_type("/payments?a=1&b=2", "text/html", 422)]
#[tokio::test]
async fn target_and_content_type_are_compared_too(
    #[case] target: &str,
    #[case] content_type: &str,
    #[case] status: u16,
) {
    let origin = origin().reply(201, "").run().await;
    let gateway = gateway(&origin).run().await;
    let ask = |target: &str, content_type: &str| {
        gateway
            .post(target, "k")
            .header("content-type", content_type)
            .body("a")
            .send()
    };
    assert_eq!(ask("/payments?a=1&b=2", "text/plain").await.status, 201);
    assert_eq!(ask(target, content_type).await.status, status);
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_key_is_independent_on_another_path_and_method() {
    let origin = origin()
        .replying(|_, run| Reply::new(200, format!("run {run}")))
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let asks = ["POST /payments", "PATCH /payments", "POST /refunds"];
    for round in 0..2 {
        for (run, what) in (1..).zip(asks) {
            let answer = gateway.request(what).key("k").body("a").send().await;
            assert_eq!(
                (answer.text(), answer.is_replay()),
                (format!("run {run}").as_str(), round == 1)
            );
        }
    }
    assert_eq!(origin.runs(), 3);
}

#[tokio::test]
async fn another_credential_is_a_different_request() {
    let origin = origin().reply(201, "a secret").run().await;
    let gateway = gateway(&origin).run().await;
    let ask = |token: &str| {
        let ask = gateway
            .post("/payments", "k")
            .header("authorization", token);
        ask.body("a").send()
    };
    assert_eq!(ask("Bearer one").await.text(), "a secret");
    let thief = ask("Bearer two").await;
    assert_eq!(thief.problem(), (422, "key-reused".to_owned()));
    assert!(!thief.text().contains("secret"));
    assert!(ask("Bearer one").await.is_replay());
    assert_eq!(origin.runs(), 1);
}
