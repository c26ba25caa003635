//! Unkey, as its documentation says, and when it behaves otherwise.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::stub_server::{self, StubReply, StubServer, reply};
use super::{callers, send_bearer, send_headers};
use crate::callers::refusal::{Prohibition, Refusal};
use crate::callers::{AuthError, Callers};
use crate::config::{self, KnownBy, Scope, SecretValue};

const KEY: &str = "sk_1234abcdef";
const ROOT: &str = "unkey_root_canary";

fn settings(url: &str, cache: Duration) -> config::Auth {
    config::Auth {
        unkey: Some(config::Unkey {
            url: url.to_owned(),
            root_key: SecretValue::Given(ROOT.into()),
            webhook_root_key: None,
            cache,
            deadline: Duration::from_millis(400),
        }),
        ..config::Auth::default()
    }
}

async fn at(unkey: &StubServer) -> Callers {
    callers(&settings(unkey.url(), Duration::from_secs(30))).await
}

/// An answer as the API reference shows it.
fn valid() -> Value {
    json!({
        "meta": { "requestId": "req_123" },
        "data": {
            "valid": true,
            "code": "VALID",
            "keyId": "key_1234567890abcdef",
            "name": "Production API Key",
            "meta": { "project_id": "shop", "plan": "pro" },
            "enabled": true,
            "credits": 9999,
            "roles": ["admin"],
            "permissions": ["payments.create", "payments.refund"],
            "identity": { "id": "id_1", "externalId": "acme", "meta": {} },
            "ratelimits": []
        }
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut answer = valid();
    let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
    answer.pointer_mut(parent).expect("there")[member] = value;
    answer
}

fn invalid(code: &str) -> Value {
    json!({
        "meta": { "requestId": "req_123" },
        "data": { "valid": false, "code": code, "keyId": "key_1", "enabled": true }
    })
}

#[tokio::test]
async fn a_valid_key_is_verified_as_documented_and_authenticates_its_caller() {
    let unkey = StubServer::new(|_| stub_server::json(200, &valid())).await;
    let callers = at(&unkey).await;
    let known = send_bearer(&callers, KEY).await.expect("known");
    assert_eq!(known.by(), KnownBy::Unkey);
    assert_eq!(known.scopes(), ["payments.create", "payments.refund"]);
    let caller = known.caller(Scope::Project).expect("a caller");
    assert_eq!(caller.tenant(), "acme");
    assert_eq!(caller.project(), "shop");
    assert_eq!(caller.subject().to_string(), "service:key_1234567890abcdef");
    assert_eq!(
        send_headers(&callers, &[("x-api-key", KEY)]).await,
        Ok(known)
    );
    let seen = unkey.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].method, http::Method::POST);
    assert_eq!(seen[0].path, "/v2/keys.verifyKey");
    assert_eq!(
        seen[0].header("authorization"),
        Some("Bearer unkey_root_canary")
    );
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    assert_eq!(
        seen[0].json(),
        json!({ "key": KEY, "credits": { "cost": 0 } })
    );
}

#[tokio::test]
async fn a_configured_path_prefixes_the_api_path() {
    let unkey = StubServer::new(|_| stub_server::json(200, &valid())).await;
    let url = format!("{}/unkey/", unkey.url());
    let callers = callers(&settings(&url, Duration::from_secs(30))).await;
    send_bearer(&callers, KEY).await.expect("known");
    assert_eq!(unkey.seen()[0].path, "/unkey/v2/keys.verifyKey");
}

#[rstest]
#[case::typed_subject(with("/data/meta/subject", json!("user:ann")), "user:ann")]
#[case::no_meta(with("/data/meta", Value::Null), "service:key_1234567890abcdef")]
#[tokio::test]
async fn the_subject_is_in_the_metadata_or_is_the_key(#[case] answer: Value, #[case] want: &str) {
    let unkey = StubServer::new(move |_| stub_server::json(200, &answer)).await;
    let known = send_bearer(&at(&unkey).await, KEY).await.expect("known");
    assert_eq!(known.subject().to_string(), want);
}

#[rstest]
#[case::not_found(invalid("NOT_FOUND"))]
#[case::disabled(invalid("DISABLED"))]
#[case::expired(invalid("EXPIRED"))]
#[case::unknown_code(invalid("SOMETHING_NEW"))]
#[case::invalid_though_valid(invalid("VALID"))]
#[case::valid_though_not(with("/data/code", json!("DISABLED")))]
#[case::no_identity(with("/data/identity", Value::Null))]
#[case::reserved_tenant(with("/data/identity/externalId", json!("_local")))]
#[case::empty_tenant(with("/data/identity/externalId", json!("")))]
#[case::reserved_project(with("/data/meta/project_id", json!("_platform")))]
#[case::number_for_a_project(with("/data/meta/project_id", json!(7)))]
#[case::untyped_subject(with("/data/meta/subject", json!("ann")))]
#[case::the_scheduler(with("/data/meta/subject", json!("service:scheduler")))]
#[tokio::test]
async fn an_invalid_key_or_one_without_a_caller_is_refused(#[case] answer: Value) {
    let unkey = StubServer::new(move |_| stub_server::json(200, &answer)).await;
    let error = send_bearer(&at(&unkey).await, KEY)
        .await
        .expect_err("refused");
    assert!(matches!(error, AuthError::Refused(_)), "{error:?}");
}

#[rstest]
#[case("FORBIDDEN", Prohibition::Unkey.into())]
#[case("INSUFFICIENT_PERMISSIONS", Prohibition::Unkey.into())]
#[case("USAGE_EXCEEDED", Prohibition::Unkey.into())]
#[case("RATE_LIMITED", AuthError::TooMany)]
#[tokio::test]
async fn forbidden_and_rate_limited_keys_get_their_problems(
    #[case] code: &'static str,
    #[case] want: AuthError,
) {
    let unkey = StubServer::new(move |_| stub_server::json(200, &invalid(code))).await;
    assert_eq!(send_bearer(&at(&unkey).await, KEY).await, Err(want));
}

#[rstest]
#[case::error(reply(500, "oops"))]
#[case::too_many(reply(429, r#"{"error": {}}"#))]
#[case::root_key_refused(reply(401, r#"{"error": {"title": "Unauthorized"}}"#))]
#[case::root_key_may_not(reply(403, r#"{"error": {"title": "Forbidden"}}"#))]
#[case::bad_request(reply(400, r#"{"error": {}}"#))]
#[case::elsewhere(reply(302, "").location("https://evil.example/"))]
#[case::not_json(reply(200, "<html>"))]
#[case::no_data(reply(200, r#"{"meta": {}}"#))]
#[case::valid_in_words(reply(200, r#"{"data": {"valid": "true", "code": "VALID"}}"#))]
#[case::huge(reply(200, vec![b' '; 100 * 1024]))]
#[case::slow(reply(200, "{}").after(Duration::from_secs(60)))]
#[tokio::test]
async fn without_an_answer_every_key_is_refused(#[case] response: StubReply) {
    let unkey = StubServer::new(move |_| response.clone()).await;
    let callers = Arc::new(at(&unkey).await);
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let callers = callers.clone();
        tasks.spawn(async move { send_bearer(&callers, KEY).await });
    }
    while let Some(ended) = tasks.join_next().await {
        assert_eq!(ended.expect("no panic"), Err(AuthError::Unavailable));
    }
    // All of them waited for one request, not one after the other.
    assert!(begin.elapsed() < Duration::from_millis(1500));
    assert_eq!(unkey.count(), 1);
}

#[tokio::test]
async fn an_answer_is_cached_for_its_time_only() {
    let unkey = StubServer::new(|_| stub_server::json(200, &valid())).await;
    let callers = callers(&settings(unkey.url(), Duration::from_secs(1))).await;
    send_bearer(&callers, KEY).await.expect("known");
    unkey.respond_with(|_| reply(500, ""));
    send_bearer(&callers, KEY).await.expect("believed");
    assert_eq!(unkey.count(), 1);
    tokio::time::sleep(Duration::from_millis(1020)).await;
    // An expired answer is not used.
    assert_eq!(
        send_bearer(&callers, KEY).await,
        Err(AuthError::Unavailable)
    );
    unkey.respond_with(|_| stub_server::json(200, &invalid("DISABLED")));
    tokio::time::sleep(Duration::from_millis(1020)).await;
    let error = send_bearer(&callers, KEY).await.expect_err("revoked");
    assert!(matches!(error, AuthError::Refused(Refusal::Unkey(_))));
}

#[tokio::test]
async fn an_answer_is_not_cached_past_the_keys_expiry() {
    let end = super::NOW_S * 1000 + 150;
    let answer = with("/data/expires", json!(end));
    let unkey = StubServer::new(move |_| stub_server::json(200, &answer)).await;
    let callers = at(&unkey).await;
    send_bearer(&callers, KEY).await.expect("known");
    tokio::time::sleep(Duration::from_millis(170)).await;
    send_bearer(&callers, KEY).await.expect("asked again");
    assert_eq!(unkey.count(), 2);
}

#[tokio::test]
async fn concurrent_requests_with_one_key_verify_once() {
    let unkey =
        StubServer::new(|_| stub_server::json(200, &valid()).after(Duration::from_millis(50)))
            .await;
    let callers = Arc::new(at(&unkey).await);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let callers = callers.clone();
        tasks.spawn(async move { send_bearer(&callers, KEY).await.expect("known") });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("known");
    }
    assert_eq!(unkey.count(), 1);
}

#[tokio::test]
async fn random_keys_do_not_delay_a_proven_key() {
    let unkey = StubServer::new(|seen| match seen.json()["key"] == KEY {
        true => stub_server::json(200, &valid()),
        false => reply(200, "{}").after(Duration::from_secs(60)),
    })
    .await;
    let mut settings = settings(unkey.url(), Duration::from_millis(20));
    settings.unkey.as_mut().expect("settings").deadline = Duration::from_secs(20);
    let callers = Arc::new(callers(&settings).await);
    send_bearer(&callers, KEY).await.expect("known");
    let mut strangers = tokio::task::JoinSet::new();
    for number in 0..300 {
        let callers = callers.clone();
        strangers.spawn(async move { send_bearer(&callers, &format!("sk_{number}")).await });
    }
    super::until("as many are asked about as may be", || unkey.count() > 64).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(unkey.count(), 1 + 64);
    let asked = tokio::time::timeout(Duration::from_secs(10), send_bearer(&callers, KEY)).await;
    asked.expect("in time").expect("known");
    assert_eq!(unkey.count(), 1 + 64 + 1);
}

#[tokio::test]
async fn a_verification_survives_the_client_that_began_it() {
    let unkey =
        StubServer::new(|_| stub_server::json(200, &valid()).after(Duration::from_millis(100)))
            .await;
    let callers = at(&unkey).await;
    let gone = tokio::time::timeout(Duration::from_millis(20), send_bearer(&callers, KEY)).await;
    assert!(gone.is_err());
    send_bearer(&callers, KEY).await.expect("known");
}

#[tokio::test]
async fn malformed_keys_are_not_sent_to_unkey() {
    let unkey = StubServer::new(|_| stub_server::json(200, &valid())).await;
    let callers = at(&unkey).await;
    let long = "k".repeat(513);
    let webhook = "wh_3ZfKjNzMv8xQpRt2Yw";
    for credential in [
        "a.b.c",
        "a.b.c.d.e",
        "ow_x",
        long.as_str(),
        "a,b",
        "a b",
        webhook,
    ] {
        send_bearer(&callers, credential)
            .await
            .expect_err("refused");
    }
    assert_eq!(unkey.count(), 0);
}
