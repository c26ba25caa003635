//! Trials: answered or forwarded each time, and never recorded.

use serde_json::{Value, json};

use super::signers::{Kind, adyen, adyen_item, cloud_event, standard_tag};
use super::{Fixture, fixture, fixture_with};
use crate::harness::origin;

impl Fixture {
    /// Checks that nothing is recorded, not even seen bytes.
    async fn knows_nothing(&self) {
        let page = self.gateway.admin("/admin/v1/operations").await.json();
        assert_eq!(page["operations"], json!([]));
    }
}

#[tokio::test]
async fn slacks_challenge_is_answered() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Slack).await;
    for challenge in ["one", "one", "two \"and\" <three>"] {
        let body = json!({ "type": "url_verification", "challenge": challenge });
        let sent = hook.unsigned(1).body(body.to_string()).signed();
        let answer = fixture.accepted(&hook, &sent).await;
        assert_eq!(
            (answer.header("content-type"), answer.text()),
            ("text/plain", challenge)
        );
        assert!(!answer.is_replay());
        // Only for a signed request.
        let sent = hook
            .unsigned(1)
            .body(body.to_string())
            .secret("another")
            .signed();
        assert_eq!(fixture.send(&hook, &sent).await.status, 401);
    }
    assert_eq!(fixture.origin.runs(), 0);
    fixture.knows_nothing().await;
}

/// The trial request of each provider.
fn trial(kind: Kind, secret: &str) -> String {
    match kind {
        Kind::GitHub => json!({ "zen": "Keep it logically awesome.", "hook_id": 7 }).to_string(),
        Kind::TwilioEvents => {
            let mut event = cloud_event(Some("AC1"), "a test");
            event["type"] = json!("com.twilio.eventstreams.test-event");
            json!([event]).to_string()
        }
        _ => adyen(&[adyen_item(secret, "TEST_AUTHORISATION_1", "a test")]),
    }
}

#[tokio::test]
async fn each_trial_is_forwarded_and_gets_the_upstreams_answer() {
    let fixture = fixture_with(origin().reply(202, "[accepted]"), "", "").await;
    for kind in [Kind::GitHub, Kind::TwilioEvents, Kind::AdyenPayments] {
        let hook = fixture.hook(kind).await;
        let body = trial(kind, &hook.secret);
        let sent = hook.unsigned(1).body(body.as_str()).signed();
        for _ in 0..2 {
            let answer = fixture.send(&hook, &sent).await;
            assert_eq!(
                (answer.status, answer.text()),
                (202, "[accepted]"),
                "{kind:?}"
            );
            assert!(!answer.is_replay(), "{kind:?}");
        }
        let came = fixture.came(&hook);
        assert_eq!(came.len(), 2, "{kind:?}");
        for seen in came {
            assert_eq!(seen.text(), body, "{kind:?}");
            assert_eq!(seen.header("idempotency-key"), "", "{kind:?}");
            assert_eq!(seen.header("idempotency-fence"), "", "{kind:?}");
            // Trials are signed for the upstream too.
            let [id, at, signature] = ["webhook-id", "webhook-timestamp", "webhook-signature"]
                .map(|name| seen.header(name));
            let tag = standard_tag(&hook.signing_secret, id, at, &seen.body);
            assert_eq!(signature, tag, "{kind:?}");
        }
        let wrong = hook.unsigned(1).secret(&kind.secret());
        let wrong = wrong.body(trial(kind, &kind.secret())).signed();
        assert_eq!(fixture.send(&hook, &wrong).await.status, 401, "{kind:?}");
        assert_eq!(fixture.came(&hook).len(), 2, "{kind:?}");
    }
    fixture.knows_nothing().await;
}

/// Several tenants may share one upstream, so a trial names its tenant and project.
#[tokio::test]
async fn a_trial_names_its_tenant_and_project() {
    let fixture = fixture().await;
    for kind in [Kind::GitHub, Kind::TwilioEvents, Kind::AdyenPayments] {
        let hook = fixture.hook(kind).await;
        let body = trial(kind, &hook.secret);
        fixture
            .accepted(&hook, &hook.unsigned(1).body(body).signed())
            .await;
        let seen = fixture.only(&hook).await;
        let whose = ["x-tenant-id", "x-project-id", "x-subject"].map(|name| seen.header(name));
        assert_eq!(
            whose,
            ["acme", "shop", "service:webhook-ingest"],
            "{kind:?}"
        );
    }
}

/// The event's name is not signed: otherwise a captured push could be sent as a
/// ping any number of times.
#[tokio::test]
async fn a_push_cannot_be_disguised_as_a_ping() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    let push = hook.event(1);
    fixture.accepted(&hook, &push).await;
    for _ in 0..3 {
        let answer = fixture
            .accepted(&hook, &push.clone().with("x-github-event", "ping"))
            .await;
        assert!(!answer.header("idempotency-status").is_empty());
    }
    fixture.only(&hook).await;
}

/// A ping sent as an event does not use up an id.
#[tokio::test]
async fn a_ping_does_not_use_up_an_id() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    let ping = hook.unsigned(1).body(trial(Kind::GitHub, "")).signed();
    fixture.accepted(&hook, &ping).await;
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    assert!(!answer.is_replay());
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// A trial within a batch is left out, and the other events are delivered.
#[tokio::test]
async fn a_trial_within_a_batch_is_not_delivered() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::TwilioEvents).await;
    let trial: Value = serde_json::from_str(&trial(Kind::TwilioEvents, "")).unwrap();
    let event = cloud_event(Some(&Kind::TwilioEvents.id(1)), "note 1");
    let body = json!([trial[0], event]).to_string();
    let sent = hook.unsigned(1).body(body).signed();
    fixture.accepted(&hook, &sent).await;
    let seen = fixture.only(&hook).await;
    let seen: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(seen, json!([event]));
}
