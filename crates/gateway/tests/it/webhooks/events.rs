//! Events of every provider: valid, changed, late, and repeated.

use std::collections::BTreeMap;

use serde_json::json;

use super::signers::{Identity, Kind, Signed, standard_tag};
use super::{Fixture, Hook, fixture, fixture_with};
use crate::harness::{Answer, Seen, origin, until};

/// The three headers of a Standard Webhooks signature, which the gateway uses too.
const OURS: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

/// Checks an event as it arrived at the upstream.
fn check_arrived(hook: &Hook, sent: &Signed, answer: &Answer, seen: &Seen) {
    let kind = hook.kind;
    assert_eq!(seen.method, "POST", "{kind:?}");
    assert_eq!(seen.target, hook.path, "{kind:?}");
    assert_eq!(seen.body, sent.body, "{kind:?}");
    for (name, value) in &sent.headers {
        let was = (kind, *name, seen.header(name));
        match *name {
            // The password is only for the gateway.
            "authorization" => assert_eq!(was, (kind, *name, "")),
            // The gateway's own signature, checked below.
            name if OURS.contains(&name) => {}
            name => assert_eq!(was, (kind, name, value.as_str())),
        }
    }
    let operation = answer.header("x-operation-id");
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

/// Checks that the gateway signed the delivery just now.
pub(super) fn check_signed(hook: &Hook, seen: &Seen) {
    let kind = hook.kind;
    let [id, at, signature] = OURS.map(|name| seen.header(name));
    let age = super::now() - at.parse::<i64>().unwrap();
    assert!((0..60).contains(&age), "{kind:?}: signed at {at}");
    let tag = standard_tag(&hook.signing_secret, id, at, &seen.body);
    assert_eq!(signature, tag, "{kind:?}");
}

#[tokio::test]
async fn an_event_is_acknowledged_and_delivered_once_unchanged() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let sent = hook.event(1);
        let answer = fixture.accepted(&hook, &sent).await;
        assert!(!answer.is_replay(), "{kind:?}");
        check_arrived(&hook, &sent, &answer, &fixture.only(&hook).await);
        assert_eq!(fixture.of(&hook).await[0]["attempts"], 1, "{kind:?}");
    }
}

/// Each provider expects a different body, or none, in the acknowledgement.
#[tokio::test]
async fn an_acknowledgement_has_the_body_that_the_provider_expects() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook_with(kind, json!({ "deliver": "async" })).await;
        let answer = fixture.accepted(&hook, &hook.event(1)).await;
        let want = match kind {
            Kind::Twilio | Kind::TwilioSharedKey => ("text/xml", "<Response/>"),
            Kind::AdyenPayments | Kind::AdyenPlatform => ("text/plain", "[accepted]"),
            _ => ("", ""),
        };
        assert_eq!(
            (answer.header("content-type"), answer.text()),
            want,
            "{kind:?}"
        );
        assert_eq!(
            answer.header("idempotency-status"),
            "processing",
            "{kind:?}"
        );
        assert_eq!(answer.header("cache-control"), "no-store", "{kind:?}");
    }
}

#[tokio::test]
async fn a_request_without_the_providers_signature_is_refused() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let mut wrong = vec![hook.unsigned(1).secret(&kind.secret()).signed()];
        // Postmark signs nothing: its password is the only proof.
        if kind != Kind::Postmark {
            wrong.push(hook.event(1).tampered());
        }
        if kind.has_time() {
            wrong.push(hook.unsigned(1).at(-320).signed());
            wrong.push(hook.unsigned(1).at(320).signed());
        }
        for wrong in &wrong {
            let answer = fixture.send(&hook, wrong).await;
            let want = (401, "unauthenticated".to_owned());
            assert_eq!(answer.problem(), want, "{kind:?}: {wrong:?}");
        }
        assert!(fixture.of(&hook).await.is_empty(), "{kind:?}");
        // No refused request has used up the id.
        fixture.accepted(&hook, &hook.event(1)).await;
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn a_signature_within_the_tolerance_is_accepted() {
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
async fn after_a_rotation_both_secrets_are_valid_until_the_old_one_ends() {
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
            let answer = fixture.send(&hook, &sent).await;
            assert_eq!(answer.status, status, "{kind:?} {number}");
        }
        assert_eq!(fixture.got(&hook).await.len(), 3, "{kind:?}");
    }
}

#[tokio::test]
async fn an_old_secret_ends_after_the_overlap() {
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
async fn an_event_without_an_id_is_refused_and_counted() {
    let fixture = fixture().await;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for kind in Kind::ALL {
        let (provider, id_is) = (kind.provider(), kind.identity());
        if id_is == Identity::Content {
            continue;
        }
        let hook = fixture.hook(kind).await;
        let answer = fixture
            .send(&hook, &hook.unsigned(1).without_id().signed())
            .await;
        // If the signature covers the id, there is no signature without an id.
        let want = match kind {
            Kind::StandardWebhooks | Kind::Svix => (401, "unauthenticated".to_owned()),
            _ => (400, "translation-failed".to_owned()),
        };
        assert_eq!(answer.problem(), want, "{kind:?}");
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

/// Providers resend events for days, with new signatures.
#[tokio::test]
async fn a_resent_event_is_acknowledged_and_not_delivered_again() {
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
        let id = |answer: &Answer| answer.header("x-operation-id").to_owned();
        assert_eq!(id(&first), id(&again), "{kind:?}");
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn an_event_sent_many_times_concurrently_is_delivered_once() {
    let fixture = fixture_with(origin().gated(), "", "").await;
    for kind in Kind::ALL {
        let hook = fixture.hook_with(kind, json!({ "deliver": "async" })).await;
        let sent = hook.event(1);
        let requests: Vec<_> = (0..8)
            .map(|_| fixture.request(&hook, &sent).spawn())
            .collect();
        for answer in requests {
            let answer = answer.await.unwrap();
            let state = answer.header("idempotency-status");
            assert_eq!((answer.status, state), (200, "processing"), "{kind:?}");
        }
        fixture.origin.open();
        fixture.only(&hook).await;
    }
}

#[tokio::test]
async fn a_signed_id_identifies_an_event_whatever_its_body() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        fixture.is(&hook, "completed").await;
        let other = hook.unsigned(1).note("in other words").signed();
        let answer = fixture.accepted(&hook, &other).await;
        let got = fixture.got(&hook).await;
        let operations = fixture.of(&hook).await;
        match kind.identity() {
            Identity::Signed => {
                assert!(answer.is_replay(), "{kind:?}");
                assert_eq!((got.len(), operations.len()), (1, 1), "{kind:?}");
            }
            Identity::Unsigned | Identity::Content => {
                assert!(!answer.is_replay(), "{kind:?}");
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

/// One event that a provider sends to two webhooks is two events: each has its own
/// work, and a sender to one webhook cannot use up the other's ids.
#[tokio::test]
async fn events_of_two_webhooks_are_separate() {
    let fixture = fixture().await;
    let one = fixture.hook(Kind::Stripe).await;
    let other = fixture
        .hook_with(Kind::Stripe, json!({ "path": "/elsewhere" }))
        .await;
    for hook in [&one, &other] {
        let answer = fixture.accepted(hook, &hook.event(1)).await;
        assert!(!answer.is_replay());
        fixture.only(hook).await;
    }
}

/// Providers choose ids: whatever characters they have, they stay distinct.
#[tokio::test]
async fn unusual_ids_stay_distinct() {
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
            let answer = fixture.accepted(&hook, &sent).await;
            fixture.quiet().await;
            assert_eq!(answer.is_replay(), replay, "{id:?}");
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

/// For any names of their events.
#[tokio::test]
async fn events_of_two_tenants_are_separate() {
    let fixture = fixture().await;
    let one = fixture.hook(Kind::Stripe).await;
    let other = fixture
        .hook_with(Kind::Stripe, json!({ "tenant": "a:b" }))
        .await;
    for hook in [&one, &other] {
        let answer = fixture.accepted(hook, &hook.event(1)).await;
        assert!(!answer.is_replay());
    }
    let keys = fixture.got(&one).await;
    let keys = keys.iter().map(|seen| seen.header("idempotency-key"));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    let name = |tenant| format!("t-{tenant}:shop:service:webhook-ingest:stripe-evt_1");
    assert_eq!(keys, [name("a%3Ab"), name("acme")]);
}

impl Fixture {
    /// A webhook with a generated secret.
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
async fn a_generated_secret_verifies_the_providers_signature() {
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
async fn events_are_accepted_over_http2() {
    let fixture = fixture().await;
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let sent = hook.event(1);
        let answer = fixture.request(&hook, &sent).h2c().send().await;
        assert_eq!(answer.status, 200, "{kind:?}: {}", answer.text());
        check_arrived(&hook, &sent, &answer, &fixture.only(&hook).await);
    }
}
