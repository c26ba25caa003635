//! Webhooks whose ids are Unkey keys. The key's metadata holds `tenant_id`,
//! `project_id` and `provider`, and optionally `upstream`, `path`, `deliver`,
//! `same_bytes` and `scheme`.
//!
//! They are verified with a root key of their own, so that no API key is a
//! webhook's id and no webhook's id an API key.

use std::sync::Arc;

use onceward_core::clock::Timestamp;

use super::document::{Registration, caller};
use super::error::WebhooksError;
use crate::callers::unkey::{KeyData, UnkeyVerifier};
use crate::callers::{AuthError, Refusal, WallClock};
use crate::config::{self, Deliver, SameBytes};
use crate::secrets::SecretReader;
use crate::upstream::fetch::FetchError;

/// The client for webhooks' ids in Unkey, if they are configured.
pub(super) fn open(
    auth: &config::Auth,
    secrets: &SecretReader,
    clock: &WallClock,
) -> Result<Option<UnkeyVerifier<Arc<Registration>>>, FetchError> {
    let Some(settings) = &auth.unkey else {
        return Ok(None);
    };
    let root_key = settings.webhook_root_key.clone();
    let unkey = root_key.map(|root_key| {
        let (secrets, clock) = (secrets.clone(), clock.clone());
        UnkeyVerifier::new(settings, root_key, registration, secrets, clock)
    });
    unkey.transpose()
}

/// The webhook with this id, if Unkey knows it.
pub(super) async fn find(
    unkey: &UnkeyVerifier<Arc<Registration>>,
    id: &str,
) -> Result<Option<Arc<Registration>>, WebhooksError> {
    match unkey.verify(id).await {
        Ok(registration) => Ok(Some(registration)),
        Err(AuthError::Missing | AuthError::Refused(_) | AuthError::Forbidden(_)) => Ok(None),
        // The provider resends events that are not accepted now.
        Err(AuthError::TooMany | AuthError::Unavailable) => Err(WebhooksError::Unkey),
    }
}

/// The webhook in the metadata of a valid key. Invalid metadata refuses the id,
/// and the log says why.
fn registration(id: &str, data: &KeyData) -> Result<Arc<Registration>, Refusal> {
    let needed = |member, what| data.text(member, what)?.ok_or(Refusal::Claim(what));
    let tenant = needed("tenant_id", "tenant")?;
    let project = needed("project_id", "project")?;
    let caller = caller(tenant, project).map_err(Refusal::Caller)?;
    let path = data.text("path", "path")?;
    if path.is_some_and(|path| config::path_problem(path).is_some()) {
        return Err(Refusal::Claim("path"));
    }
    Ok(Arc::new(Registration {
        id: id.into(),
        caller,
        provider: needed("provider", "provider")?.into(),
        scheme: data.text("scheme", "scheme")?.map(Into::into),
        upstream: data.text("upstream", "upstream")?.map(Into::into),
        path: path.map(ToOwned::to_owned),
        deliver: word(data, "deliver", Deliver::parse)?,
        same_bytes: word(data, "same_bytes", SameBytes::parse)?,
        // Unkey has it; it is not used here.
        created_at: Timestamp::default(),
    }))
}

fn word<T>(
    data: &KeyData,
    member: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let text = data.text(member, member)?;
    let parsed = text.map(|text| parse(text).ok_or(Refusal::Claim(member)));
    parsed.transpose()
}
