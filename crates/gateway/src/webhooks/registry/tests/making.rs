//! Refusals when a webhook is created, their texts, and the effect of a changed
//! configuration.

use std::sync::Arc;

use onceward_core::identity::{Endpoint, Identity, KeySpace, NAME_LENGTH_MAX};
use onceward_core::key::{KEY_LENGTH_MAX, Key};
use onceward_webhooks::{Generic, GenericSettings};
use rstest::rstest;
use secrecy::ExposeSecret;

use super::*;

#[rstest]
#[case::reserved_tenant(
    NewWebhook { tenant: "_local".into(), ..new() },
    "tenant: the tenant is a name reserved for the gateway; write 1 to 256 bytes that do not begin with _"
)]
#[case::reserved_project(
    NewWebhook { project: "_platform".into(), ..new() },
    "project: the project is a name reserved for the gateway; write 1 to 256 bytes that do not begin with _"
)]
#[case::empty_project(
    NewWebhook { project: String::new(), ..new() },
    "project: the project is empty; write 1 to 256 bytes that do not begin with _"
)]
#[case::provider(
    NewWebhook { provider: "strip".into(), ..new() },
    "provider: there is no provider \"strip\"; did you mean \"stripe\"?"
)]
#[case::far_from_any_provider(
    NewWebhook { provider: "paypal".into(), ..new() },
    "provider: there is no provider \"paypal\"; write one of stripe, github, twilio, twilio-events, standard-webhooks, svix, slack, shopify, square, adyen, postmark, or describe it in [webhooks.providers.NAME]"
)]
#[case::scheme(
    NewWebhook { provider: "adyen".into(), scheme: Some("sha1".into()), ..new() },
    "scheme: adyen has no signature scheme \"sha1\"; write one of payments, platform"
)]
#[case::no_schemes(
    NewWebhook { scheme: Some("sha1".into()), ..new() },
    "scheme: svix has no signature scheme \"sha1\"; omit it: this provider has one signature scheme"
)]
#[case::url_bound(
    NewWebhook { provider: "square".into(), ..new() },
    "provider: square signs the URL, and the gateway does not know its public URL; set server.public_url to the URL under which the provider reaches this gateway"
)]
#[case::long_tenant(
    NewWebhook { tenant: "ä".repeat(128), ..new() },
    "tenant: is too long: the names of some events would exceed 640 characters; use at most 358 characters for tenant and project together, percent-encoded"
)]
#[case::long_project(
    NewWebhook { project: format!("{}:", "p".repeat(255)), tenant: "t".repeat(101), ..new() },
    "project: is too long: the names of some events would exceed 640 characters; use at most 358 characters for tenant and project together, percent-encoded"
)]
#[case::upstream(
    NewWebhook { upstream: Some("leger".into()), ..new() },
    "upstream: there is no [upstreams.leger]; did you mean \"ledger\"?"
)]
#[case::path(
    NewWebhook { path: Some("hooks".into()), ..new() },
    "path: does not begin with /; write a path such as \"/hooks/stripe\""
)]
#[case::path_like_a_host(
    NewWebhook { path: Some("//evil.example/x".into()), ..new() },
    "path: begins with two slashes, which would mean a host; write a path such as \"/hooks/stripe\""
)]
#[case::path_elsewhere(
    NewWebhook { path: Some("/../admin".into()), ..new() },
    "path: has a . or .. segment; write a path such as \"/hooks/stripe\""
)]
#[case::no_secrets(
    with(&[]),
    "secrets: 0 secrets were given; give 1 to 5, or omit them to use OpenBao or to add one later"
)]
#[case::six_secrets(
    with(&["AAAA", "BBBB", "CCCC", "DDDD", "EEEE", "FFFF"]),
    "secrets: 6 secrets were given; give 1 to 5, or omit them to use OpenBao or to add one later"
)]
#[case::the_same_twice(
    with(&["AAAA", "AAAA"]),
    "secrets[1]: is a duplicate; give each once"
)]
#[case::malformed_secret(
    with(&["AAAA", "canary!"]),
    "secrets[1]: the secret must be base64, with or without `whsec_` before it; give the signing secret that the provider shows for the webhook"
)]
#[case::generated_for_stripe(
    NewWebhook { provider: "stripe".into(), secrets: NewSecrets::Generated, ..new() },
    "generate: stripe generates its secrets itself; give the secret that the provider shows"
)]
#[tokio::test]
async fn invalid_webhooks_are_refused_with_a_sentence(#[case] new: NewWebhook, #[case] want: &str) {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let refused = webhooks.create(&fixture.config, new).await;
    let error = refused.expect_err("refused");
    assert!(matches!(error, WebhooksError::Mistaken(_)), "{error:?}");
    assert_eq!(error.to_string(), want);
    assert!(fixture.documents().await.is_empty());
    assert!(webhooks.list().is_empty());
}

#[tokio::test]
async fn names_fit_with_the_longest_key() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let said = NewWebhook {
        tenant: "t".repeat(102),
        project: "p".repeat(256),
        ..new()
    };
    let id = fixture.make(&webhooks, said).await;
    let found = webhooks.find(&fixture.config, "svix", &id).await;
    let longest = Identity {
        caller: found.expect("found").expect("there").caller.clone(),
        endpoint: Endpoint::new("webhooks.svix"),
        key: Key::parse(&"k".repeat(KEY_LENGTH_MAX)).expect("a key"),
        space: KeySpace::Endpoint,
    };
    let name = longest.name().expect("it has a name");
    assert_eq!(name.len(), NAME_LENGTH_MAX);
}

#[tokio::test]
async fn a_provider_that_signs_the_url_is_not_served_without_a_public_url() {
    let mut fixture = Fixture::new();
    let without = fixture.config.clone();
    fixture.config.server.public_url = Some("https://api.example.com".to_owned());
    let webhooks = fixture.open().await;
    let said = NewWebhook {
        provider: "square".to_owned(),
        ..new()
    };
    let id = fixture.make(&webhooks, said).await;
    let unservable = webhooks.unservable(&fixture.config, &without);
    assert_eq!(
        unservable,
        [format!(
            "the webhook {id} could not be served: provider: square signs the URL, and the gateway does not know its public URL; set server.public_url to the URL under which the provider reaches this gateway"
        )]
    );
    let shown = webhooks.show(&id).expect("shown");
    assert!(shown.effective(&fixture.config).problem.is_none());
    assert!(shown.effective(&without).problem.is_some());
    let error = webhooks.find(&without, "square", &id).await;
    let error = error.expect_err("unfit");
    assert!(matches!(error, WebhooksError::Unfit { .. }), "{error}");
}

#[tokio::test]
async fn without_a_default_each_webhook_needs_its_upstream() {
    let mut fixture = Fixture::new();
    fixture.config.webhooks.upstream = None;
    let webhooks = fixture.open().await;
    let refused = webhooks.create(&fixture.config, new()).await;
    assert_eq!(
        refused.expect_err("refused").to_string(),
        "upstream: the webhook has no upstream; write one of default, ledger, or upstream in [webhooks] for all"
    );
    let said = NewWebhook {
        upstream: Some("ledger".to_owned()),
        ..new()
    };
    fixture.make(&webhooks, said).await;
}

fn generic(secret: &str) -> Provider {
    let settings = GenericSettings {
        name: "acme".to_owned(),
        signature_header: "x-sig".to_owned(),
        secret: secret.to_owned(),
        id: "json:/id".to_owned(),
        ..GenericSettings::default()
    };
    Provider::Generic(Arc::new(Generic::new(&settings).expect("settings")))
}

#[tokio::test]
async fn a_changed_default_applies_to_webhooks_without_their_own_setting() {
    let mut fixture = Fixture::new();
    let acme: Arc<str> = "acme".into();
    fixture
        .config
        .webhooks
        .providers
        .insert(acme.clone(), generic("text"));
    let webhooks = fixture.open().await;
    let said = NewWebhook {
        provider: "acme".to_owned(),
        ..with(&["abcd"])
    };
    let id = fixture.make(&webhooks, said).await;
    let find = async |config: &Config| {
        let found = webhooks.find(config, "acme", &id).await?;
        let found = found.expect("there");
        let keys = webhooks.keys(&found).await?;
        Ok::<_, WebhooksError>((
            found.upstream.to_string(),
            found.path.clone(),
            tags_of(&keys),
        ))
    };
    let (upstream, path, as_text) = find(&fixture.config).await.expect("found");
    assert_eq!(
        (upstream.as_str(), path.as_str()),
        ("default", "/webhooks/acme")
    );

    let mut after = fixture.config.clone();
    after.webhooks.upstream = Some("ledger".into());
    after.webhooks.path = "/in/{provider}".to_owned();
    // The same secret, decoded to other bytes.
    after
        .webhooks
        .providers
        .insert(acme.clone(), generic("hex"));
    assert_eq!(webhooks.unservable(&fixture.config, &after), [""; 0]);
    let (upstream, path, as_hex) = find(&after).await.expect("found");
    assert_eq!((upstream.as_str(), path.as_str()), ("ledger", "/in/acme"));
    assert_ne!(as_hex, as_text);
    assert_eq!(find(&fixture.config).await.expect("found").2, as_text);

    after.webhooks.providers.remove(&acme);
    let unservable = webhooks.unservable(&fixture.config, &after);
    assert_eq!(unservable.len(), 1);
    assert!(
        unservable[0].contains("there is no provider \"acme\""),
        "{unservable:?}"
    );
    // A webhook that is already not served is no reason to refuse.
    assert_eq!(webhooks.unservable(&after, &after), [""; 0]);
    let error = find(&after).await.expect_err("unfit");
    assert!(matches!(error, WebhooksError::Unfit { .. }), "{error}");
}

#[tokio::test]
async fn a_webhook_with_a_removed_upstream_is_not_served() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let said = NewWebhook {
        upstream: Some("ledger".to_owned()),
        ..new()
    };
    let id = fixture.make(&webhooks, said).await;
    let mut after = fixture.config.clone();
    after.upstreams.remove("ledger");
    assert_eq!(webhooks.unservable(&fixture.config, &after).len(), 1);
    let error = webhooks.find(&after, "svix", &id).await.expect_err("unfit");
    assert!(matches!(error, WebhooksError::Unfit { .. }), "{error}");
}

#[tokio::test]
async fn each_upstream_has_its_own_stable_signing_secret() {
    let mut fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let made = |config: &Config, webhooks: &WebhookRegistry, upstream: &str| {
        let made = webhooks.derived_signing_secret(config, upstream);
        made.map(|text| text.expose_secret().to_owned())
    };
    let one = made(&fixture.config, &webhooks, "default").expect("a secret");
    let other = made(&fixture.config, &webhooks, "ledger").expect("a secret");
    assert_ne!(one, other);
    // 32 bytes in base64.
    assert_eq!(one.len(), "whsec_".len() + 44);
    let again = made(&fixture.config, &fixture.open().await, "default");
    assert_eq!(again.as_ref(), Some(&one));
    let key = async |config: &Config, upstream: &str| {
        let key = webhooks.signing_key(config, upstream).await;
        sign(&key.expect("a key"), "m", 0, b"x")
    };
    let of = |text: &str| {
        let key = Provider::StandardWebhooks.key(text).expect("a secret");
        sign(&key, "m", 0, b"x")
    };
    for _ in 0..2 {
        assert_eq!(key(&fixture.config, "default").await, of(&one));
        assert_eq!(key(&fixture.config, "ledger").await, of(&other));
    }
    // A configured secret is in force at once.
    let given = secret('z');
    let upstream = fixture.config.upstreams.get_mut("default").expect("there");
    let value = crate::config::SecretValue::Given(given.as_str().into());
    upstream.signing_secret = Some(value);
    // The gateway did not generate it, so it is not shown.
    assert_eq!(made(&fixture.config, &webhooks, "default"), None);
    assert_eq!(key(&fixture.config, "default").await, of(&given));
    assert_eq!(key(&fixture.config, "ledger").await, of(&other));
}
