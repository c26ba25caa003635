//! Waiting at one gateway for a run at another: notified immediately, and found by polling where there
//! are no notifications.

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::fixture::client::{Client, PATH, Response, get_request};
use crate::fixture::gateway::Gateway;
use crate::fixture::origin::{Behaviour, origin};
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Server, Settings, StoreKind, waiting};

/// The limit for an immediate notification.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Without a notification a waiting request polls after a second. A run that ends within half of that
/// is found earlier only by a notification.
const SOON: Duration = Duration::from_millis(500);
/// Several tries, because the machine may be busy.
const TRIES: usize = 10;
/// Each try takes a second without notifications.
const TRIES_DEAF: usize = 5;
/// The shortest tries are ignored: the run may end by chance between the time when a waiter is counted
/// and its first poll.
const CHANCES: usize = 2;

/// The time from the end of a run at one gateway to the reply of a request that waits at the other:
/// one of the shortest of several tries, because a busy machine only makes it longer.
async fn short_wait(
    deployment: &Deployment,
    [one, other]: [&Gateway; 2],
    name: &str,
    tries: usize,
) -> Duration {
    let mut waits = Vec::new();
    for number in 0..tries {
        let key = format!("{name}-{number}");
        let before = deployment.origin.runs().len();
        let leader = one.spawn_post(&key, BODY);
        deployment.origin.called(before + 1).await;
        let asked = Instant::now();
        let waiter = other.spawn_post(&key, BODY);
        waiting(other, 1).await;
        let soon = asked.elapsed() < SOON;
        deployment.origin.open();
        let opened = Instant::now();
        let told = waiter.await.unwrap().unwrap();
        if soon {
            waits.push(opened.elapsed());
        }
        let first = leader.await.unwrap().unwrap();
        assert!(told.is_replay() && !first.is_replay(), "{told:?}");
        assert_eq!(told.kept(), first.kept());
        assert_eq!(deployment.origin.runs_of(&key).len(), 1);
    }
    eprintln!("{name}: {waits:?}");
    waits.sort();
    *waits.get(CHANCES).expect("enough were soon")
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_outcome_of_another_gateway_at_once(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let [one, other] = deployment.two(&Settings::default()).await;
    let server = &deployment.server;
    until("both listen", || async { server.listeners() == 2 }).await;
    let wait = short_wait(&deployment, [&one, &other], "listening", TRIES).await;
    assert!(wait < AT_ONCE, "{wait:?}");

    // Broken subscriptions are restored automatically.
    server.break_subscriptions();
    until("both listen again", || async { server.listeners() == 2 }).await;
    let wait = short_wait(&deployment, [&other, &one], "again", TRIES).await;
    assert!(wait < AT_ONCE, "{wait:?}");
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_misses_the_notification_still_gets_the_reply(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let mut words = Settings::default();
    if kind == StoreKind::Postgres {
        // Behind a pooler no gateway is subscribed.
        words.url = Some(format!("{}?pgbouncer=true", deployment.server.url()));
    }
    let [one, other] = deployment.two(&words).await;
    if let Server::Redis(server) = &deployment.server {
        // From now on no gateway can subscribe.
        server.cli(&["ACL", "SETUSER", "default", "-psubscribe"]);
        deployment.server.break_subscriptions();
    }
    until("nobody listens", || async {
        deployment.server.listeners() == 0
    })
    .await;
    let wait = short_wait(&deployment, [&one, &other], "deaf", TRIES_DEAF).await;
    // Otherwise the test above would show nothing.
    assert!(wait > AT_ONCE, "{wait:?}");
    assert_eq!(deployment.server.listeners(), 0);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_does_not_cost_a_waiter_its_reply(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let [one, other] = deployment.two(&Settings::default()).await;
    let leader = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    let waiter = other.spawn_post("k", BODY);
    waiting(&other, 1).await;
    deployment.server.break_subscriptions();
    deployment.origin.open();
    let first = leader.await.unwrap().unwrap();
    let told = waiter.await.unwrap().unwrap();
    assert!(told.is_replay(), "{told:?}");
    assert_eq!(told.kept(), first.kept());
    assert_eq!(deployment.origin.runs().len(), 1);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_is_recovered_at_the_other_gateway(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let [one, other] = deployment.two(&Settings::default()).await;
    let leader = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    assert_eq!(other.state("k").await.as_deref(), Some("running"));
    let path = format!("{PATH}/by-idempotency-key/k");
    let output = recover(&other, &format!("{path}/output")).await;
    assert_eq!(output.status, 202, "{output:?}");
    let address = other.listen();
    let waiter = {
        let request = get_request(&path);
        tokio::spawn(async move { Client::new(address).send(request).await })
    };
    waiting(&other, 1).await;
    deployment.origin.open();
    let first = leader.await.unwrap().unwrap();
    let told = waiter.await.unwrap().unwrap();
    assert_eq!((told.status, &told.body), (201, &first.body));
    let id = first.header("x-operation-id");
    for path in [path, format!("/api/v1/operations/{id}/output")] {
        let again = recover(&other, &path).await;
        assert_eq!((again.status, &again.body), (201, &first.body), "{path}");
    }
    assert_eq!(deployment.origin.runs().len(), 1);
}

async fn recover(gateway: &Gateway, path: &str) -> Response {
    let mut client = Client::new(gateway.listen());
    client.send(get_request(path)).await.unwrap()
}
