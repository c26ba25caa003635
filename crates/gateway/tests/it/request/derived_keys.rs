//! Keys that the gateway derives from parts of a request, for clients that send
//! none.

use rstest::rstest;
use serde_json::json;

use crate::harness::credentials::{API_KEYS, Sent, api_key};
use crate::harness::fixture::{PAUSE, echo, payments, route, shown, word};
use crate::harness::{ClientRequest, Origin, Running, configured, origin};

const BY_ORDER: &str = "derived_key = { from = [\"/order/id\"], window = \"10m\" }";

async fn one(origin: &Origin, settings: &str) -> Running {
    configured(origin, &payments(settings)).run().await
}

fn order(gateway: &Running, body: &'static str) -> ClientRequest {
    gateway.request("POST /payments").json(body)
}

#[tokio::test]
async fn the_same_parts_derive_the_same_key_and_the_answer_says_so() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = one(&origin, BY_ORDER).await;
    let body = r#"{"order": {"id": 7}, "amount": 10}"#;
    let first = order(&gateway, body).send().await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    let again = order(&gateway, r#"{"amount":10,"order":{"id":7}}"#)
        .send()
        .await;
    assert_eq!((again.text(), again.is_replay()), ("paid", true));
    for answer in [&first, &again] {
        assert_eq!(answer.header("idempotency-key-source"), "derived");
        assert_ne!(answer.header("x-operation-id"), "");
    }
    let seen = origin.only();
    let name = seen.header("idempotency-key");
    let key = name
        .strip_prefix("t-_local:_local:client:anonymous:")
        .unwrap();
    assert!(
        key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{key}"
    );

    let other = order(&gateway, r#"{"order": {"id": 8}, "amount": 10}"#)
        .send()
        .await;
    assert!(!other.is_replay());
    let changed = order(&gateway, r#"{"order": {"id": 7}, "amount": 20}"#)
        .send()
        .await;
    assert_eq!(
        word(&changed),
        "422 key-reused",
        "the same order, and another amount"
    );
}

#[tokio::test]
async fn a_large_body_derives_a_key_too() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = one(&origin, BY_ORDER).await;
    let note = "n".repeat(100 << 10);
    for is_replay in [false, true] {
        let body = format!(r#"{{"note": "{note}", "order": {{"id": 7}}}}"#);
        let answer = gateway.request("POST /payments").body(body).send().await;
        assert_eq!((answer.status, answer.is_replay()), (201, is_replay));
        assert_eq!(answer.header("idempotency-key-source"), "derived");
    }
}

#[tokio::test]
async fn a_derived_key_is_remembered_for_its_window() {
    let origin = origin().reply(201, "paid").run().await;
    let text = [
        route(
            "a.short",
            "POST",
            "/short",
            "derived_key = { from = [\"/id\"], window = \"1s\" }",
        ),
        route(
            "a.long",
            "POST",
            "/long",
            "derived_key = { from = [\"/id\"], window = \"10m\" }",
        ),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ask = |path: &str| {
        gateway
            .request(&format!("POST {path}"))
            .json(r#"{"id": 7}"#)
            .send()
    };
    let long = ask("/long").await;
    let terms = shown(&gateway, long.header("x-operation-id")).await["terms"].clone();
    assert_eq!(
        (&terms["retention"], &terms["remember"]),
        (&json!("10m"), &json!("10m"))
    );

    let first = ask("/short").await;
    let late = loop {
        let answer = ask("/short").await;
        if !answer.is_replay() {
            break answer;
        }
        tokio::time::sleep(PAUSE).await;
    };
    assert_eq!(late.status, 201);
    assert_ne!(
        late.header("x-operation-id"),
        first.header("x-operation-id")
    );
}

#[rstest]
#[case::required("policy = \"REQUIRED_A\"\n", "400 key-missing")]
#[case::accepted("policy = \"ACCEPTED\"\n", "201")]
#[case::by_default("", "201")]
#[tokio::test]
async fn no_key_is_derived_if_a_part_is_missing(#[case] policy: &str, #[case] want: &str) {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = one(&origin, &format!("{policy}{BY_ORDER}")).await;
    for body in [
        r#"{"amount": 10}"#,
        r#"{"order": {"id": ""}}"#,
        r#"{"order": {"id": null}}"#,
        "not JSON",
        "",
    ] {
        let runs = origin.runs();
        let answer = order(&gateway, body).send().await;
        assert_eq!(word(&answer), want, "{body}");
        assert_eq!(answer.header("idempotency-key-source"), "", "{body}");
        assert_eq!(answer.header("idempotency-status"), "", "{body}");
        if want == "201" {
            let seen = origin.ledger().pop().unwrap();
            assert_eq!(seen.text(), body, "it passes whole");
            assert_eq!(seen.header("idempotency-key"), "");
        } else {
            assert_eq!(origin.runs(), runs, "{body}");
        }
    }
}

#[tokio::test]
async fn a_key_in_the_header_beats_a_derived_key() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = one(&origin, BY_ORDER).await;
    let body = r#"{"order": {"id": 7}}"#;
    let derived = order(&gateway, body).send().await;
    let given = order(&gateway, body).key("own").send().await;
    assert!(!given.is_replay());
    assert_eq!(given.header("idempotency-key-source"), "");
    assert_ne!(
        given.header("x-operation-id"),
        derived.header("x-operation-id")
    );
    assert!(order(&gateway, body).key("own").send().await.is_replay());
    let bad = order(&gateway, body).key("a b").send().await;
    assert_eq!(
        word(&bad),
        "400 key-invalid",
        "a bad key is not passed over"
    );
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn a_derived_operation_is_recovered_by_its_id() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let class = "[classes.own]\nin_flight = \"accept\"\n";
    let text = [class, &payments(&format!("class = \"own\"\n{BY_ORDER}"))];
    let gateway = configured(&origin, &text.concat()).run().await;
    let body = r#"{"order": {"id": 7}}"#;
    let first = order(&gateway, body).spawn();
    origin.called(1).await;
    let again = order(&gateway, body).send().await;
    assert_eq!(
        (again.status, again.header("idempotency-key-source")),
        (202, "derived")
    );
    // The client does not know the key, so the answer names no location by key.
    let place = again.header("location").to_owned();
    let id = again.header("x-operation-id");
    assert_eq!(place, format!("/api/v1/operations/{id}/status"));
    assert_eq!(gateway.get(&place).send().await.json()["state"], "running");
    origin.open();
    first.await.unwrap();
    let reply = gateway
        .get(&format!("/api/v1/operations/{id}"))
        .send()
        .await;
    assert_eq!((reply.status, reply.text()), (201, "paid"));
}

/// A derived key belongs to its caller, whether or not the caller is one of its
/// parts.
#[rstest]
#[case("[\"/id\"]")]
#[case("[\"caller\", \"/id\"]")]
#[case("[\"caller\", \"endpoint\", \"/id\"]")]
#[tokio::test]
async fn the_same_parts_from_two_callers_are_two_operations(#[case] from: &str) {
    let origin = echo().run().await;
    let derived = format!("derived_key = {{ from = {from}, window = \"10m\" }}");
    let text = [API_KEYS, &payments(&derived)];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    let bob = api_key(&gateway, ("acme", "shop", "user:bob")).await;
    let first = order(&gateway, r#"{"id": 7}"#).by(&ann).send().await;
    let other = order(&gateway, r#"{"id": 7}"#).by(&bob).send().await;
    assert_eq!((first.is_replay(), other.is_replay()), (false, false));
    assert_eq!(origin.runs(), 2);
    let path = format!("/api/v1/operations/{}", first.header("x-operation-id"));
    assert_eq!(gateway.get(&path).by(&ann).send().await.status, 201);
    assert_eq!(
        word(&gateway.get(&path).by(&bob).send().await),
        "404 no-operation"
    );
}

/// Each part outside the JSON body distinguishes requests.
#[rstest]
#[case::header("header:X-Order")]
#[case::query("query:order")]
#[case::body("body")]
#[tokio::test]
async fn other_parts(#[case] part: &str) {
    let origin = origin().reply(201, "paid").run().await;
    let derived = format!("derived_key = {{ from = [\"{part}\"], window = \"10m\" }}");
    let gateway = one(&origin, &derived).await;
    let ask = |order: &'static str| {
        let query = if part.starts_with("query") { order } else { "" };
        let ask = gateway.request(&format!("POST /payments?order={query}"));
        match part {
            "body" => ask.body(order),
            "header:X-Order" => ask.header("x-order", order),
            _ => ask,
        }
    };
    let first = ask("7").send().await;
    assert_eq!(first.header("idempotency-key-source"), "derived");
    assert!(ask("7").send().await.is_replay());
    assert!(!ask("8").send().await.is_replay());
    assert_eq!(origin.runs(), 2);
}
