//! The store's server is killed while two gateways serve: no acknowledged reply is lost, nothing runs
//! without the store, and the gateways recover by themselves when it is back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use rstest::rstest;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::crash::checker::{Outcome, check};
use crate::crash::storm::{CLIENTS, Clients, ask_all_again, behaviours, ledger};
use crate::fixture::gateway::Gateway;
use crate::fixture::origin::{Behaviour, Sequence, origin, origin_choosing};
use crate::fixture::seed;
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Settings, StoreKind, waiting};

const OUTAGES: usize = 3;

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_killed_under_load_loses_nothing_and_gateways_reconnect(#[case] kind: StoreKind) {
    let seed = seed();
    eprintln!("ONCEWARD_SEED={seed} draws the same moments again");
    let mut random = Rng::with_seed(seed);
    let order = Sequence::default();
    let origin = origin_choosing(order.clone(), behaviours(random.fork())).await;
    let mut deployment = Deployment::open(kind, origin).await;
    let gateways = deployment.two(&Settings::default()).await;
    let at = gateways.each_ref().map(Gateway::listen);
    let shop = Arc::new(Clients::new(at, order));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(shop.clone().buy(random.fork()));
    }

    for _ in 0..OUTAGES {
        sell_more(&shop).await;
        deployment.server.kill();
        for gateway in &gateways {
            refuses(gateway).await;
        }
        assert_eq!(deployment.origin.runs_of(PROBE).len(), 0);
        sleep(Duration::from_millis(random.u64(..1_000))).await;
        deployment.server.restart();
        for gateway in &gateways {
            until("it is ready again", || async { gateway.is_ready().await }).await;
        }
    }
    sell_more(&shop).await;
    shop.closed.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    // Every key has an outcome now, which must survive another kill.
    deployment.server.kill();
    deployment.server.restart();
    for gateway in &gateways {
        until("it is ready again", || async { gateway.is_ready().await }).await;
    }
    ask_all_again(&shop).await;
    let (figures, violations) = check(&shop.log(), &ledger(&deployment.origin.runs()));
    eprintln!("{figures:?}");
    assert_eq!(violations, []);
    // The gateways live and the leases are long, so each gateway knows the outcome of its runs.
    assert_eq!(figures.unknown, 0, "{figures:?}");
    assert!(
        figures.unanswered > 0 && figures.completed_by_retry > 0 && figures.refused > 0,
        "{figures:?}"
    );
}

/// A key that is used only while the store is unavailable.
const PROBE: &str = "probe";

/// Without the store a gateway reports it and forwards nothing.
async fn refuses(gateway: &Gateway) {
    let refused = gateway.post(PROBE, BODY).await.unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "store-unavailable")
    );
    let later: u32 = refused.header("retry-after").parse().unwrap();
    assert!(later > 0, "{refused:?}");
    assert_eq!(refused.json()["retryable"], true);
    assert_eq!(refused.json()["safe_new_key"], false);
    assert!(!gateway.is_ready().await);
}

/// Waits until more operations have completed.
async fn sell_more(shop: &Clients) {
    let answered = || {
        let log = shop.log();
        let finals = log
            .iter()
            .filter(|asked| matches!(asked.heard, Outcome::Final(_)));
        finals.count()
    };
    let before = answered();
    until("more is bought", || async {
        answered() > before + 4 * CLIENTS
    })
    .await;
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_during_an_outage_of_the_store_is_answered_and_recorded_afterwards(
    #[case] kind: StoreKind,
) {
    let mut deployment = Deployment::open(kind, origin(Behaviour::Hold).await).await;
    let [one, other] = deployment.two(&Settings::default()).await;
    let first = one.spawn_post("k", BODY);
    deployment.origin.called(1).await;
    let here = one.spawn_post("k", BODY);
    let there = other.spawn_post("k", BODY);
    waiting(&one, 1).await;
    waiting(&other, 1).await;
    deployment.server.kill();
    // The state of a run at the other gateway cannot be known.
    let there = there.await.unwrap().unwrap();
    assert_eq!(
        (there.status, there.code().as_str()),
        (503, "store-unavailable")
    );
    deployment.origin.open();
    let first = first.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "unknown")
    );
    // A duplicate at the gateway of the run gets the same response.
    let here = here.await.unwrap().unwrap();
    assert_eq!(
        (here.status, here.header("idempotency-status")),
        (201, "unknown"),
        "{here:?}"
    );
    assert_eq!(here.body, first.body);

    deployment.server.restart();
    for gateway in [&one, &other] {
        until("it is ready again", || async { gateway.is_ready().await }).await;
        let again = gateway.post("k", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), first.kept());
        assert_eq!(gateway.state("k").await.as_deref(), Some("completed"));
    }
    assert_eq!(deployment.origin.runs().len(), 1);
}
