//! Credentials of all kinds: API keys created through the admin API, tokens of a
//! test issuer, and the scheduler's signatures.

use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use hmac::{Hmac, KeyInit, Mac};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::fixture::operate;
use super::{ClientRequest, Running, until};

/// Configures API keys.
pub(crate) const API_KEYS: &str = "[auth.api_keys]\n";

/// Tenant, project and subject.
pub(crate) type Who<'a> = (&'a str, &'a str, &'a str);

/// An API key of the gateway.
pub(crate) struct ApiKey {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// Creates a key with these scopes; an empty project means none.
pub(crate) async fn scoped_key(gateway: &Running, who: Who<'_>, scopes: &[&str]) -> ApiKey {
    let (tenant, project, subject) = who;
    let project = (!project.is_empty()).then_some(project);
    let wish = json!({
        "tenant": tenant, "project": project, "subject": subject,
        "scopes": scopes, "why": "a test",
    });
    let made = operate(gateway, "/admin/v1/keys", wish).await;
    ApiKey {
        id: made["key"]["id"].as_str().unwrap().to_owned(),
        secret: made["secret"].as_str().unwrap().to_owned(),
    }
}

pub(crate) async fn api_key(gateway: &Running, who: Who<'_>) -> ApiKey {
    scoped_key(gateway, who, &[]).await
}

pub(crate) async fn revoke(gateway: &Running, key: &ApiKey) {
    let path = format!("/admin/v1/keys/{}/revoke", key.id);
    operate(gateway, &path, json!({ "why": "it leaked" })).await;
}

/// Adds a credential to a request.
pub(crate) trait Sent {
    fn by(self, key: &ApiKey) -> ClientRequest;
    fn bearing(self, token: &str) -> ClientRequest;
}

impl Sent for ClientRequest {
    fn by(self, key: &ApiKey) -> ClientRequest {
        self.bearing(&key.secret)
    }

    fn bearing(self, token: &str) -> ClientRequest {
        self.header("authorization", format!("Bearer {token}"))
    }
}

/// Signs tokens.
pub(crate) struct Issuer {
    pair: Ed25519KeyPair,
    directory: TempDir,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let directory = TempDir::new().unwrap();
        let x = BASE64URL_NOPAD.encode(pair.public_key().as_ref());
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x}]});
        std::fs::write(directory.path().join("jwks.json"), keys.to_string()).unwrap();
        Self { pair, directory }
    }

    /// Configures this issuer.
    pub(crate) fn section(&self) -> String {
        format!(
            "[[auth.jwt]]\nissuer = \"https://id.example/\"\naudience = \"shop\"\n\
             jwks_file = \"{}\"\nalgorithms = [\"EdDSA\"]\ntenant = \"/tenant\"\n\
             project = \"/project\"\nscopes = \"/scope\"\n",
            self.directory.path().join("jwks.json").display()
        )
    }

    /// A token with these claims, in addition to the usual ones.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let mut all = json!({
            "iss": "https://id.example/", "aud": "shop", "exp": now_ms() / 1000 + 600,
        });
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        let header = json!({"alg": "EdDSA", "kid": "k"});
        let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let message = format!("{}.{}", encode(&header), encode(&all));
        let signature = self.pair.sign(message.as_bytes());
        format!("{message}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }
}

/// Waits until the issuers' keys are fetched.
pub(crate) async fn ready(gateway: &Running) {
    until(async || gateway.admin("/readyz").await.status == 200).await;
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis().try_into().unwrap()
}

/// The input of a scheduler's signature, and its secret.
#[derive(Clone, Copy)]
pub(crate) struct Tick<'a> {
    pub(crate) secret: &'a str,
    pub(crate) tenant: &'a str,
    pub(crate) project: &'a str,
    pub(crate) endpoint: &'a str,
    pub(crate) key: &'a str,
    pub(crate) time_ms: u64,
    pub(crate) body: &'a str,
}

impl Tick<'_> {
    /// The header's value.
    pub(crate) fn signature(&self) -> String {
        let Self {
            tenant, project, ..
        } = self;
        let body = HEXLOWER.encode(&Sha256::digest(self.body));
        let text = [
            "onceward.schedule.v1",
            tenant,
            project,
            self.endpoint,
            self.key,
            &self.time_ms.to_string(),
            &body,
        ];
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()).unwrap();
        mac.update(text.join("\n").as_bytes());
        let signature = HEXLOWER.encode(&mac.finalize().into_bytes());
        let time = self.time_ms;
        format!(r#"tenant="{tenant}", project="{project}", time={time}, v1="{signature}""#)
    }
}
