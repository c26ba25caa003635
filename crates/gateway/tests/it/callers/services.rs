//! Services that authenticate callers, used by a running gateway: an issuer's keys,
//! Unkey, and OpenBao with the secrets for it. While one of them is unavailable,
//! requests are refused, retries included.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::harness::{Answer, ClientRequest, Reply, Reserved, configured, origin};

const ROUTE: &str = r#"
[[routes]]
endpoint = "payments.create"
method = "POST"
path = "/payments"
upstream = "origin"
policy = "REQUIRED_A"
"#;

fn bearing(ask: ClientRequest, credential: &str) -> ClientRequest {
    ask.header("authorization", format!("Bearer {credential}"))
}

fn is_away(answer: &Answer) -> bool {
    answer.problem() == (503, "auth-unavailable".to_owned()) && answer.header("retry-after") == "1"
}

fn encode(value: &Value) -> String {
    BASE64URL_NOPAD.encode(value.to_string().as_bytes())
}

fn token(pair: &Ed25519KeyPair) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let claims = json!({
        "iss": "https://id.example.com", "aud": "payments", "sub": "ann",
        "tenant_id": "acme", "project_id": "shop", "exp": now.as_secs() + 600,
    });
    let header = json!({"alg": "EdDSA", "kid": "k"});
    let message = format!("{}.{}", encode(&header), encode(&claims));
    let signed = BASE64URL_NOPAD.encode(pair.sign(message.as_bytes()).as_ref());
    format!("{message}.{signed}")
}

#[tokio::test]
async fn tokens_are_refused_until_the_issuers_keys_are_fetched() {
    let upstream = origin().reply(201, "paid").run().await;
    let issuer = Reserved::new();
    let gateway = configured(
        &upstream,
        &format!(
            r#"{ROUTE}
            [[auth.jwt]]
            issuer = "https://id.example.com"
            audience = "payments"
            jwks_url = "{}/jwks"
            algorithms = ["EdDSA"]
            tenant = "/tenant_id"
            project = "/project_id"
            "#,
            issuer.url()
        ),
    )
    .run()
    .await;
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let token = token(&pair);
    let ask = || bearing(gateway.post("/payments", "k"), &token);
    assert!(is_away(&ask().send().await));
    assert_eq!(upstream.runs(), 0);

    let x = BASE64URL_NOPAD.encode(pair.public_key().as_ref());
    let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x}]});
    let _issuer = origin().reply(200, keys.to_string()).run_at(issuer);
    let mut answer = ask().send().await;
    while is_away(&answer) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        answer = ask().send().await;
    }
    assert_eq!((answer.status, answer.text()), (201, "paid"));
    let seen = upstream.only();
    assert_eq!(seen.header("x-tenant-id"), "acme");
    assert_eq!(seen.header("x-project-id"), "shop");
    assert_eq!(seen.header("x-subject"), "user:ann");
    assert_eq!(seen.header("authorization"), format!("Bearer {token}"));
    assert!(ask().send().await.is_replay());
}

#[tokio::test]
async fn a_key_of_unkey_is_verified_with_a_root_key_from_openbao() {
    let upstream = origin().reply(201, "paid").run().await;
    let bao = origin()
        .replying(|seen, _| match seen.target.as_str() {
            "/v1/auth/approle/login" => {
                let auth = json!({"client_token": "hvs.1", "lease_duration": 3600});
                Reply::new(200, json!({ "auth": auth }).to_string())
            }
            "/v1/secret/data/unkey" if seen.header("x-vault-token") == "hvs.1" => {
                let data = json!({"data": {"root": "root-1"}, "metadata": {}});
                Reply::new(200, json!({ "data": data }).to_string())
            }
            _ => Reply::new(404, r#"{"errors": []}"#),
        })
        .run()
        .await;
    let status = Arc::new(AtomicU16::new(200));
    let unkey = {
        let status = status.clone();
        origin()
            .replying(move |seen, _| {
                if seen.header("authorization") != "Bearer root-1" {
                    return Reply::new(401, "{}");
                }
                let answer = json!({"meta": {"requestId": "req_1"}, "data": {
                    "valid": true, "code": "VALID", "keyId": "key_1",
                    "identity": {"id": "id_1", "externalId": "acme"},
                    "meta": {"project_id": "shop"},
                }});
                Reply::new(status.load(Ordering::SeqCst), answer.to_string())
            })
            .run()
            .await
    };
    let gateway = configured(
        &upstream,
        &format!(
            r#"{ROUTE}
            [secrets.openbao]
            address = "{}"
            role_id = "role"
            secret_id = "secret-id"
            [auth.unkey]
            url = "{}"
            root_key = {{ openbao = "unkey", field = "root" }}
            cache = "0s"
            "#,
            bao.url(),
            unkey.url()
        ),
    )
    .run()
    .await;
    let ask = || gateway.post("/payments", "k").header("x-api-key", "sk_1");
    let answer = ask().send().await;
    assert_eq!((answer.status, answer.text()), (201, "paid"));
    let seen = upstream.only();
    assert_eq!(seen.header("x-tenant-id"), "acme");
    assert_eq!(seen.header("x-subject"), "service:key_1");
    assert_eq!(seen.header("x-api-key"), "");
    assert!(ask().send().await.is_replay());
    // Without an answer a retry gets no stored reply either.
    status.store(500, Ordering::SeqCst);
    let answer = ask().send().await;
    assert!(is_away(&answer));
    assert_eq!(upstream.runs(), 1);
}
