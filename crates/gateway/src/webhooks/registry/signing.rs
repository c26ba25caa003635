//! The secrets that the gateway signs its deliveries with: the provider's own
//! signature has gone stale by the time of a late delivery.
//!
//! Each upstream has a separate secret, in the form of Standard Webhooks: the
//! configured one, or one derived from the gateway's key and the upstream's name,
//! which need not be stored.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use data_encoding::BASE64;
use onceward_webhooks::{Provider, SigningKey};
use secrecy::{ExposeSecret, SecretString};

use super::WebhookRegistry;
use super::error::WebhooksError;
use crate::config::{Config, SecretValue};
use crate::secrets::gateway_key::GatewayKey;

/// The purpose of the derived secrets.
const PURPOSE: &[u8] = b"onceward.webhook-signing.1";

/// The secrets of upstreams.
pub(super) struct SigningSecrets {
    secret: GatewayKey,
    /// Keys by the upstream's name, each with the text that it was parsed from.
    /// Bounded by the number of upstreams that were ever configured.
    keys: RwLock<HashMap<String, (SecretString, Arc<SigningKey>)>>,
}

impl SigningSecrets {
    pub(super) fn new(secret: &GatewayKey) -> Self {
        Self {
            secret: secret.clone(),
            keys: RwLock::default(),
        }
    }

    /// The secret of an upstream without a configured one.
    fn derive(&self, upstream: &str) -> SecretString {
        let derived = self.secret.hash_for(PURPOSE, upstream.as_bytes());
        format!("whsec_{}", BASE64.encode(&derived)).into()
    }
}

impl WebhookRegistry {
    /// The signing secret of an upstream as text, if it is derived: the upstream
    /// must learn it. A configured one is not shown.
    pub(crate) fn derived_signing_secret(
        &self,
        config: &Config,
        upstream: &str,
    ) -> Option<SecretString> {
        match configured(config, upstream) {
            Some(_) => None,
            None => Some(self.signing.derive(upstream)),
        }
    }

    /// The signing secret of an upstream, configured or derived.
    async fn signing_secret(
        &self,
        config: &Config,
        upstream: &str,
    ) -> Result<SecretString, WebhooksError> {
        match configured(config, upstream) {
            None => Ok(self.signing.derive(upstream)),
            Some(configured) => {
                let sources = self.sources.load_full();
                Ok(sources.secrets.read(configured).await?)
            }
        }
    }

    /// The same as a key, parsed again only when the text changes.
    pub(crate) async fn signing_key(
        &self,
        config: &Config,
        upstream: &str,
    ) -> Result<Arc<SigningKey>, WebhooksError> {
        let text = self.signing_secret(config, upstream).await?;
        let keys = &self.signing.keys;
        let known = keys.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, key)) = known.get(upstream)
            && of.expose_secret() == text.expose_secret()
        {
            return Ok(key.clone());
        }
        drop(known);
        let key = Provider::StandardWebhooks.key(text.expose_secret());
        let key = Arc::new(key.map_err(|_| WebhooksError::Signing {
            upstream: upstream.to_owned(),
        })?);
        let mut known = keys.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(upstream.to_owned(), (text, key.clone()));
        Ok(key)
    }
}

fn configured<'a>(config: &'a Config, upstream: &str) -> Option<&'a SecretValue> {
    let upstream = config.upstreams.get(upstream)?;
    upstream.signing_secret.as_ref()
}
