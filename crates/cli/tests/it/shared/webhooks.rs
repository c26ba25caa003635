//! Webhooks at two gateways that share a store: an event is the same at both, and the gateway that
//! lives delivers it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;
use serde_json::json;

use crate::fixture::client::Client;
use crate::fixture::command::run;
use crate::fixture::gateway::GatewayCommand;
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin, origin_choosing};
use crate::fixture::until;
use crate::shared::deployment::{Deployment, Settings, StoreKind, two};
use crate::webhooks::provider::{Provider, Webhook, delivered};

/// A short lease, but long compared with the delays of a busy machine. The upstream's timeout must not
/// be longer.
const WEBHOOKS: &str = "timeout = \"3s\"\n[webhooks]\nupstream = \"origin\"\n\
    deliveries = 8\ndeliveries_per_upstream = 2\n\
    [classes.webhook]\nlease = \"3s\"\nbackoff = { first = \"25ms\", max = \"250ms\" }";

fn plan(deployment: &Deployment) -> GatewayCommand {
    let words = Settings {
        more: WEBHOOKS,
        ..Settings::default()
    };
    let plan = deployment.plan(&words);
    plan.variable("ONCEWARD__UPSTREAMS__ORIGIN__TIMEOUT", "3s")
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_made_at_one_gateway_is_served_by_the_other(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::PAY).await).await;
    let [one, other] = two(&plan(&deployment)).await;
    let webhook = Webhook::create(&one, Provider::Stripe, json!({})).await;
    webhook.tell(&one, "at-once").await;
    until("the other serves it", || async {
        let answer = webhook.send(&other, "later").await.unwrap();
        assert!(matches!(answer.status, 200 | 401), "{answer:?}");
        answer.status == 200
    })
    .await;
    // The second gateway knows the event that the first received.
    delivered(&one).await;
    let again = webhook.tell(&other, "at-once").await;
    assert!(again.is_replay(), "{again:?}");

    // The same event at both gateways at once, repeatedly.
    let events: Vec<_> = (0..30).map(|number| format!("both-{number}")).collect();
    for event in &events {
        let [mut to_one, mut to_other] =
            [&one, &other].map(|gateway| Client::new(gateway.listen()));
        let (heard, also) = tokio::join!(
            to_one.send(webhook.request(event)),
            to_other.send(webhook.request(event))
        );
        let answers = [heard.unwrap(), also.unwrap()];
        assert!(
            answers.iter().all(|answer| answer.status == 200),
            "{answers:?}"
        );
    }
    delivered(&one).await;
    for event in events
        .iter()
        .map(String::as_str)
        .chain(["at-once", "later"])
    {
        let carried = webhook.carried(&deployment.origin, event);
        assert_eq!(carried.len(), 1, "{event}: {carried:?}");
    }

    // Deleted at one gateway, it is soon refused at the other.
    let delete = ["webhooks", "delete", &webhook.id, "--why", "a test"];
    let said = run(&other, &delete).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    assert_eq!(webhook.send(&other, "more").await.unwrap().status, 401);
    until("the first refuses it", || async {
        webhook.send(&one, "at-once").await.unwrap().status == 401
    })
    .await;
}

/// A service that never answers the first two requests, and later ones immediately.
async fn held_twice() -> Origin {
    let requests = AtomicUsize::new(0);
    origin_choosing(Sequence::default(), move |_, _| {
        match requests.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Behaviour::Hold,
            _ => Behaviour::PAY,
        }
    })
    .await
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_killed_gateway_are_delivered_by_the_other(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, held_twice().await).await;
    let plan = plan(&deployment);
    let one = plan.run().await;
    let webhook = Webhook::create(&one, Provider::Stripe, json!({})).await;
    let events: Vec<_> = (0..8).map(|number| format!("event-{number}")).collect();
    for event in &events {
        webhook.tell(&one, event).await;
    }
    deployment.origin.called(2).await;
    one.kill().await;
    deployment.origin.quiet().await;
    let running = deployment.origin.runs();
    assert_eq!(running.len(), 2, "one upstream has two places: {running:?}");

    let other = plan.run().await;
    delivered(&other).await;
    for event in &events {
        let carried = webhook.carried(&deployment.origin, event);
        let was_running = carried[0].number <= 2;
        assert_eq!(carried.len(), 1 + usize::from(was_running), "{carried:?}");
        assert!(carried.iter().all(|run| run.key == carried[0].key));
        assert!(carried.is_sorted_by(|run, next| run.fence < next.fence));
        let again = webhook.tell(&other, event).await;
        assert!(again.is_replay(), "{again:?}");
    }
    assert_eq!(deployment.origin.runs().len(), events.len() + 2);
}
