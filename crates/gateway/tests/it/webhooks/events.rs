//! Every provider's events: good ones, changed ones, late ones, and the same
//! ones again.

use std::collections::BTreeMap;

use serde_json::json;

use super::signers::{Identity, Kind, Signed, standard_tag};
use super::{Fixture, Hook, fixture, fixture_with};
use crate::harness::{Answer, Seen, origin, until};

/// The three headers by which Standard Webhooks signs, and so do we.
const OURS: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

/// How an event arrived at the upstream.
fn check_arrived(hook: &Hook, sent: &Signed, told: &Answer, seen: &Seen) {
    let kind = hook.kind;
    assert_eq!(seen.method, "POST", "{kind:?}");
    assert_eq!(seen.target, hook.path, "{kind:?}");
    assert_eq!(seen.body, sent.body, "{kind:?}");
    for (name, value) in &sent.headers {
        let was = (kind, *name, seen.header(name));
        match *name {
            // The password is for our door.
            "authorization" => assert_eq!(was, (kind, *name, "")),
            // In our own name, as below.
            name if OURS.contains(&name) => {}
            name => assert_eq!(was, (kind, name, value.as_str())),
        }
    }
    let operation = told.header("x-operation-id");
    assert!(operation.starts_with("op_"), "{kind:?}: {operation:?}");
    for (name, value) in [
        ("idempotency-key", &*hook.name(1, &sent.body)),
        ("x-operation-id", operation),
        ("x-tenant-id", "acme"),
        ("x-project-id", "shop"),
        ("x-subject", "service:webhook-ingest"),
        ("x-forwarded-host", "shop.example"),
        ("webhook-id", operation),
    ] {
        assert_eq!((kind, name, seen.header(name)), (kind, name, value));
    }
    let fence = seen.header("idempotency-fence");
    assert!(fence.parse::<u64>().unwrap() > 0, "{kind:?}: {fence}");
    check_signed(hook, seen);
}

/// What arrives is signed by us, and just now.
pub(super) fn check_signed(hook: &Hook, seen: &Seen) {
    let kind = hook.kind;
    let [id, at, signature] = OURS.map(|name| seen.header(name));
    let age = super::now() - at.parse::<i64>().unwrap();
    assert!((0..60).contains(&age), "{kind:?}: signed at {at}");
    let tag = standard_tag(&hook.signing_secret, id, at, &seen.body);
    assert_eq!(signature, tag, "{kind:?}");
}

#[tokio::test]
async fn an_event_is_acknowledged_and_arrives_once_as_it_was() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let sent = hook.event(1);
        let told = fixture.accepted(&hook, &sent).await;
        assert!(!told.is_replay(), "{kind:?}");
        check_arrived(&hook, &sent, &told, &fixture.only(&hook).await);
        assert_eq!(fixture.of(&hook).await[0]["attempts"], 1, "{kind:?}");
    }
}

/// Each provider expects another body in answer to an event, or none.
#[tokio::test]
async fn an_acknowledgement_says_what_the_provider_expects() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook_with(kind, json!({ "deliver": "async" })).await;
        let told = fixture.accepted(&hook, &hook.event(1)).await;
        let want = match kind {
            Kind::Twilio | Kind::TwilioSharedKey => ("text/xml", "<Response/>"),
            Kind::AdyenPayments | Kind::AdyenPlatform => ("text/plain", "[accepted]"),
            _ => ("", ""),
        };
        assert_eq!((told.header("content-type"), told.text()), want, "{kind:?}");
        assert_eq!(told.header("idempotency-status"), "processing", "{kind:?}");
        assert_eq!(told.header("cache-control"), "no-store", "{kind:?}");
    }
}

#[tokio::test]
async fn what_the_provider_did_not_sign_is_refused() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let mut wrong = vec![hook.unsigned(1).secret(&kind.secret()).signed()];
        // Postmark signs nothing: who has its password is Postmark.
        if kind != Kind::Postmark {
            wrong.push(hook.event(1).tampered());
        }
        if kind.has_time() {
            wrong.push(hook.unsigned(1).at(-320).signed());
            wrong.push(hook.unsigned(1).at(320).signed());
        }
        for wrong in &wrong {
            let told = fixture.send(&hook, wrong).await;
            let want = (401, "unauthenticated".to_owned());
            assert_eq!(told.problem(), want, "{kind:?}: {wrong:?}");
        }
        assert!(fixture.of(&hook).await.is_empty(), "{kind:?}");
        // And none of it has burnt the id.
        fixture.accepted(&hook, &hook.event(1)).await;
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn clocks_may_be_off_by_less_than_the_tolerance() {
    let fixture = fixture().await;
    for kind in Kind::ALL.into_iter().filter(|kind| kind.has_time()) {
        let hook = fixture.hook(kind).await;
        for (number, seconds) in [(1, -280), (2, 280)] {
            let sent = hook.unsigned(number).at(seconds).signed();
            fixture.accepted(&hook, &sent).await;
        }
        assert_eq!(fixture.got(&hook).await.len(), 2, "{kind:?}");
    }
}

#[tokio::test]
async fn after_a_rotation_both_secrets_are_good_until_the_old_one_ends() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let (old, new, last) = (&hook.secret, kind.secret(), kind.secret());
        let rotate = format!("/admin/v1/webhooks/{}/rotate", hook.id);
        let ask = json!({ "secret": new, "why": "a test" });
        fixture.operate(&rotate, ask).await;
        for (number, secret) in [(1, old), (2, &new)] {
            let sent = hook.unsigned(number).secret(secret).signed();
            fixture.accepted(&hook, &sent).await;
        }
        let ask = json!({ "secret": last, "overlap": "0s", "why": "a test" });
        fixture.operate(&rotate, ask).await;
        for (number, secret, status) in [(3, old, 401), (4, &new, 401), (5, &last, 200)] {
            let sent = hook.unsigned(number).secret(secret).signed();
            let told = fixture.send(&hook, &sent).await;
            assert_eq!(told.status, status, "{kind:?} {number}");
        }
        assert_eq!(fixture.got(&hook).await.len(), 3, "{kind:?}");
    }
}

#[tokio::test]
async fn an_old_secret_ends_by_itself() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Stripe).await;
    let rotate = format!("/admin/v1/webhooks/{}/rotate", hook.id);
    let new = Kind::Stripe.secret();
    let ask = json!({ "secret": new, "overlap": "300ms", "why": "a test" });
    fixture.operate(&rotate, ask).await;
    let old = hook.event(1);
    until(async || fixture.send(&hook, &old).await.status != 200).await;
    assert_eq!(fixture.send(&hook, &old).await.status, 401);
    let sent = hook.unsigned(2).secret(&new).signed();
    fixture.accepted(&hook, &sent).await;
}

#[tokio::test]
async fn an_event_without_an_id_is_told_and_counted() {
    let fixture = fixture().await;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for kind in Kind::ALL {
        let (provider, id_is) = (kind.provider(), kind.identity());
        if id_is == Identity::Content {
            continue;
        }
        let hook = fixture.hook(kind).await;
        let told = fixture
            .send(&hook, &hook.unsigned(1).without_id().signed())
            .await;
        // Where the id is part of what is signed, nothing is signed without it.
        let want = match kind {
            Kind::StandardWebhooks | Kind::Svix => (401, "unauthenticated".to_owned()),
            _ => (400, "translation-failed".to_owned()),
        };
        assert_eq!(told.problem(), want, "{kind:?}");
        if want.0 == 400 {
            let count = counts.entry(provider).or_default();
            *count += 1;
            fixture
                .counts(&format!(
                    "transport_translation_failed_total{{tenant=\"acme\",project=\"shop\",\
                     endpoint=\"webhooks.{provider}\",provider=\"{provider}\"}} {count}"
                ))
                .await;
        }
        assert!(fixture.got(&hook).await.is_empty(), "{kind:?}");
    }
}

/// Providers send again what they have signed anew, for days.
#[tokio::test]
async fn an_event_that_comes_again_is_acknowledged_and_does_not_arrive_again() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let first = fixture.accepted(&hook, &hook.event(1)).await;
        fixture.is(&hook, "completed").await;
        let again = fixture
            .accepted(&hook, &hook.unsigned(1).at(2).signed())
            .await;
        assert!(again.is_replay(), "{kind:?}");
        assert_eq!(again.header("idempotency-status"), "completed", "{kind:?}");
        assert!(
            again.header("idempotency-expires").ends_with('Z'),
            "{kind:?}"
        );
        let id = |told: &Answer| told.header("x-operation-id").to_owned();
        assert_eq!(id(&first), id(&again), "{kind:?}");
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn an_event_that_comes_many_times_at_once_arrives_once() {
    let fixture = fixture_with(origin().gated(), "", "").await;
    for kind in Kind::ALL {
        let hook = fixture.hook_with(kind, json!({ "deliver": "async" })).await;
        let sent = hook.event(1);
        let asks: Vec<_> = (0..8).map(|_| fixture.ask(&hook, &sent).spawn()).collect();
        for told in asks {
            let told = told.await.unwrap();
            let state = told.header("idempotency-status");
            assert_eq!((told.status, state), (200, "processing"), "{kind:?}");
        }
        fixture.origin.open();
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn the_same_id_with_other_words_is_the_same_event_if_the_id_is_signed() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        fixture.is(&hook, "completed").await;
        let other = hook.unsigned(1).note("in other words").signed();
        let told = fixture.accepted(&hook, &other).await;
        let got = fixture.got(&hook).await;
        let operations = fixture.of(&hook).await;
        match kind.identity() {
            Identity::Signed => {
                assert!(told.is_replay(), "{kind:?}");
                assert_eq!((got.len(), operations.len()), (1, 1), "{kind:?}");
            }
            Identity::Unsigned | Identity::Content => {
                assert!(!told.is_replay(), "{kind:?}");
                assert_eq!((got.len(), operations.len()), (2, 2), "{kind:?}");
                assert_eq!(got[1].body, other.body, "{kind:?}");
                assert_eq!(
                    got[1].header("idempotency-key"),
                    hook.name(1, &other.body),
                    "{kind:?}"
                );
            }
        }
    }
}

/// One event that a provider sends to two webhooks is two: each has its own
/// work to do, and who may send to one cannot use up the other's ids.
#[tokio::test]
async fn webhooks_do_not_know_each_others_events() {
    let fixture = fixture().await;
    let one = fixture.hook(Kind::Stripe).await;
    let other = fixture
        .hook_with(Kind::Stripe, json!({ "path": "/elsewhere" }))
        .await;
    for hook in [&one, &other] {
        let told = fixture.accepted(hook, &hook.event(1)).await;
        assert!(!told.is_replay());
        fixture.only(hook).await;
    }
}

/// Ids are the provider's: whatever is in them, each is one, and none is
/// another's.
#[tokio::test]
async fn odd_ids_are_ids() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Stripe).await;
    let long = "e".repeat(5000);
    let longer = "e".repeat(5001);
    let ids = [
        "a b",
        "a%20b",
        "a/b",
        "a.b",
        "a:b",
        "ä",
        "a\u{0}b",
        "a\r\nX: y",
        "-",
        "t-acme",
        "\"",
        &long,
        &longer,
    ];
    for id in ids {
        for replay in [false, true] {
            let body = json!({ "id": id }).to_string();
            let sent = hook.unsigned(0).body(body).signed();
            let told = fixture.accepted(&hook, &sent).await;
            fixture.quiet().await;
            assert_eq!(told.is_replay(), replay, "{id:?}");
        }
    }
    let got = fixture.got(&hook).await;
    let names = got.iter().map(|seen| seen.header("idempotency-key"));
    let names: std::collections::BTreeSet<_> = names.collect();
    assert_eq!((got.len(), names.len()), (ids.len(), ids.len()));
    let start = "t-acme:shop:service:webhook-ingest:stripe-";
    for name in names {
        let raw = name.strip_prefix(start).unwrap();
        assert!((1..=255).contains(&raw.len()), "{name}");
    }
}

/// Nor do tenants, whatever their events are called.
#[tokio::test]
async fn tenants_do_not_know_each_others_events() {
    let fixture = fixture().await;
    let one = fixture.hook(Kind::Stripe).await;
    let other = fixture
        .hook_with(Kind::Stripe, json!({ "tenant": "a:b" }))
        .await;
    for hook in [&one, &other] {
        let told = fixture.accepted(hook, &hook.event(1)).await;
        assert!(!told.is_replay());
    }
    let keys = fixture.got(&one).await;
    let keys = keys.iter().map(|seen| seen.header("idempotency-key"));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    let name = |tenant| format!("t-{tenant}:shop:service:webhook-ingest:stripe-evt_1");
    assert_eq!(keys, [name("a%3Ab"), name("acme")]);
}

impl Fixture {
    /// A webhook whose secret was made by the gateway.
    pub(super) async fn generated(&self, kind: Kind) -> Hook {
        let ask = json!({
            "tenant": "acme",
            "project": "shop",
            "provider": kind.provider(),
            "upstream": "origin",
            "path": format!("/made/{kind:?}"),
            "generate": true,
            "why": "a test",
        });
        let created = self.operate("/admin/v1/webhooks", ask.clone()).await;
        let text = |name: &str| created[name].as_str().unwrap().to_owned();
        Hook {
            kind,
            id: text("webhook_id"),
            secret: text("secret"),
            path: ask["path"].as_str().unwrap().to_owned(),
            signing_secret: text("signing_secret"),
        }
    }
}

#[tokio::test]
async fn a_secret_that_was_made_here_is_one_that_the_provider_can_sign_with() {
    let fixture = fixture().await;
    for kind in [
        Kind::GitHub,
        Kind::StandardWebhooks,
        Kind::Svix,
        Kind::Postmark,
        Kind::Acme,
    ] {
        let hook = fixture.generated(kind).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn events_come_over_http2_as_well() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let sent = hook.event(1);
        let told = fixture.ask(&hook, &sent).h2c().send().await;
        assert_eq!(told.status, 200, "{kind:?}: {}", told.text());
        check_arrived(&hook, &sent, &told, &fixture.only(&hook).await);
    }
}
