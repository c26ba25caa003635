//! Trailers of answers, over both protocols, forwarded and replayed.

use rstest::rstest;

use crate::harness::{Answer, ClientRequest, OriginBuilder, gateway_to, origin};

fn summed() -> OriginBuilder {
    origin()
        .reply(201, "paid")
        .trailer("x-checksum", "7")
        .trailer("x-rows", "1")
}

#[derive(Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

#[rstest]
#[case::http1(Protocol::Http1, Protocol::Http1)]
#[case::http2(Protocol::Http2, Protocol::Http2)]
#[case::http1_to_http2(Protocol::Http1, Protocol::Http2)]
#[case::http2_to_http1(Protocol::Http2, Protocol::Http1)]
#[tokio::test]
async fn trailers_pass_and_are_replayed(#[case] client: Protocol, #[case] upstream: Protocol) {
    let origin = summed().run().await;
    let url = match upstream {
        Protocol::Http1 => origin.url(),
        Protocol::Http2 => origin.h2c_url(),
    };
    let gateway = gateway_to(&url).run().await;
    let ask = |what: ClientRequest| match client {
        Protocol::Http1 => what.header("te", "trailers").send(),
        Protocol::Http2 => what.header("te", "trailers").h2c().send(),
    };
    check(&ask(gateway.get("/report")).await);
    check(&ask(gateway.post("/report", "k")).await);
    let again = ask(gateway.post("/report", "k")).await;
    check(&again);
    assert!(again.is_replay());
    assert_eq!(origin.runs(), 2);
}

fn check(answer: &Answer) {
    assert_eq!((answer.status, answer.text()), (201, "paid"));
    let trailer = |name: &str| {
        answer
            .trailers
            .get(name)
            .map(|value| value.to_str().unwrap())
    };
    assert_eq!(
        (trailer("x-checksum"), trailer("x-rows")),
        (Some("7"), Some("1"))
    );
}

#[tokio::test]
async fn a_client_without_te_trailers_gets_only_the_body() {
    let origin = summed().run().await;
    let gateway = gateway_to(&origin.h2c_url()).run().await;
    for _ in 0..2 {
        let answer = gateway.post("/report", "k").send().await;
        assert_eq!((answer.status, answer.text()), (201, "paid"));
        assert!(answer.trailers.is_empty());
    }
}

#[tokio::test]
async fn trailers_cannot_contain_forbidden_headers() {
    let origin = summed()
        .trailer("set-cookie", "s=1")
        .trailer("x-operation-id", "op_forged")
        .trailer("idempotent-replayed", "true")
        .trailer("content-length", "99")
        .run()
        .await;
    let gateway = gateway_to(&origin.url()).run().await;
    let ask = || {
        gateway
            .post("/report", "k")
            .header("te", "trailers")
            .h2c()
            .send()
    };
    let (first, again) = (ask().await, ask().await);
    check(&first);
    check(&again);
    assert_eq!(again.trailers.len(), 2, "{:?}", again.trailers);
    assert!(!first.trailers.contains_key("x-operation-id"));
    assert!(!first.trailers.contains_key("content-length"));
}
