//! Clients that disconnect before they are answered.

use crate::harness::{Reply, gateway, origin};

#[tokio::test]
async fn a_sent_request_completes_and_is_replayed_after_its_client_disconnects() {
    let origin = origin()
        .replying(|_, run| Reply::new(201, format!("run {run}")))
        .gated()
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let gone = gateway.post("/payments", "k").body("a").spawn();
    origin.called(1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    origin.open();
    gateway.idle().await;
    let again = gateway.post("/payments", "k").body("a").send().await;
    assert_eq!((again.text(), again.is_replay()), ("run 1", true));
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn an_http2_client_that_disconnects_cancels_nothing() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let gone = gateway.post("/payments", "k").body("a").h2c().spawn();
    origin.called(1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    origin.open();
    gateway.idle().await;
    assert!(
        gateway
            .post("/payments", "k")
            .body("a")
            .h2c()
            .send()
            .await
            .is_replay()
    );
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_leaves_no_trace() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).run().await;
    for head in [
        "Content-Length: 10\r\n\r\nhalf",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let mut client = gateway.raw().await;
        client
            .say(format!(
                "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n{head}"
            ))
            .await;
    }
    let status = gateway
        .get("/payments/by-idempotency-key/k/status")
        .send()
        .await;
    assert_eq!(status.problem(), (404, "no-operation".to_owned()));
    // After the drain no more requests can arrive.
    gateway.drain().await;
    assert_eq!(origin.begun(), 0);
}

#[tokio::test]
async fn a_key_whose_first_body_broke_off_is_free() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    let mut client = gateway.raw().await;
    client
        .say("POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\na")
        .await;
    drop(client);
    let whole = gateway.post("/payments", "k").body("ab").send().await;
    assert_eq!((whole.status, whole.is_replay()), (201, false));
    assert_eq!(origin.only().text(), "ab");
}
