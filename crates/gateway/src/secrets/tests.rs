//! OpenBao, as its documentation says, and when it behaves otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use rstest::rstest;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::openbao::{CacheTiming, OpenBaoClient};
use super::{SecretError, SecretReader};
use crate::callers::tests::stub_server::{self, ReceivedRequest, StubReply, StubServer, reply};
use crate::config::{self, BaoLogin, SecretValue};

pub(crate) fn settings(url: &str, login: BaoLogin) -> config::OpenBao {
    config::OpenBao {
        address: url.to_owned(),
        login,
        mount: "secret".to_owned(),
        namespace: Some("team-a".to_owned()),
        path: "webhooks/{tenant}/{project}/{provider}".to_owned(),
    }
}

pub(crate) fn token() -> BaoLogin {
    BaoLogin::Token("hvs.canary".into())
}

fn app_role() -> BaoLogin {
    BaoLogin::AppRole {
        role_id: "role-1".to_owned(),
        secret_id: "canary-secret-id".into(),
    }
}

/// A reader with a short cache.
pub(crate) fn reader(url: &str, login: BaoLogin) -> SecretReader {
    let timing = CacheTiming {
        fresh: Duration::from_millis(400),
        failed: Duration::from_millis(200),
        deadline: Duration::from_millis(400),
    };
    let openbao = OpenBaoClient::new(&settings(url, login), timing).expect("set up");
    SecretReader {
        openbao: Some(Arc::new(openbao)),
    }
}

fn at(path: &str, field: &str) -> SecretValue {
    SecretValue::OpenBao {
        path: path.to_owned(),
        field: field.to_owned(),
    }
}

/// An answer as the API's documentation shows it.
fn secret(value: &str) -> Value {
    json!({
        "request_id": "0a5b", "lease_id": "", "renewable": false, "lease_duration": 0,
        "data": {
            "data": { "key": value, "number": 7 },
            "metadata": {
                "created_time": "2018-03-22T02:24:06.945319214Z", "custom_metadata": null,
                "deletion_time": "", "destroyed": false, "version": 2
            }
        },
        "wrap_info": null, "warnings": null, "auth": null
    })
}

fn login(token: &str, lease: u64) -> Value {
    json!({
        "auth": {
            "renewable": true, "lease_duration": lease, "metadata": {},
            "token_policies": ["default"], "accessor": "fd6c9a00", "client_token": token
        },
        "data": null
    })
}

async fn read(reader: &SecretReader, path: &str) -> Result<String, SecretError> {
    let read = reader.read(&at(path, "key")).await;
    read.map(|secret| secret.expose_secret().to_owned())
}

#[tokio::test]
async fn a_secret_is_read_as_documented() {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("s3cret"))).await;
    let reader = reader(bao.url(), token());
    assert_eq!(
        read(&reader, "apps/pay ments").await.expect("read"),
        "s3cret"
    );
    let seen = &bao.seen()[0];
    assert_eq!(seen.method, Method::GET);
    assert_eq!(seen.path, "/v1/secret/data/apps/pay%20ments");
    assert_eq!(seen.header("x-vault-token"), Some("hvs.canary"));
    assert_eq!(seen.header("x-vault-namespace"), Some("team-a"));
    let all = reader.read_path("apps/pay ments").await.expect("read");
    assert_eq!(all.keys().collect::<Vec<_>>(), ["key"]);
    assert_eq!(bao.count(), 1);
}

#[tokio::test]
async fn a_given_secret_needs_no_request() {
    let reader = SecretReader::new(&config::Secrets::default()).expect("nothing to set up");
    let given = reader.read(&SecretValue::Given("here".into())).await;
    assert_eq!(given.expect("given").expose_secret(), "here");
    let error = reader.read(&at("a", "b")).await.expect_err("no OpenBao");
    assert!(matches!(error, SecretError::NotConfigured { .. }));
}

#[rstest]
#[case::no_such_field("absent")]
#[case::not_text("number")]
#[tokio::test]
async fn a_missing_field_is_named(#[case] field: &str) {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("canary"))).await;
    let error = reader(bao.url(), token())
        .read(&at("apps/pay", field))
        .await;
    let text = error.expect_err("no field").to_string();
    assert!(text.contains("apps/pay") && text.contains(field), "{text}");
    assert!(!text.contains("canary"));
}

#[rstest]
#[case::absent(
    reply(404, r#"{"errors": []}"#),
    "there is no secret apps/pay in OpenBao"
)]
#[case::deleted(
    stub_server::json(200, &json!({"data": {"data": null, "metadata": {}}})),
    "there is no secret apps/pay in OpenBao"
)]
#[case::denied(
    reply(403, r#"{"errors": ["permission denied"]}"#),
    "OpenBao does not allow reading the secret apps/pay"
)]
#[case::sealed(
    reply(503, r#"{"errors": ["Vault is sealed"]}"#),
    "OpenBao is unavailable: status 503 Service Unavailable"
)]
#[case::too_many(reply(429, ""), "OpenBao is unavailable: status 429 Too Many Requests")]
#[case::redirect(reply(307, "").location("/elsewhere"), "OpenBao is unavailable: status 307 Temporary Redirect")]
#[case::not_json(
    reply(200, "canary"),
    "OpenBao is unavailable: the response is malformed"
)]
#[tokio::test]
async fn failures_name_their_cause(#[case] response: StubReply, #[case] want: &str) {
    let bao = StubServer::new(move |_| response.clone()).await;
    let error = read(&reader(bao.url(), token()), "apps/pay").await;
    let error = error.expect_err("no secret");
    assert_eq!(error.to_string(), want);
    assert!(!format!("{error:?}").contains("canary"));
}

#[tokio::test]
async fn a_secret_is_cached_briefly_and_read_again() {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("one"))).await;
    let reader = reader(bao.url(), token());
    assert_eq!(read(&reader, "a").await.expect("read"), "one");
    bao.respond_with(|_| stub_server::json(200, &secret("two")));
    assert_eq!(read(&reader, "a").await.expect("believed"), "one");
    tokio::time::sleep(Duration::from_millis(420)).await;
    assert_eq!(read(&reader, "a").await.expect("read"), "two");
}

#[rstest]
#[case::slow(reply(200, "{}").after(Duration::from_secs(60)))]
#[case::error(reply(500, ""))]
#[tokio::test]
async fn the_last_value_stays_while_openbao_is_unavailable(#[case] response: StubReply) {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("one"))).await;
    let reader = reader(bao.url(), token());
    read(&reader, "a").await.expect("read");
    bao.respond_with(move |_| response.clone());
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(420)).await;
        assert_eq!(read(&reader, "a").await.expect("kept"), "one");
    }
    // This path was never read.
    let error = read(&reader, "b").await.expect_err("away");
    assert!(matches!(error, SecretError::Unavailable(_)));
    bao.respond_with(|_| stub_server::json(200, &secret("two")));
    tokio::time::sleep(Duration::from_millis(420)).await;
    assert_eq!(read(&reader, "a").await.expect("read"), "two");
}

#[rstest]
#[case::deleted(404)]
#[case::denied(403)]
#[tokio::test]
async fn a_refusal_applies_at_once_and_ends_the_cached_value(#[case] status: u16) {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("one"))).await;
    let reader = reader(bao.url(), token());
    read(&reader, "a").await.expect("read");
    bao.respond_with(move |_| reply(status, "{}"));
    tokio::time::sleep(Duration::from_millis(420)).await;
    read(&reader, "a").await.expect_err("gone");
    // An outage afterwards does not bring it back.
    bao.respond_with(|_| reply(500, ""));
    tokio::time::sleep(Duration::from_millis(420)).await;
    read(&reader, "a").await.expect_err("still gone");
}

#[tokio::test]
async fn concurrent_readers_send_one_request() {
    let bao = StubServer::new(|_| {
        stub_server::json(200, &secret("one")).after(Duration::from_millis(50))
    })
    .await;
    let reader = reader(bao.url(), token());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let reader = reader.clone();
        tasks.spawn(async move { read(&reader, "a").await.expect("read") });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("read");
    }
    assert_eq!(bao.count(), 1);
}

#[tokio::test]
async fn concurrent_readers_of_a_slow_secret_wait_together() {
    let bao = StubServer::new(|_| reply(200, "{}").after(Duration::from_secs(60))).await;
    let reader = reader(bao.url(), token());
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let reader = reader.clone();
        tasks.spawn(async move { read(&reader, "a").await.expect_err("slow") });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    assert!(begin.elapsed() < Duration::from_millis(1500));
}

/// Accepts only the latest login.
fn with_logins(lease: u64) -> impl Fn(&ReceivedRequest) -> StubReply + Send + Sync + 'static {
    let logins = AtomicUsize::new(0);
    move |seen: &ReceivedRequest| {
        if seen.path == "/v1/auth/approle/login" {
            let n = logins.fetch_add(1, Ordering::SeqCst) + 1;
            return stub_server::json(200, &login(&format!("hvs.{n}"), lease));
        }
        let last = format!("hvs.{}", logins.load(Ordering::SeqCst));
        match seen.header("x-vault-token") {
            Some(token) if token == last => stub_server::json(200, &secret("one")),
            _ => reply(403, r#"{"errors": ["permission denied"]}"#),
        }
    }
}

#[tokio::test]
async fn one_login_is_used_until_it_ends() {
    let bao = StubServer::new(with_logins(3600)).await;
    let reader = reader(bao.url(), app_role());
    for path in ["a", "b", "c"] {
        assert_eq!(read(&reader, path).await.expect("read"), "one");
    }
    let seen = bao.seen();
    assert_eq!(seen.len(), 4);
    assert_eq!(seen[0].method, Method::POST);
    assert_eq!(seen[0].path, "/v1/auth/approle/login");
    assert_eq!(seen[0].header("x-vault-token"), None);
    assert_eq!(seen[0].header("x-vault-namespace"), Some("team-a"));
    let body = json!({ "role_id": "role-1", "secret_id": "canary-secret-id" });
    assert_eq!(seen[0].json(), body);
}

#[tokio::test]
async fn an_early_ended_login_is_repeated_once() {
    let bao = StubServer::new(with_logins(3600)).await;
    let reader = reader(bao.url(), app_role());
    read(&reader, "a").await.expect("read");
    // Another service, which does not know this login.
    bao.respond_with(with_logins(3600));
    assert_eq!(read(&reader, "b").await.expect("read"), "one");
    // A secret that is denied to every login.
    bao.respond_with(|seen| match seen.path.as_str() {
        "/v1/auth/approle/login" => stub_server::json(200, &login("hvs.x", 3600)),
        _ => reply(403, "{}"),
    });
    let before = bao.count();
    let error = read(&reader, "c").await.expect_err("denied");
    assert!(matches!(error, SecretError::Denied { .. }));
    assert_eq!(bao.count(), before + 3);
}

#[tokio::test]
async fn a_login_is_renewed_before_it_ends() {
    let bao = StubServer::new(with_logins(1)).await;
    let reader = reader(bao.url(), app_role());
    read(&reader, "a").await.expect("read");
    tokio::time::sleep(Duration::from_millis(700)).await;
    read(&reader, "a").await.expect("read");
    let logins = bao.seen();
    let logins = logins.iter().filter(|seen| seen.method == Method::POST);
    assert_eq!(logins.count(), 2);
}

#[tokio::test]
async fn a_refused_login_is_reported_without_its_secret() {
    let bao = StubServer::new(|_| reply(400, r#"{"errors": ["invalid secret id"]}"#)).await;
    let error = read(&reader(bao.url(), app_role()), "a").await;
    let error = error.expect_err("refused");
    assert!(matches!(error, SecretError::Login(_)));
    assert!(!format!("{error:?} {error}").contains("canary"));
}

#[rstest]
#[case("")]
#[case("/")]
#[case("a//b")]
#[case("../sys/mounts")]
#[case("a/../../sys")]
#[case("a/./b")]
#[tokio::test]
async fn a_path_with_dot_segments_is_refused(#[case] path: &str) {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("one"))).await;
    let error = read(&reader(bao.url(), token()), path).await;
    assert!(matches!(error, Err(SecretError::Path { .. })));
    assert_eq!(bao.count(), 0);
}

#[tokio::test]
async fn special_characters_in_a_path_are_escaped() {
    let bao = StubServer::new(|_| stub_server::json(200, &secret("one"))).await;
    let reader = reader(bao.url(), token());
    read(&reader, "a?version=1#x/%2e%2e").await.expect("read");
    let path = bao.seen()[0].path.clone();
    assert_eq!(path, "/v1/secret/data/a%3Fversion%3D1%23x/%252e%252e");
}
