//! Many clients with one key at two gateways: at both at once, and at one gateway while the operation
//! runs at the other.

use std::time::Duration;

use rstest::rstest;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::crowd::{Http2Connection, ask};
use crate::fixture::client::Client;
use crate::fixture::origin::{Behaviour, origin};
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Settings, StoreKind};

const CLIENTS: usize = 200;
const CONNECTIONS: usize = 10;
/// Within `limits.streams`.
const STREAMS: usize = 100;
const WAITERS: usize = CONNECTIONS * STREAMS;
/// A request that waits for a run at another gateway polls once a second; several polls pass.
const LOOKS: Duration = Duration::from_secs(3);

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_at_two_gateways_runs_once_and_all_get_its_reply(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let gateways = deployment.two(&Settings::default()).await;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = Client::new(gateways[number % 2].listen());
        clients.spawn(async move { client.post("k", BODY).await.unwrap() });
    }
    let waiters = async || {
        let mut all = 0;
        for gateway in &gateways {
            all += gateway.counted("onceward_waiters").await;
        }
        all
    };
    until("all but one wait", || async {
        waiters().await == CLIENTS - 1
    })
    .await;
    deployment.origin.open();

    let answers = clients.join_all().await;
    assert_eq!(deployment.origin.runs().len(), 1);
    let first = answers.iter().filter(|answer| !answer.is_replay());
    let [first] = first.collect::<Vec<_>>()[..] else {
        panic!("more than one ran: {answers:?}");
    };
    assert_eq!((first.status, answers.len()), (201, CLIENTS));
    for answer in &answers {
        assert_eq!(answer.kept(), first.kept());
        let word = answer.header("idempotency-status");
        assert_eq!(word, "completed", "{answer:?}");
    }
    // Later requests get the same reply at both gateways.
    for gateway in &gateways {
        let again = gateway.post("k", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), first.kept());
        let other = gateway.post("k", r#"{"amount":1}"#).await.unwrap();
        assert_eq!((other.status, other.code().as_str()), (422, "key-reused"));
    }
    assert_eq!(deployment.origin.runs().len(), 1);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_wait_at_one_gateway_for_a_run_at_the_other(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let words = Settings {
        more: "timeout = \"5m\"\n[classes.interactive]\nwait = \"5m\"\nlease = \"5m\"",
        ..Settings::default()
    };
    let [one, other] = deployment.two(&words).await;
    let leader = one.spawn_post("crowd", BODY);
    deployment.origin.called(1).await;
    let mut crowd = JoinSet::new();
    let mut lines = Vec::new();
    for _ in 0..CONNECTIONS {
        let line = Http2Connection::open(other.listen()).await;
        for _ in 0..STREAMS {
            crowd.spawn(ask(line.sender.clone()));
        }
        lines.push(line);
    }
    until("all wait", || async {
        other.counted("onceward_waiters").await == WAITERS
    })
    .await;
    sleep(LOOKS).await;
    assert!(crowd.try_join_next().is_none(), "one did not wait");
    for gateway in [&one, &other] {
        assert!(gateway.is_ready().await, "the store bears it");
    }
    deployment.origin.open();
    let first = leader.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "completed")
    );
    for answer in crowd.join_all().await {
        assert_eq!((answer.status, answer.replayed), (201, true), "{answer:?}");
        assert_eq!(answer.body, first.body);
    }
    assert_eq!(deployment.origin.runs().len(), 1);
}
