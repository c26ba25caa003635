//! Rotation of secrets, and how long the old ones are valid.

use super::*;
use crate::webhooks::registry::{NoSecret, Rotated, SecretsView};

async fn rotate(
    fixture: &Fixture,
    webhooks: &WebhookRegistry,
    id: &str,
    letter: char,
    overlap: Option<Duration>,
) -> Result<Rotated, WebhooksError> {
    let text = SecretString::from(secret(letter));
    webhooks
        .rotate(&fixture.config, id, Some(text), overlap)
        .await
}

#[tokio::test]
async fn both_secrets_are_valid_for_the_overlap_then_only_the_new_one() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    rotate(&fixture, &webhooks, &id, 'b', None)
        .await
        .expect("rotated");
    let both = of_secrets(&[&secret('a'), &secret('b')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), both);
    let one = Duration::from_millis(1);
    fixture.test_clock.advance(DAY - one);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), both);
    // Also after a restart.
    assert_eq!(
        fixture
            .keys(&fixture.open().await, &id)
            .await
            .expect("keys"),
        both
    );
    fixture.test_clock.advance(one);
    let new = of_secrets(&[&secret('b')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), new);
    assert_eq!(
        fixture
            .keys(&fixture.open().await, &id)
            .await
            .expect("keys"),
        new
    );
}

#[tokio::test]
async fn the_overlap_is_as_requested_and_never_extends_a_secret() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    let hour = Duration::from_secs(3600);
    rotate(&fixture, &webhooks, &id, 'b', Some(hour))
        .await
        .expect("rotated");
    rotate(&fixture, &webhooks, &id, 'c', Some(10 * DAY))
        .await
        .expect("rotated");
    fixture.test_clock.advance(hour);
    let left = of_secrets(&[&secret('b'), &secret('c')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), left);
    rotate(&fixture, &webhooks, &id, 'd', Some(Duration::ZERO))
        .await
        .expect("rotated");
    let left = of_secrets(&[&secret('d')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), left);
}

#[tokio::test]
async fn the_same_secret_is_not_added_twice() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    for _ in 0..8 {
        rotate(&fixture, &webhooks, &id, 'b', None)
            .await
            .expect("rotated");
    }
    let both = of_secrets(&[&secret('a'), &secret('b')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), both);
    // And back again: the old secret is the current one, without an end.
    rotate(&fixture, &webhooks, &id, 'a', None)
        .await
        .expect("rotated");
    fixture.test_clock.advance(2 * DAY);
    let back = of_secrets(&[&secret('a')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), back);
}

#[tokio::test]
async fn at_most_five_secrets_are_valid() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    for letter in ['b', 'c', 'd', 'e'] {
        rotate(&fixture, &webhooks, &id, letter, None)
            .await
            .expect("rotated");
    }
    let before = fixture.keys(&webhooks, &id).await.expect("keys");
    assert_eq!(before.len(), 5);
    let error = rotate(&fixture, &webhooks, &id, 'f', None).await;
    let error = error.expect_err("one too many");
    assert!(matches!(error, WebhooksError::TooManySecrets), "{error}");
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), before);
    fixture.test_clock.advance(DAY);
    rotate(&fixture, &webhooks, &id, 'f', None)
        .await
        .expect("rotated");
    let left = of_secrets(&[&secret('e'), &secret('f')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), left);
}

#[tokio::test]
async fn a_secret_is_generated_if_the_provider_accepts_one() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let wanted = NewWebhook {
        secrets: NewSecrets::Generated,
        ..new()
    };
    let made = webhooks
        .create(&fixture.config, wanted)
        .await
        .expect("made");
    let text = made.secret.expect("it was made here");
    let text = secrecy::ExposeSecret::expose_secret(&text);
    let id = made.shown.registration.id;
    assert_eq!(
        fixture.keys(&webhooks, &id).await.expect("keys"),
        of_secrets(&[text])
    );
    let rotated = webhooks.rotate(&fixture.config, &id, None, None).await;
    let Rotated::Done(rotated) = rotated.expect("rotated") else {
        panic!("there is such a webhook");
    };
    assert!(rotated.secret.is_some());
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys").len(), 2);
    let given = webhooks.create(&fixture.config, new()).await.expect("made");
    assert!(given.secret.is_none());
}

#[tokio::test]
async fn a_mistake_in_the_new_secret_changes_nothing() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    let before = fixture.keys(&webhooks, &id).await.expect("keys");
    for text in ["", "whsec_canary!", " whsec_AAAA"] {
        let wrong = SecretString::from(text);
        let error = webhooks
            .rotate(&fixture.config, &id, Some(wrong), None)
            .await;
        let error = error.expect_err("no secret").to_string();
        assert!(error.starts_with("secret: "), "{error}");
        assert!(!error.contains("canary"), "{error}");
    }
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), before);
    let absent = rotate(&fixture, &webhooks, "wh_nobody", 'b', None).await;
    assert!(matches!(absent.expect("read"), Rotated::Absent));
}

#[tokio::test]
async fn without_a_valid_secret_no_event_is_verified() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    let read = fixture.registry.read(Collection::Webhooks, &id).await;
    let read = read.expect("the store answers").expect("there");
    let mut document: serde_json::Value = serde_json::from_slice(&read).expect("JSON");
    document["secrets"][0]["until"] = fixture.test_clock.now().unix_ms().into();
    let put = fixture
        .registry
        .put(Collection::Webhooks, &id, document.to_string().into());
    put.await.expect("the store answers");
    webhooks.refresh().await.expect("read");
    let error = fixture.keys(&webhooks, &id).await.expect_err("none");
    assert!(
        matches!(
            error,
            WebhooksError::NoSecret {
                problem: NoSecret::Ended,
                ..
            }
        ),
        "{error}"
    );
    let shown = webhooks.show(&id).expect("shown");
    assert_eq!(shown.secrets, SecretsView::Sealed(Vec::new()));
}
