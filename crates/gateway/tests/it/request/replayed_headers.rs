//! The parts of a reply that are replayed: headers, and answers without a body.

use bytes::Bytes;
use http::header::HeaderValue;
use rstest::rstest;

use crate::harness::{gateway, gateway_to, origin, raw_origin};

#[tokio::test]
async fn kept_headers_keep_their_bytes_order_and_repetition() {
    let origin = origin()
        .reply(201, Bytes::from_static(b"\0\xff\xfe"))
        .header("content-type", "application/octet-stream")
        .header("link", "</a>; rel=\"next\"")
        .header("etag", "\"1\"")
        .header("link", "</b>; rel=\"last\"")
        .header("x-name", "Zoë")
        .header("cache-control", "max-age=60")
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").send().await;
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!(first.header("cache-control"), "max-age=60");
    assert_eq!(again.header("cache-control"), "no-store");
    for answer in [first, again] {
        assert_eq!(answer.body, Bytes::from_static(b"\0\xff\xfe"));
        assert_eq!(
            answer.headers("link"),
            ["</a>; rel=\"next\"", "</b>; rel=\"last\""]
        );
        assert_eq!(answer.header("etag"), "\"1\"");
        assert_eq!(answer.header("content-type"), "application/octet-stream");
        let name = HeaderValue::from_bytes("Zoë".as_bytes()).unwrap();
        assert_eq!(answer.headers["x-name"], name);
    }
}

#[rstest]
#[case("set-cookie", "session=1")]
#[case("date", "Thu, 01 Jan 1970 00:00:00 GMT")]
#[case("age", "7")]
#[case("server", "origin/1")]
#[case("via", "1.1 cache")]
#[case("alt-svc", "h3=\":443\"")]
#[case("server-timing", "db;dur=5")]
#[case("www-authenticate", "Basic")]
#[case("proxy-authenticate", "Basic")]
#[case("authentication-info", "nextnonce=1")]
#[case("retry-after", "30")]
#[case("ratelimit", "limit=10")]
#[case("ratelimit-remaining", "9")]
#[case("x-ratelimit-limit", "10")]
#[case("x-rate-limit-reset", "60")]
#[case("access-control-allow-origin", "*")]
#[case("access-control-expose-headers", "etag")]
#[case(
    "traceparent",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)]
#[case("tracestate", "a=1")]
#[tokio::test]
async fn headers_of_one_response_are_not_replayed(#[case] name: &'static str, #[case] value: &str) {
    let origin = origin().header(name, value).run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let first = gateway.post("/payments", "k").send().await;
    let again = gateway.post("/payments", "k").send().await;
    assert_eq!(first.header(name), value, "the first caller gets it");
    assert!(again.is_replay());
    assert_ne!(again.header(name), value, "nobody else does");
}

#[tokio::test]
async fn hop_by_hop_headers_of_the_origin_are_removed() {
    let origin = raw_origin(
        "HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\nx-hop: 1\r\n\
         proxy-connection: a\r\nx-kept: 1\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let pass = || gateway.get("/payments").send();
    let protected = || gateway.post("/payments", "k").send();
    for answer in [pass().await, protected().await, protected().await] {
        assert_eq!((answer.header("x-kept"), answer.text()), ("1", "ok"));
        for name in ["connection", "keep-alive", "x-hop", "proxy-connection"] {
            assert_eq!(answer.header(name), "", "{name}");
        }
    }
}

#[tokio::test]
async fn an_origin_cannot_set_the_gateways_headers() {
    let spoofed = [
        ("idempotency-status", "bypassed"),
        ("idempotency-expires", "2000-01-01T00:00:00Z"),
        ("idempotent-replayed", "true"),
        ("x-operation-id", "op_spoofed"),
        ("x-restate-id", "inv_1"),
    ];
    let builder = spoofed.iter().fold(origin(), |builder, (name, value)| {
        builder.header(name, value)
    });
    let origin = builder.run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let first = gateway.post("/payments", "k").send().await;
    let again = gateway.post("/payments", "k").send().await;
    assert!(!first.is_replay() && again.is_replay());
    for answer in [first, again] {
        for (name, value) in spoofed {
            assert!(
                !(answer.headers(name).contains(&value) && value != "true"),
                "{name}"
            );
        }
    }
}

#[rstest]
#[case(204)]
#[case(304)]
#[tokio::test]
async fn an_answer_without_a_body_is_replayed_without_one(#[case] status: u16) {
    let origin = origin()
        .reply(status, "")
        .header("etag", "\"1\"")
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let mut client = gateway.raw().await;
    let ask =
        "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n";
    // The answer ends with its head, so the next answer can be read.
    for replayed in [false, true, true] {
        client.say(ask).await;
        let head = client.hear("\r\n\r\n").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.contains("etag: \"1\""), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
        assert_eq!(
            head.contains("idempotent-replayed: true"),
            replayed,
            "{head}"
        );
    }
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn interim_answers_are_never_kept() {
    let origin = raw_origin(
        "HTTP/1.1 100 Continue\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nlink: </early.css>\r\n\r\n\
         HTTP/1.1 201 Created\r\nx-final: 1\r\ncontent-length: 4\r\n\r\npaid",
    )
    .await;
    let gateway = gateway_to(&origin.url()).run().await;
    let first = gateway.post("/payments", "k").send().await;
    let again = gateway.post("/payments", "k").send().await;
    assert!(!first.is_replay() && again.is_replay());
    for answer in [first, again] {
        assert_eq!((answer.status, answer.text()), (201, "paid"));
        assert_eq!((answer.header("x-final"), answer.header("link")), ("1", ""));
    }
    assert_eq!(origin.ledger().len(), 1);
}

#[tokio::test]
async fn expect_100_continue_is_answered() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    for replayed in [false, true] {
        let mut client = gateway.raw().await;
        client
            .say(
                "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\n\
                 Connection: close\r\nContent-Length: 3\r\n\r\n",
            )
            .await;
        assert_eq!(
            client.hear("\r\n\r\n").await,
            "HTTP/1.1 100 Continue\r\n\r\n"
        );
        client.say("abc").await;
        let answer = client.hear_out().await;
        assert!(
            answer.starts_with("HTTP/1.1 201 ") && answer.ends_with("\r\n\r\npaid"),
            "{answer}"
        );
        assert_eq!(
            answer.contains("idempotent-replayed: true"),
            replayed,
            "{answer}"
        );
    }
    let seen = origin.only();
    assert_eq!((seen.text(), seen.header("expect")), ("abc", ""));
}

#[tokio::test]
async fn a_refused_request_gets_no_100_continue() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(
            "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a b\r\nExpect: 100-continue\r\n\
             Content-Length: 3\r\n\r\n",
        )
        .await;
    let answers = client.answers(1).await;
    assert_eq!(
        answers
            .iter()
            .map(|answer| answer.status)
            .collect::<Vec<_>>(),
        [400]
    );
}
