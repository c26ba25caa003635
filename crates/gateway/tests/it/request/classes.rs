//! The effect of each setting of a class, from the file and at run time.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::fixture::{
    PAUSE, answering, ask_until, classy, look, operate, payments, route, shown, word,
};
use crate::harness::{Reply, Running, configured, origin, until};

async fn status(gateway: &Running, key: &str) -> Value {
    let path = format!("/payments/by-idempotency-key/{key}/status");
    let answer = gateway.get(&path).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The time between two moments of a document, in milliseconds.
fn between(document: &Value, from: &str, to: &str) -> i64 {
    let at = |name: &str| -> jiff::Timestamp { document[name].as_str().unwrap().parse().unwrap() };
    at(to).as_millisecond() - at(from).as_millisecond()
}

#[tokio::test]
async fn a_reply_is_kept_for_retention_and_its_key_for_remember() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "retention = \"1s\"\nremember = \"3s\"").await;
    let ask = || gateway.post("/payments", "k");
    let first = ask().send().await;
    let id = first.header("x-operation-id").to_owned();
    let known = shown(&gateway, &id).await;
    assert_eq!(between(&known, "completed_at", "expires_at"), 1000);
    assert_eq!(between(&known, "completed_at", "forgotten_at"), 3000);
    assert_eq!(first.header("idempotency-expires"), known["expires_at"]);

    let gone = ask_until(ask, |answer| !answer.is_replay()).await;
    assert_eq!(word(&gone), "410 reply-expired");
    assert_eq!(gone.json()["original_status"], 201);
    assert_eq!(gone.json()["operation_id"], id);
    for path in [
        "/payments/by-idempotency-key/k".to_owned(),
        format!("/api/v1/operations/{id}"),
    ] {
        assert_eq!(word(&gateway.get(&path).send().await), "410 reply-expired");
    }
    let reused = ask().body("other").send().await;
    assert_eq!(
        word(&reused),
        "422 key-reused",
        "what is remembered is compared"
    );
    assert_eq!(origin.runs(), 1);

    let free = ask_until(ask, |answer| answer.status != 410).await;
    assert_eq!((free.status, free.is_replay()), (201, false));
    assert_ne!(free.header("x-operation-id"), id);
}

/// The pause between attempts is longer than the lease; the lease is renewed.
#[tokio::test]
async fn a_lease_is_renewed_while_the_operation_runs() {
    let origin = answering(&[503]).run().await;
    let class = "lease = \"2s\"\nmax_attempts = 2\nbackoff = { first = \"1h\", max = \"1h\" }";
    let text = format!(
        "[classes.own]\n{class}\n{}",
        payments("class = \"own\"\ntimeout = \"2s\"")
    );
    let gateway = configured(&origin, &text).run().await;
    let _first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let id = status(&gateway, "k").await["operation_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let lease_until = async || shown(&gateway, &id).await["lease_until"].clone();
    for _ in 0..4 {
        let now = lease_until().await;
        until(async || lease_until().await != now).await;
    }
    let document = shown(&gateway, &id).await;
    assert_eq!(document["terms"]["lease"], "2s");
    let lived = between(&document, "created_at", "lease_until");
    assert!(lived > 2_000, "{lived} ms");
    let again = gateway.post("/payments", "k").header("prefer", "wait=0");
    assert_eq!(word(&again.send().await), "409 in-progress");
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn in_flight_wait_ends_after_the_classs_or_the_callers_limit() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = classy(&origin, "in_flight = \"wait\"\nwait = \"100ms\"").await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    for prefer in ["", "wait=600", "wait=0"] {
        let ask = gateway.post("/payments", "k");
        let ask = if prefer.is_empty() {
            ask
        } else {
            ask.header("prefer", prefer)
        };
        let late = ask.send().await;
        assert_eq!(word(&late), "409 in-progress", "{prefer}");
        assert_eq!(late.header("retry-after"), "1");
        assert_eq!(late.header("idempotency-status"), "processing");
    }
    // A recovery request waits no longer than that.
    let recovery = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(word(&recovery), "409 in-progress");
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn in_flight_reject_refuses_at_once_and_replays_later() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = classy(&origin, "in_flight = \"reject\"").await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!(word(&again), "409 in-progress");
    let other = gateway.post("/payments", "k").body("other").send().await;
    assert_eq!(word(&other), "422 key-reused", "which beats in-progress");
    origin.open();
    first.await.unwrap();
    assert!(gateway.post("/payments", "k").send().await.is_replay());
}

#[tokio::test]
async fn in_flight_accept_answers_202_with_a_working_location() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = classy(&origin, "in_flight = \"accept\"").await;
    // The first request waits, unless it asks for an asynchronous answer.
    let first = gateway.post("/payments", "k1").spawn();
    origin.called(1).await;
    let duplicate = gateway.post("/payments", "k1").send().await;
    let hasty = gateway
        .post("/payments", "k2")
        .header("prefer", "respond-async");
    let hasty = hasty.send().await;
    for (answer, key) in [(&duplicate, "k1"), (&hasty, "k2")] {
        assert_eq!(answer.status, 202, "{key}");
        assert_eq!(answer.header("idempotency-status"), "processing");
        assert_eq!(answer.header("cache-control"), "no-store");
        let place = format!("/payments/by-idempotency-key/{key}/status");
        assert_eq!(answer.header("location"), place);
        let status = gateway.get(&place).send().await.json();
        assert_eq!(status, answer.json());
        assert_eq!(
            (&status["state"], &status["status"]),
            (&json!("running"), &json!("processing"))
        );
        assert_eq!(status["operation_id"], answer.header("x-operation-id"));
        let output = gateway
            .get(&place.replace("/status", "/output"))
            .send()
            .await;
        assert_eq!(output.status, 202, "not yet");
    }
    origin.called(2).await;
    origin.open();
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    for key in ["k1", "k2"] {
        let path = format!("/payments/by-idempotency-key/{key}");
        let reply = gateway.get(&path).send().await;
        assert_eq!((reply.status, reply.text()), (201, "paid"), "{key}");
        assert_eq!(status(&gateway, key).await["state"], "completed");
    }
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn a_quick_reply_is_returned_despite_respond_async() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "in_flight = \"accept\"").await;
    let prefer = "respond-async, wait=60";
    let answer = gateway.post("/payments", "k").header("prefer", prefer);
    let answer = answer.send().await;
    assert_eq!((answer.status, answer.text()), (201, "paid"));
}

/// Without `accept` the preference has no effect.
#[tokio::test]
async fn respond_async_is_ignored_without_accept() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = classy(&origin, "in_flight = \"wait\"").await;
    let first = gateway
        .post("/payments", "k")
        .header("prefer", "respond-async");
    let first = first.spawn();
    origin.called(1).await;
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
}

#[rstest]
#[case("422", "422 key-reused", false)]
#[case("409", "409 key-reused", false)]
#[case("replay", "201", true)]
#[tokio::test]
async fn mismatch(#[case] setting: &str, #[case] want: &str, #[case] replays: bool) {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, &format!("mismatch = \"{setting}\"")).await;
    let first = gateway.post("/payments", "k").body("10").send().await;
    let other = gateway.post("/payments", "k").body("20").send().await;
    assert_eq!((&*word(&other), other.is_replay()), (want, replays));
    if !replays {
        let id = first.header("x-operation-id");
        assert!(!other.text().contains(id), "the operation is not revealed");
        assert_eq!(other.header("x-operation-id"), "");
        let json = other.json();
        assert_eq!(
            (&json["retryable"], &json["safe_new_key"]),
            (&json!(false), &json!(true))
        );
    }
    let again = gateway.post("/payments", "k").body("10").send().await;
    assert_eq!((again.text(), again.is_replay()), ("paid", true));
    assert_eq!(origin.runs(), 1);
}

/// `replay` ignores a different body, but never returns another caller's reply.
#[tokio::test]
async fn mismatch_replay_never_returns_another_callers_reply() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "mismatch = \"replay\"").await;
    let ask = |who: &str| gateway.post("/payments", "k").header("authorization", who);
    ask("Bearer a").send().await;
    assert!(ask("Bearer a").body("other").send().await.is_replay());
    assert_eq!(word(&ask("Bearer b").send().await), "422 key-reused");
}

#[tokio::test]
async fn ttl_basis_creation_counts_from_the_claim() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = classy(&origin, "ttl_basis = \"creation\"\nretention = \"1h\"").await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let begun = status(&gateway, "k").await;
    // Some time passes before the answer.
    let begin = std::time::Instant::now();
    while begin.elapsed().as_millis() < 50 {
        tokio::time::sleep(PAUSE).await;
    }
    origin.open();
    first.await.unwrap();
    let done = status(&gateway, "k").await;
    assert_eq!(done["created_at"], begun["created_at"]);
    assert_eq!(between(&done, "created_at", "expires_at"), 3_600_000);
    assert!(between(&done, "completed_at", "expires_at") < 3_600_000);
}

#[rstest]
#[case::retry("POST /payments")]
#[case::by_key("GET /payments/by-idempotency-key/k")]
#[case::output("GET /payments/by-idempotency-key/k/output")]
#[tokio::test]
async fn ttl_basis_access_counts_from_the_last_replay(#[case] what: &str) {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "ttl_basis = \"access\"\nretention = \"10s\"").await;
    gateway.post("/payments", "k").send().await;
    let first = status(&gateway, "k").await;
    // With a precision of a tenth of the retention, at least a second: not every
    // replay is recorded.
    loop {
        let again = gateway.request(what).key("k").send().await;
        assert!(again.is_replay(), "{}", again.text());
        let now = status(&gateway, "k").await;
        assert_eq!(now["completed_at"], first["completed_at"]);
        if between(&now, "completed_at", "expires_at") > 10_500 {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn ttl_basis_completion_is_not_extended_by_replays() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "retention = \"300ms\"").await;
    let ask = || gateway.post("/payments", "k");
    let first = ask().send().await;
    let late = ask_until(ask, |answer| {
        let same = answer.header("idempotency-expires") == first.header("idempotency-expires");
        assert!(same || !answer.is_replay());
        !answer.is_replay()
    });
    assert_eq!(late.await.status, 201);
    assert_eq!(origin.runs(), 2);
}

/// A strict reply expires on time; a lazy one is replayed until the sweeper removes
/// it.
#[tokio::test]
async fn expiry_is_strict_or_lazy() {
    let origin = origin().reply(201, "paid").run().await;
    let text = [
        "[classes.strict]\nretention = \"200ms\"\nexpiry = \"strict\"\n",
        "[classes.lazy]\nretention = \"200ms\"\nexpiry = \"lazy\"\n",
        &route("a.strict", "POST", "/strict", "class = \"strict\""),
        &route("a.lazy", "POST", "/lazy", "class = \"lazy\""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let first = gateway.post("/lazy", "k").send().await;
    let strict = || gateway.post("/strict", "k");
    strict().send().await;
    let late = ask_until(strict, |answer| !answer.is_replay()).await;
    assert_eq!(late.status, 201, "it ran again");
    let lazy = gateway.post("/lazy", "k").send().await;
    assert!(lazy.is_replay());
    let id = "x-operation-id";
    assert_eq!(lazy.header(id), first.header(id));
    assert_eq!(origin.runs(), 3);
}

#[tokio::test]
async fn keep_expired_shows_the_operation_to_operators_and_frees_its_key() {
    let origin = origin().replying(|_, run| Reply::new(201, format!("run {run}")));
    let origin = origin.run().await;
    let gateway = classy(&origin, "retention = \"100ms\"\nkeep_expired = \"1h\"").await;
    let first = gateway.post("/payments", "k").body("10").send().await;
    let id = first.header("x-operation-id");
    let by_key = || gateway.get("/payments/by-idempotency-key/k");
    ask_until(by_key, |answer| answer.status == 404).await;
    let by_id = gateway
        .get(&format!("/api/v1/operations/{id}"))
        .send()
        .await;
    assert_eq!(word(&by_id), "404 no-operation", "to its caller it is gone");

    let trace = shown(&gateway, id).await;
    assert_eq!(trace["state"], "expired");
    assert_eq!(trace["original_status"], 201);
    assert_eq!(trace["reply"]["kept"], "gone");
    let body = look(&gateway, &format!("/admin/v1/operations/{id}?body=1")).await;
    assert!(!body.text().contains("run 1"), "{}", body.text());
    let listed = look(&gateway, "/admin/v1/operations?key=k&state=expired").await;
    assert_eq!(listed.json()["operations"].as_array().unwrap().len(), 1);

    // The key is free, also for a different request.
    let next = gateway.post("/payments", "k").body("20").send().await;
    assert_eq!((next.status, next.text()), (201, "run 2"));
}

#[tokio::test]
async fn a_run_time_change_of_a_class_applies_to_new_operations_only() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "retention = \"1h\"").await;
    gateway.post("/payments", "before").send().await;
    let before = status(&gateway, "before").await;
    let change = json!({"settings": {"retention": "2h", "mismatch": "409"}, "why": "a test"});
    let class = operate(&gateway, "/admin/v1/classes/own", change).await;
    assert_eq!(class["settings"]["retention"], "2h");
    assert_eq!(class["sources"]["retention"], "changed");

    gateway.post("/payments", "after").send().await;
    let after = status(&gateway, "after").await;
    assert_eq!(between(&after, "completed_at", "expires_at"), 7_200_000);
    assert_eq!(
        status(&gateway, "before").await,
        before,
        "it keeps its time"
    );
    // Settings of the request, not of the record, apply at once.
    let other = gateway
        .post("/payments", "before")
        .body("other")
        .send()
        .await;
    assert_eq!(word(&other), "409 key-reused");

    operate(
        &gateway,
        "/admin/v1/classes/own/unset",
        json!({"why": "a test"}),
    )
    .await;
    gateway.post("/payments", "later").send().await;
    let later = status(&gateway, "later").await;
    assert_eq!(between(&later, "completed_at", "expires_at"), 3_600_000);
}

#[rstest]
#[case::lease(json!({"lease": "1s"}), "shorter than the 30s that an upstream")]
#[case::remember(json!({"remember": "1m"}), "shorter than the retention")]
#[case::nobody(json!({"on_unknown": "reconcile"}), "requires reconcile_url")]
#[case::nothing(json!({}), "nothing to change")]
#[tokio::test]
async fn an_invalid_change_of_a_class_is_refused(#[case] settings: Value, #[case] why: &str) {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = classy(&origin, "retention = \"1h\"").await;
    let before = look(&gateway, "/admin/v1/classes/own").await.json();
    let change = json!({"settings": settings, "why": "a test"}).to_string();
    let refused = gateway.change("/admin/v1/classes/own", &change);
    let refused = refused.host("localhost").send().await;
    assert!(refused.status >= 400, "{}", refused.text());
    assert!(refused.text().contains(why), "{}", refused.text());
    assert_eq!(look(&gateway, "/admin/v1/classes/own").await.json(), before);
}

/// A running operation keeps the terms of its claim when its class changes.
#[tokio::test]
async fn a_change_of_a_class_does_not_affect_running_operations() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = classy(&origin, "retention = \"1h\"").await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let change = json!({"settings": {"retention": "2h", "in_flight": "reject"}, "why": "a test"});
    operate(&gateway, "/admin/v1/classes/own", change).await;
    let duplicate = gateway.post("/payments", "k").send().await;
    assert_eq!(
        word(&duplicate),
        "409 in-progress",
        "a new request, a new word"
    );
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    let done = status(&gateway, "k").await;
    assert_eq!(between(&done, "completed_at", "expires_at"), 3_600_000);
}

/// The origin charges, then answers 500. Its runs are the charges.
#[rstest]
#[case::money("financial", &["500 unknown", "409 outcome-unknown", "409 outcome-unknown"], 1)]
#[case::default("interactive", &["500 released", "500 released", "500 released"], 3)]
#[case::events("webhook", &["500 released", "500 released", "500 released"], 3)]
#[tokio::test]
async fn a_charge_before_an_error_is_repeated_only_by_on_error_release(
    #[case] class: &str,
    #[case] want: &[&str],
    #[case] charges: usize,
) {
    let origin = answering(&[500]).run().await;
    // One attempt per claim: `webhook` would retry by itself.
    let text = format!(
        "[classes.{class}]\nmax_attempts = 1\n{}",
        payments(&format!("class = \"{class}\""))
    );
    let gateway = configured(&origin, &text).run().await;
    let mut got = Vec::new();
    for _ in want {
        let answer = gateway.post("/payments", "k").body("10").send().await;
        got.push(match word(&answer).as_str() {
            "500" => format!("500 {}", answer.header("idempotency-status")),
            problem => problem.to_owned(),
        });
    }
    assert_eq!(got, want);
    assert_eq!(origin.runs(), charges);
}

/// The outcome by `on_error`, status, route and hint.
#[rstest]
#[case::release("release", 500, "", "", "released")]
#[case::unknown("unknown", 500, "", "", "unknown")]
#[case::keep("keep", 500, "", "", "failed")]
#[case::other_errors("unknown", 507, "", "", "unknown")]
#[case::not_implemented("unknown", 501, "", "", "released")]
#[case::unavailable("keep", 503, "", "", "released")]
#[case::between("keep", 502, "", "", "unknown")]
#[case::between("release", 504, "", "", "unknown")]
#[case::refusals_are_no_errors("unknown", 422, "", "", "failed")]
#[case::route_keeps("unknown", 500, "keep_statuses = [500]", "", "failed")]
#[case::route_releases("keep", 500, "release_statuses = [500]", "", "released")]
#[case::upstream_keeps("unknown", 500, "release_statuses = [500]", "permanent", "failed")]
#[case::upstream_releases("unknown", 500, "keep_statuses = [500]", "transient", "released")]
#[tokio::test]
async fn on_error(
    #[case] setting: &str,
    #[case] status: u16,
    #[case] route: &str,
    #[case] hint: &'static str,
    #[case] want: &str,
) {
    let origin = origin().replying(move |_, run| {
        let reply = Reply::new(status, format!("run {run}"));
        match hint {
            "" => reply,
            hint => reply.header("idempotency-outcome", hint),
        }
    });
    let origin = origin.run().await;
    let text = format!(
        "[classes.own]\non_error = \"{setting}\"\n{}",
        payments(&format!("class = \"own\"\n{route}"))
    );
    let gateway = configured(&origin, &text).run().await;
    let first = gateway.post("/payments", "k").send().await;
    assert_eq!((first.status, first.text()), (status, "run 1"));
    assert_eq!(first.header("idempotency-status"), want);
    let again = gateway.post("/payments", "k").send().await;
    let got = match (again.is_replay(), origin.runs()) {
        (true, 1) => "failed",
        (false, 2) => "released",
        (false, 1) if word(&again) == "409 outcome-unknown" => "unknown",
        other => panic!("{other:?}: {again:?}"),
    };
    assert_eq!(got, want);
}

#[tokio::test]
async fn waiters_are_answered_at_once_after_an_unknown_error_and_an_operator_resolves_it() {
    let origin = answering(&[500, 201]).gated().run().await;
    let gateway = classy(&origin, "on_error = \"unknown\"").await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let second = gateway.post("/payments", "k").spawn();
    gateway.waiting(1).await;
    origin.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.status, first.text()), (500, "run 1"));
    assert_eq!(word(&second), "409 outcome-unknown");
    let recovered = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(word(&recovered), "409 outcome-unknown");
    let id = first.header("x-operation-id");
    let path = format!("/admin/v1/operations/{id}/resolve");
    operate(
        &gateway,
        &path,
        json!({ "outcome": "not_run", "why": "rolled back" }),
    )
    .await;
    origin.open();
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!((again.status, again.text()), (201, "run 2"));
}

#[tokio::test]
async fn on_error_changes_at_run_time() {
    let origin = answering(&[500]).run().await;
    let gateway = configured(&origin, &payments("class = \"financial\""));
    let gateway = gateway.run().await;
    let status = async |key: &str| {
        let answer = gateway.post("/payments", key).send().await;
        answer.header("idempotency-status").to_owned()
    };
    assert_eq!(status("before").await, "unknown");
    let change = json!({ "settings": { "on_error": "release" }, "why": "it rolls back" });
    let changed = operate(&gateway, "/admin/v1/classes/financial", change).await;
    assert_eq!(changed["settings"]["on_error"], "release");
    assert_eq!(changed["sources"]["on_error"], "changed");
    assert_eq!(status("after").await, "released");
}
