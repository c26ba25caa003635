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

use super::extract::{JsonBody, PathParam, QueryParams, RequestBody, parse_time, parse_why};
use super::operators::Operator;
use super::page::paginate;
use super::problem::Problem;
use super::{Action, AdminState, Applied, Change};
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
    /// Operator acts with it: `{type}:{id}`.
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
    /// Operator acts with it: `user:…`, `service:…`, `tenant_member:…` or `client:…`.
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

impl RequestBody for CreateKey {}
impl RequestBody for RevokeKey {}

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
    State(admin): State<AdminState>,
    QueryParams(query): QueryParams<KeysQuery>,
) -> Result<Json<KeysPage>, Problem> {
    let records = managed(&admin)?.list();
    let is = |want: &Option<String>, got: Option<&str>| match want {
        None => true,
        Some(want) => got == Some(want),
    };
    let wanted = |record: &KeyRecord| {
        is(&query.tenant, Some(&record.tenant)) && is(&query.project, record.project.as_deref())
    };
    let (limit, after) = (query.limit, query.after.as_deref());
    let page = paginate(&records, |record| &record.id, wanted, limit, after)?;
    let now = admin.clock.now();
    let keys = page.items.into_iter().map(|record| Key::of(record, now));
    Ok(Json(KeysPage {
        keys: keys.collect(),
        next: page.next,
    }))
}

pub(super) async fn create(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(ask): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), Problem> {
    let keys = managed(&admin)?.clone();
    let reason = parse_why(&ask.why)?;
    let subject = Subject::parse(&ask.subject)
        .map_err(|error| Problem::bad_request(format!("`subject`: {error}.")))?;
    let expires_at = ask.expires_at.as_deref();
    let expires_at = expires_at
        .map(|text| parse_time("expires_at", text))
        .transpose()?;
    let change = Change::by(&operator, Action::CreateKey, &reason).with_request(json!({
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
    let clock = admin.clock.clone();
    let work = async move {
        let created = within_deadline(keys.create(new)).await?;
        Ok(Applied {
            result: json!({ "id": created.id }),
            answer: CreatedKey {
                secret: created.secret.expose_secret().to_owned(),
                key: Key::of(&created.record, clock.now()),
            },
        })
    };
    let created = admin.change(change, work).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(super) async fn revoke(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(ask): JsonBody<RevokeKey>,
) -> Result<Json<RevokedKey>, Problem> {
    let keys = managed(&admin)?.clone();
    let change = Change::by(&operator, Action::RevokeKey, &parse_why(&ask.why)?).on(id.clone());
    let work = async move {
        let already = match within_deadline(keys.revoke(&id)).await? {
            Revoked::Done => false,
            Revoked::Already => true,
            Revoked::Absent => return Err(Problem::not_found("There is no key with this id.")),
        };
        Ok(Applied {
            result: json!({ "already": already }),
            answer: RevokedKey { id, already },
        })
    };
    admin.change(change, work).await.map(Json)
}

fn managed(admin: &AdminState) -> Result<&std::sync::Arc<ApiKeys>, Problem> {
    admin
        .api_keys
        .as_ref()
        .ok_or_else(|| Problem::conflict("This gateway gives out no API keys."))
}

async fn within_deadline<T>(
    work: impl Future<Output = Result<T, KeysError>>,
) -> Result<T, Problem> {
    match timeout(DEADLINE, work).await {
        Ok(answer) => answer.map_err(refusal),
        Err(late) => Err(Problem::store_write(&StoreError::Unavailable(Box::new(
            late,
        )))),
    }
}

fn refusal(error: KeysError) -> Problem {
    match error {
        KeysError::Caller(_) | KeysError::Name | KeysError::Scopes | KeysError::Expired => {
            Problem::bad_request(format!("Nothing was changed: {error}."))
        }
        KeysError::TooMany | KeysError::Overfull | KeysError::Damaged { .. } => {
            Problem::conflict(format!("Nothing was changed: {error}."))
        }
        KeysError::Store(error) => Problem::store_write(&error),
        KeysError::Wire(_) | KeysError::Random(_) | KeysError::Drawn => {
            tracing::error!(%error, "no key could be made");
            Problem::store_unavailable(format!("Nothing was changed: {error}."))
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
