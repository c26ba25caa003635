//! Endpoints of issuers' keys that are slow, huge, redirecting, flapping or
//! rotating.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::forge::{Signer, claims, encode, header, jwks};
use super::stub_server::{self, StubReply, StubServer, reply};
use super::{callers_with_timing, issuer, quick_timing, send_bearer, until};
use crate::callers::jwks::{JwksTiming, KeySet, KeySetError};
use crate::callers::{AuthError, Callers, Refusal};
use crate::config::{self, JwksSource};

fn auth(keys: JwksSource) -> config::Auth {
    config::Auth {
        jwt: vec![issuer(keys)],
        ..config::Auth::default()
    }
}

async fn at(endpoint: &StubServer, timing: JwksTiming) -> Callers {
    let url = JwksSource::Url(format!("{}/jwks", endpoint.url()));
    callers_with_timing(&auth(url), timing).await
}

fn token(signer: &Signer, kid: &str) -> String {
    signer.token(&header("ES256", kid), &claims())
}

fn holding(signer: &Signer, kid: &str) -> StubReply {
    stub_server::json(200, &jwks(&[signer.jwk(kid)]))
}

/// An endpoint that always answers with the key `a` of this signer.
async fn endpoint_with_one_key() -> (Signer, StubServer) {
    let signer = Signer::p256();
    let keys = holding(&signer, "a");
    let endpoint = StubServer::new(move |_| keys.clone()).await;
    (signer, endpoint)
}

#[tokio::test]
async fn ten_thousand_unknown_key_ids_cause_one_more_fetch() {
    let (signer, endpoint) = endpoint_with_one_key().await;
    // The first unknown id may cause another fetch.
    let timing = JwksTiming {
        forced: Duration::from_secs(2),
        ..quick_timing()
    };
    let callers = at(&endpoint, timing).await;
    send_bearer(&callers, &token(&signer, "a"))
        .await
        .expect("known");
    tokio::time::sleep(Duration::from_millis(2010)).await;
    let begin = Instant::now();
    let mut asked = 0;
    while begin.elapsed() < Duration::from_secs(1) && asked < 10_000 {
        let kid = format!("k{asked}");
        let head = encode(header("ES256", &kid).to_string().as_bytes());
        let body = encode(claims().to_string().as_bytes());
        let error = send_bearer(&callers, &format!("{head}.{body}.AAAA")).await;
        assert_eq!(error, Err(Refusal::NoKey.into()));
        asked += 1;
    }
    assert!(asked > 100, "only {asked} were tried");
    assert_eq!(endpoint.count(), 2);
}

#[tokio::test]
async fn unknown_key_ids_cause_at_most_one_fetch_in_half_a_minute() {
    let (signer, endpoint) = endpoint_with_one_key().await;
    let callers = Arc::new(at(&endpoint, JwksTiming::default()).await);
    send_bearer(&callers, &token(&signer, "a"))
        .await
        .expect("known");
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..10 {
        let callers = callers.clone();
        tasks.spawn(async move {
            let body = encode(claims().to_string().as_bytes());
            for n in 0..1000 {
                let head = header("ES256", &format!("{task}-{n}")).to_string();
                let head = encode(head.as_bytes());
                let error = send_bearer(&callers, &format!("{head}.{body}.AAAA")).await;
                assert_eq!(error, Err(Refusal::NoKey.into()));
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    assert_eq!(endpoint.count(), 1);
}

#[tokio::test]
async fn a_missing_key_id_is_not_fetched_again() {
    let (signer, endpoint) = endpoint_with_one_key().await;
    let timing = JwksTiming {
        forced: Duration::from_millis(1),
        ..quick_timing()
    };
    let callers = at(&endpoint, timing).await;
    send_bearer(&callers, &token(&signer, "a"))
        .await
        .expect("known");
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let error = send_bearer(&callers, &token(&signer, "junk")).await;
        assert_eq!(error, Err(Refusal::NoKey.into()));
    }
    assert_eq!(endpoint.count(), 2);
}

#[tokio::test]
async fn a_rotated_key_is_fetched_for_the_first_token_that_names_it() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let first = holding(&old, "old");
    let endpoint = StubServer::new(move |_| first.clone()).await;
    let timing = JwksTiming {
        forced: Duration::from_millis(1),
        ..quick_timing()
    };
    let callers = at(&endpoint, timing).await;
    let old_token = token(&old, "old");
    send_bearer(&callers, &old_token).await.expect("known");
    let next = holding(&new, "new");
    endpoint.respond_with(move |_| next.clone());
    tokio::time::sleep(Duration::from_millis(5)).await;
    send_bearer(&callers, &token(&new, "new"))
        .await
        .expect("rotated");
    // The old key is gone, and so are the cached tokens that it verified.
    let error = send_bearer(&callers, &old_token)
        .await
        .expect_err("withdrawn");
    assert_eq!(error, Refusal::NoKey.into());
}

#[tokio::test]
async fn many_tokens_with_a_new_key_wait_for_one_fetch() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let first = holding(&old, "old");
    let endpoint = StubServer::new(move |_| first.clone()).await;
    let timing = JwksTiming {
        forced: Duration::from_millis(1),
        ..quick_timing()
    };
    let callers = Arc::new(at(&endpoint, timing).await);
    send_bearer(&callers, &token(&old, "old"))
        .await
        .expect("known");
    let next = holding(&new, "new").after(Duration::from_millis(100));
    endpoint.respond_with(move |_| next.clone());
    tokio::time::sleep(Duration::from_millis(5)).await;
    let token = token(&new, "new");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (callers, token) = (callers.clone(), token.clone());
        tasks.spawn(async move { send_bearer(&callers, &token).await.expect("rotated") });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("known");
    }
    assert_eq!(endpoint.count(), 2);
}

#[rstest]
#[case::slow(reply(200, "{}").after(Duration::from_secs(60)))]
#[case::huge(reply(200, vec![b' '; 300 * 1024]))]
#[case::redirect(reply(302, "").location("/elsewhere"))]
#[case::error(reply(500, "oops"))]
#[case::not_json(reply(200, "<html>"))]
#[case::no_keys(reply(200, r#"{"keys": []}"#))]
#[case::an_error_in_json(reply(200, r#"{"error": "rate limit"}"#))]
#[tokio::test]
async fn without_keys_every_token_is_refused(#[case] response: StubReply) {
    let signer = Signer::p256();
    let endpoint = StubServer::new(move |_| response.clone()).await;
    let callers = at(&endpoint, quick_timing()).await;
    let token = token(&signer, "a");
    let begin = Instant::now();
    assert_eq!(
        send_bearer(&callers, &token).await,
        Err(AuthError::Unavailable)
    );
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(callers.issuers_without_keys(), [super::ISSUER]);
    let asked = endpoint.seen();
    assert!(asked.iter().all(|seen| seen.path == "/jwks"));
    // Keys are used as soon as they are fetched.
    let keys = holding(&signer, "a");
    endpoint.respond_with(move |_| keys.clone());
    until("the keys are there", || {
        callers.issuers_without_keys().is_empty()
    })
    .await;
    send_bearer(&callers, &token).await.expect("known");
}

#[rstest]
#[case::slow(reply(200, "{}").after(Duration::from_secs(60)))]
#[case::huge(reply(200, vec![b' '; 300 * 1024]))]
#[case::redirect(reply(302, "").location("/elsewhere"))]
#[case::error(reply(503, ""))]
#[case::emptied(reply(200, r#"{"keys": []}"#))]
#[tokio::test]
async fn a_failed_fetch_keeps_the_last_valid_keys(#[case] response: StubReply) {
    let (signer, endpoint) = endpoint_with_one_key().await;
    let timing = JwksTiming {
        refresh: Duration::from_millis(50),
        forced: Duration::from_millis(50),
        ..quick_timing()
    };
    let callers = at(&endpoint, timing).await;
    send_bearer(&callers, &token(&signer, "a"))
        .await
        .expect("known");
    endpoint.respond_with(move |_| response.clone());
    let before = endpoint.count();
    until("it was asked again", || endpoint.count() > before + 1).await;
    let begin = Instant::now();
    for n in 0..20 {
        // A different token each time, so that none is cached.
        let claims = super::forge::claims_with("jti", json!(n));
        let token = signer.token(&header("ES256", "a"), &claims);
        send_bearer(&callers, &token)
            .await
            .expect("known by the last keys");
    }
    assert!(begin.elapsed() < Duration::from_secs(2));
    // It is not known now whether such a key exists.
    let unknown = send_bearer(&callers, &token(&signer, "b")).await;
    assert_eq!(unknown, Err(AuthError::Unavailable));
}

#[tokio::test]
async fn keys_not_fetched_for_too_long_are_dropped() {
    let (signer, endpoint) = endpoint_with_one_key().await;
    let timing = JwksTiming {
        refresh: Duration::from_millis(20),
        keep: Duration::from_millis(300),
        ..quick_timing()
    };
    let callers = at(&endpoint, timing).await;
    let token = token(&signer, "a");
    send_bearer(&callers, &token).await.expect("known");
    endpoint.respond_with(|_| reply(500, ""));
    until("the keys are too old", || {
        !callers.issuers_without_keys().is_empty()
    })
    .await;
    // Also for a token that was verified while they were valid.
    assert_eq!(
        send_bearer(&callers, &token).await,
        Err(AuthError::Unavailable)
    );
}

#[tokio::test]
async fn a_flapping_endpoint_changes_nothing_for_known_keys() {
    let signer = Signer::p256();
    let keys = holding(&signer, "a");
    let turns = AtomicUsize::new(0);
    let endpoint = StubServer::new(move |_| match turns.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => keys.clone(),
        _ => reply(502, ""),
    })
    .await;
    let timing = JwksTiming {
        refresh: Duration::from_millis(5),
        forced: Duration::from_millis(5),
        ..quick_timing()
    };
    let callers = at(&endpoint, timing).await;
    let mut n = 0;
    while endpoint.count() < 20 {
        n += 1;
        let claims = super::forge::claims_with("jti", json!(n));
        let token = signer.token(&header("ES256", "a"), &claims);
        send_bearer(&callers, &token).await.expect("known");
        // A token with a known key does not wait, so no other task would run here.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_file_of_keys_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jwks.json");
    let (old, new) = (Signer::p256(), Signer::p256());
    let write = |document: &str| {
        // Written beside it and then renamed, so that readers see a whole file.
        let aside = directory.path().join("aside");
        std::fs::write(&aside, document).expect("written");
        std::fs::rename(&aside, &path).expect("renamed");
    };
    write(&jwks(&[old.jwk("a")]).to_string());
    let callers = callers_with_timing(&auth(JwksSource::File(path.clone())), quick_timing()).await;
    send_bearer(&callers, &token(&old, "a"))
        .await
        .expect("known");
    // A malformed file changes nothing.
    write("oops");
    tokio::time::sleep(Duration::from_millis(200)).await;
    send_bearer(&callers, &token(&old, "a"))
        .await
        .expect("still known");
    write(&jwks(&[new.jwk("b"), new.jwk("c")]).to_string());
    let token = token(&new, "b");
    for _ in 0..200 {
        if send_bearer(&callers, &token).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the new keys were not read");
}

#[tokio::test]
async fn a_reload_keeps_the_keys_of_an_unchanged_source() {
    let (signer, endpoint) = endpoint_with_one_key().await;
    let callers = at(&endpoint, quick_timing()).await;
    send_bearer(&callers, &token(&signer, "a"))
        .await
        .expect("known");
    endpoint.respond_with(|_| reply(500, ""));
    let url = JwksSource::Url(format!("{}/jwks", endpoint.url()));
    let secrets = callers.secrets.clone();
    let reopened = callers.reopen(&auth(url), secrets).expect("reopened");
    drop(callers);
    send_bearer(&reopened, &token(&signer, "a"))
        .await
        .expect("known");
    assert_eq!(endpoint.count(), 1);
}

fn set(keys: &[Value]) -> Result<KeySet, KeySetError> {
    KeySet::parse(jwks(keys).to_string().as_bytes())
}

#[test]
fn keys_that_cannot_verify_are_ignored() {
    use jsonwebtoken::Algorithm;
    let rsa = Signer::rsa();
    let change = |member: &str, value: Value| {
        let mut jwk = rsa.jwk("a");
        jwk[member] = value;
        jwk
    };
    for (why, jwk) in [
        ("for encryption", change("use", json!("enc"))),
        ("for signing only", change("key_ops", json!(["sign"]))),
        ("of another algorithm", change("alg", json!("RSA-OAEP"))),
        (
            "of an algorithm it cannot have",
            change("alg", json!("ES256")),
        ),
        ("of a secret's algorithm", change("alg", json!("HS256"))),
        ("too short", change("n", json!(encode(&[0xff; 128])))),
        ("too long", change("n", json!(encode(&[0xff; 2048])))),
        ("not in base64", change("n", json!("+/="))),
        (
            "a secret",
            json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"}),
        ),
        ("of an unknown kind", json!({"kty": "XYZ", "kid": "a"})),
        (
            "of an unknown curve",
            json!({"kty": "EC", "crv": "secp256k1", "kid": "a", "x": "AA", "y": "AA"}),
        ),
        ("not an object", json!("a")),
        (
            "with too long a name",
            change("kid", json!("k".repeat(129))),
        ),
    ] {
        assert!(matches!(set(&[jwk]), Err(KeySetError::Empty)), "{why}");
    }
    let bound = set(&[change("alg", json!("RS256"))]).expect("a key");
    assert!(bound.find(Some("a"), Algorithm::RS256).is_some());
    assert!(bound.find(Some("a"), Algorithm::PS256).is_none());
}

#[test]
fn a_token_without_a_key_id_is_accepted_only_if_one_key_fits() {
    use jsonwebtoken::Algorithm;
    let (one, other, ed) = (Signer::p256(), Signer::p256(), Signer::ed25519());
    let alone = set(&[one.jwk("a"), ed.jwk("b")]).expect("keys");
    assert!(alone.find(None, Algorithm::ES256).is_some());
    let choice = set(&[one.jwk("a"), other.jwk("b")]).expect("keys");
    assert!(choice.find(None, Algorithm::ES256).is_none());
    let twice = set(&[one.jwk("a"), other.jwk("a")]).expect("keys");
    assert!(twice.find(Some("a"), Algorithm::ES256).is_none());
}

#[test]
fn a_set_with_too_many_keys_is_refused() {
    let signer = Signer::ed25519();
    let keys =
        |count: usize| -> Vec<Value> { (0..count).map(|n| signer.jwk(&n.to_string())).collect() };
    assert!(set(&keys(64)).is_ok());
    assert!(matches!(set(&keys(65)), Err(KeySetError::TooMany(65))));
}
