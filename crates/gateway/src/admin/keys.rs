//! API keys over the wire: made, listed, taken back. A key's secret is in the
//! answer that makes it and nowhere else.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use onceward_core::caller::Subject;
use onceward_core::store::StoreError;
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::operators::Who;
use super::page::page;
use super::problem::{Kind, Problem};
use super::read::{Ask, Asked, Named, Queried, moment, why};
use super::{Action, Deed, Desk, Made};
use crate::callers::api_keys::{ApiKeys, KeyRecord, KeysError, NewKey, Revoked};

/// How long making or revoking a key may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Which keys.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    /// Of this tenant.
    tenant: Option<String>,
    /// Of this project.
    project: Option<String>,
    /// How many at most, from 1 to 1000. Default: 100.
    limit: Option<usize>,
    /// Where the page before ended: its `next`.
    after: Option<String>,
}

/// A page of keys.
#[derive(Serialize, JsonSchema)]
pub(super) struct KeysPage {
    /// The keys, the oldest first.
    keys: Vec<Key>,
    /// Where the next page begins; null at the end.
    next: Option<String>,
}

/// A key, without its secret.
#[derive(Serialize, JsonSchema)]
pub(super) struct Key {
    /// Its id, which is part of the key and no secret.
    id: String,
    /// Whose it is.
    tenant: String,
    /// Which project's; null where it is good only on routes of a wider scope.
    project: Option<String>,
    /// Who acts with it: `{type}:{id}`.
    subject: String,
    /// What it may do.
    scopes: Vec<String>,
    /// What it is for.
    name: String,
    /// Whether it lets anybody in: `active`, `expired` or `revoked`.
    state: &'static str,
    /// When it was made.
    created_at: String,
    /// When it ends by itself.
    expires_at: Option<String>,
    /// When it was taken back.
    revoked_at: Option<String>,
}

/// A key that is wanted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateKey {
    /// Whose it is.
    tenant: String,
    /// Which project's; without one it is good only on routes of a wider scope.
    project: Option<String>,
    /// Who acts with it: `user:…`, `service:…`, `tenant_member:…` or `client:…`.
    subject: String,
    /// What it may do.
    #[serde(default)]
    scopes: Vec<String>,
    /// What it is for, for people.
    #[serde(default)]
    name: String,
    /// When it ends by itself, RFC 3339.
    expires_at: Option<String>,
    /// Why; the audit keeps it.
    why: String,
}

/// A wish to take a key back.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokeKey {
    /// Why; the audit keeps it.
    why: String,
}

impl Ask for CreateKey {}
impl Ask for RevokeKey {}

/// A key that was made.
#[derive(Serialize, JsonSchema)]
pub(super) struct CreatedKey {
    /// The whole key. It is shown this once.
    secret: String,
    /// What is kept of it.
    key: Key,
}

/// A key that lets nobody in any more.
#[derive(Serialize, JsonSchema)]
pub(super) struct RevokedKey {
    /// Which.
    id: String,
    /// Whether it had been revoked before.
    already: bool,
}

pub(super) async fn list(
    State(desk): State<Desk>,
    Queried(query): Queried<KeysQuery>,
) -> Result<Json<KeysPage>, Problem> {
    let records = managed(&desk)?.list();
    let is = |want: &Option<String>, got: Option<&str>| match want {
        None => true,
        Some(want) => got == Some(want),
    };
    let wanted = |record: &KeyRecord| {
        is(&query.tenant, Some(&record.tenant)) && is(&query.project, record.project.as_deref())
    };
    let (limit, after) = (query.limit, query.after.as_deref());
    let page = page(&records, |record| &record.id, wanted, limit, after)?;
    let now = desk.clock.now();
    let keys = page.found.into_iter().map(|record| Key::of(record, now));
    Ok(Json(KeysPage {
        keys: keys.collect(),
        next: page.next,
    }))
}

pub(super) async fn create(
    State(desk): State<Desk>,
    Extension(who): Extension<Who>,
    Asked(ask): Asked<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), Problem> {
    let keys = managed(&desk)?.clone();
    let reason = why(&ask.why)?;
    let subject = Subject::parse(&ask.subject)
        .map_err(|error| Problem::bad(format!("`subject`: {error}.")))?;
    let expires_at = ask.expires_at.as_deref();
    let expires_at = expires_at
        .map(|text| moment("expires_at", text))
        .transpose()?;
    let deed = Deed::of(&who, Action::CreateKey, &reason).asking(json!({
        "tenant": ask.tenant,
        "project": ask.project,
        "subject": ask.subject,
        "scopes": ask.scopes,
        "name": ask.name,
        "expires_at": ask.expires_at,
    }));
    let new = NewKey {
        tenant: ask.tenant,
        project: ask.project,
        subject,
        scopes: ask.scopes,
        name: ask.name,
        expires_at,
    };
    let clock = desk.clock.clone();
    let work = async move {
        let created = within_deadline(keys.create(new)).await?;
        Ok(Made {
            result: json!({ "id": created.id }),
            answer: CreatedKey {
                secret: created.secret.expose_secret().to_owned(),
                key: Key::of(&created.record, clock.now()),
            },
        })
    };
    let created = desk.change(deed, work).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(super) async fn revoke(
    State(desk): State<Desk>,
    Extension(who): Extension<Who>,
    Named(id): Named,
    Asked(ask): Asked<RevokeKey>,
) -> Result<Json<RevokedKey>, Problem> {
    let keys = managed(&desk)?.clone();
    let deed = Deed::of(&who, Action::RevokeKey, &why(&ask.why)?).on(id.clone());
    let work = async move {
        let already = match within_deadline(keys.revoke(&id)).await? {
            Revoked::Done => false,
            Revoked::Already => true,
            Revoked::Absent => return Err(Problem::absent("There is no key with this id.")),
        };
        Ok(Made {
            result: json!({ "already": already }),
            answer: RevokedKey { id, already },
        })
    };
    desk.change(deed, work).await.map(Json)
}

fn managed(desk: &Desk) -> Result<&std::sync::Arc<ApiKeys>, Problem> {
    desk.api_keys
        .as_ref()
        .ok_or_else(|| Problem::conflict("This gateway gives out no API keys."))
}

async fn within_deadline<T>(
    work: impl Future<Output = Result<T, KeysError>>,
) -> Result<T, Problem> {
    match timeout(DEADLINE, work).await {
        Ok(answer) => answer.map_err(refusal),
        Err(late) => Err(Problem::unwritten(&StoreError::Unavailable(Box::new(late)))),
    }
}

fn refusal(error: KeysError) -> Problem {
    match error {
        KeysError::Caller(_) | KeysError::Name | KeysError::Scopes | KeysError::Expired => {
            Problem::bad(format!("Nothing was changed: {error}."))
        }
        KeysError::TooMany | KeysError::Overfull | KeysError::Damaged { .. } => {
            Problem::conflict(format!("Nothing was changed: {error}."))
        }
        KeysError::Store(error) => Problem::unwritten(&error),
        KeysError::Wire(_) | KeysError::Random(_) | KeysError::Drawn => {
            tracing::error!(%error, "no key could be made");
            Problem::new(
                Kind::StoreUnavailable,
                format!("Nothing was changed: {error}."),
            )
        }
    }
}

impl Key {
    fn of(record: &KeyRecord, now: onceward_core::clock::Timestamp) -> Self {
        let state = match (record.revoked_at, record.expires_at) {
            (Some(_), _) => "revoked",
            (None, Some(end)) if now >= end => "expired",
            (None, _) => "active",
        };
        Self {
            id: record.id.clone(),
            tenant: record.tenant.clone(),
            project: record.project.clone(),
            subject: record.subject.to_string(),
            scopes: record.scopes.clone(),
            name: record.name.clone(),
            state,
            created_at: record.created_at.to_string(),
            expires_at: record.expires_at.map(|at| at.to_string()),
            revoked_at: record.revoked_at.map(|at| at.to_string()),
        }
    }
}
