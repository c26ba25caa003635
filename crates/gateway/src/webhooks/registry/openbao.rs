//! Secrets of webhooks in OpenBao: where they are, and which fields are theirs.
//!
//! A field `secret`, and each that begins with `secret_`, is a secret of the
//! webhook: while one is replaced by another, both are there. The names in a
//! path are percent-encoded, so that no tenant's name leads into another's.

use std::sync::Arc;

use onceward_webhooks::{Provider, SigningKey};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};

use super::SECRETS_MAX;
use super::document::Record;
use super::error::{NoSecret, WebhooksError};
use super::provider::same;
use crate::config::{Config, Mistake};
use crate::secrets::Fields;

/// What stands in a name as it is, as in the name of an operation's key.
pub(super) const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Where the secrets of a webhook are.
pub(super) fn path(record: &Record, config: &Config) -> Result<String, Mistake> {
    let Some(openbao) = &config.secrets.openbao else {
        return Err(Mistake::given(
            "secrets",
            "they are in OpenBao, and [secrets.openbao] is not configured".to_owned(),
            "configure it, or make the webhook anew with its secrets".to_owned(),
        ));
    };
    Ok(fill(&openbao.path, record))
}

/// Puts the names in their places, in one go: no name is taken for a place.
fn fill(template: &str, record: &Record) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (place, after) = after.split_once('}').unwrap_or((after, ""));
        match place {
            "tenant" => filled.push_str(&name(record.caller.tenant())),
            "project" => filled.push_str(&name(record.caller.project())),
            "provider" => filled.push_str(&name(&record.provider)),
            // The configuration has been checked.
            _ => {}
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

/// A name that leads nowhere else: not even one of dots alone.
fn name(text: &str) -> String {
    match text.bytes().all(|byte| byte == b'.') {
        true => text.replace('.', "%2E"),
        false => utf8_percent_encode(text, PLAIN).to_string(),
    }
}

/// What was read, and the keys that it came to.
pub(super) struct Read {
    fields: Arc<Fields>,
    by: Provider,
    pub(super) keys: Arc<[SigningKey]>,
}

impl Read {
    pub(super) fn new(
        id: &str,
        fields: Arc<Fields>,
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

    /// Whether these fields and this provider would come to the same. Fields
    /// that were not read anew are the same by address.
    pub(super) fn is_of(&self, fields: &Arc<Fields>, provider: &Provider) -> bool {
        Arc::ptr_eq(&self.fields, fields) && same(&self.by, provider)
    }
}

/// Those fields that are secrets of the webhook.
fn texts(fields: &Fields) -> impl Iterator<Item = &SecretString> {
    let ours = |name: &str| name == "secret" || name.starts_with("secret_");
    let fields = fields.iter().filter(move |(name, _)| ours(name));
    fields.map(|(_, text)| text)
}

/// The keys that the provider makes of secrets. One that is malformed spoils
/// all: events signed with it would be refused, and nobody would know why.
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
        let record = Record {
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
        assert_eq!(fill(template, &record), want);
    }
}
