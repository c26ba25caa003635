//! Webhooks on a registry in memory, with a clock that the tests set.

mod making;
mod others;
mod rotating;
mod storing;

use std::sync::Arc;
use std::time::Duration;

use onceward_core::store::{Collection, Registry, SortOrder};
use onceward_webhooks::{Provider, SigningKey, sign};
use secrecy::SecretString;

use super::{NewSecrets, NewWebhook, WebhookRegistry, WebhooksError};
use crate::callers::tests::{TestClock, registry};
use crate::config::{Config, Upstream};
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::GatewayKey;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A part of every secret.
const CANARY: &str = "Y2FuYXJ5";

/// A registry, and what is needed to open it again.
struct Fixture {
    registry: Arc<dyn Registry>,
    secret: GatewayKey,
    test_clock: TestClock,
    config: Config,
    secrets: SecretReader,
}

impl Fixture {
    fn new() -> Self {
        let mut config = Config::unconfigured("http://127.0.0.1:1");
        let other = Upstream::new("http://127.0.0.1:2");
        config.upstreams.insert("ledger".into(), other);
        Self {
            registry: registry(),
            secret: GatewayKey::new().expect("random bytes"),
            test_clock: TestClock::new(),
            secrets: SecretReader::new(&config.secrets).expect("nothing to set up"),
            config,
        }
    }

    async fn open(&self) -> WebhookRegistry {
        let opened = WebhookRegistry::open(
            self.registry.clone(),
            &self.secret,
            &self.config,
            self.secrets.clone(),
            self.test_clock.clock(),
        );
        opened.await.expect("opened")
    }

    /// Creates a webhook and returns its id.
    async fn make(&self, webhooks: &WebhookRegistry, new: NewWebhook) -> String {
        let made = webhooks.create(&self.config, new).await;
        made.expect("made").shown.registration.id.to_string()
    }

    /// The registry's documents, by name.
    async fn documents(&self) -> Vec<(String, bytes::Bytes)> {
        let documents =
            self.registry
                .documents(Collection::Webhooks, SortOrder::Ascending, None, 100);
        documents.await.expect("the store answers")
    }

    /// The keys of a webhook, each by its signature of the same bytes.
    async fn keys(
        &self,
        webhooks: &WebhookRegistry,
        id: &str,
    ) -> Result<Vec<String>, WebhooksError> {
        let found = webhooks.find(&self.config, "svix", id).await?;
        let found = found.expect("there is such a webhook");
        Ok(tags_of(&webhooks.keys(&found).await?))
    }

    async fn is_found(&self, webhooks: &WebhookRegistry, id: &str) -> bool {
        let found = webhooks.find(&self.config, "svix", id).await;
        found.expect("nobody fails").is_some()
    }
}

fn tags_of(keys: &[SigningKey]) -> Vec<String> {
    keys.iter().map(|key| sign(key, "m", 0, b"x")).collect()
}

/// The signatures of these secrets' keys.
fn of_secrets(texts: &[&str]) -> Vec<String> {
    let keys = texts.iter().map(|text| Provider::Svix.key(text));
    tags_of(&keys.collect::<Result<Vec<_>, _>>().expect("secrets"))
}

/// A secret made of one letter.
fn secret(letter: char) -> String {
    format!("whsec_{CANARY}{}", letter.to_string().repeat(32))
}

fn new() -> NewWebhook {
    with(&[&secret('a')])
}

fn with(secrets: &[&str]) -> NewWebhook {
    let secrets = secrets.iter().map(|text| SecretString::from(*text));
    NewWebhook {
        tenant: "acme".to_owned(),
        project: "shop".to_owned(),
        provider: "svix".to_owned(),
        scheme: None,
        upstream: None,
        path: None,
        deliver: None,
        same_bytes: None,
        secrets: NewSecrets::Given(secrets.collect()),
    }
}
