//! Origins that cannot be reached, or do not answer correctly.

use std::time::Duration;

use rstest::rstest;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::harness::{
    Answer, OriginBuilder, Reserved, Running, gateway, gateway_to, origin, raw_origin,
};

/// Long enough for an origin that answers, short enough to wait for one that
/// does not.
const SOON: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_unreachable_origin_leaves_the_key_free() {
    let nobody = Reserved::new();
    let gateway = gateway_to(&nobody.url()).run().await;
    let refused = gateway.post("/payments", "k").body("a").send().await;
    assert_eq!(refused.problem(), (502, "upstream-unreachable".to_owned()));
    assert_eq!(refused.header("idempotency-status"), "released");
    assert_ne!(refused.header("retry-after"), "");
    let problem = refused.json();
    assert_eq!(
        (&problem["retryable"], &problem["safe_new_key"]),
        (&true.into(), &true.into())
    );

    let origin = origin().reply(201, "paid").run_at(nobody);
    let answer = gateway.post("/payments", "k").body("a").send().await;
    assert_eq!(
        (answer.status, answer.is_replay(), origin.runs()),
        (201, false, 1)
    );
}

#[tokio::test]
async fn an_origin_that_does_not_accept_connections_leaves_the_key_free() {
    let crowded = Crowded::new().await;
    let gateway = gateway_to(&crowded.url())
        .upstream_timeout(2 * SOON)
        .run()
        .await;
    let refused = gateway.post("/payments", "k").send().await;
    assert_eq!(refused.problem(), (502, "upstream-unreachable".to_owned()));
    assert_eq!(refused.header("idempotency-status"), "released");
}

#[rstest]
#[case::closes_without_a_word(origin().hanging_up())]
#[case::is_too_slow(origin().gated())]
#[case::stops_in_the_middle_of_its_body(origin().header("content-length", "9").streaming())]
#[tokio::test]
async fn an_origin_that_does_not_answer_leaves_an_unknown_outcome(#[case] builder: OriginBuilder) {
    let origin = builder.run().await;
    let gateway = gateway(&origin).upstream_timeout(SOON).run().await;
    origin.emit("half");
    check_unknown(&gateway).await;
    assert_eq!(origin.runs(), 1, "it is never sent again");
}

#[tokio::test]
async fn an_incomplete_answer_leaves_an_unknown_outcome() {
    let origin = origin().streaming().run().await;
    let gateway = gateway(&origin).run().await;
    origin.emit("half");
    origin.break_off();
    check_unknown(&gateway).await;
    assert_eq!(origin.runs(), 1);
}

#[rstest]
#[case::nonsense("this is not HTTP\r\n\r\n")]
#[case::head_only("HTTP/1.1 200 OK\r\ncontent-le")]
#[case::protocol_nobody_asked_for(
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
)]
#[tokio::test]
async fn a_malformed_answer_leaves_an_unknown_outcome(#[case] answer: &'static str) {
    let origin = raw_origin(answer).await;
    let gateway = gateway_to(&origin.url()).upstream_timeout(SOON).run().await;
    check_unknown(&gateway).await;
    assert_eq!(origin.ledger().len(), 1);
}

#[tokio::test]
async fn a_late_answer_changes_nothing() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).upstream_timeout(SOON).run().await;
    check_unknown(&gateway).await;
    origin.open();
    check_unknown_again(&gateway).await;
    assert_eq!(origin.runs(), 1);
}

/// A port whose accept queue is full and never emptied.
struct Crowded {
    listener: TcpListener,
    _inside: Vec<TcpStream>,
}

impl Crowded {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let mut inside = Vec::new();
        let connect = || TcpStream::connect(listener.local_addr().unwrap());
        while let Ok(stream) = tokio::time::timeout(SOON, connect()).await {
            inside.push(stream.unwrap());
        }
        Self {
            listener,
            _inside: inside,
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }
}

/// The first caller gets 504, all others 409, by every path.
async fn check_unknown(gateway: &Running) {
    let first = gateway.post("/payments", "k").body("a").send().await;
    assert_eq!(first.problem(), (504, "outcome-unknown".to_owned()));
    assert_unknown(&first);
    for _ in 0..2 {
        check_unknown_again(gateway).await;
    }
}

async fn check_unknown_again(gateway: &Running) {
    let again = gateway.post("/payments", "k").body("a").send().await;
    assert_eq!(again.problem(), (409, "outcome-unknown".to_owned()));
    assert_unknown(&again);
    let recovered = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(recovered.problem(), (409, "outcome-unknown".to_owned()));
}

fn assert_unknown(answer: &Answer) {
    assert_eq!(answer.header("idempotency-status"), "unknown");
    let problem = answer.json();
    assert_eq!(
        (&problem["retryable"], &problem["safe_new_key"]),
        (&false.into(), &false.into())
    );
    assert_eq!(problem["operation_id"], answer.header("x-operation-id"));
}
