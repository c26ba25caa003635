//! Webhooks whose ids are Unkey's keys: whom they belong to is in the metadata,
//! `tenant_id`, `project_id` and `provider`, and, where it is not as the
//! configuration says, `upstream`, `path`, `deliver`, `same_bytes`, `scheme`.
//!
//! They are asked about with a root key of their own, so that no API key is a
//! webhook's id and no webhook's id an API key.

use std::sync::Arc;

use onceward_core::clock::Timestamp;

use super::document::{Record, caller};
use super::error::WebhooksError;
use crate::callers::unkey::{Data, Unkey};
use crate::callers::{AuthError, Refusal, WallClock};
use crate::config::{self, Deliver, SameBytes};
use crate::secrets::SecretReader;
use crate::upstream::fetch::FetchError;

/// Unkey as the judge of webhooks' ids, where it is one.
pub(super) fn open(
    auth: &config::Auth,
    secrets: &SecretReader,
    clock: &WallClock,
) -> Result<Option<Unkey<Arc<Record>>>, FetchError> {
    let Some(settings) = &auth.unkey else {
        return Ok(None);
    };
    let root_key = settings.webhook_root_key.clone();
    let unkey = root_key.map(|root_key| {
        let (secrets, clock) = (secrets.clone(), clock.clone());
        Unkey::new(settings, root_key, record, secrets, clock)
    });
    unkey.transpose()
}

/// Whom Unkey knows by this id, if anybody.
pub(super) async fn named(
    unkey: &Unkey<Arc<Record>>,
    id: &str,
) -> Result<Option<Arc<Record>>, WebhooksError> {
    match unkey.verify(id).await {
        Ok(record) => Ok(Some(record)),
        Err(AuthError::Missing | AuthError::Refused(_) | AuthError::Forbidden(_)) => Ok(None),
        // A provider sends again what is not accepted now.
        Err(AuthError::TooMany | AuthError::Unavailable) => Err(WebhooksError::Unkey),
    }
}

/// What the metadata of a valid key says. What is not as it should be makes it
/// nobody's, and the log says why.
fn record(id: &str, data: &Data) -> Result<Arc<Record>, Refusal> {
    let needed = |member, what| data.text(member, what)?.ok_or(Refusal::Claim(what));
    let tenant = needed("tenant_id", "tenant")?;
    let project = needed("project_id", "project")?;
    let caller = caller(tenant, project).map_err(Refusal::Caller)?;
    let path = data.text("path", "path")?;
    if path.is_some_and(|path| config::path_problem(path).is_some()) {
        return Err(Refusal::Claim("path"));
    }
    Ok(Arc::new(Record {
        id: id.into(),
        caller,
        provider: needed("provider", "provider")?.into(),
        scheme: data.text("scheme", "scheme")?.map(Into::into),
        upstream: data.text("upstream", "upstream")?.map(Into::into),
        path: path.map(ToOwned::to_owned),
        deliver: word(data, "deliver", Deliver::parse)?,
        same_bytes: word(data, "same_bytes", SameBytes::parse)?,
        // Unkey knows when; nobody here asks.
        created_at: Timestamp::default(),
    }))
}

fn word<T>(
    data: &Data,
    member: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let text = data.text(member, member)?;
    let parsed = text.map(|text| parse(text).ok_or(Refusal::Claim(member)));
    parsed.transpose()
}
