//! One of two gateways dies or is suspended during a run: the other detects it when the lease ends,
//! and nothing is silently repeated.

use rstest::rstest;
use rustix::process::Signal;

use crate::fixture::client::Response;
use crate::fixture::command::run;
use crate::fixture::gateway::{Gateway, GatewayCommand};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin_choosing};
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Settings, StoreKind, two, waiting};
use crate::shared::relay::Relay;

/// A short lease, but long compared with the delays of a busy machine. The upstream's timeout must not
/// be longer.
const HOLD: &str = "timeout = \"3s\"\n[classes.interactive]\nlease = \"3s\"";
/// The same with `on_unknown = "retry"`.
const RETRY: &str =
    "timeout = \"3s\"\n[classes.interactive]\nlease = \"3s\"\non_unknown = \"retry\"";

/// A service that holds its first response and sends later ones immediately.
async fn held_once() -> Origin {
    origin_choosing(Sequence::default(), |_, times| match times {
        1 => Behaviour::Hold,
        _ => Behaviour::PAY,
    })
    .await
}

fn plan(deployment: &Deployment, more: &'static str) -> GatewayCommand {
    deployment.plan(&Settings {
        more,
        ..Settings::default()
    })
}

/// Two gateways, the first of which reaches the store through a relay.
async fn two_apart(deployment: &Deployment, more: &'static str) -> (Relay, [Gateway; 2]) {
    let relay = Relay::to(deployment.server.port()).await;
    let plan_apart = deployment.plan(&Settings {
        url: Some(deployment.server.url_at(relay.port())),
        more,
        ..Settings::default()
    });
    let (one, other) = (plan_apart.run().await, plan(deployment, more).run().await);
    (relay, [one, other])
}

fn assert_told(answer: &Response, status: u16, code: &str) {
    let told = (answer.status, answer.code());
    assert_eq!(told, (status, code.to_owned()), "{answer:?}");
}

/// Retries until a run of its own is answered; before the lease ends it gets `in-progress`.
async fn until_run(gateway: &Gateway, key: &str) -> Response {
    loop {
        let answer = gateway.post(key, BODY).await.unwrap();
        match (answer.status, answer.code().as_str()) {
            (201, _) => return answer,
            (409, "in-progress") => {}
            _ => panic!("{answer:?}"),
        }
    }
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_of_a_killed_gateway_is_unknown_everywhere_when_its_lease_ends(
    #[case] kind: StoreKind,
) {
    let deployment = Deployment::open(kind, held_once().await).await;
    let plan = plan(&deployment, HOLD);
    let [one, other] = two(&plan).await;
    let first = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    let waiter = other.spawn_post("k", BODY);
    waiting(&other, 1).await;
    one.kill().await;
    assert!(first.await.unwrap().is_err());
    // Only the end of the lease shows that the gateway died.
    assert_told(&waiter.await.unwrap().unwrap(), 409, "outcome-unknown");
    let one = plan.run().await;
    for gateway in [&one, &other] {
        assert_eq!(gateway.state("k").await.as_deref(), Some("unknown"));
        let again = gateway.post("k", BODY).await.unwrap();
        assert_told(&again, 409, "outcome-unknown");
        assert_eq!(gateway.counted("onceward_unknown").await, 1);
    }
    assert_eq!(deployment.origin.runs().len(), 1);

    // A resolution at one gateway applies at the other.
    let listed = ["operations", "list", "--state", "unknown", "--json"];
    let page = run(&one, &listed).await.json();
    let id = page["operations"][0]["operation_id"].as_str().unwrap();
    let word = [
        "operations",
        "resolve",
        id,
        "--outcome",
        "ran",
        "--status",
        "201",
        "--body",
        "paid",
        "--why",
        "the bank has it",
    ];
    let said = run(&one, &word).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    let again = other.post("k", BODY).await.unwrap();
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(again.body, "paid");
    assert_eq!(deployment.origin.runs().len(), 1);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_class_says_retry_the_next_request_runs_when_the_lease_ends(
    #[case] kind: StoreKind,
) {
    let deployment = Deployment::open(kind, held_once().await).await;
    let plan = plan(&deployment, RETRY);
    let [one, other] = two(&plan).await;
    let first = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    let waiter = other.spawn_post("k", BODY);
    waiting(&other, 1).await;
    one.kill().await;
    assert!(first.await.unwrap().is_err());
    // A waiting request does not run by itself.
    assert_told(&waiter.await.unwrap().unwrap(), 409, "in-progress");
    assert_eq!(deployment.origin.runs().len(), 1);

    let ran = until_run(&other, "k").await;
    assert!(!ran.is_replay(), "{ran:?}");
    let runs = deployment.origin.runs();
    assert_eq!(runs.len(), 2);
    assert!(runs[0].fence < runs[1].fence, "{runs:?}");
    let one = plan.run().await;
    for gateway in [&one, &other] {
        let again = gateway.post("k", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), ran.kept());
    }
    assert_eq!(deployment.origin.runs().len(), 2);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_after_the_lease_counts_without_a_later_run(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, held_once().await).await;
    let (relay, [one, other]) = two_apart(&deployment, HOLD).await;
    let first = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    relay.cut();
    deployment.origin.open();
    let first = first.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "unknown")
    );
    let told = other.post("k", BODY).await.unwrap();
    assert_told(&told, 409, "outcome-unknown");
    relay.lead_to(deployment.server.port());
    until("the outcome is recorded", || async {
        other.state("k").await.as_deref() == Some("completed")
    })
    .await;
    until("it is ready again", || async { one.is_ready().await }).await;
    for gateway in [&one, &other] {
        let again = gateway.post("k", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), first.kept());
    }
    assert_eq!(deployment.origin.runs().len(), 1);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_after_a_later_run_changes_nothing(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, held_once().await).await;
    let (relay, [one, other]) = two_apart(&deployment, RETRY).await;
    let first = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    relay.cut();
    deployment.origin.open();
    // The caller gets the real response, marked as unknown.
    let first = first.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "unknown")
    );
    let ran = until_run(&other, "k").await;
    assert!(!ran.is_replay() && ran.body != first.body, "{ran:?}");
    relay.lead_to(deployment.server.port());
    until("it is ready again", || async { one.is_ready().await }).await;
    let again = one.post("k", BODY).await.unwrap();
    assert_eq!(again.kept(), ran.kept());
    // It stops when all its records are written.
    one.signal(Signal::TERM);
    let (status, log) = one.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    let again = other.post("k", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), ran.kept());
    assert_eq!(deployment.origin.runs().len(), 2);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_suspended_during_another_run_changes_nothing(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, held_once().await).await;
    let [one, other] = two(&plan(&deployment, RETRY)).await;
    let first = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    one.signal(Signal::STOP);
    let ran = until_run(&other, "k").await;
    assert!(!ran.is_replay(), "{ran:?}");
    deployment.origin.open();
    one.signal(Signal::CONT);
    // The service's response and the gateway's timeout occur at the same time.
    let first = first.await.unwrap().unwrap();
    match first.status {
        201 => assert_eq!(first.header("idempotency-status"), "unknown"),
        _ => assert_told(&first, 504, "outcome-unknown"),
    }
    for gateway in [&one, &other] {
        let again = gateway.post("k", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), ran.kept());
    }
    let runs = deployment.origin.runs();
    assert_eq!(runs.len(), 2);
    assert!(runs[0].fence < runs[1].fence, "{runs:?}");
}
