//! A store that does not answer and does not close connections, as after a power failure or a network
//! failure. Only timeouts detect it.

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::fixture::gateway::Gateway;
use crate::fixture::origin::{Behaviour, Sequence, origin, origin_choosing};
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Settings, StoreKind, two, waiting};
use crate::shared::relay::Relay;

/// The store's deadline is two seconds, and the machine may be busy.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);
/// The number of concurrent requests, so that many connections are open.
const FILLED: usize = 64;
/// The maximum number of refused requests before a gateway has reconnected.
const REFUSED_MAX: usize = 3;
/// A waiting request polls after a second without a notification.
const AT_ONCE: Duration = Duration::from_millis(100);

async fn apart(deployment: &Deployment) -> (Relay, [Gateway; 2]) {
    let relay = Relay::to(deployment.server.port()).await;
    let plan = deployment.plan(&Settings {
        url: Some(deployment.server.url_at(relay.port())),
        ..Settings::default()
    });
    let gateways = two(&plan).await;
    (relay, gateways)
}

async fn fill(gateways: &[Gateway; 2]) {
    let post = |number: usize| gateways[number % 2].spawn_post(&format!("key-{number}"), BODY);
    let posts: Vec<_> = (0..FILLED).map(post).collect();
    for post in posts {
        assert_eq!(post.await.unwrap().unwrap().status, 201);
    }
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_store_counts_as_unavailable(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::PAY).await).await;
    let (relay, gateways) = apart(&deployment).await;
    fill(&gateways).await;
    relay.fall_silent();
    for gateway in &gateways {
        let asked = Instant::now();
        let refused = gateway.post("refused", BODY).await.unwrap();
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "store-unavailable")
        );
        assert_ne!(refused.header("retry-after"), "");
        assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
        assert!(!gateway.is_ready().await);
    }
    assert_eq!(deployment.origin.runs_of("refused").len(), 0);
    relay.lead_to(deployment.server.port());
    for gateway in &gateways {
        until("it is ready again", || async { gateway.is_ready().await }).await;
        let again = gateway.post("key-0", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(gateway.post("refused", BODY).await.unwrap().status, 201);
    }
    assert_eq!(deployment.origin.runs_of("refused").len(), 1);
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_connections_are_closed(#[case] kind: StoreKind) {
    let origin = origin_choosing(Sequence::default(), |key, _| {
        match key.starts_with("held") {
            true => Behaviour::Hold,
            false => Behaviour::PAY,
        }
    });
    let deployment = Deployment::open(kind, origin.await).await;
    let (relay, gateways) = apart(&deployment).await;
    fill(&gateways).await;
    relay.forget(deployment.server.port());
    for gateway in &gateways {
        let mut refused = 0;
        while gateway.post("late", BODY).await.unwrap().status != 201 {
            refused += 1;
            // One is enough to detect it, and some may have been used too recently.
            assert!(refused <= REFUSED_MAX, "one after the other");
        }
    }
    for number in 0..FILLED {
        let gateway = &gateways[number % 2];
        let again = gateway.post(&format!("key-{number}"), BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
    }
    assert_eq!(deployment.origin.runs().len(), FILLED + 1);
    // Waiting requests are notified immediately, as before.
    let [one, other] = &gateways;
    let mut number = 0;
    until("waiting requests are notified again", || {
        number += 1;
        told_at_once(&deployment, one, other, format!("held-{number}"))
    })
    .await;
}

/// Whether a request that waits at one gateway is notified of the end of a run at the other before it
/// polls.
async fn told_at_once(
    deployment: &Deployment,
    one: &Gateway,
    other: &Gateway,
    key: String,
) -> bool {
    let leader = one.spawn_post(&key, BODY);
    until("it is held", || async {
        deployment.origin.runs_of(&key).len() == 1
    })
    .await;
    let waiter = other.spawn_post(&key, BODY);
    waiting(other, 1).await;
    deployment.origin.open();
    let opened = Instant::now();
    assert!(waiter.await.unwrap().unwrap().is_replay());
    let waited = opened.elapsed();
    assert_eq!(leader.await.unwrap().unwrap().status, 201);
    waited < AT_ONCE
}
