//! Replies that are too large to keep, and streams.

use std::time::Duration;

use rstest::rstest;

use crate::harness::{Answering, Running, gateway, origin};

const LIMIT: usize = 1000;

#[rstest]
#[case::at_the_limit(LIMIT, 200)]
#[case::over_it(LIMIT + 1, 410)]
#[tokio::test]
async fn a_reply_over_the_limit_goes_only_to_the_first_caller(
    #[case] size: usize,
    #[case] again: u16,
) {
    let origin = origin().reply(200, "x".repeat(size)).run().await;
    let gateway = gateway(&origin).reply_limit(LIMIT).run().await;
    let first = gateway.post("/export", "k").send().await;
    assert_eq!((first.status, first.body.len()), (200, size));
    assert_eq!(first.header("idempotency-status"), "completed");
    assert_eq!(gateway.post("/export", "k").send().await.status, again);
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_retry_of_a_reply_that_was_not_kept_gets_its_status() {
    let origin = origin().reply(207, "x".repeat(LIMIT + 1)).run().await;
    let gateway = gateway(&origin).reply_limit(LIMIT).run().await;
    gateway.post("/export", "k").send().await;
    check_not_kept(&gateway, 207).await;
    let status = gateway
        .get("/export/by-idempotency-key/k/status")
        .send()
        .await
        .json();
    assert_eq!(
        (&status["state"], &status["original_status"]),
        (&"completed".into(), &207.into())
    );
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_reply_over_the_limit_streams_and_is_marked_before_its_first_byte() {
    let origin = origin().streaming().run().await;
    let gateway = gateway(&origin).reply_limit(LIMIT).run().await;
    origin.emit("a".repeat(LIMIT + 1));
    let mut first = gateway.post("/export", "k").begin().await;
    assert_eq!(
        (first.status(), first.header("idempotency-expires")),
        (200, "")
    );
    check_not_kept(&gateway, 200).await;
    origin.emit("b");
    origin.end();
    let mut body = String::new();
    while let Some(piece) = first.next().await {
        body.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    assert_eq!(body, "a".repeat(LIMIT + 1) + "b");
    check_not_kept(&gateway, 200).await;
    assert_eq!(origin.runs(), 1);
}

/// 64 MiB exceed all buffers between upstream and client.
#[tokio::test]
async fn a_client_that_does_not_read_blocks_neither_operation_nor_upstream() {
    let origin = origin().bulky().run().await;
    let patience = Duration::from_millis(500);
    let gateway = gateway(&origin)
        .reply_limit(LIMIT)
        .upstream_timeout(patience)
        .run()
        .await;
    let mut first = gateway.post("/export", "k").begin().await;
    gateway.idle().await;
    check_not_kept(&gateway, 200).await;
    assert!(
        breaks_off(&mut first).await,
        "the client sees that it is not whole"
    );
}

#[tokio::test]
async fn an_incomplete_large_reply_has_an_unknown_outcome() {
    let origin = origin().streaming().run().await;
    let gateway = gateway(&origin).reply_limit(LIMIT).run().await;
    origin.emit("a".repeat(LIMIT + 1));
    let mut first = gateway.post("/export", "k").begin().await;
    origin.break_off();
    assert!(
        breaks_off(&mut first).await,
        "the client sees that it is not whole"
    );
    let again = gateway.post("/export", "k").send().await;
    assert_eq!(again.problem(), (409, "outcome-unknown".to_owned()));
    assert_eq!(origin.runs(), 1);
}

#[rstest]
#[case::that_ends_well(true, (410, "reply-not-kept"))]
#[case::that_breaks_off(false, (409, "outcome-unknown"))]
#[tokio::test]
async fn a_large_reply_is_read_to_its_end_after_its_client_disconnects(
    #[case] whole: bool,
    #[case] want: (u16, &str),
) {
    let origin = origin().streaming().run().await;
    let gateway = gateway(&origin).reply_limit(LIMIT).run().await;
    origin.emit("a".repeat(LIMIT + 1));
    drop(gateway.post("/export", "k").begin().await);
    // Exceeds the buffers for a client.
    for _ in 0..64 {
        origin.emit("b".repeat(64 << 10));
    }
    if whole {
        origin.end();
    } else {
        origin.break_off();
    }
    gateway.idle().await;
    let again = gateway.post("/export", "k").send().await.problem();
    assert_eq!((again.0, again.1.as_str()), want);
    assert_eq!(origin.runs(), 1);
}

#[rstest]
#[case::plain("text/event-stream")]
#[case::with_a_parameter("text/event-stream; charset=utf-8")]
#[case::in_capitals("Text/Event-Stream")]
#[tokio::test]
async fn server_sent_events_of_a_protected_request_stream_and_are_not_kept(
    #[case] content_type: &str,
) {
    let origin = origin()
        .header("content-type", content_type)
        .streaming()
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    origin.emit("data: 1\n\n");
    let mut first = gateway.post("/watch", "k").begin().await;
    assert_eq!(first.piece().await, "data: 1\n\n");
    origin.emit("data: 2\n\n");
    assert_eq!(first.piece().await, "data: 2\n\n");
    origin.end();
    assert!(first.ends().await);
    let again = gateway.post("/watch", "k").send().await;
    assert_eq!(again.problem(), (410, "reply-not-kept".to_owned()));
    assert_eq!(origin.runs(), 1);
}

async fn check_not_kept(gateway: &Running, original_status: u16) {
    let again = gateway.post("/export", "k").send().await;
    let recovered = gateway.get("/export/by-idempotency-key/k").send().await;
    for answer in [again, recovered] {
        assert_eq!(answer.problem(), (410, "reply-not-kept".to_owned()));
        assert_eq!(answer.json()["original_status"], original_status);
        assert_eq!(answer.json()["safe_new_key"], false);
    }
}

/// Reads on; returns whether the body ended incomplete.
async fn breaks_off(answering: &mut Answering) -> bool {
    loop {
        match answering.next().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return true,
            None => return false,
        }
    }
}
