//! Two gateways on one store: an event sent to both is one event, and either
//! gateway delivers what the other recorded.

use std::time::Duration;

use onceward_servers::{Postgres, Redis};
use onceward_stores::postgres::migrate;

use super::signers::Kind;
use super::{Fixture, PATIENT, settings};
use crate::harness::{Origin, Reserved, Running, configured_to, origin};

/// The number of events.
const EVENTS: u32 = 20;

async fn gateway(upstream: &str, store: &str) -> Running {
    // A busy machine must not count as an unreachable upstream.
    let deadline = Duration::from_secs(20);
    configured_to(upstream, &settings(PATIENT, ""))
        .with(|config| {
            config.store = store.into();
            config.store.deadline = deadline;
            config.limits.store_deadline = deadline;
            config.secrets.key = Some("the same for both of them".into());
        })
        .run()
        .await
}

/// Sends each event to both gateways while the upstream accepts none; then one of
/// them stops.
async fn check(store: &str) {
    let reserved = Reserved::new();
    let url = reserved.url();
    let (idle, other_idle): (Origin, Origin) = (origin().run().await, origin().run().await);
    let one = Fixture {
        origin: idle,
        gateway: gateway(&url, store).await,
    };
    let hook = one.hook(Kind::GitHub).await;
    let other = Fixture {
        origin: other_idle,
        gateway: gateway(&url, store).await,
    };
    let requests: Vec<_> = (1..=EVENTS)
        .flat_map(|number| {
            let sent = hook.event(number);
            [
                one.request(&hook, &sent).spawn(),
                other.request(&hook, &sent).spawn(),
            ]
        })
        .collect();
    for answer in requests {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    one.gateway.drain().await;
    let fixture = Fixture {
        origin: origin().run_at(reserved),
        gateway: other.gateway,
    };
    let mut got: Vec<_> = fixture
        .got(&hook)
        .await
        .iter()
        .map(|seen| seen.header("x-github-delivery").to_owned())
        .collect();
    got.sort();
    let want: Vec<_> = (1..=EVENTS).map(|number| hook.kind.id(number)).collect();
    assert_eq!(got, want);
    assert!(fixture.accepted(&hook, &hook.event(1)).await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_postgres_share_events() {
    let postgres = Postgres::start();
    let made = migrate::apply(&postgres.url(), &migrate::Options::default()).await;
    made.expect("the tables are made");
    check(&postgres.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_redis_share_events() {
    let redis = Redis::start();
    check(&redis.url()).await;
}
