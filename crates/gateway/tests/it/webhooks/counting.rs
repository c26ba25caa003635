//! Metrics of webhooks, and their published policy.

use serde_json::json;

use super::duplicates::{refusal, refusing_first};
use super::signers::Kind;
use super::{Fixture, fixture, fixture_at, fixture_with};
use crate::harness::fixture::answering;
use crate::harness::{Reply, origin};

#[tokio::test]
async fn events_are_counted_by_tenant_project_and_provider() {
    let origin = origin().replying(|seen, _| match seen.text().contains("evt_2") {
        true => refusal(""),
        false => Reply::new(200, ""),
    });
    let fixture = fixture_with(origin, "", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    for number in [1, 2] {
        fixture.accepted(&hook, &hook.event(number)).await;
    }
    fixture.quiet().await;
    for number in [1, 1, 2] {
        fixture.accepted(&hook, &hook.event(number)).await;
    }
    fixture
        .send(&hook, &hook.unsigned(3).without_id().signed())
        .await;
    fixture.send(&hook, &hook.event(3).tampered()).await;
    fixture
        .send(&hook, &hook.unsigned(3).at(-1000).signed())
        .await;

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
        fixture.counts(&line).await;
    }
    // It is counted after it is recorded, which other readers see first.
    let deliveries = "onceward_webhook_deliveries_total{upstream=\"origin\"";
    for outcome in ["completed", "failed"] {
        let line = format!("{deliveries},outcome=\"{outcome}\"}} 1");
        fixture.gateway.shows(&line).await;
    }
}

/// An event that failed for good is counted until an operator acts on it.
#[tokio::test]
async fn a_failed_event_is_a_gauge_until_it_is_purged() {
    let fixture = fixture_with(refusing_first(&[200]), "", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.counts("onceward_webhook_failed 0").await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let failed = fixture.is(&hook, "failed").await;
    fixture.gateway.shows("onceward_webhook_failed 1").await;
    let id = failed["operation_id"].as_str().unwrap();
    let purge = format!("/admin/v1/operations/{id}/purge");
    fixture.operate(&purge, json!({ "why": "a test" })).await;
    fixture.gateway.shows("onceward_webhook_failed 0").await;
}

/// So is one that an operator resolved as failed.
#[tokio::test]
async fn an_event_that_was_resolved_as_failed_is_a_gauge() {
    let fixture = fixture_with(origin().hanging_up(), "on_unknown = \"hold\"", "").await;
    for (status, gauge) in [(200, 0), (500, 1)] {
        let hook = fixture.hook(Kind::Stripe).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        let unknown = fixture.is(&hook, "unknown").await;
        let id = unknown["operation_id"].as_str().unwrap();
        let resolve = format!("/admin/v1/operations/{id}/resolve");
        let ran = json!({
            "outcome": "ran",
            "reply": { "status": status, "headers": {}, "body": "" },
            "why": "a test",
        });
        fixture.operate(&resolve, ran).await;
        let line = format!("onceward_webhook_failed {gauge}");
        fixture.gateway.shows(&line).await;
    }
}

/// So is one that the upstream refused for good within the provider's request.
#[tokio::test]
async fn a_failed_sync_event_is_a_gauge() {
    let fixture = fixture_with(refusing_first(&[200]), "", "").await;
    let sync = json!({ "deliver": "sync" });
    let hook = fixture.hook_with(Kind::Stripe, sync).await;
    let answer = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(answer.status, 422);
    fixture.gateway.shows("onceward_webhook_failed 1").await;
}

/// Even if the provider did not wait for the answer.
#[tokio::test]
async fn a_failed_sync_event_is_a_gauge_after_its_provider_hung_up() {
    let fixture = fixture_with(refusing_first(&[200]).gated(), "", "").await;
    let sync = json!({ "deliver": "sync" });
    let hook = fixture.hook_with(Kind::Stripe, sync).await;
    let sent = fixture.request(&hook, &hook.event(1)).spawn();
    fixture.called(&hook, 1).await;
    sent.abort();
    fixture.origin.open();
    fixture.is(&hook, "failed").await;
    fixture.gateway.shows("onceward_webhook_failed 1").await;
}

/// A restart does not end the alert of an event that is still failed.
#[tokio::test]
async fn a_failed_event_is_counted_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let origin = refusing_first(&[200]).run().await;
    let fixture = fixture_at(origin, directory.path()).await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.is(&hook, "failed").await;
    let Fixture { origin, gateway } = fixture;
    gateway.drain().await;
    let fixture = fixture_at(origin, directory.path()).await;
    fixture.gateway.shows("onceward_webhook_failed 1").await;
}

#[tokio::test]
async fn queued_and_paused_events_are_gauges() {
    let fixture = fixture_with(answering(&[500]), "max_attempts = 2", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.is(&hook, "paused").await;
    fixture.counts("onceward_paused 1").await;
    fixture.counts("onceward_queued 0").await;
    let deliveries = "onceward_webhook_deliveries_total{upstream=\"origin\"";
    fixture
        .gateway
        .shows(&format!("{deliveries},outcome=\"paused\"}} 1"))
        .await;
}

/// Neither an id nor a key nor a stranger's text becomes a label.
#[tokio::test]
async fn no_label_is_chosen_by_a_sender() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.quiet().await;
    for provider in ["github", "unheardof"] {
        let target = format!("/api/v1/webhooks/{provider}/wh_chosenbysomebodyelse");
        fixture.request_at(&target, &hook.event(1)).send().await;
    }
    let metrics = fixture.gateway.metrics().await;
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
    let fixture = fixture().await;
    let policy = fixture.gateway.get("/.well-known/idempotency");
    let policy = policy
        .header("accept", "application/json")
        .send()
        .await
        .json();
    let routes = policy["routes"].as_array().unwrap().iter();
    let mut webhooks = routes.filter(|route| route["policy"] == "REQUIRED_B");
    let route = webhooks.next().unwrap();
    assert_eq!(route["path"], "/api/v1/webhooks/{provider}/{webhook_id}");
    assert_eq!(route["methods"], json!(["POST"]));
    assert_eq!(route["class"], "webhook", "{route}");
    assert_eq!(webhooks.next(), None);
}
