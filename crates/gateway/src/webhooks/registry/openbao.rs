//! Secrets of webhooks in OpenBao: their path, and their fields.
//!
//! The field `secret`, and every field that begins with `secret_`, is a secret of
//! the webhook: during a rotation both the old and the new one are there. Names in
//! a path are percent-encoded, so that no tenant's name leads to another's.

use std::sync::Arc;

use onceward_webhooks::{Provider, SigningKey};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};

use super::SECRETS_MAX;
use super::document::Registration;
use super::error::{NoSecret, WebhooksError};
use super::provider::same;
use crate::config::{Config, Mistake};
use crate::secrets::SecretFields;

/// The characters that a name keeps unencoded, as in the name of an operation.
pub(super) const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The path of a webhook's secrets.
pub(super) fn path(registration: &Registration, config: &Config) -> Result<String, Mistake> {
    let Some(openbao) = &config.secrets.openbao else {
        return Err(Mistake::given(
            "secrets",
            "the webhook's secrets are in OpenBao, and [secrets.openbao] is not configured"
                .to_owned(),
            "configure it, or create the webhook again with its secrets".to_owned(),
        ));
    };
    Ok(fill(&openbao.path, registration))
}

/// Fills in the names, in one pass: no name is taken for a placeholder.
fn fill(template: &str, registration: &Registration) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (placeholder, after) = after.split_once('}').unwrap_or((after, ""));
        match placeholder {
            "tenant" => filled.push_str(&name(registration.caller.tenant())),
            "project" => filled.push_str(&name(registration.caller.project())),
            "provider" => filled.push_str(&name(&registration.provider)),
            // The configuration allows no other placeholder.
            _ => {}
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

/// A name as one path segment; one of dots alone is escaped too.
fn name(text: &str) -> String {
    match text.bytes().all(|byte| byte == b'.') {
        true => text.replace('.', "%2E"),
        false => utf8_percent_encode(text, PLAIN).to_string(),
    }
}

/// The fields that were read, and the keys parsed from them.
pub(super) struct OpenBaoKeys {
    fields: Arc<SecretFields>,
    by: Provider,
    pub(super) keys: Arc<[SigningKey]>,
}

impl OpenBaoKeys {
    pub(super) fn new(
        id: &str,
        fields: Arc<SecretFields>,
        provider: &Provider,
    ) -> Result<Self, WebhooksError> {
        let no_secret = |problem| WebhooksError::NoSecret {
            id: id.to_owned(),
            problem,
        };
        let keys = keys(texts(&fields), provider).map_err(no_secret)?;
        if keys.is_empty() {
            return Err(no_secret(NoSecret::NoField));
        }
        Ok(Self {
            fields,
            by: provider.clone(),
            keys,
        })
    }

    /// Whether these fields and this provider give the same keys. Cached fields
    /// have the same address.
    pub(super) fn is_of(&self, fields: &Arc<SecretFields>, provider: &Provider) -> bool {
        Arc::ptr_eq(&self.fields, fields) && same(&self.by, provider)
    }
}

/// The fields that are secrets of the webhook.
fn texts(fields: &SecretFields) -> impl Iterator<Item = &SecretString> {
    let ours = |name: &str| name == "secret" || name.starts_with("secret_");
    let fields = fields.iter().filter(move |(name, _)| ours(name));
    fields.map(|(_, text)| text)
}

/// The keys that the provider makes of secrets. One malformed secret is an error
/// for all: events signed with it would be refused without a visible cause.
pub(super) fn keys<'a>(
    texts: impl Iterator<Item = &'a SecretString>,
    provider: &Provider,
) -> Result<Arc<[SigningKey]>, NoSecret> {
    let keys = texts.map(|text| provider.key(text.expose_secret()));
    let keys = keys.collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|_| NoSecret::Malformed)?;
    match keys.len() <= SECRETS_MAX {
        true => Ok(keys.into()),
        false => Err(NoSecret::TooMany),
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::clock::Timestamp;
    use rstest::rstest;

    use super::*;

    const USUAL: &str = "webhooks/{tenant}/{project}/{provider}";

    #[rstest]
    #[case::usual(USUAL, "acme", "shop", "webhooks/acme/shop/stripe")]
    #[case::joined("{tenant}:{project}:{provider}", "acme", "shop", "acme:shop:stripe")]
    #[case::colon_in_a_name("{tenant}:{project}:{provider}", "a:b", "c", "a%3Ab:c:stripe")]
    #[case::slash_in_a_name(USUAL, "a/b", "c", "webhooks/a%2Fb/c/stripe")]
    #[case::dots(USUAL, "..", ".", "webhooks/%2E%2E/%2E/stripe")]
    #[case::a_place_in_a_name(USUAL, "{project}", "x", "webhooks/%7Bproject%7D/x/stripe")]
    #[case::umlaut(USUAL, "ä", "x", "webhooks/%C3%A4/x/stripe")]
    fn names_stay_in_their_places(
        #[case] template: &str,
        #[case] tenant: &str,
        #[case] project: &str,
        #[case] want: &str,
    ) {
        let registration = Registration {
            id: "wh_x".into(),
            caller: super::super::document::caller(tenant, project).expect("names"),
            provider: "stripe".into(),
            scheme: None,
            upstream: None,
            path: None,
            deliver: None,
            same_bytes: None,
            created_at: Timestamp::from_unix_ms(0),
        };
        assert_eq!(fill(template, &registration), want);
    }
}
