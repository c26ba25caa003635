//! A sender that is not verified as the provider learns nothing.

use http::HeaderMap;
use serde_json::json;

use super::signers::Kind;
use super::{Fixture, Hook, PUBLIC_URL, fixture, fixture_with};
use crate::harness::{Answer, origin};

const NOBODY: &str = "wh_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// An answer without the parts that always differ: its date, and the requested
/// path.
fn bare(answer: &Answer, target: &str) -> (u16, HeaderMap, String) {
    let mut headers = answer.headers.clone();
    for name in ["date", "content-length"] {
        headers.remove(name);
    }
    let text = answer.text();
    assert!(text.contains(target), "{text}");
    (answer.status, headers, text.replace(target, "…"))
}

impl Fixture {
    async fn answer(
        &self,
        hook: &Hook,
        letter: super::UnsignedEvent<'_>,
    ) -> (u16, HeaderMap, String) {
        let signed = letter.signed_for(&hook.url());
        bare(&self.send(hook, &signed).await, &hook.target())
    }
}

#[tokio::test]
async fn unknown_webhook_wrong_provider_and_bad_signature_get_the_same_answer() {
    let fixture = fixture().await;
    let want = {
        let hook = fixture.hook(Kind::Stripe).await;
        let letter = hook.unsigned(1).secret("whsec_another");
        fixture.answer(&hook, letter).await
    };
    assert_eq!(want.0, 401);
    let target = format!("/api/v1/webhooks/unheardof/{NOBODY}");
    let answer = fixture
        .gateway
        .request(&format!("POST {target}"))
        .send()
        .await;
    assert_eq!(bare(&answer, &target), want);
    for kind in Kind::ALL {
        let hook = fixture.hook(kind).await;
        let letter = hook.unsigned(1);
        let wrong = letter.clone().secret(&kind.secret());
        assert_eq!(
            fixture.answer(&hook, wrong).await,
            want,
            "{kind:?}: bad signature"
        );
        let nobody = Hook {
            id: NOBODY.to_owned(),
            ..hook.clone()
        };
        assert_eq!(
            fixture.answer(&nobody, letter.clone()).await,
            want,
            "{kind:?}: nobody's"
        );
        // With another provider's path and signature.
        let other = if kind == Kind::Square {
            Kind::GitHub
        } else {
            Kind::Square
        };
        let other = Hook {
            kind: other,
            ..hook.clone()
        };
        assert_eq!(
            fixture.answer(&other, other.unsigned(1)).await,
            want,
            "{kind:?}: another's"
        );
        let delete = format!("/admin/v1/webhooks/{}/delete", hook.id);
        fixture.operate(&delete, json!({ "why": "a test" })).await;
        assert_eq!(
            fixture.answer(&hook, letter.clone()).await,
            want,
            "{kind:?}: deleted"
        );
    }
    assert_eq!(fixture.origin.runs(), 0);
    assert!(fixture.operations("").await.is_empty());
}

/// The form of a request is checked before any lookup, so that malformed requests
/// do not reveal which webhooks exist.
#[tokio::test]
async fn a_malformed_request_gets_the_same_answer_at_every_webhook() {
    let fixture = fixture().await;
    for (kind, name, value) in [
        (Kind::Stripe, "stripe-signature", "nonsense"),
        (Kind::StandardWebhooks, "webhook-timestamp", "1614265330.9"),
        (Kind::Slack, "x-slack-request-timestamp", "now"),
        (Kind::Svix, "webhook-id", "msg_1"),
        (Kind::Shopify, "shopify-webhook-id", "1"),
        (Kind::Postmark, "authorization", "Basic ?"),
        (Kind::Acme, "x-acme-time", "-1"),
    ] {
        let hook = fixture.hook(kind).await;
        let nobody = Hook {
            id: NOBODY.to_owned(),
            ..hook.clone()
        };
        let sent = hook.event(1).with(name, value);
        let answer = fixture.send(&hook, &sent).await;
        assert_eq!(
            answer.problem(),
            (400, "bad-request".to_owned()),
            "{kind:?}"
        );
        let answer = bare(&answer, &hook.target());
        let unknown_answer = fixture.send(&nobody, &sent).await;
        assert_eq!(bare(&unknown_answer, &nobody.target()), answer, "{kind:?}");
    }
}

#[tokio::test]
async fn a_repeated_signature_header_is_refused() {
    let fixture = fixture().await;
    for (kind, name) in [
        (Kind::Stripe, "stripe-signature"),
        (Kind::GitHub, "x-github-delivery"),
        (Kind::GitHub, "x-hub-signature-256"),
        (Kind::Twilio, "x-twilio-signature"),
        (Kind::StandardWebhooks, "webhook-id"),
        (Kind::Svix, "svix-signature"),
        (Kind::Slack, "x-slack-request-timestamp"),
        (Kind::Shopify, "x-shopify-event-id"),
        (Kind::Square, "x-square-hmacsha256-signature"),
        (Kind::AdyenPlatform, "hmacsignature"),
        (Kind::Postmark, "authorization"),
        (Kind::Acme, "x-acme-signature"),
    ] {
        let hook = fixture.hook(kind).await;
        let sent = hook.event(1);
        let (_, value) = sent.headers.iter().find(|(is, _)| *is == name).unwrap();
        let answer = fixture
            .request(&hook, &sent)
            .header(name, value)
            .send()
            .await;
        assert_eq!(
            answer.problem(),
            (400, "bad-request".to_owned()),
            "{kind:?} {name}"
        );
        assert!(fixture.got(&hook).await.is_empty(), "{kind:?} {name}");
    }
}

#[tokio::test]
async fn headers_of_two_families_are_refused() {
    let fixture = fixture().await;
    for (kind, name) in [
        (Kind::Svix, "webhook-id"),
        (Kind::Svix, "webhook-signature"),
        (Kind::StandardWebhooks, "svix-id"),
        (Kind::StandardWebhooks, "svix-timestamp"),
        (Kind::Shopify, "shopify-webhook-id"),
        (Kind::Shopify, "shopify-hmac-sha256"),
    ] {
        let hook = fixture.hook(kind).await;
        let answer = fixture.send(&hook, &hook.event(1).with(name, "1")).await;
        assert_eq!(
            answer.problem(),
            (400, "bad-request".to_owned()),
            "{kind:?} {name}"
        );
        assert!(fixture.got(&hook).await.is_empty(), "{kind:?} {name}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_first() {
    let fixture = fixture_with(origin(), "", "").await;
    let hook = fixture.hook(Kind::GitHub).await;
    let large = "a".repeat((1 << 20) + 1);
    let sent = hook.unsigned(1).body(large).signed();
    for target in [hook.target(), format!("/api/v1/webhooks/github/{NOBODY}")] {
        let answer = fixture.request_at(&target, &sent).send().await;
        assert_eq!(
            answer.problem(),
            (413, "body-too-large".to_owned()),
            "{target}"
        );
    }
    let metrics = fixture.gateway.metrics().await;
    assert!(
        !metrics.contains("onceward_webhook_refused_total"),
        "{metrics}"
    );
    assert!(fixture.got(&hook).await.is_empty());
}

/// The signed URL is the public URL, whatever host or path the request names.
#[tokio::test]
async fn the_signed_url_is_the_public_url() {
    let fixture = fixture().await;
    for kind in Kind::ALL.into_iter().filter(|kind| kind.binds_url()) {
        let hook = fixture.hook(kind).await;
        let good = fixture
            .request(&hook, &hook.event(1))
            .host("internal.example:8080");
        let good = good.header("x-forwarded-host", "elsewhere.example");
        assert_eq!(good.send().await.status, 200, "{kind:?}");
        let target = hook.target();
        for (number, url) in [
            (2, format!("{PUBLIC_URL}:443{target}")),
            (3, format!("{PUBLIC_URL}{target}")),
        ] {
            let sent = hook.unsigned(number).signed_for(&url);
            assert_eq!(
                fixture.send(&hook, &sent).await.status,
                200,
                "{kind:?}: {url}"
            );
        }
        for (number, url) in [
            (4, format!("https://internal.example{target}")),
            (5, format!("http://hooks.example{target}")),
            (6, format!("{PUBLIC_URL}:8443{target}")),
            (7, format!("{PUBLIC_URL}{target}/more")),
        ] {
            let sent = hook.unsigned(number).signed_for(&url);
            let ask = fixture.request(&hook, &sent).host("internal.example");
            let ask = ask.header("x-forwarded-host", "internal.example");
            assert_eq!(ask.send().await.status, 401, "{kind:?}: {url}");
        }
        assert_eq!(fixture.got(&hook).await.len(), 3, "{kind:?}");
    }
}

/// A signature covers the webhook's URL, so it is invalid for another webhook even
/// with the same secret.
#[tokio::test]
async fn a_signature_for_one_webhook_is_invalid_for_another() {
    let fixture = fixture().await;
    for kind in Kind::ALL.into_iter().filter(|kind| kind.binds_url()) {
        let one = fixture.hook(kind).await;
        let other = fixture
            .hook_with(kind, json!({ "secrets": [one.secret] }))
            .await;
        let sent = one.event(1);
        assert_eq!(fixture.send(&other, &sent).await.status, 401, "{kind:?}");
        fixture.accepted(&one, &sent).await;
    }
}

/// Without a public URL the gateway does not know which URL Twilio and Square have
/// signed.
#[tokio::test]
async fn a_provider_that_signs_the_url_requires_a_public_url() {
    let origin = origin().run().await;
    let gateway = crate::harness::configured(&origin, Kind::SETTINGS)
        .run()
        .await;
    for kind in Kind::ALL {
        let ask = json!({
            "tenant": "acme",
            "project": "shop",
            "provider": kind.provider(),
            "secrets": [kind.secret()],
            "upstream": "origin",
            "why": "a test",
        });
        let answer = gateway.change("/admin/v1/webhooks", &ask.to_string());
        let answer = answer.send().await;
        let want = if kind.binds_url() { 400 } else { 201 };
        assert_eq!(answer.status, want, "{kind:?}: {}", answer.text());
    }
}

/// Only a POST to a possible webhook path is a webhook request.
#[tokio::test]
async fn a_path_that_is_no_webhooks_is_no_route() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Stripe).await;
    for what in [
        format!("GET {}", hook.target()),
        format!("POST {}/more", hook.target()),
        "POST /api/v1/webhooks/stripe/something".to_owned(),
        "POST /api/v1/webhooks/stripe".to_owned(),
    ] {
        let answer = fixture.gateway.request(&what).send().await;
        assert!(
            matches!(answer.status, 404 | 405),
            "{what}: {}",
            answer.text()
        );
    }
    assert_eq!(fixture.origin.runs(), 0);
}

/// A configured route beats the path of a webhook.
#[tokio::test]
async fn a_declared_route_beats_a_webhooks_path() {
    let route = "[[routes]]\nendpoint = \"own.hooks\"\nmethod = \"POST\"\n\
                 path = \"/api/v1/webhooks/stripe/{id}\"\nupstream = \"origin\"\n";
    let fixture = fixture_with(origin().reply(202, "mine"), "", route).await;
    let hook = fixture.hook(Kind::Stripe).await;
    let answer = fixture.send(&hook, &hook.event(1).tampered()).await;
    assert_eq!((answer.status, answer.text()), (202, "mine"));
}

/// Stripe shows its secret only for a URL, so a webhook may be created before its
/// secret exists. Until then no signature is valid.
#[tokio::test]
async fn a_webhook_without_a_secret_accepts_no_event() {
    let fixture = fixture().await;
    let ask = json!({
        "tenant": "acme", "project": "shop", "provider": "stripe",
        "upstream": "origin", "path": "/hooks/early",
    });
    let made = fixture.operate("/admin/v1/webhooks", ask).await;
    let hook = Hook {
        id: made["webhook_id"].as_str().unwrap().to_owned(),
        path: "/hooks/early".to_owned(),
        ..fixture.hook(Kind::Stripe).await
    };
    for guess in [hook.secret.as_str(), "00000000", ""] {
        let guessed = Hook {
            secret: guess.to_owned(),
            ..hook.clone()
        };
        let answer = fixture.send(&hook, &guessed.event(1)).await;
        assert_eq!(answer.status, 401, "{guess}");
    }
    let rotate = format!("/admin/v1/webhooks/{}/rotate", hook.id);
    let secret = json!({ "secret": hook.secret, "why": "Stripe has shown it" });
    fixture.operate(&rotate, secret).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    assert_eq!(fixture.got(&hook).await.len(), 1);
}
