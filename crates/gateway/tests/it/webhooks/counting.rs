//! What is counted of webhooks, and what is published of them.

use super::duplicates::{answering, refusal, refusing_first};
use super::signers::Kind;
use super::{house, house_before};
use crate::harness::Reply;

#[tokio::test]
async fn events_are_counted_by_tenant_project_and_provider() {
    let origin = crate::harness::origin().replying(|seen, _| match seen.text().contains("evt_2") {
        true => refusal(""),
        false => Reply::new(200, ""),
    });
    let house = house_before(origin, "", "").await;
    let hook = house.hook(Kind::Stripe).await;
    for number in [1, 2] {
        house.accepted(&hook, &hook.event(number)).await;
    }
    house.quiet().await;
    for number in [1, 1, 2] {
        house.accepted(&hook, &hook.event(number)).await;
    }
    house
        .send(&hook, &hook.letter(3).without_id().signed())
        .await;
    house.send(&hook, &hook.event(3).tampered()).await;
    house.send(&hook, &hook.letter(3).at(-1000).signed()).await;

    let labels = "tenant=\"acme\",project=\"shop\",endpoint=\"webhooks.stripe\"";
    for line in [
        format!("idempotency_key_present_total{{{labels},case=\"B\"}} 5"),
        format!("idempotency_cache_hit_total{{{labels},restate_status=\"completed\"}} 2"),
        format!("idempotency_cache_hit_total{{{labels},restate_status=\"failed\"}} 1"),
        format!("transport_translation_failed_total{{{labels},provider=\"stripe\"}} 1"),
        "onceward_webhook_refused_total{provider=\"stripe\",reason=\"signature\"} 1".to_owned(),
        "onceward_webhook_refused_total{provider=\"stripe\",reason=\"too-old\"} 1".to_owned(),
        "onceward_refused_total{code=\"unauthenticated\"} 2".to_owned(),
        "onceward_refused_total{code=\"translation-failed\"} 1".to_owned(),
        "onceward_queued 0".to_owned(),
        "onceward_webhook_failed 1".to_owned(),
        "onceward_stored_operations 2".to_owned(),
    ] {
        house.counts(&line).await;
    }
    // Counted after it was recorded, which others see first.
    let deliveries = "onceward_webhook_deliveries_total{upstream=\"origin\"";
    for outcome in ["completed", "failed"] {
        let line = format!("{deliveries},outcome=\"{outcome}\"}} 1");
        house.gateway.shows(&line).await;
    }
}

/// An event that failed for good is counted until an operator acts on it.
#[tokio::test]
async fn a_failed_event_is_a_gauge_until_it_is_purged() {
    let house = house_before(refusing_first(&[200]), "", "").await;
    let hook = house.hook(Kind::Stripe).await;
    house.counts("onceward_webhook_failed 0").await;
    house.accepted(&hook, &hook.event(1)).await;
    let failed = house.is(&hook, "failed").await;
    house.gateway.shows("onceward_webhook_failed 1").await;
    let id = failed["operation_id"].as_str().unwrap();
    let purge = format!("/admin/v1/operations/{id}/purge");
    house
        .operate(&purge, serde_json::json!({ "why": "a test" }))
        .await;
    house.gateway.shows("onceward_webhook_failed 0").await;
}

#[tokio::test]
async fn what_waits_and_what_is_paused_shows() {
    let house = house_before(answering(&[500]), "max_attempts = 2", "").await;
    let hook = house.hook(Kind::Stripe).await;
    house.accepted(&hook, &hook.event(1)).await;
    house.is(&hook, "paused").await;
    house.counts("onceward_paused 1").await;
    house.counts("onceward_queued 0").await;
    let deliveries = "onceward_webhook_deliveries_total{upstream=\"origin\"";
    house
        .gateway
        .shows(&format!("{deliveries},outcome=\"paused\"}} 1"))
        .await;
}

/// Neither an id nor a key nor what a stranger wrote becomes a label.
#[tokio::test]
async fn nothing_that_a_sender_chooses_becomes_a_label() {
    let house = house().await;
    let hook = house.hook(Kind::GitHub).await;
    house.accepted(&hook, &hook.event(1)).await;
    house.quiet().await;
    for provider in ["github", "unheardof"] {
        let target = format!("/api/v1/webhooks/{provider}/wh_chosenbysomebodyelse");
        house.ask_at(&target, &hook.event(1)).send().await;
    }
    let metrics = house.gateway.metrics().await;
    for chosen in [
        "chosenbysomebodyelse",
        "unheardof",
        &hook.id,
        &Kind::GitHub.id(1),
    ] {
        assert!(!metrics.contains(chosen), "{chosen} is in\n{metrics}");
    }
}

#[tokio::test]
async fn the_published_policy_has_the_route_of_webhooks() {
    let house = house().await;
    let policy = house.gateway.get("/.well-known/idempotency");
    let policy = policy
        .header("accept", "application/json")
        .send()
        .await
        .json();
    let routes = policy["routes"].as_array().unwrap().iter();
    let mut webhooks = routes.filter(|route| route["policy"] == "REQUIRED_B");
    let route = webhooks.next().unwrap();
    assert_eq!(route["path"], "/api/v1/webhooks/{provider}/{webhook_id}");
    assert_eq!(route["methods"], serde_json::json!(["POST"]));
    assert_eq!(route["class"], "webhook", "{route}");
    assert_eq!(webhooks.next(), None);
}
