//! The gateway's own signature on what it delivers: by the time of a late
//! delivery the provider's has gone stale.
//!
//! Each upstream has a secret of its own, in the form of Standard Webhooks: the
//! one that the configuration gives it, or one made of the gateway's key and
//! the upstream's name, which nobody has to keep.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use data_encoding::BASE64;
use onceward_webhooks::{Provider, SigningKey};
use secrecy::{ExposeSecret, SecretString};

use super::Webhooks;
use super::error::WebhooksError;
use crate::config::{Config, SecretValue};
use crate::secrets::gateway_key::Secret;

/// What the made secrets are for.
const PURPOSE: &[u8] = b"onceward.webhook-signing.1";

/// The secrets of upstreams.
pub(super) struct Signing {
    secret: Secret,
    /// Keys by the upstream's name, with the text that each is made of. There
    /// are as many as upstreams were ever configured.
    keys: RwLock<HashMap<String, (SecretString, Arc<SigningKey>)>>,
}

impl Signing {
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            secret: secret.clone(),
            keys: RwLock::default(),
        }
    }

    /// The secret of an upstream that was given none.
    fn made(&self, upstream: &str) -> SecretString {
        let made = self.secret.hash_for(PURPOSE, upstream.as_bytes());
        format!("whsec_{}", BASE64.encode(&made)).into()
    }
}

impl Webhooks {
    /// What deliveries to this upstream are signed with, as text, if it was made
    /// here: the upstream must be told. What was given is not ours to tell.
    pub(crate) fn made_signing_secret(
        &self,
        config: &Config,
        upstream: &str,
    ) -> Option<SecretString> {
        match given(config, upstream) {
            Some(_) => None,
            None => Some(self.signing.made(upstream)),
        }
    }

    /// The same whoever made it.
    async fn signing_secret(
        &self,
        config: &Config,
        upstream: &str,
    ) -> Result<SecretString, WebhooksError> {
        match given(config, upstream) {
            None => Ok(self.signing.made(upstream)),
            Some(given) => {
                let sources = self.sources.load_full();
                Ok(sources.secrets.read(given).await?)
            }
        }
    }

    /// The same as a key. Made once for as long as the text is the same.
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

fn given<'a>(config: &'a Config, upstream: &str) -> Option<&'a SecretValue> {
    let upstream = config.upstreams.get(upstream)?;
    upstream.signing_secret.as_ref()
}
