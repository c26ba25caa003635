//! Providers that sign and send events, and gateways that serve them.
//!
//! The signatures here follow the providers' documentation and do not use the crate under test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::fixture::client::{Client, NoResponse, Response};
use crate::fixture::gateway::Gateway;
use crate::fixture::origin::{Origin, Run};
use crate::fixture::until;

/// The provider of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// Its id is signed, and so is the time.
    Stripe,
    /// Its id is not signed; it has no time.
    GitHub,
}

impl Provider {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::GitHub => "github",
        }
    }

    /// The body of an event, which contains only its name.
    pub(crate) fn body(self, event: &str) -> String {
        match self {
            Self::Stripe => {
                format!(r#"{{"id":"evt_{event}","object":"event","type":"invoice.paid"}}"#)
            }
            Self::GitHub => format!(r#"{{"ref":"refs/heads/{event}","forced":false}}"#),
        }
    }
}

/// A webhook from the side of its provider.
#[derive(Clone, Debug)]
pub(crate) struct Webhook {
    pub(crate) provider: Provider,
    pub(crate) id: String,
    pub(crate) secret: String,
}

impl Webhook {
    /// Creates a webhook of tenant acme at this gateway; `more` overrides its defaults.
    pub(crate) async fn create(gateway: &Gateway, provider: Provider, more: Value) -> Self {
        let secret = format!(
            "whsec_{}_of_a_test_{:016x}",
            provider.name(),
            fastrand::u64(..)
        );
        let mut wanted = json!({
            "tenant": "acme",
            "project": "shop",
            "provider": provider.name(),
            "secrets": [secret],
            "why": "a test",
        });
        for (name, value) in more.as_object().unwrap() {
            wanted[name] = value.clone();
        }
        let made = create(gateway, &wanted).await;
        Self {
            provider,
            id: made["webhook_id"].as_str().unwrap().to_owned(),
            secret,
        }
    }

    /// The request with an event, signed now.
    pub(crate) fn request(&self, event: &str) -> Request<Full<Bytes>> {
        self.request_of(event, &self.provider.body(event))
    }

    /// The same with another body.
    pub(crate) fn request_of(&self, event: &str, body: &str) -> Request<Full<Bytes>> {
        let request = Request::post(path(self.provider.name(), &self.id))
            .header("host", "hooks.example")
            .header("content-type", "application/json");
        let request = match self.provider {
            Provider::Stripe => {
                let now = now();
                let tag = hmac_sha256(&self.secret, &format!("{now}.{body}"));
                request.header("stripe-signature", format!("t={now},v1={tag}"))
            }
            Provider::GitHub => {
                let tag = hmac_sha256(&self.secret, body);
                request
                    .header("x-hub-signature-256", format!("sha256={tag}"))
                    .header("x-github-delivery", event)
                    .header("x-github-event", "push")
            }
        };
        request.body(Full::from(body.to_owned())).unwrap()
    }

    /// Sends an event once, on its own connection.
    pub(crate) async fn send(
        &self,
        gateway: &Gateway,
        event: &str,
    ) -> Result<Response, NoResponse> {
        let request = self.request(event);
        Client::new(gateway.listen()).send(request).await
    }

    /// Sends an event once; it must be acknowledged.
    pub(crate) async fn tell(&self, gateway: &Gateway, event: &str) -> Response {
        let answer = self.send(gateway, event).await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    /// The deliveries of an event to the service.
    pub(crate) fn carried(&self, origin: &Origin, event: &str) -> Vec<Run> {
        let body = self.provider.body(event);
        let mut runs = origin.runs();
        runs.retain(|run| run.body == body);
        runs
    }
}

/// Creates a webhook at a gateway. Returns the API's response.
pub(crate) async fn create(gateway: &Gateway, wanted: &Value) -> Value {
    let request = Request::post("/admin/v1/webhooks")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::from(wanted.to_string()))
        .unwrap();
    let sent = Client::new(gateway.admin_address()).send(request).await;
    let answer = sent.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()
}

/// The path for events of a webhook.
pub(crate) fn path(provider: &str, id: &str) -> String {
    format!("/api/v1/webhooks/{provider}/{id}")
}

pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn hmac_sha256(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    HEXLOWER.encode(&mac.finalize().into_bytes())
}

/// Writes the configuration of a gateway that has only webhooks, in front of these services; events
/// go to the first.
pub(crate) fn configured(
    directory: &Path,
    store: &str,
    upstreams: &[(&str, SocketAddr)],
    more: &str,
) -> PathBuf {
    let file = directory.join("onceward.toml");
    let (first, _) = upstreams[0];
    let upstreams = upstreams.iter().map(|(name, address)| {
        format!("[upstreams.{name}]\nurl = \"http://{address}\"\ntimeout = \"30s\"\n")
    });
    let upstreams: String = upstreams.collect();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         [store]\nurl = \"{store}\"\n{upstreams}[webhooks]\nupstream = \"{first}\"\n{more}\n",
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// The embedded store of a directory.
pub(crate) fn embedded(directory: &Path) -> String {
    format!("embedded:{}", directory.join("data").display())
}

/// The operations of webhooks in a state, from the admin API, at most one page. The marks of seen
/// bytes are not included.
pub(crate) async fn operations(gateway: &Gateway, state: &str) -> Vec<Value> {
    let path = format!("/admin/v1/operations?state={state}&limit=1000");
    let page = gateway.admin(&path).await.unwrap().json();
    let mut operations = page["operations"].as_array().unwrap().clone();
    operations.retain(|operation| !operation["endpoint"].as_str().unwrap().ends_with(" bytes"));
    operations
}

/// Waits until nothing is queued and nothing runs. Both are read twice, because an operation that
/// changes between two reads would be missed by both.
pub(crate) async fn delivered(gateway: &Gateway) {
    until("all is delivered", || async {
        for state in ["queued", "running", "queued", "running"] {
            if !operations(gateway, state).await.is_empty() {
                return false;
            }
        }
        true
    })
    .await;
}
