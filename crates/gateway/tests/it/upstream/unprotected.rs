//! Unprotected requests: forwarded unchanged, streaming both ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http_body_util::channel::Channel;
use onceward_http::body::{BoxError, boxed};
use rstest::rstest;
use sha2::{Digest, Sha256};

use crate::harness::{
    BULK_BYTES, Reply, Reserved, bulk, bulk_hash, gateway, gateway_to, origin, settled,
};

#[rstest]
#[case::get("GET /payments?a=1", Some("k"))]
#[case::head("HEAD /payments?a=1", Some("k"))]
#[case::options("OPTIONS /payments?a=1", Some("k"))]
#[case::put("PUT /payments?a=1", Some("k"))]
#[case::delete("DELETE /payments?a=1", Some("k"))]
#[case::post_without_a_key("POST /payments?a=1", None)]
#[case::patch_without_a_key("PATCH /payments?a=1", None)]
#[case::a_method_of_ones_own("REPORT /payments?a=1", None)]
#[tokio::test]
async fn unprotected_requests_are_forwarded_each_time(
    #[case] what: &str,
    #[case] key: Option<&str>,
) {
    let origin = origin()
        .reply(200, "ok")
        .header("set-cookie", "a=1")
        .run()
        .await;
    let gateway = gateway(&origin).in_memory().run().await;
    for _ in 0..2 {
        let mut ask = gateway.request(what);
        if let Some(key) = key {
            ask = ask.key(key);
        }
        let answer = ask.body("a").send().await;
        assert_eq!((answer.status, answer.header("set-cookie")), (200, "a=1"));
        assert_eq!(answer.header("content-length"), "2", "also of a HEAD");
        assert_eq!(answer.header("idempotency-status"), "");
        assert!(!answer.is_replay());
    }
    for seen in origin.ledger() {
        assert_eq!(format!("{} {}", seen.method, seen.target), what);
        assert_eq!(seen.text(), "a");
        assert_eq!(seen.header("x-operation-id"), "");
    }
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn server_sent_events_arrive_one_by_one() {
    let origin = origin()
        .header("content-type", "text/event-stream")
        .streaming()
        .run()
        .await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut events = gateway.get("/events").begin().await;
    for event in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        origin.emit(event);
        assert_eq!(events.piece().await, event);
    }
    origin.end();
    assert!(events.ends().await);
}

#[rstest]
#[case::http1(false)]
#[case::http2(true)]
#[tokio::test]
async fn both_directions_stream_at_the_same_time(#[case] h2c: bool) {
    let origin = origin().echoing().run().await;
    let url = if h2c { origin.h2c_url() } else { origin.url() };
    let gateway = gateway_to(&url).in_memory().run().await;
    let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
    let ask = gateway.request("POST /chat").stream(boxed(body));
    let mut echo = if h2c { ask.h2c() } else { ask }.begin().await;
    for word in ["one", "two", "three"] {
        sender.send_data(word.into()).await.unwrap();
        assert_eq!(echo.piece().await, word);
    }
    drop(sender);
    assert!(echo.ends().await);
}

#[tokio::test]
async fn a_large_download_is_not_buffered() {
    let origin = origin().bulky().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut download = gateway.get("/bulk").begin().await;
    let ahead = settled(|| origin.emitted()).await;
    assert!(
        ahead < BULK_BYTES / 2,
        "{ahead} bytes are on the way to a client that does not read"
    );
    let mut hash = Sha256::new();
    while let Some(piece) = download.next().await {
        hash.update(piece.unwrap());
    }
    assert_eq!(HEXLOWER.encode(&hash.finalize()), bulk_hash());
}

#[tokio::test]
async fn a_large_upload_is_not_buffered() {
    let origin = origin().hashing_when_open().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let sent = Arc::<AtomicUsize>::default();
    let upload = gateway
        .request("PUT /bulk")
        .stream(bulk(sent.clone()))
        .spawn();
    let ahead = settled(|| sent.load(Ordering::SeqCst)).await;
    assert!(
        ahead < BULK_BYTES / 2,
        "{ahead} bytes are on the way to an origin that does not read"
    );
    origin.open();
    assert_eq!(upload.await.unwrap().status, 200);
    assert_eq!(origin.only().text(), bulk_hash());
}

/// The upstream's timeout does not apply to a client that sends slowly.
#[tokio::test]
async fn an_upload_may_take_longer_than_the_upstreams_timeout() {
    let origin = origin().reply(201, "stored").run().await;
    let timeout = Duration::from_secs(1);
    let gateway = gateway(&origin)
        .in_memory()
        .upstream_timeout(timeout)
        .run()
        .await;
    let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
    let upload = gateway.request("PUT /bulk").stream(boxed(body)).spawn();
    for _ in 0..6 {
        sender.send_data("piece ".into()).await.unwrap();
        tokio::time::sleep(timeout / 4).await;
    }
    drop(sender);
    assert_eq!(upload.await.unwrap().text(), "stored");
    assert_eq!(origin.only().text(), "piece ".repeat(6));
}

#[tokio::test]
async fn a_get_may_have_a_body_of_unknown_length() {
    let origin = origin()
        .replying(|seen, _| Reply::new(200, seen.body.clone()))
        .run()
        .await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say("GET /search HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nquery\r\n0\r\n\r\n")
        .await;
    assert_eq!(client.answers(1).await[0].message.body, "query");
    assert_eq!(origin.only().text(), "query");
}

#[tokio::test]
async fn an_unreachable_origin_is_502() {
    let nobody = Reserved::new();
    let gateway = gateway_to(&nobody.url()).in_memory().run().await;
    let answer = gateway.get("/payments").send().await;
    assert_eq!(answer.problem(), (502, "upstream-unreachable".to_owned()));
    assert_ne!(answer.header("retry-after"), "");
}

#[tokio::test]
async fn an_origin_that_closes_or_times_out_is_504() {
    for builder in [origin().hanging_up(), origin().gated()] {
        let origin = builder.run().await;
        let gateway = gateway(&origin)
            .in_memory()
            .upstream_timeout(Duration::from_secs(1))
            .run()
            .await;
        let answer = gateway.request("PUT /payments").body("a").send().await;
        assert_eq!(answer.problem(), (504, "outcome-unknown".to_owned()));
        assert_eq!(origin.runs(), 1, "it is never sent again");
    }
}

#[tokio::test]
async fn an_incomplete_download_is_visible_to_the_client() {
    let origin = origin().streaming().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    origin.emit("half");
    let mut download = gateway.get("/bulk").begin().await;
    assert_eq!(download.piece().await, "half");
    origin.break_off();
    assert!(download.next().await.unwrap().is_err());
}

#[tokio::test]
async fn a_client_that_disconnects_ends_its_unprotected_request() {
    let origin = origin().bulky().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    drop(gateway.get("/bulk").begin().await);
    let taken = settled(|| origin.emitted()).await;
    assert!(taken < BULK_BYTES, "the rest is not fetched for nobody");
}
