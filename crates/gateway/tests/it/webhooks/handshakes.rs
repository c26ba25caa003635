//! Trials of the way: answered or passed each time, and never recorded.

use serde_json::{Value, json};

use super::signers::{Kind, adyen, adyen_item, cloud_event, standard_tag};
use super::{Fixture, fixture, fixture_with};
use crate::harness::origin;

impl Fixture {
    /// Nothing at all is on record, not even bytes that were seen.
    async fn knows_nothing(&self) {
        let page = self.gateway.admin("/admin/v1/operations").await.json();
        assert_eq!(page["operations"], json!([]));
    }
}

#[tokio::test]
async fn slack_gets_each_challenge_back() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Slack).await;
    for challenge in ["one", "one", "two \"and\" <three>"] {
        let body = json!({ "type": "url_verification", "challenge": challenge });
        let sent = hook.unsigned(1).body(body.to_string()).signed();
        let told = fixture.accepted(&hook, &sent).await;
        assert_eq!(
            (told.header("content-type"), told.text()),
            ("text/plain", challenge)
        );
        assert!(!told.is_replay());
        // Only to who can sign.
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

/// What each provider tries the way with.
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
async fn trials_reach_the_upstream_each_time_and_its_answer_is_the_answer() {
    let fixture = fixture_with(origin().reply(202, "[accepted]"), "", "").await;
    for kind in [Kind::GitHub, Kind::TwilioEvents, Kind::AdyenPayments] {
        let hook = fixture.hook(kind).await;
        let body = trial(kind, &hook.secret);
        let sent = hook.unsigned(1).body(body.as_str()).signed();
        for _ in 0..2 {
            let told = fixture.send(&hook, &sent).await;
            assert_eq!((told.status, told.text()), (202, "[accepted]"), "{kind:?}");
            assert!(!told.is_replay(), "{kind:?}");
        }
        let came = fixture.came(&hook);
        assert_eq!(came.len(), 2, "{kind:?}");
        for seen in came {
            assert_eq!(seen.text(), body, "{kind:?}");
            assert_eq!(seen.header("idempotency-key"), "", "{kind:?}");
            assert_eq!(seen.header("idempotency-fence"), "", "{kind:?}");
            // An upstream that looks at our signature finds one here too.
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

/// Several tenants may have one upstream, which is told whose trial it is.
#[tokio::test]
async fn trials_say_whose_they_are() {
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

/// The name of the event is not signed: a caught push under the name of a ping
/// would otherwise arrive as often as somebody likes.
#[tokio::test]
async fn a_push_does_not_pass_for_a_ping() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    let push = hook.event(1);
    fixture.accepted(&hook, &push).await;
    for _ in 0..3 {
        let told = fixture
            .accepted(&hook, &push.clone().with("x-github-event", "ping"))
            .await;
        assert!(!told.header("idempotency-status").is_empty());
    }
    fixture.only(&hook).await;
}

/// Nor a ping for an event, whose id it could burn.
#[tokio::test]
async fn a_ping_does_not_burn_an_id() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    let ping = hook.unsigned(1).body(trial(Kind::GitHub, "")).signed();
    fixture.accepted(&hook, &ping).await;
    let told = fixture.accepted(&hook, &hook.event(1)).await;
    assert!(!told.is_replay());
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// A trial among real events is left out, and they are delivered.
#[tokio::test]
async fn a_trial_among_events_is_not_one_of_them() {
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
