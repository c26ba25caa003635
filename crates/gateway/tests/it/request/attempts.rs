//! The gateway's own attempts within one claim, and the outcome after the last one.

use rstest::rstest;
use serde_json::json;

use crate::harness::fixture::{answering, classy, operate, payments, shown, word};
use crate::harness::{Reply, Reserved, configured_to, origin, until};

const THREE: &str = "max_attempts = 3\nbackoff = { first = \"1ms\", max = \"4ms\" }";

#[tokio::test]
async fn retried_attempts_share_one_claim_and_one_fence() {
    let origin = answering(&[503, 503, 201]).run().await;
    let gateway = classy(&origin, THREE).await;
    let answer = gateway.post("/payments", "k").body("10").send().await;
    assert_eq!((answer.status, answer.text()), (201, "run 3"));
    assert_eq!(answer.header("idempotency-status"), "completed");
    let ledger = origin.ledger();
    assert_eq!(ledger.len(), 3);
    for seen in &ledger {
        assert_eq!(seen.text(), "10", "each is the whole request");
        for name in ["idempotency-fence", "idempotency-key", "x-operation-id"] {
            assert_eq!(seen.header(name), ledger[0].header(name), "{name}");
        }
    }
    let document = shown(&gateway, answer.header("x-operation-id")).await;
    assert_eq!(document["attempts"], 1, "one grant");
    let again = gateway.post("/payments", "k").body("10").send().await;
    assert_eq!((again.text(), again.is_replay()), ("run 3", true));
}

#[tokio::test]
async fn a_duplicate_between_attempts_waits_and_does_not_run() {
    let origin = answering(&[503, 201]).gated().run().await;
    let gateway = classy(&origin, THREE).await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let second = gateway.post("/payments", "k").spawn();
    gateway.waiting(1).await;
    origin.open();
    origin.called(2).await;
    origin.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.text(), second.text()), ("run 2", "run 2"));
    assert!(second.is_replay());
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_end_the_attempts() {
    let origin = answering(&[503, 503, 201]).gated().run().await;
    let gateway = classy(&origin, THREE).await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    first.abort();
    for run in 2..=3 {
        origin.open();
        origin.called(run).await;
    }
    origin.open();
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!((again.status, again.text()), (201, "run 3"));
}

#[rstest]
#[case::unauthorised(401, "", 1)]
#[case::forbidden(403, "", 1)]
#[case::proxy(407, "", 1)]
#[case::conflict(409, "", 1)]
#[case::locked(423, "", 1)]
#[case::kept(422, "", 1)]
#[case::fine(201, "", 1)]
#[case::between(502, "", 1)]
#[case::between(504, "", 1)]
#[case::permanent(503, "permanent", 1)]
#[case::timeout(408, "", 3)]
#[case::early(425, "", 3)]
#[case::slower(429, "", 3)]
#[case::error(500, "", 3)]
#[case::unavailable(503, "", 3)]
#[case::transient(409, "transient", 3)]
#[case::transient(200, "transient", 3)]
#[tokio::test]
async fn only_retryable_answers_are_repeated(
    #[case] status: u16,
    #[case] hint: &'static str,
    #[case] runs: usize,
) {
    let origin = origin().replying(move |_, _| match hint {
        "" => Reply::new(status, ""),
        hint => Reply::new(status, "").header("idempotency-outcome", hint),
    });
    let origin = origin.run().await;
    let gateway = classy(&origin, &format!("{THREE}\non_exhausted = \"kill\"")).await;
    let answer = gateway.post("/payments", "k").send().await;
    assert_eq!((answer.status, origin.runs()), (status, runs));
    assert_eq!(answer.header("idempotency-outcome"), "");
}

#[rstest]
#[case::unknown("unknown", "409 outcome-unknown")]
#[case::kept("keep", "500")]
#[tokio::test]
async fn an_answered_error_that_may_have_run_is_never_repeated(
    #[case] on_error: &str,
    #[case] later: &str,
) {
    let origin = answering(&[500, 201]).run().await;
    let class = format!("{THREE}\non_error = \"{on_error}\"");
    let gateway = classy(&origin, &class).await;
    let answer = gateway.post("/payments", "k").send().await;
    assert_eq!((answer.status, answer.text()), (500, "run 1"));
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!(word(&again), later);
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_request_sent_without_an_answer_is_never_repeated() {
    let origin = origin().hanging_up().run().await;
    let gateway = classy(&origin, THREE).await;
    let answer = gateway.post("/payments", "k").send().await;
    assert_eq!(word(&answer), "504 outcome-unknown");
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!(word(&again), "409 outcome-unknown");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn an_unsent_request_is_repeated_until_it_is_sent() {
    let reserved = Reserved::new();
    let class = "max_attempts = 1000\nbackoff = { first = \"5ms\", max = \"20ms\" }";
    let text = format!("[classes.own]\n{class}\n{}", payments("class = \"own\""));
    let gateway = configured_to(&reserved.url(), &text).run().await;
    let first = gateway.post("/payments", "k").spawn();
    // Waits until the upstream has refused it at least once.
    let refused = "onceward_upstream_duration_seconds_count{";
    until(async || gateway.metrics().await.contains(refused)).await;
    let origin = origin().reply(201, "paid").run_at(reserved);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text()), (201, "paid"));
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn on_exhausted_pause_waits_for_an_operator() {
    let origin = answering(&[503, 503, 503, 201]).run().await;
    let gateway = classy(&origin, &format!("{THREE}\non_exhausted = \"pause\"")).await;
    let ask = || gateway.post("/payments", "k").send();
    let first = ask().await;
    assert_eq!(word(&first), "409 paused");
    assert_eq!(first.header("idempotency-status"), "paused");
    let json = first.json();
    assert_eq!(json["original_status"], 503);
    assert_eq!(
        (&json["retryable"], &json["safe_new_key"]),
        (&json!(false), &json!(false))
    );
    let id = json["operation_id"].as_str().unwrap();

    assert_eq!(word(&ask().await), "409 paused");
    let by_key = "/payments/by-idempotency-key/k";
    assert_eq!(word(&gateway.get(by_key).send().await), "409 paused");
    let status = gateway.get(&format!("{by_key}/status")).send().await;
    assert_eq!(status.json()["state"], "paused");
    gateway.shows("onceward_paused 1").await;
    assert_eq!(origin.runs(), 3);

    let why = json!({"why": "the ledger is back"});
    operate(&gateway, &format!("/admin/v1/operations/{id}/resume"), why).await;
    let resumed = ask().await;
    assert_eq!((resumed.status, resumed.text()), (201, "run 4"));
    assert!(ask().await.is_replay());
    let ledger = origin.ledger();
    let fence = |at: usize| {
        ledger[at]
            .header("idempotency-fence")
            .parse::<u64>()
            .unwrap()
    };
    assert!(fence(3) > fence(2), "a new claim has a higher fence");
    gateway.shows("onceward_paused 0").await;
}

#[tokio::test]
async fn a_paused_operation_can_be_purged() {
    let origin = answering(&[503, 503, 503, 201]).run().await;
    let gateway = classy(&origin, THREE).await;
    let first = gateway.post("/payments", "k").body("10").send().await;
    let id = first.json()["operation_id"].as_str().unwrap().to_owned();
    let path = format!("/admin/v1/operations/{id}/purge");
    operate(&gateway, &path, json!({"why": "a test"})).await;
    let other = gateway.post("/payments", "k").body("20").send().await;
    assert_eq!((other.status, other.text()), (201, "run 4"));
}

#[tokio::test]
async fn on_exhausted_kill_frees_the_key_with_the_last_answer() {
    let origin = answering(&[503, 500, 429, 201]).run().await;
    let gateway = classy(&origin, &format!("{THREE}\non_exhausted = \"kill\"")).await;
    let first = gateway.post("/payments", "k").send().await;
    assert_eq!((first.status, first.text()), (429, "run 3"));
    assert_eq!(first.header("idempotency-status"), "released");
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!((again.status, again.text()), (201, "run 4"));
}

#[tokio::test]
async fn with_one_attempt_nothing_is_repeated_or_paused() {
    let origin = answering(&[503, 201]).run().await;
    let gateway = classy(&origin, "max_attempts = 1\non_exhausted = \"pause\"").await;
    let first = gateway.post("/payments", "k").send().await;
    assert_eq!((first.status, first.text()), (503, "run 1"));
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!((again.status, again.text()), (201, "run 2"));
}
