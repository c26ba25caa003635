//! HTTP/1 and HTTP/2 on either side, and HTTP/1.0.

use http::Version;
use rstest::rstest;

use crate::harness::{gateway, gateway_to, origin, raw_origin};

#[rstest]
#[case::in_and_out(true, true)]
#[case::in_only(true, false)]
#[case::out_only(false, true)]
#[tokio::test]
async fn http2_without_tls_is_served(#[case] inside: bool, #[case] outside: bool) {
    let origin = origin().reply(201, "paid").run().await;
    let url = if outside {
        origin.h2c_url()
    } else {
        origin.url()
    };
    let gateway = gateway_to(&url).run().await;
    let ask = || {
        let ask = gateway.post("/payments?a=1", "k").body("a");
        if inside { ask.h2c() } else { ask }.send()
    };
    let (first, again) = (ask().await, ask().await);
    assert_eq!((first.text(), first.is_replay()), ("paid", false));
    assert_eq!((again.text(), again.is_replay()), ("paid", true));
    let version = |two: bool| {
        if two {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        }
    };
    assert_eq!(first.version, version(inside));
    let seen = origin.only();
    assert_eq!(
        (seen.version, seen.target.as_str(), seen.text()),
        (version(outside), "/payments?a=1", "a")
    );
    assert_eq!(seen.header("x-forwarded-host"), "shop.example");
    assert_eq!(
        seen.header("idempotency-key"),
        "t-_local:_local:client:anonymous:k"
    );
}

#[tokio::test]
async fn a_reply_is_replayed_over_the_other_protocol() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    gateway.post("/payments", "k").body("a").send().await;
    let again = gateway.post("/payments", "k").body("a").h2c().send().await;
    assert_eq!(
        (again.text(), again.is_replay(), origin.runs()),
        ("paid", true, 1)
    );
}

#[tokio::test]
async fn a_lost_http2_origin_leaves_an_unknown_outcome() {
    let origin = origin().hanging_up().run().await;
    let gateway = gateway_to(&origin.h2c_url()).run().await;
    let first = gateway.post("/payments", "k").send().await;
    assert_eq!(first.problem(), (504, "outcome-unknown".to_owned()));
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!(again.problem(), (409, "outcome-unknown".to_owned()));
    assert_eq!(origin.runs(), 1);
}

/// HTTP/1.0 does not require a Host, but the forwarded HTTP/1.1 request does.
#[tokio::test]
async fn an_http10_request_without_a_host_is_forwarded_with_the_origins() {
    let origin = origin().reply(200, "ok").run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut client = gateway.raw().await;
    client.say("GET /payments HTTP/1.0\r\n\r\n").await;
    let answer = client.hear_out().await;
    assert!(
        answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("ok"),
        "{answer}"
    );
    assert_eq!(origin.only().header("host"), origin.address().to_string());
}

/// The version of an answer says how its connection goes on, and the client's
/// connection is the gateway's own.
#[tokio::test]
async fn an_http10_origin_does_not_lower_the_clients_version() {
    let origin = raw_origin("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let passed = gateway.get("/payments").send().await;
    let first = gateway.post("/payments", "k").body("a").send().await;
    let again = gateway.post("/payments", "k").body("a").send().await;
    for answer in [passed, first, again] {
        assert_eq!((answer.version, answer.text()), (Version::HTTP_11, "ok"));
    }
}

#[tokio::test]
async fn an_http2_host_with_a_user_before_it_is_refused() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let answer = gateway
        .get("/payments")
        .host("user@shop.example")
        .h2c()
        .send()
        .await;
    assert_eq!(answer.problem(), (400, "bad-request".to_owned()));
    assert_eq!(origin.begun(), 0);
}

#[tokio::test]
async fn cookies_split_over_lines_are_the_same_cookies() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let crumbs = gateway
        .post("/orders", "k")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    assert_eq!(crumbs.h2c().send().await.status, 200);
    assert_eq!(origin.only().header("cookie"), "a=1; b=2");
    let whole = gateway.post("/orders", "k").header("cookie", "a=1; b=2");
    assert!(whole.send().await.is_replay());
}
