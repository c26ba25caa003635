//! The headers that the origin receives, and those of the client that it never
//! receives.

use rstest::rstest;

use crate::harness::{gateway, gateway_to, origin, raw_origin};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn the_origin_receives_the_caller_and_the_grant() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).run().await;
    let answer = gateway
        .post("/payments?a=1", "\"k-1\"")
        .body("a")
        .send()
        .await;
    let seen = origin.only();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str(), seen.text()),
        ("POST", "/payments?a=1", "a")
    );
    assert_eq!(
        seen.header("idempotency-key"),
        "t-_local:_local:client:anonymous:k-1"
    );
    assert_eq!(
        seen.header("x-operation-id"),
        answer.header("x-operation-id")
    );
    assert_eq!(seen.header("x-tenant-id"), "_local");
    assert_eq!(seen.header("x-project-id"), "_local");
    assert_eq!(seen.header("x-subject"), "client:anonymous");
    assert_eq!(seen.header("accept-encoding"), "identity");
    assert!(seen.header("idempotency-fence").parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn the_fence_rises_with_every_run() {
    let origin = origin().reply(503, "").run().await;
    let gateway = gateway(&origin).run().await;
    for _ in 0..3 {
        gateway.post("/payments", "k").send().await;
    }
    let fences: Vec<u64> = origin
        .ledger()
        .iter()
        .map(|seen| seen.header("idempotency-fence").parse().unwrap())
        .collect();
    assert!(
        fences.is_sorted_by(|a, b| a < b) && fences.len() == 3,
        "{fences:?}"
    );
}

#[rstest]
#[case::protected("POST /payments", Some("k"))]
#[case::passing("GET /payments", None)]
#[tokio::test]
async fn only_the_gateway_sets_forwarding_headers(#[case] what: &str, #[case] key: Option<&str>) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let spoofed = [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-forwarded-user",
        "idempotency-fence",
        "x-operation-id",
        "x-tenant-id",
        "x-project-id",
        "x-subject",
        "x_tenant_id",
        "idempotency_key",
    ];
    let mut ask = gateway.request(what).header("x-mine", "kept");
    for name in spoofed {
        ask = ask.header(name, "victim");
    }
    if let Some(key) = key {
        ask = ask.key(key);
    }
    ask.send().await;
    let seen = origin.only();
    assert!(
        !format!("{:?}", seen.headers).contains("victim"),
        "{:?}",
        seen.headers
    );
    assert_eq!(seen.header("x-mine"), "kept");
    assert_eq!(seen.header("host"), "shop.example");
    assert_eq!(seen.header("x-forwarded-host"), "shop.example");
    assert_eq!(seen.header("x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.header("x-forwarded-proto"), "http");
}

#[rstest]
#[case::protected("POST /payments", Some("k"))]
#[case::passing("PUT /payments", None)]
#[tokio::test]
async fn hop_by_hop_headers_of_the_client_are_removed(
    #[case] what: &str,
    #[case] key: Option<&str>,
) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut ask = gateway
        .request(what)
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1")
        .header("keep-alive", "timeout=5")
        .header("proxy-connection", "keep-alive")
        .header("te", "trailers")
        .header("x-mine", "kept");
    if let Some(key) = key {
        ask = ask.key(key);
    }
    ask.body("a").send().await;
    let seen = origin.only();
    for name in ["connection", "x-hop", "keep-alive", "proxy-connection"] {
        assert_eq!(seen.header(name), "", "{name}");
    }
    assert_eq!(
        (seen.header("te"), seen.header("x-mine")),
        ("trailers", "kept")
    );
}

#[tokio::test]
async fn credentials_and_preferences_reach_the_origin() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    gateway
        .post("/payments", "k")
        .header("authorization", "Bearer t")
        .header("cookie", "a=1")
        .header("prefer", "return=minimal, wait=5")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .send()
        .await;
    let seen = origin.only();
    assert_eq!(seen.header("authorization"), "Bearer t");
    assert_eq!(seen.header("cookie"), "a=1");
    assert_eq!(
        seen.header("prefer"),
        "return=minimal",
        "how long to wait is between us"
    );
    assert!(seen.header("traceparent").starts_with("00-0af7"));
}

/// Framing is made anew: a correct length, and none of the client's framing.
#[tokio::test]
async fn a_protected_body_is_sent_with_its_length() {
    let origin = raw_origin(OK).await;
    let gateway = gateway_to(&origin.url()).run().await;
    let mut client = gateway.raw().await;
    client
        .say(
            "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nab\r\n1;x=y\r\nc\r\n0\r\nAuthorization: evil\r\n\r\n",
        )
        .await;
    assert_eq!(client.answers(1).await[0].status, 200);
    let seen = origin.only();
    assert_eq!(
        (seen.body.as_str(), seen.headers("content-length")),
        ("abc", vec!["3"])
    );
    assert!(seen.headers("transfer-encoding").is_empty());
    assert!(
        !seen.head.contains("evil"),
        "trailers are dropped: {}",
        seen.head
    );
}

/// The target is forwarded byte by byte, without its host.
#[rstest]
#[case("/a/../b/./c", "/a/../b/./c")]
#[case("//a//b/", "//a//b/")]
#[case("/a%2Fb%252F;x=1?q=%20&q=a+b&", "/a%2Fb%252F;x=1?q=%20&q=a+b&")]
#[case("http://elsewhere.example/a?b", "/a?b")]
#[case("/?", "/?")]
#[tokio::test]
async fn targets_are_not_rewritten(#[case] target: &str, #[case] want: &str) {
    let origin = raw_origin(OK).await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    for head in ["GET", "POST"] {
        let mut client = gateway.raw().await;
        client
            .say(format!(
                "{head} {target} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answers(1).await[0].status, 200);
    }
    let targets: Vec<_> = origin
        .ledger()
        .iter()
        .map(|seen| seen.target().to_owned())
        .collect();
    assert_eq!(targets, [want, want]);
}

#[tokio::test]
async fn options_for_the_whole_server_is_forwarded() {
    let origin = raw_origin(OK).await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let mut client = gateway.raw().await;
    client.say("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(client.answers(1).await[0].status, 200);
    assert!(
        origin.only().head.starts_with("OPTIONS * HTTP/1.1\r\n"),
        "{}",
        origin.only().head
    );
}

/// Only kept replies must be readable by every later client.
#[tokio::test]
async fn unprotected_responses_may_be_compressed() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    gateway
        .get("/report")
        .header("accept-encoding", "gzip, br")
        .send()
        .await;
    assert_eq!(origin.only().header("accept-encoding"), "gzip, br");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let origin =
        raw_origin("HTTP/1.1 200 OK\r\nx-target: {target}\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let mut client = gateway.raw().await;
    let targets = ["/1", "/2", "/1", "/3"];
    for target in targets {
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n");
        client
            .say(format!("{head}Content-Length: 1\r\n\r\na"))
            .await;
    }
    let answers = client.answers(4).await;
    let answered: Vec<_> = answers
        .iter()
        .flat_map(|answer| answer.message.headers("x-target"))
        .collect();
    assert_eq!(answered, targets);
    assert_eq!(origin.ledger().len(), 3, "one of them is a replay");
}

/// The upstream decides about a key on an unprotected request; but only the gateway
/// makes namespaced keys.
#[rstest]
#[case::a_key("k-1", "k-1")]
#[case::a_quoted_key("\"k-1\"", "\"k-1\"")]
#[case::a_forged_name("t-victim:shop:user:1:k", "")]
#[case::a_quoted_forged_name("\"t-victim:shop:user:1:k\"", "")]
#[tokio::test]
async fn a_namespaced_key_cannot_be_forged_on_an_unprotected_request(
    #[case] sent: &'static str,
    #[case] forwarded: &str,
) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    gateway
        .request("PUT /orders/1")
        .header("idempotency-key", sent)
        .send()
        .await;
    assert_eq!(origin.only().header("idempotency-key"), forwarded);
}

#[tokio::test]
async fn a_method_override_header_is_part_of_the_fingerprint() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    gateway.post("/orders/1", "k").send().await;
    let other = gateway
        .post("/orders/1", "k")
        .header("x-http-method-override", "DELETE");
    assert_eq!(other.send().await.problem(), (422, "key-reused".to_owned()));
    assert_eq!(origin.runs(), 1);
}
