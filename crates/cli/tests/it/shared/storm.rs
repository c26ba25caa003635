//! Two gateways on one store, each killed repeatedly at random times while clients use both. The
//! checker decides over what the clients and the service got.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rstest::rstest;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::crash::checker::check;
use crate::crash::storm::{CLIENTS, Clients, ask_all_again, behaviours, ledger};
use crate::fixture::origin::{Sequence, origin_choosing};
use crate::fixture::{free_address, seed};
use crate::shared::deployment::{Deployment, Settings, StoreKind};

const LENGTH: Duration = Duration::from_secs(10);
/// The runs of a killed gateway become unknown when their lease ends.
const LEASE: &str = "timeout = \"2s\"\n[classes.interactive]\nlease = \"2s\"";

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_turn_two_gateways_run_nothing_twice_and_forget_nothing(#[case] kind: StoreKind) {
    let seed = seed();
    eprintln!("ONCEWARD_SEED={seed} draws the same moments again");
    let mut random = Rng::with_seed(seed);
    let order = Sequence::default();
    let origin = origin_choosing(order.clone(), behaviours(random.fork())).await;
    let deployment = Deployment::open(kind, origin).await;
    let plan = deployment.plan(&Settings {
        more: LEASE,
        ..Settings::default()
    });
    let at = [(); 2].map(|()| free_address(&mut random));
    let plans = at.map(|at| {
        let listen = at.to_string();
        plan.clone().variable("ONCEWARD__SERVER__LISTEN", listen)
    });
    let mut gateways = [plans[0].run().await, plans[1].run().await];
    let shop = Arc::new(Clients::new(at, order));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(shop.clone().buy(random.fork()));
    }

    let end = Instant::now() + LENGTH;
    let mut kills = 0;
    while Instant::now() < end {
        sleep(Duration::from_millis(random.u64(100..800))).await;
        let [one, other] = gateways;
        // Sometimes both at once.
        let both = random.u8(..4) == 0;
        gateways = match random.bool() {
            _ if both => {
                tokio::join!(one.kill(), other.kill());
                [plans[0].run().await, plans[1].run().await]
            }
            true => {
                one.kill().await;
                [plans[0].run().await, other]
            }
            false => {
                other.kill().await;
                [one, plans[1].run().await]
            }
        };
        kills += 1;
    }
    shop.closed.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    ask_all_again(&shop).await;
    let (figures, violations) = check(&shop.log(), &ledger(&deployment.origin.runs()));
    eprintln!("{kills} kills, {figures:?}");
    assert_eq!(violations, []);
    assert!(kills >= 5 && figures.completed >= 50, "{figures:?}");
    assert!(
        figures.unknown > 0 && figures.unknown_and_done > 0 && figures.unanswered > 0,
        "{figures:?}"
    );
    for gateway in &gateways {
        let unknown = gateway.counted("onceward_unknown").await;
        assert_eq!(unknown, figures.unknown);
    }
}
