//! Webhooks of other services: secrets in OpenBao, ids in Unkey.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::callers::tests::stub_server::{self, StubServer, reply as answer};
use crate::config::{self, Deliver, SecretValue};
use crate::secrets::tests::{reader, settings, token};
use crate::webhooks::registry::{NoSecret, SecretsView};

const UNKEYS: &str = "wh_3ZfKjNzMv8xQpRt2Yw";

/// A fixture with OpenBao, which has the secrets of webhooks at this path.
fn fixture(bao: &StubServer, path: &str) -> Fixture {
    let fixture = Fixture::new();
    let mut config = fixture.config.clone();
    config.secrets.openbao = Some(config::OpenBao {
        path: path.to_owned(),
        ..settings(bao.url(), token())
    });
    Fixture {
        secrets: reader(bao.url(), token()),
        config,
        ..fixture
    }
}

const USUAL: &str = "webhooks/{tenant}/{project}/{provider}";

fn fields(fields: &Value) -> Value {
    json!({ "data": { "data": fields, "metadata": {} } })
}

fn in_openbao() -> NewWebhook {
    NewWebhook {
        secrets: NewSecrets::Omitted,
        ..new()
    }
}

#[rstest]
#[case::usual(USUAL, "/v1/secret/data/webhooks/acme/shop/svix")]
#[case::joined("{tenant}:{project}:{provider}", "/v1/secret/data/acme%3Ashop%3Asvix")]
#[tokio::test]
async fn without_given_secrets_they_are_read_from_openbao(
    #[case] path: &str,
    #[case] want: &'static str,
) {
    let answered = fields(&json!({
        "secret": secret('a'), "secret_old": secret('b'), "note": "not one", "secrets": "nor this",
    }));
    let bao = StubServer::new(move |seen| match seen.path == want {
        true => stub_server::json(200, &answered),
        false => answer(404, "{}"),
    })
    .await;
    let fixture = fixture(&bao, path);
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, in_openbao()).await;
    let both = of_secrets(&[&secret('a'), &secret('b')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), both);
    assert_eq!(
        webhooks.show(&id).expect("shown").secrets,
        SecretsView::OpenBao
    );
    let (_, document) = &fixture.documents().await[0];
    let document = String::from_utf8(document.to_vec()).expect("JSON");
    assert!(!document.contains(CANARY), "{document}");
    let error = webhooks.rotate(&fixture.config, &id, Some(secret('c').into()), None);
    let error = error.await.expect_err("not ours to change");
    assert!(matches!(error, WebhooksError::InOpenBao { .. }), "{error}");
}

#[tokio::test]
async fn a_change_in_openbao_applies_and_an_outage_does_not() {
    let with = |fields_of: Value| {
        move |_: &stub_server::ReceivedRequest| stub_server::json(200, &fields(&fields_of))
    };
    let bao = StubServer::new(with(json!({ "secret": secret('a') }))).await;
    let fixture = fixture(&bao, USUAL);
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, in_openbao()).await;
    let one = of_secrets(&[&secret('a')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), one);
    bao.respond_with(|_| answer(503, ""));
    // Longer than a secret and a failure are cached.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(450)).await;
        assert_eq!(fixture.keys(&webhooks, &id).await.expect("stale"), one);
    }
    bao.respond_with(with(
        json!({ "secret": secret('b'), "secret_1": secret('a') }),
    ));
    tokio::time::sleep(Duration::from_millis(450)).await;
    let both = of_secrets(&[&secret('b'), &secret('a')]);
    assert_eq!(fixture.keys(&webhooks, &id).await.expect("keys"), both);
    // A removed secret is invalid at once.
    bao.respond_with(|_| answer(404, "{}"));
    tokio::time::sleep(Duration::from_millis(450)).await;
    let error = fixture.keys(&webhooks, &id).await.expect_err("gone");
    assert!(matches!(error, WebhooksError::Secret(_)), "{error}");
}

#[rstest]
#[case::absent(
    answer(404, "{}"),
    "there is no secret webhooks/acme/shop/svix in OpenBao"
)]
#[case::denied(
    answer(403, "{}"),
    "OpenBao does not allow reading the secret webhooks/acme/shop/svix"
)]
#[case::other_fields(
    stub_server::json(200, &fields(&json!({ "key": "x" }))),
    "OpenBao has no field `secret` or `secret_…` for it"
)]
#[case::malformed(
    stub_server::json(200, &fields(&json!({ "secret": "canary!" }))),
    "one of its secrets does not have the provider's form"
)]
#[case::six(
    stub_server::json(200, &fields(&json!({
        "secret": "AAAA", "secret_1": "AAAB", "secret_2": "AAAC", "secret_3": "AAAD", "secret_4": "AAAE", "secret_5": "AAAF",
    }))),
    "OpenBao has more than 5 secrets for it"
)]
#[tokio::test]
async fn a_webhook_without_secrets_in_openbao_is_not_created(
    #[case] response: stub_server::StubReply,
    #[case] problem: &str,
) {
    let bao = StubServer::new(move |_| response.clone()).await;
    let fixture = fixture(&bao, USUAL);
    let webhooks = fixture.open().await;
    let error = webhooks.create(&fixture.config, in_openbao()).await;
    let want = format!(
        "secrets: {problem}; write it to the field `secret` of webhooks/acme/shop/svix, or give secrets"
    );
    assert_eq!(error.expect_err("refused").to_string(), want);
}

#[tokio::test]
async fn no_webhook_is_created_while_openbao_is_unavailable() {
    let bao = StubServer::new(|_| answer(503, "")).await;
    let fixture = fixture(&bao, USUAL);
    let webhooks = fixture.open().await;
    let error = webhooks.create(&fixture.config, in_openbao()).await;
    let error = error.expect_err("away");
    assert!(matches!(error, WebhooksError::Secret(_)), "{error}");
    assert!(fixture.documents().await.is_empty());
}

/// An answer of Unkey with this metadata.
fn valid(meta: &Value) -> Value {
    json!({ "data": { "valid": true, "code": "VALID", "keyId": "key_1", "meta": meta } })
}

fn meta() -> Value {
    json!({ "tenant_id": "acme", "project_id": "shop", "provider": "svix" })
}

async fn with_unkey(unkey: &StubServer, bao: &StubServer) -> (Fixture, WebhookRegistry) {
    let mut fixture = fixture(bao, USUAL);
    fixture.config.auth.unkey = Some(config::Unkey {
        url: unkey.url().to_owned(),
        root_key: SecretValue::Given("root of callers".into()),
        webhook_root_key: Some(SecretValue::Given("root of webhooks".into())),
        cache: Duration::from_secs(30),
        deadline: Duration::from_millis(400),
    });
    let webhooks = fixture.open().await;
    (fixture, webhooks)
}

#[tokio::test]
async fn an_id_in_unkey_is_verified_with_its_own_root_key() {
    let unkey = StubServer::new(|_| stub_server::json(200, &valid(&meta()))).await;
    let bao =
        StubServer::new(|_| stub_server::json(200, &fields(&json!({ "secret": secret('a') }))))
            .await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    let found = webhooks.find(&fixture.config, "svix", UNKEYS).await;
    let found = found.expect("found").expect("there");
    assert_eq!(&*found.id, UNKEYS);
    assert_eq!(
        (found.caller.tenant(), found.caller.project()),
        ("acme", "shop")
    );
    assert_eq!(
        (&*found.upstream, found.path.as_str()),
        ("default", "/webhooks/svix")
    );
    let keys = webhooks.keys(&found).await.expect("keys");
    assert_eq!(tags_of(&keys), of_secrets(&[&secret('a')]));
    assert_eq!(
        bao.seen()[0].path,
        "/v1/secret/data/webhooks/acme/shop/svix"
    );
    let seen = unkey.seen();
    assert_eq!(
        seen[0].header("authorization"),
        Some("Bearer root of webhooks")
    );
    assert_eq!(seen[0].json()["key"], UNKEYS);
    // Cached for a while, also for another provider, whose webhook it is not.
    for (provider, there) in [("svix", true), ("stripe", false)] {
        let found = webhooks.find(&fixture.config, provider, UNKEYS).await;
        assert_eq!(found.expect("asked").is_some(), there, "{provider}");
    }
    assert_eq!(unkey.count(), 1);
    // Webhooks in Unkey are not listed.
    assert!(webhooks.list().is_empty());
}

#[tokio::test]
async fn unkeys_metadata_overrides_the_configuration() {
    let mut said = meta();
    said["upstream"] = "ledger".into();
    said["path"] = "/in".into();
    said["deliver"] = "sync".into();
    let unkey = StubServer::new(move |_| stub_server::json(200, &valid(&said))).await;
    let bao = StubServer::new(|_| answer(404, "")).await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    let found = webhooks.find(&fixture.config, "svix", UNKEYS).await;
    let found = found.expect("found").expect("there");
    assert_eq!((&*found.upstream, found.path.as_str()), ("ledger", "/in"));
    assert_eq!(found.deliver, Deliver::Sync);
}

#[rstest]
#[case::no_tenant("tenant_id", Value::Null)]
#[case::reserved_tenant("tenant_id", json!("_local"))]
#[case::number_for_a_project("project_id", json!(7))]
#[case::no_provider("provider", Value::Null)]
#[case::path_elsewhere("path", json!("/../x"))]
#[case::unknown_word("deliver", json!("later"))]
#[tokio::test]
async fn metadata_without_a_webhook_is_not_found(#[case] member: &str, #[case] value: Value) {
    let mut said = meta();
    said[member] = value;
    let unkey = StubServer::new(move |_| stub_server::json(200, &valid(&said))).await;
    let bao = StubServer::new(|_| answer(404, "")).await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    assert!(!fixture.is_found(&webhooks, UNKEYS).await);
}

#[tokio::test]
async fn an_unknown_id_is_not_found_and_an_outage_is_an_error() {
    let refused = json!({ "data": { "valid": false, "code": "NOT_FOUND" } });
    let unkey = StubServer::new(move |_| stub_server::json(200, &refused)).await;
    let bao = StubServer::new(|_| answer(404, "")).await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    assert!(!fixture.is_found(&webhooks, UNKEYS).await);
    unkey.respond_with(|_| answer(500, ""));
    let other = "wh_another1234567890";
    let error = webhooks.find(&fixture.config, "svix", other).await;
    assert!(matches!(error, Err(WebhooksError::Unkey)));
    // A malformed id is not sent to Unkey.
    let before = unkey.count();
    for text in [
        "sk_1234567890abcdefgh",
        "wh_short",
        "wh_a/../b1234567890abc",
        "ow_x",
    ] {
        assert!(!fixture.is_found(&webhooks, text).await, "{text}");
    }
    assert_eq!(unkey.count(), before);
}

#[rstest]
#[case::url_that_nobody_knows("provider", "square")]
#[case::long_tenant("tenant_id", &"%".repeat(256))]
#[tokio::test]
async fn unkeys_metadata_must_fit_the_configuration(#[case] member: &str, #[case] value: &str) {
    let mut said = meta();
    said[member] = value.into();
    let provider = said["provider"].as_str().expect("a name").to_owned();
    let unkey = StubServer::new(move |_| stub_server::json(200, &valid(&said))).await;
    let bao = StubServer::new(|_| answer(404, "")).await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    let error = webhooks.find(&fixture.config, &provider, UNKEYS).await;
    assert!(matches!(error, Err(WebhooksError::Unfit { .. })));
}

#[tokio::test]
async fn registered_webhooks_need_no_other_service() {
    let unkey = StubServer::new(|_| answer(500, "")).await;
    let bao = StubServer::new(|_| answer(500, "")).await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    let id = fixture.make(&webhooks, new()).await;
    fixture.keys(&webhooks, &id).await.expect("keys");
    assert_eq!((unkey.count(), bao.count()), (0, 0));
}

#[tokio::test]
async fn a_reload_uses_the_services_of_the_new_configuration() {
    let bao = StubServer::new(|_| answer(404, "")).await;
    let unkey = StubServer::new(|_| stub_server::json(200, &valid(&meta()))).await;
    let (fixture, webhooks) = with_unkey(&unkey, &bao).await;
    assert!(fixture.is_found(&webhooks, UNKEYS).await);
    let mut after = fixture.config.clone();
    after.auth.unkey = None;
    let reopened = webhooks
        .reopen(&after, fixture.secrets.clone())
        .expect("opened");
    assert!(fixture.is_found(&webhooks, UNKEYS).await);
    webhooks.replace(reopened);
    assert!(!fixture.is_found(&webhooks, UNKEYS).await);
}

#[tokio::test]
async fn a_webhook_without_its_configured_openbao_is_reported() {
    let bao =
        StubServer::new(|_| stub_server::json(200, &fields(&json!({ "secret": secret('a') }))))
            .await;
    let fixture = fixture(&bao, USUAL);
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, in_openbao()).await;
    let mut after = fixture.config.clone();
    after.secrets.openbao = None;
    assert_eq!(webhooks.unservable(&fixture.config, &after).len(), 1);
    let error = webhooks.find(&after, "svix", &id).await.expect_err("unfit");
    assert!(matches!(error, WebhooksError::Unfit { .. }), "{error}");
    // A secret without fields is no secret either.
    bao.respond_with(|_| stub_server::json(200, &fields(&json!({}))));
    tokio::time::sleep(Duration::from_millis(450)).await;
    let error = fixture.keys(&webhooks, &id).await.expect_err("none");
    assert!(
        matches!(
            error,
            WebhooksError::NoSecret {
                problem: NoSecret::NoField,
                ..
            }
        ),
        "{error}"
    );
}
