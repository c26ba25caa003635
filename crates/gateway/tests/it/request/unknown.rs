//! Operations that may have run: held, retried, or reconciled.

use rstest::rstest;
use serde_json::json;

use crate::harness::credentials::{API_KEYS, Sent, api_key};
use crate::harness::fixture::{answering, operate, payments, word};
use crate::harness::{Origin, OriginBuilder, Reply, Running, configured, origin};

/// An origin whose first answer is lost, behind a gateway with a class for this
/// case.
async fn doubtful(class: &str) -> (Origin, Running) {
    let origin = answering(&[504, 201]).run().await;
    let gateway = crate::harness::fixture::classy(&origin, class).await;
    (origin, gateway)
}

/// Makes the operation `k` unknown and returns its id.
async fn lose(gateway: &Running) -> String {
    let first = gateway.post("/payments", "k").body("10").send().await;
    assert_eq!(first.status, 504);
    assert_eq!(first.header("idempotency-status"), "unknown");
    first.header("x-operation-id").to_owned()
}

async fn retry(gateway: &Running) -> (String, String) {
    let answer = gateway.post("/payments", "k").body("10").send().await;
    let text = if answer.status < 400 {
        answer.text()
    } else {
        ""
    };
    (word(&answer), text.to_owned())
}

fn fences(origin: &Origin) -> Vec<u64> {
    let ledger = origin.ledger();
    let fences = ledger.iter().map(|seen| seen.header("idempotency-fence"));
    fences.map(|fence| fence.parse().unwrap()).collect()
}

#[tokio::test]
async fn hold_waits_until_an_operator_resolves_it_as_ran() {
    let (origin, gateway) = doubtful("on_unknown = \"hold\"").await;
    let id = lose(&gateway).await;
    assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    let recovery = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(word(&recovery), "409 outcome-unknown");
    let path = format!("/admin/v1/operations/{id}/resolve");
    operate(
        &gateway,
        &path,
        json!({"outcome": "unsure", "why": "nobody knows"}),
    )
    .await;
    assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    let ran = json!({
        "outcome": "ran", "why": "seen in the ledger",
        "reply": {"status": 201, "headers": {"x-payment": "7", "set-cookie": "a=b"}, "body": "paid"},
    });
    operate(&gateway, &path, ran).await;
    let again = gateway.post("/payments", "k").body("10").send().await;
    assert_eq!((again.status, again.text()), (201, "paid"));
    assert!(again.is_replay());
    assert_eq!(
        (again.header("x-payment"), again.header("set-cookie")),
        ("7", "")
    );
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn hold_waits_until_an_operator_resolves_it_as_not_run() {
    let (origin, gateway) = doubtful("on_unknown = \"hold\"").await;
    let id = lose(&gateway).await;
    let path = format!("/admin/v1/operations/{id}/resolve");
    operate(
        &gateway,
        &path,
        json!({"outcome": "not_run", "why": "refused there"}),
    )
    .await;
    assert_eq!(
        retry(&gateway).await,
        ("201".to_owned(), "run 2".to_owned())
    );
    let fences = fences(&origin);
    assert!(fences[1] > fences[0], "{fences:?}");
}

#[tokio::test]
async fn retry_runs_it_again_under_a_higher_fence() {
    let (origin, gateway) = doubtful("on_unknown = \"retry\"").await;
    lose(&gateway).await;
    assert_eq!(
        retry(&gateway).await,
        ("201".to_owned(), "run 2".to_owned())
    );
    let fences = fences(&origin);
    assert!(fences[1] > fences[0], "{fences:?}");
    assert!(
        gateway
            .post("/payments", "k")
            .body("10")
            .send()
            .await
            .is_replay()
    );
}

/// A reconciliation service, and a gateway that uses it.
async fn asking(reconciler: &Origin) -> (Origin, Running) {
    let class = format!(
        "on_unknown = \"reconcile\"\nreconcile_url = \"{}/verdict?about=payments\"",
        reconciler.url()
    );
    doubtful(&class).await
}

fn says(status: u16, body: &'static str) -> OriginBuilder {
    origin()
        .reply(status, body)
        .header("content-type", "application/json")
}

const RAN: &str = r#"{"outcome": "ran", "reply": {"status": 201, "headers": [["link", "<a>"],
    ["link", "<b>"], ["set-cookie", "s=1"], ["x-operation-id", "op_forged"]], "body": "paid after all"}}"#;

#[tokio::test]
async fn reconcile_sends_key_fence_and_caller_and_stores_the_reply() {
    let reconciler = says(200, RAN).run().await;
    let origin = answering(&[504, 201]).run().await;
    let class = format!(
        "{API_KEYS}[classes.own]\non_unknown = \"reconcile\"\nreconcile_url = \"{}/verdict?about=payments\"\n",
        reconciler.url()
    );
    let text = [class, payments("class = \"own\"")].concat();
    let gateway = configured(&origin, &text).run().await;
    let ann = api_key(&gateway, ("acme", "shop", "user:a:n")).await;
    let ask = || {
        gateway
            .post("/payments", "k")
            .by(&ann)
            .header("cookie", "session=1")
            .header("x-secret", "1")
            .send()
    };
    let first = ask().await;
    assert_eq!(
        (first.status, reconciler.begun()),
        (504, 0),
        "the first caller gets the outcome"
    );
    let again = ask().await;
    assert_eq!((again.status, again.text()), (201, "paid after all"));
    assert!(again.is_replay());
    assert_eq!(again.headers("link"), ["<a>", "<b>"]);
    assert_eq!(again.header("set-cookie"), "");
    assert_eq!(
        again.header("x-operation-id"),
        first.header("x-operation-id")
    );
    assert_eq!(ask().await.text(), "paid after all");

    let question = reconciler.only();
    assert_eq!(
        (question.method.as_str(), &*question.target),
        ("GET", "/verdict?about=payments")
    );
    let run = origin.only();
    for (name, value) in [
        ("idempotency-key", "t-acme:shop:user:a%3An:k"),
        ("idempotency-fence", run.header("idempotency-fence")),
        ("x-operation-id", first.header("x-operation-id")),
        ("x-tenant-id", "acme"),
        ("x-project-id", "shop"),
        ("x-subject", "user:a:n"),
    ] {
        assert_eq!(question.header(name), value, "{name}");
    }
    let host = reconciler.address().to_string();
    assert_eq!(question.header("host"), host);
    for name in ["authorization", "cookie", "x-secret", "x-api-key"] {
        assert_eq!(
            question.header(name),
            "",
            "{name} is not the reconciler's to know"
        );
    }
}

#[tokio::test]
async fn reconcile_not_run_runs_it_again_under_a_higher_fence() {
    let reconciler = says(200, r#"{"outcome": "not_run"}"#).run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    assert_eq!(
        retry(&gateway).await,
        ("201".to_owned(), "run 2".to_owned())
    );
    let fences = fences(&origin);
    assert!(fences[1] > fences[0], "{fences:?}");
    assert_eq!(reconciler.runs(), 1);
}

/// A recovery request never runs the operation, whatever the service answers.
#[rstest]
#[case::ran(RAN, "201")]
#[case::not_run(r#"{"outcome": "not_run"}"#, "409 in-progress")]
#[case::unsure(r#"{"outcome": "unsure"}"#, "409 outcome-unknown")]
#[tokio::test]
async fn a_recovery_request_reconciles_and_runs_nothing(
    #[case] verdict: &'static str,
    #[case] want: &str,
) {
    let reconciler = says(200, verdict).run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    let recovery = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(word(&recovery), want);
    assert_eq!((origin.runs(), reconciler.runs()), (1, 1));
}

#[rstest]
#[case::unsure(200, r#"{"outcome": "unsure"}"#)]
#[case::broken(500, "")]
#[case::broken_but_sure(500, r#"{"outcome": "not_run"}"#)]
#[case::absent(404, r#"{"outcome": "not_run"}"#)]
#[case::accepted(202, r#"{"outcome": "not_run"}"#)]
#[case::nothing(200, "")]
#[case::garbage(200, "<html>not_run</html>")]
#[case::another_word(200, r#"{"outcome": "perhaps"}"#)]
#[case::no_word(200, r#"{"not_run": true}"#)]
#[case::ran_without_a_reply(200, r#"{"outcome": "ran"}"#)]
#[case::no_status(200, r#"{"outcome": "ran", "reply": {"body": "x"}}"#)]
#[case::no_real_status(200, r#"{"outcome": "ran", "reply": {"status": 99}}"#)]
#[case::not_final(200, r#"{"outcome": "ran", "reply": {"status": 100}}"#)]
#[case::two_bodies(
    200,
    r#"{"outcome": "ran", "reply": {"status": 201, "body": "a", "body_base64": "YQ=="}}"#
)]
#[case::bad_header(
    200,
    r#"{"outcome": "ran", "reply": {"status": 201, "headers": {"a b": "c"}}}"#
)]
#[case::more_after_it(200, r#"{"outcome": "not_run"} {"outcome": "ran"}"#)]
#[tokio::test]
async fn an_unsure_reconciler_changes_nothing(#[case] status: u16, #[case] body: &'static str) {
    let knows = r#"{"outcome": "ran", "reply": {"status": 201, "body": "paid"}}"#;
    let reconciler = origin().replying(move |_, run| match run {
        1 | 2 => Reply::new(status, body),
        _ => Reply::new(200, knows),
    });
    let reconciler = reconciler.run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    for _ in 0..2 {
        assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    }
    gateway.shows("onceward_unknown 1").await;
    // Each request asks again, until the outcome is known.
    assert_eq!(retry(&gateway).await, ("201".to_owned(), "paid".to_owned()));
    assert_eq!((origin.runs(), reconciler.runs()), (1, 3));
}

#[tokio::test]
async fn a_reconcilers_redirect_is_not_followed() {
    let elsewhere = says(200, r#"{"outcome": "not_run"}"#).run().await;
    let place = format!("{}/verdict", elsewhere.url());
    let reconciler = origin().replying(move |_, _| Reply::new(302, "").header("location", &place));
    let reconciler = reconciler.run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    assert_eq!((origin.runs(), elsewhere.begun()), (1, 0));
}

#[tokio::test]
async fn a_reconciler_that_hangs_up_changes_nothing() {
    let reconciler = origin().hanging_up().run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_reconciler_that_takes_too_long_changes_nothing() {
    let reconciler = says(200, RAN).gated().run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn an_answer_that_is_too_large_changes_nothing() {
    let body = format!(
        r#"{{"outcome": "ran", "reply": {{"status": 201, "body": "{}"}}}}"#,
        "x".repeat(3 << 20)
    );
    let reconciler = origin().reply(200, body).run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    assert_eq!(retry(&gateway).await.0, "409 outcome-unknown");
    assert_eq!(origin.runs(), 1);
}

/// Many requests ask at once: one reconciliation request is sent, and at most one
/// of them runs.
#[rstest]
#[case::ran(RAN, "paid after all", 1)]
#[case::not_run(r#"{"outcome": "not_run"}"#, "run 2", 2)]
#[tokio::test]
async fn concurrent_requests_reconcile_once(
    #[case] verdict: &'static str,
    #[case] text: &str,
    #[case] runs: usize,
) {
    let reconciler = says(200, verdict).gated().run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    let ask = || gateway.post("/payments", "k").body("10").spawn();
    let all: Vec<_> = (0..20).map(|_| ask()).collect();
    reconciler.called(1).await;
    let claims = "onceward_store_duration_seconds_count{step=\"claim\",outcome=\"done\"} 21";
    gateway.shows(claims).await;
    reconciler.open();
    for one in all {
        let answer = one.await.unwrap();
        assert_eq!((answer.status, answer.text()), (201, text));
    }
    assert_eq!((reconciler.runs(), origin.runs()), (1, runs));
}

/// The first client may disconnect; the others still get an answer.
#[tokio::test]
async fn a_client_that_disconnects_during_reconciliation_does_not_end_it() {
    let reconciler = says(200, RAN).gated().run().await;
    let (origin, gateway) = asking(&reconciler).await;
    lose(&gateway).await;
    let gone = gateway.post("/payments", "k").body("10").spawn();
    reconciler.called(1).await;
    let stays = gateway.post("/payments", "k").body("10").spawn();
    let claims = "onceward_store_duration_seconds_count{step=\"claim\",outcome=\"done\"} 3";
    gateway.shows(claims).await;
    gone.abort();
    reconciler.open();
    reconciler.open();
    let stays = stays.await.unwrap();
    assert_eq!((stays.status, stays.text()), (201, "paid after all"));
    assert_eq!(origin.runs(), 1);
}
