//! Webhooks through a running gateway: the providers' requests, their answers, and
//! the deliveries to the upstream.
//!
//! ```ignore
//! let fixture = fixture().await;
//! let hook = fixture.hook(Kind::Stripe).await;
//! let answer = fixture.send(&hook, &hook.event(1)).await;
//! ```

mod attacks;
mod batches;
mod canary;
mod counting;
mod duplicates;
mod events;
mod handshakes;
mod operators;
mod retries;
mod shared;
mod signers;
mod strangers;
mod sync;

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use self::signers::{Kind, Sealing, Signed};
use crate::harness::{
    Answer, ClientRequest, Origin, OriginBuilder, Running, Seen, configured, origin, until,
};

/// The gateway's public URL for providers.
const PUBLIC_URL: &str = "https://hooks.example";
/// For events that must stay queued for the whole test.
const PATIENT: &str = "max_attempts = 1000\nbackoff = { first = \"5ms\", max = \"100ms\" }";
/// The pause between two checks of something that only time changes.
const PAUSE: Duration = Duration::from_millis(5);

/// A gateway for webhooks, and the origin of their deliveries.
struct Fixture {
    origin: Origin,
    gateway: Running,
}

/// A fixture whose origin accepts everything.
async fn fixture() -> Fixture {
    fixture_with(origin(), "", "").await
}

/// A fixture with this origin, further settings of the webhooks' class, and further
/// configuration.
async fn fixture_with(origin: OriginBuilder, class: &str, more: &str) -> Fixture {
    let origin = origin.run().await;
    let gateway = configured(&origin, &settings(class, more)).run().await;
    Fixture { origin, gateway }
}

/// Like [`fixture_with`], with the store in this directory.
async fn fixture_at(origin: Origin, directory: &Path) -> Fixture {
    let gateway = configured(&origin, &settings("", "")).directory(directory);
    let gateway = gateway.run().await;
    Fixture { origin, gateway }
}

/// Unless the class says otherwise, pauses are short, so that a second attempt
/// comes soon.
fn settings(class: &str, more: &str) -> String {
    let quick = match class.contains("backoff") {
        true => "",
        false => "backoff = { first = \"5ms\", max = \"20ms\" }",
    };
    format!(
        "server: public_url = \"{PUBLIC_URL}\"\n[classes.webhook]\n{quick}\n{class}\n{}\n{more}",
        Kind::SETTINGS
    )
}

/// A created webhook, and what its provider knows.
#[derive(Clone, Debug)]
struct Hook {
    kind: Kind,
    id: String,
    secret: String,
    /// The path of its deliveries.
    path: String,
    /// The gateway's signing secret.
    signing_secret: String,
}

impl Fixture {
    /// Creates a webhook with the provider's usual settings.
    async fn hook(&self, kind: Kind) -> Hook {
        self.hook_with(kind, json!({})).await
    }

    /// Creates a webhook with further settings.
    async fn hook_with(&self, kind: Kind, more: Value) -> Hook {
        let secret = kind.secret();
        let mut ask = json!({
            "tenant": "acme",
            "project": "shop",
            "provider": kind.provider(),
            "scheme": kind.scheme(),
            "secrets": [&secret],
            "upstream": "origin",
            "path": format!("/hooks/{kind:?}"),
            "why": "a test",
        });
        for (name, value) in more.as_object().unwrap() {
            ask[name] = value.clone();
        }
        let created = self.operate("/admin/v1/webhooks", ask.clone()).await;
        let text = |name: &str| created[name].as_str().unwrap().to_owned();
        let hook = Hook {
            kind,
            id: text("webhook_id"),
            secret,
            path: ask["path"].as_str().unwrap_or_default().to_owned(),
            signing_secret: text("signing_secret"),
        };
        assert!(hook.id.starts_with("wh_"), "{}", hook.id);
        assert_eq!(text("url"), format!("{PUBLIC_URL}{}", hook.target()));
        hook
    }

    /// A request to a webhook, not yet sent.
    fn request(&self, hook: &Hook, signed: &Signed) -> ClientRequest {
        self.request_at(&hook.target(), signed)
    }

    /// A request to any path.
    fn request_at(&self, target: &str, signed: &Signed) -> ClientRequest {
        let ask = self
            .gateway
            .request(&format!("POST {target}{}", signed.query));
        let headers = signed.headers.iter();
        headers
            .fold(ask, |ask, (name, value)| ask.header(name, value))
            .body(signed.body.clone())
    }

    async fn send(&self, hook: &Hook, signed: &Signed) -> Answer {
        self.request(hook, signed).send().await
    }

    /// Sends a request that must be accepted.
    async fn accepted(&self, hook: &Hook, signed: &Signed) -> Answer {
        let answer = self.send(hook, signed).await;
        assert_eq!(answer.status, 200, "{:?}: {}", hook.kind, answer.text());
        answer
    }

    /// The deliveries of a webhook, once no event is queued or running.
    async fn got(&self, hook: &Hook) -> Vec<Seen> {
        self.quiet().await;
        self.came(hook)
    }

    /// The deliveries of a webhook so far.
    fn came(&self, hook: &Hook) -> Vec<Seen> {
        let mut ledger = self.origin.ledger();
        ledger.retain(|seen| seen.target == hook.path);
        ledger
    }

    /// The only delivery of a webhook.
    async fn only(&self, hook: &Hook) -> Seen {
        let mut got = self.got(hook).await;
        assert_eq!(got.len(), 1, "{:?}: {got:?}", hook.kind);
        got.remove(0)
    }

    /// Waits until this many deliveries of a webhook have arrived.
    async fn called(&self, hook: &Hook, times: usize) {
        until(async || self.came(hook).len() >= times).await;
    }

    /// Waits until no event is queued or running. One listing has all of them, so
    /// no event can change its state between two requests.
    async fn quiet(&self) {
        let moving =
            |operation: &Value| matches!(operation["state"].as_str(), Some("queued" | "running"));
        until(async || !self.operations("").await.iter().any(moving)).await;
    }

    /// The recorded events that match a query.
    async fn operations(&self, query: &str) -> Vec<Value> {
        let path = format!("/admin/v1/operations?limit=1000{query}");
        let page = self.gateway.admin(&path).await.json();
        assert_eq!(page["next"], Value::Null, "all on one page");
        let listed = page["operations"].as_array().unwrap().iter();
        // Seen bytes are records too, but not events.
        let events = listed.filter(|one| !one["endpoint"].as_str().unwrap().ends_with(" bytes"));
        events.cloned().collect()
    }

    /// The operations of a webhook.
    async fn of(&self, hook: &Hook) -> Vec<Value> {
        let endpoint = format!("webhooks.{}.{}", hook.kind.provider(), hook.id);
        self.operations(&format!("&endpoint={endpoint}")).await
    }

    /// Waits until the only event of a webhook is in this state.
    async fn is(&self, hook: &Hook, state: &str) -> Value {
        loop {
            match &self.of(hook).await[..] {
                [one] if one["state"] == state => return one.clone(),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Makes a change through the admin API, which must accept it.
    async fn operate(&self, path: &str, body: Value) -> Value {
        let answer = self.gateway.change(path, &body.to_string()).send().await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    }

    /// Waits until the metrics contain this line.
    async fn counts(&self, line: &str) {
        let metrics = self.gateway.metrics().await;
        assert!(
            metrics.lines().any(|is| is == line),
            "{line} is not in\n{metrics}"
        );
    }
}

impl Hook {
    /// The path of its URL.
    fn target(&self) -> String {
        format!("/api/v1/webhooks/{}/{}", self.kind.provider(), self.id)
    }

    fn url(&self) -> String {
        format!("{PUBLIC_URL}{}", self.target())
    }

    /// The provider's nth event, signed now.
    fn event(&self, number: u32) -> Signed {
        self.unsigned(number).signed()
    }

    /// The provider's nth event, not yet signed.
    fn unsigned(&self, number: u32) -> UnsignedEvent<'_> {
        UnsignedEvent {
            hook: self,
            id: Some(self.kind.id(number)),
            note: format!("note {number}"),
            secret: self.secret.clone(),
            at: now(),
            body: None,
        }
    }

    /// The key of the nth event at the upstream.
    fn name(&self, number: u32, body: &[u8]) -> String {
        let (provider, id) = (self.kind.provider(), self.kind.id(number));
        let identifier = self.kind.identifier(&id, body);
        format!("t-acme:shop:service:webhook-ingest:{provider}-{identifier}")
    }
}

/// An unsigned request of a provider.
#[derive(Clone)]
struct UnsignedEvent<'a> {
    hook: &'a Hook,
    id: Option<String>,
    note: String,
    secret: String,
    at: i64,
    body: Option<String>,
}

impl UnsignedEvent<'_> {
    fn without_id(mut self) -> Self {
        self.id = None;
        self
    }

    /// The same event with a different body.
    fn note(mut self, note: &str) -> Self {
        self.note = note.to_owned();
        self
    }

    /// Sets the body.
    fn body(mut self, body: impl Into<String>) -> Self {
        self.body = Some(body.into());
        self
    }

    fn secret(mut self, secret: &str) -> Self {
        self.secret = secret.to_owned();
        self
    }

    /// Signed this many seconds from now.
    fn at(mut self, seconds: i64) -> Self {
        self.at = now() + seconds;
        self
    }

    fn signed(self) -> Signed {
        let url = self.hook.url();
        self.signed_for(&url)
    }

    /// Signed for a webhook at this URL.
    fn signed_for(self, url: &str) -> Signed {
        let (kind, id) = (self.hook.kind, self.id.as_deref());
        let made = || kind.event(id, &self.note, &self.secret);
        let body = self.body.clone().unwrap_or_else(made);
        kind.sign(&Sealing {
            secret: &self.secret,
            url,
            id,
            at: self.at,
            body: body.as_bytes(),
        })
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs().cast_signed()
}
