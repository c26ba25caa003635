//! The key header: which keys are equal, and which are refused.

use rstest::rstest;

use crate::harness::{gateway, origin};

#[rstest]
#[case::quoted("\"k-1\"")]
#[case::with_parameters("\"k-1\";a=1;b")]
#[case::with_blanks("  k-1\t")]
#[tokio::test]
async fn quoted_and_bare_keys_are_the_same(#[case] spelling: &str) {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    gateway.post("/payments", "k-1").send().await;
    let again = gateway.post("/payments", spelling).send().await;
    assert_eq!(
        (again.status, again.is_replay(), origin.runs()),
        (201, true, 1)
    );
}

#[tokio::test]
async fn case_matters_in_keys() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).run().await;
    gateway.post("/payments", "k").send().await;
    gateway.post("/payments", "K").send().await;
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn the_longest_key_is_accepted() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).run().await;
    let key = "~".repeat(255);
    gateway.post("/payments", &key).send().await;
    assert!(gateway.post("/payments", &key).send().await.is_replay());
}

#[rstest]
#[case::empty(b"", "empty")]
#[case::empty_quoted(b"\"\"", "empty")]
#[case::too_long(&[b'k'; 256], "too-long")]
#[case::blank(b"a b", "charset")]
#[case::tab(b"a\tb", "charset")]
#[case::colon(b"a:b", "charset")]
#[case::parameter_of_a_bare_one(b"a;b=1", "charset")]
#[case::latin1(b"\xe9\xff", "charset")]
#[case::utf8("schlüssel".as_bytes(), "charset")]
#[case::blank_quoted(b"\"a b\"", "charset")]
#[case::namespaced(b"t-acme", "reserved-prefix")]
#[case::namespaced_quoted(b"\"t-acme\"", "reserved-prefix")]
#[case::unclosed(b"\"abc", "malformed")]
#[case::after_the_quote(b"\"abc\"def", "malformed")]
#[case::list(b"a, b", "multiple")]
#[tokio::test]
async fn a_malformed_key_is_refused_with_its_reason(
    #[case] key: &[u8],
    #[case] reason: &str,
    #[values("POST /payments", "PATCH /payments")] what: &str,
) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let ask = gateway.request(what).header("idempotency-key", key);
    let answer = ask.body("a").send().await;
    assert_eq!(answer.problem(), (400, "key-invalid".to_owned()));
    assert_eq!(answer.json()["reason"], reason);
    assert_eq!(origin.begun(), 0, "nothing is forwarded");
}

#[rstest]
#[case::different("k1", "k2")]
#[case::equal("k1", "k1")]
#[tokio::test]
async fn a_repeated_key_header_is_refused(#[case] one: &str, #[case] other: &str) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let answer = gateway.post("/payments", one).key(other).send().await;
    assert_eq!(answer.problem(), (400, "key-invalid".to_owned()));
    assert_eq!(answer.json()["reason"], "multiple");
    assert_eq!(origin.begun(), 0);
}

/// The body of a refused request is not read as the next request.
#[tokio::test]
async fn the_body_of_a_refused_request_is_not_the_next_request() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let body = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = body.len();
    let mut client = gateway.raw().await;
    client
        .say(format!(
            "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a b\r\nContent-Length: {length}\r\n\r\n{body}\
             GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ))
        .await;
    client.hear_out().await;
    let ledger = origin.ledger();
    assert!(
        ledger.iter().all(|seen| seen.target == "/next"),
        "{ledger:?}"
    );
}
