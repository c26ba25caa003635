//! Operators' changes of events: purge, resume and redeliver.

use serde_json::{Value, json};

use super::duplicates::refusing_first;
use super::signers::Kind;
use super::{Fixture, Hook, fixture, fixture_with};
use crate::harness::fixture::answering;
use crate::harness::{OriginBuilder, origin};

/// A webhook with this origin, whose first event has reached this state.
async fn come_to(state: &str, origin: OriginBuilder, class: &str) -> (Fixture, Hook, String) {
    let fixture = fixture_with(origin, class, "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let shown = fixture.is(&hook, state).await;
    let id = shown["operation_id"].as_str().unwrap().to_owned();
    (fixture, hook, id)
}

impl Fixture {
    /// Makes an operator's change of an operation.
    async fn push(&self, id: &str, verb: &str) -> Value {
        let path = format!("/admin/v1/operations/{id}/{verb}");
        self.operate(&path, json!({ "why": "ticket 7" })).await
    }

    /// The latest entry of the audit.
    async fn audited(&self) -> Value {
        self.gateway.admin("/admin/v1/audit").await.json()["entries"][0].clone()
    }
}

#[tokio::test]
async fn a_purge_frees_the_id() {
    for (state, origin) in [("completed", origin()), ("failed", refusing_first(&[200]))] {
        let (fixture, hook, id) = come_to(state, origin, "").await;
        fixture.push(&id, "purge").await;
        let entry = fixture.audited().await;
        assert_eq!(
            (&entry["action"], &entry["why"]),
            (&json!("operations.purge"), &json!("ticket 7"))
        );
        let answer = fixture.accepted(&hook, &hook.event(1)).await;
        assert!(!answer.is_replay(), "{state}");
        let got = fixture.got(&hook).await;
        assert_eq!(got.len(), 2, "{state}");
        let key = |at: usize| got[at].header("idempotency-key");
        assert_eq!(key(0), key(1), "{state}");
        assert_ne!(
            got[0].header("x-operation-id"),
            got[1].header("x-operation-id"),
            "{state}"
        );
    }
}

#[tokio::test]
async fn a_purge_removes_a_queued_event() {
    let class = "backoff = { first = \"1h\", max = \"1h\" }";
    let fixture = fixture_with(answering(&[500, 200]), class, "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.called(&hook, 1).await;
    let shown = fixture.is(&hook, "queued").await;
    fixture
        .push(shown["operation_id"].as_str().unwrap(), "purge")
        .await;
    assert!(fixture.of(&hook).await.is_empty());
    fixture.accepted(&hook, &hook.event(1)).await;
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// If the id is not signed, the remembered bytes do not block the same delivery.
#[tokio::test]
async fn a_purge_frees_an_unsigned_id_as_well() {
    let fixture = fixture().await;
    let hook = fixture
        .hook_with(Kind::GitHub, json!({ "same_bytes": "refuse" }))
        .await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let shown = fixture.is(&hook, "completed").await;
    fixture
        .push(shown["operation_id"].as_str().unwrap(), "purge")
        .await;
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    assert!(!answer.is_replay());
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

#[tokio::test]
async fn a_resumed_event_is_delivered() {
    let class = "max_attempts = 2";
    let (fixture, hook, id) = come_to("paused", answering(&[500, 500, 200]), class).await;
    fixture.push(&id, "resume").await;
    fixture.is(&hook, "completed").await;
    assert_eq!(fixture.got(&hook).await.len(), 3);
    assert_eq!(fixture.audited().await["action"], "operations.resume");
}

/// The stored event is sent again: the same bytes and key, a higher fence, a new
/// signature.
#[tokio::test]
async fn an_event_is_redelivered_unchanged() {
    for (state, origin) in [("completed", origin()), ("failed", refusing_first(&[200]))] {
        let (fixture, hook, id) = come_to(state, origin, "").await;
        assert_eq!(fixture.push(&id, "redeliver").await["operation_id"], *id);
        fixture.called(&hook, 2).await;
        fixture.is(&hook, "completed").await;
        let got = fixture.got(&hook).await;
        let [first, second] = &got[..] else {
            panic!("{state}: {got:?}")
        };
        assert_eq!(first.body, second.body, "{state}");
        for name in [
            "idempotency-key",
            "x-operation-id",
            "stripe-signature",
            "webhook-id",
        ] {
            assert_eq!(first.header(name), second.header(name), "{state}: {name}");
        }
        let fence =
            |seen: &crate::harness::Seen| seen.header("idempotency-fence").parse::<u64>().unwrap();
        assert!(fence(second) > fence(first), "{state}");
        let entry = fixture.audited().await;
        assert_eq!(entry["target"], *id, "{state}");
        assert_eq!(entry["why"], "ticket 7", "{state}");
        assert!(
            entry["action"].as_str().unwrap().ends_with(".redeliver"),
            "{state}: {entry}"
        );
        // The provider's resend is still a duplicate.
        assert!(
            fixture.accepted(&hook, &hook.event(1)).await.is_replay(),
            "{state}"
        );
        assert_eq!(fixture.got(&hook).await.len(), 2, "{state}");
    }
}

/// Attempts are counted anew after a redelivery.
#[tokio::test]
async fn a_redelivered_event_starts_with_all_its_attempts() {
    let class = "max_attempts = 2";
    let (fixture, hook, id) = come_to("failed", refusing_first(&[500, 200]), class).await;
    fixture.push(&id, "redeliver").await;
    fixture.is(&hook, "completed").await;
    assert_eq!(fixture.got(&hook).await.len(), 3);
}

/// Paused and unknown events too, without resolving them first.
#[tokio::test]
async fn paused_and_unknown_events_can_be_redelivered() {
    let class = "max_attempts = 1";
    let (fixture, hook, id) = come_to("paused", answering(&[500, 200]), class).await;
    fixture.push(&id, "redeliver").await;
    fixture.is(&hook, "completed").await;
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// An event under way is not sent a second time.
#[tokio::test]
async fn an_event_under_way_is_not_redelivered() {
    let fixture = fixture_with(origin().gated(), "", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    fixture.called(&hook, 1).await;
    let id = answer.header("x-operation-id");
    let path = format!("/admin/v1/operations/{id}/redeliver");
    let refused = fixture
        .gateway
        .change(&path, &json!({ "why": "ticket 7" }).to_string());
    assert_eq!(refused.send().await.status, 409);
    fixture.origin.open();
    fixture.only(&hook).await;
}

/// An event forwarded within a request is not stored; the operator gets this
/// answer, and nothing is sent.
#[tokio::test]
async fn an_event_that_was_not_stored_is_not_redelivered() {
    let fixture = fixture().await;
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "deliver": "sync" }))
        .await;
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    let id = answer.header("x-operation-id");
    let path = format!("/admin/v1/operations/{id}/redeliver");
    let refused = fixture
        .gateway
        .change(&path, &json!({ "why": "ticket 7" }).to_string());
    assert_eq!(refused.send().await.status, 409);
    fixture.only(&hook).await;
}

/// The upstream's last answer to a failed event explains why the provider's resend
/// has no effect.
#[tokio::test]
async fn an_operator_sees_why_an_event_failed() {
    let origin = refusing_first(&[200]);
    let (fixture, hook, id) = come_to("failed", origin, "").await;
    let path = format!("/admin/v1/operations/{id}?body=1");
    let shown = fixture.gateway.admin(&path).await.json();
    assert_eq!(shown["original_status"], 422);
    assert_eq!(shown["reply"]["body_text"], "no such order");
    assert_eq!(shown["delivered"], true);
    assert_eq!(shown["name"], hook.name(1, &[]));
    assert_eq!(shown["subject"], "service:webhook-ingest");
    assert_eq!(shown["class"], "webhook");
}

/// A caller of the API can neither use an event's key nor see its outcome.
#[tokio::test]
async fn a_caller_cannot_use_or_read_an_events_key() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Stripe).await;
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    fixture.is(&hook, "completed").await;
    let id = answer.header("x-operation-id");
    let asked = fixture
        .gateway
        .get(&format!("/api/v1/operations/{id}"))
        .send()
        .await;
    assert_eq!(asked.problem(), (404, "no-operation".to_owned()));
}
