//! Services that are unavailable or slow: their acknowledged events wait for them, and other services
//! are not delayed.

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::fixture::free_address;
use crate::fixture::gateway::gateway_of;
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin, origin_at};
use crate::fixture::until;
use crate::webhooks::provider::{Provider, Webhook, configured, delivered, embedded, operations};

/// A minute of an outage is a second here.
const CLASS: &str =
    "[classes.webhook]\nmax_attempts = 100\nbackoff = { first = \"25ms\", max = \"250ms\" }";
/// The number of events during the outage.
const EVENTS: usize = 20;
/// The number of concurrent deliveries to a service.
const SHARE: usize = 8;

/// Each event arrived once, as it was sent.
fn assert_each_once(origin: &Origin, webhook: &Webhook, events: &[String]) {
    for event in events {
        let carried = webhook.carried(origin, event);
        assert_eq!(carried.len(), 1, "{event}: {carried:?}");
    }
}

fn named(prefix: &str) -> Vec<String> {
    (0..EVENTS)
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

#[tokio::test]
async fn service_that_was_dead_gets_every_event_once() {
    let directory = tempfile::tempdir().unwrap();
    let address = free_address(&mut Rng::new());
    let pays = |_: &str, _: usize| Behaviour::PAY;
    let origin = origin_at(address, Sequence::default(), pays).await;
    let store = embedded(directory.path());
    let file = configured(directory.path(), &store, &[("origin", address)], CLASS);
    let plan = gateway_of(&file);
    let gateway = plan.run().await;
    let webhooks = [
        Webhook::create(&gateway, Provider::Stripe, json!({})).await,
        Webhook::create(&gateway, Provider::GitHub, json!({})).await,
    ];
    for webhook in &webhooks {
        webhook.tell(&gateway, "before").await;
    }
    delivered(&gateway).await;
    assert_eq!(origin.runs().len(), 2);
    drop(origin);
    until("nobody listens", || async {
        TcpStream::connect(address).await.is_err()
    })
    .await;

    let events = named("missed");
    for event in &events {
        for webhook in &webhooks {
            for _ in 0..2 {
                let answer = webhook.tell(&gateway, event).await;
                assert!(!answer.is_replay(), "{answer:?}");
                assert_eq!(answer.header("idempotency-status"), "processing");
            }
        }
    }
    let tried = |operation: &Value| operation["attempts"].as_u64().unwrap() >= 5;
    until("each was tried in vain", || async {
        let queued = operations(&gateway, "queued").await;
        queued.len() == 2 * EVENTS && queued.iter().all(tried)
    })
    .await;
    // The outage is longer than the life of one gateway.
    gateway.kill().await;
    let gateway = plan.run().await;
    let origin = origin_at(address, Sequence::default(), pays).await;
    delivered(&gateway).await;
    for webhook in &webhooks {
        assert_each_once(&origin, webhook, &events);
        for event in events.iter().map(String::as_str).chain(["before"]) {
            let again = webhook.tell(&gateway, event).await;
            assert!(again.is_replay(), "{again:?}");
        }
    }
    delivered(&gateway).await;
    assert_eq!(origin.runs().len(), 2 * EVENTS);
}

#[tokio::test]
async fn a_slow_service_delays_neither_acknowledgements_nor_other_services() {
    let directory = tempfile::tempdir().unwrap();
    // It answers only at the end.
    let slow = origin(Behaviour::Hold).await;
    let quick = origin(Behaviour::PAY).await;
    let upstreams = [("slow", slow.address()), ("quick", quick.address())];
    // More events for the slow service than the total number of concurrent deliveries.
    let words = format!("deliveries = 16\ndeliveries_per_upstream = {SHARE}\n{CLASS}");
    let store = embedded(directory.path());
    let file = configured(directory.path(), &store, &upstreams, &words);
    let gateway = gateway_of(&file).run().await;
    let to_slow = Webhook::create(&gateway, Provider::Stripe, json!({})).await;
    let elsewhere = json!({ "upstream": "quick" });
    let to_quick = Webhook::create(&gateway, Provider::Stripe, elsewhere).await;

    let (first, second) = (named("first"), named("second"));
    for event in &first {
        to_slow.tell(&gateway, event).await;
    }
    slow.called(SHARE).await;
    for event in &second {
        to_slow.tell(&gateway, event).await;
        to_quick.tell(&gateway, event).await;
    }
    quick.called(EVENTS).await;
    assert_each_once(&quick, &to_quick, &second);
    assert_eq!(
        slow.runs().len(),
        SHARE,
        "it has its share, and has not answered"
    );

    slow.open_for(2 * EVENTS);
    delivered(&gateway).await;
    for events in [&first, &second] {
        assert_each_once(&slow, &to_slow, events);
    }
    assert_eq!(slow.runs().len(), 2 * EVENTS);
    assert_eq!(quick.runs().len(), EVENTS);
}
