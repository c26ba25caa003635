//! Requests with several events: each event is recorded separately.

use serde_json::{Value, json};

use super::duplicates::refusal;
use super::signers::{Kind, Signed, adyen, adyen_item, cloud_event};
use super::{Fixture, Hook, fixture, fixture_with, settings};
use crate::harness::{Reply, Reserved, configured_to, origin};

const KINDS: [Kind; 2] = [Kind::TwilioEvents, Kind::AdyenPayments];

/// A request with these events.
fn batch(hook: &Hook, numbers: &[u32]) -> Signed {
    let kind = hook.kind;
    let numbers = numbers.iter();
    let body = match kind {
        Kind::TwilioEvents => {
            let events = numbers.map(|number| element(hook, *number));
            Value::from(events.collect::<Vec<_>>()).to_string()
        }
        _ => {
            let items: Vec<_> = numbers.map(|number| element(hook, *number)).collect();
            adyen(&items)
        }
    };
    hook.unsigned(0).body(body).signed()
}

fn element(hook: &Hook, number: u32) -> Value {
    let (id, note) = (hook.kind.id(number), format!("note {number}"));
    match hook.kind {
        Kind::TwilioEvents => cloud_event(Some(&id), &note),
        _ => adyen_item(&hook.secret, &id, &note),
    }
}

impl Fixture {
    /// The delivered events, each by its number, in order.
    async fn numbers(&self, hook: &Hook) -> Vec<u32> {
        let got = self.got(hook).await;
        let mut numbers: Vec<u32> = got.iter().map(|seen| number(hook, &seen.body)).collect();
        numbers.sort_unstable();
        for (seen, name) in got
            .iter()
            .map(|seen| (seen, seen.header("idempotency-key")))
        {
            assert_eq!(name, hook.name(number(hook, &seen.body), &seen.body));
        }
        numbers
    }
}

/// The number of the one event in an envelope; the envelope is otherwise unchanged.
fn number(hook: &Hook, body: &[u8]) -> u32 {
    let body: Value = serde_json::from_slice(body).unwrap();
    let (element, note) = match hook.kind {
        Kind::TwilioEvents => (&body[0], &body[0]["data"]["note"]),
        _ => {
            assert_eq!(body["live"], "false");
            let item = &body["notificationItems"][0];
            (item, &item["NotificationRequestItem"]["reason"])
        }
    };
    let number = note.as_str().unwrap().strip_prefix("note ").unwrap();
    let number = number.parse().unwrap();
    assert_eq!(
        *element,
        self::element(hook, number),
        "its bytes are untouched"
    );
    let items = match hook.kind {
        Kind::TwilioEvents => &body,
        _ => &body["notificationItems"],
    };
    assert_eq!(items.as_array().unwrap().len(), 1, "an envelope of its own");
    number
}

#[tokio::test]
async fn only_new_events_of_a_batch_are_delivered() {
    let fixture = fixture().await;
    for kind in KINDS {
        let hook = fixture.hook(kind).await;
        fixture.accepted(&hook, &batch(&hook, &[1, 2])).await;
        assert_eq!(fixture.numbers(&hook).await, [1, 2], "{kind:?}");
        let answer = fixture.accepted(&hook, &batch(&hook, &[2, 3, 1, 4])).await;
        assert!(!answer.is_replay(), "{kind:?}: some of it is new");
        assert_eq!(fixture.numbers(&hook).await, [1, 2, 3, 4], "{kind:?}");
        let answer = fixture.accepted(&hook, &batch(&hook, &[4, 3, 2, 1])).await;
        assert!(answer.is_replay(), "{kind:?}: all of it is known");
        assert_eq!(answer.header("idempotency-status"), "completed", "{kind:?}");
        assert_eq!(fixture.numbers(&hook).await, [1, 2, 3, 4], "{kind:?}");
    }
}

#[tokio::test]
async fn an_event_repeated_in_a_batch_is_delivered_once() {
    let fixture = fixture().await;
    for kind in KINDS {
        let hook = fixture.hook(kind).await;
        fixture.accepted(&hook, &batch(&hook, &[1, 2, 1])).await;
        assert_eq!(fixture.numbers(&hook).await, [1, 2], "{kind:?}");
    }
}

#[tokio::test]
async fn concurrent_overlapping_batches_deliver_each_event_once() {
    let fixture = fixture().await;
    for kind in KINDS {
        let hook = fixture.hook(kind).await;
        let batches = [[1, 2, 3], [3, 4, 5], [5, 1, 6], [2, 4, 6]];
        let requests =
            batches.map(|numbers| fixture.request(&hook, &batch(&hook, &numbers)).spawn());
        for answer in requests {
            assert_eq!(answer.await.unwrap().status, 200, "{kind:?}");
        }
        assert_eq!(fixture.numbers(&hook).await, [1, 2, 3, 4, 5, 6], "{kind:?}");
    }
}

/// One element without a signature or an id makes the whole batch invalid.
#[tokio::test]
async fn a_batch_is_accepted_whole_or_not_at_all() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::AdyenPayments).await;
    let mut forged = element(&hook, 2);
    forged["NotificationRequestItem"]["amount"]["value"] = json!(1);
    let body = adyen(&[element(&hook, 1), forged]);
    let answer = fixture
        .send(&hook, &hook.unsigned(0).body(body).signed())
        .await;
    assert_eq!(answer.status, 401);
    let body = adyen(&[element(&hook, 1), adyen_item(&hook.secret, "", "note 2")]);
    let answer = fixture
        .send(&hook, &hook.unsigned(0).body(body).signed())
        .await;
    assert_eq!(answer.problem(), (400, "translation-failed".to_owned()));

    let events = fixture.hook(Kind::TwilioEvents).await;
    let body = json!([element(&events, 1), cloud_event(None, "note 2")]).to_string();
    let answer = fixture
        .send(&events, &events.unsigned(0).body(body).signed())
        .await;
    assert_eq!(answer.problem(), (400, "translation-failed".to_owned()));
    for hook in [&hook, &events] {
        assert!(fixture.got(hook).await.is_empty());
        assert!(fixture.of(hook).await.is_empty());
    }
}

/// Each event has its own outcome.
#[tokio::test]
async fn each_event_of_a_batch_has_its_own_outcome() {
    let refusing = origin().replying(|seen, _| match seen.text().contains("note 2") {
        true => refusal(""),
        false => Reply::new(200, ""),
    });
    let fixture = fixture_with(refusing, "", "").await;
    for kind in KINDS {
        let hook = fixture.hook(kind).await;
        fixture.accepted(&hook, &batch(&hook, &[1, 2, 3])).await;
        assert_eq!(fixture.numbers(&hook).await, [1, 2, 3], "{kind:?}");
        let of = fixture.of(&hook).await;
        let mut states: Vec<_> = of
            .iter()
            .map(|one| one["state"].as_str().unwrap())
            .collect();
        states.sort_unstable();
        assert_eq!(states, ["completed", "completed", "failed"], "{kind:?}");
    }
}

/// In a sync batch the answer is that of the first event that the upstream does not
/// accept. The events behind it are delivered too; those accepted are not sent again.
#[tokio::test]
async fn a_refused_event_does_not_hold_back_the_rest_of_a_sync_batch() {
    let refusing = origin().replying(|seen, _| match seen.text().contains("note 2") {
        true => Reply::new(422, "never"),
        false => Reply::new(200, ""),
    });
    let fixture = fixture_with(refusing, "", "").await;
    let sync = json!({ "deliver": "sync" });
    let hook = fixture.hook_with(Kind::TwilioEvents, sync).await;
    let sent = batch(&hook, &[1, 2, 3]);
    for resend in 0..2 {
        let answer = fixture.send(&hook, &sent).await;
        assert_eq!((answer.status, answer.text()), (422, "never"), "{resend}");
    }
    assert_eq!(fixture.numbers(&hook).await, [1, 2, 2, 3]);
}

/// An upstream that is not reached is not tried again for each event behind.
#[tokio::test]
async fn an_unreachable_upstream_ends_a_sync_batch() {
    let reserved = Reserved::new();
    let gateway = configured_to(&reserved.url(), &settings("", ""));
    let fixture = Fixture {
        // An upstream that is never reached.
        origin: origin().run().await,
        gateway: gateway.run().await,
    };
    let sync = json!({ "deliver": "sync" });
    let hook = fixture.hook_with(Kind::TwilioEvents, sync).await;
    let answer = fixture.send(&hook, &batch(&hook, &[1, 2, 3])).await;
    assert_eq!(answer.problem(), (502, "upstream-unreachable".to_owned()));
    let labels = "tenant=\"acme\",project=\"shop\",endpoint=\"webhooks.twilio-events\"";
    let line = format!("idempotency_key_present_total{{{labels},case=\"B\"}} 1");
    fixture.counts(&line).await;
}
