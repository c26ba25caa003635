//! `/admin/v1/keys`: API keys are listed, created and revoked. Only the answer to
//! the creation contains a key's secret.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use onceward_core::caller::Subject;
use onceward_core::deadline::store_within;
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::extract::{JsonBody, PathParam, QueryParams, RequestBody, parse_time, parse_why};
use super::operators::Operator;
use super::page::paginate;
use super::problem::Problem;
use super::{Action, AdminState, Applied, Change};
use crate::callers::api_keys::{ApiKeyRegistry, KeyRecord, KeysError, NewKey, Revoked};

/// The time limit for creating or revoking a key.
const DEADLINE: Duration = Duration::from_secs(5);

/// Which keys, and which page of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    /// The tenant.
    tenant: Option<String>,
    /// The project.
    project: Option<String>,
    /// The largest number of keys, from 1 to 1000. Default: 100.
    limit: Option<usize>,
    /// The cursor from the previous page: its `next`.
    after: Option<String>,
}

/// A page of keys.
#[derive(Serialize, JsonSchema)]
pub(super) struct KeysPage {
    /// The keys, the oldest first.
    keys: Vec<KeySummary>,
    /// The cursor of the next page; null on the last page.
    next: Option<String>,
}

/// A key, without its secret.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(super) struct KeySummary {
    /// The id; part of the key, and not secret.
    id: String,
    /// The tenant of its caller.
    tenant: String,
    /// The project of its caller; null if the key works only on routes with scope tenant or platform.
    project: Option<String>,
    /// The subject of its caller: `{type}:{id}`.
    subject: String,
    /// The scopes of its caller.
    scopes: Vec<String>,
    /// A description for people.
    name: String,
    /// `active`, `expired` or `revoked`.
    state: &'static str,
    /// When it was created.
    created_at: String,
    /// When it expires.
    expires_at: Option<String>,
    /// When it was revoked.
    revoked_at: Option<String>,
}

/// Creates a key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateKey {
    /// The tenant of its caller.
    tenant: String,
    /// The project of its caller; without one the key works only on routes with scope tenant or platform.
    project: Option<String>,
    /// The subject of its caller: `user:…`, `service:…`, `tenant_member:…` or `client:…`.
    subject: String,
    /// The scopes of its caller.
    #[serde(default)]
    scopes: Vec<String>,
    /// A description for people.
    #[serde(default)]
    name: String,
    /// When it expires, RFC 3339. Default: never.
    expires_at: Option<String>,
    /// The reason; the audit log keeps it.
    why: String,
}

/// Revokes a key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokeKey {
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for CreateKey {}
impl RequestBody for RevokeKey {}

/// A created key.
#[derive(Serialize, JsonSchema)]
pub(super) struct CreatedKey {
    /// The whole key. No other answer shows it.
    secret: String,
    /// The key, without its secret.
    key: KeySummary,
}

/// A revoked key.
#[derive(Serialize, JsonSchema)]
pub(super) struct RevokedKey {
    /// The id.
    id: String,
    /// Whether it was already revoked.
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
    let keys = page
        .items
        .into_iter()
        .map(|record| KeySummary::of(record, now));
    Ok(Json(KeysPage {
        keys: keys.collect(),
        next: page.next,
    }))
}

pub(super) async fn create(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), Problem> {
    let keys = managed(&admin)?.clone();
    let reason = parse_why(&request.why)?;
    let subject = Subject::parse(&request.subject)
        .map_err(|error| Problem::bad_request(format!("`subject`: {error}.")))?;
    let expires_at = request.expires_at.as_deref();
    let expires_at = expires_at
        .map(|text| parse_time("expires_at", text))
        .transpose()?;
    let change = Change::by(&operator, Action::CreateKey, &reason).with_request(json!({
        "tenant": request.tenant,
        "project": request.project,
        "subject": request.subject,
        "scopes": request.scopes,
        "name": request.name,
        "expires_at": request.expires_at,
    }));
    let new = NewKey {
        tenant: request.tenant,
        project: request.project,
        subject,
        scopes: request.scopes,
        name: request.name,
        expires_at,
    };
    let clock = admin.clock.clone();
    let work = async move {
        let created = store_within(DEADLINE, keys.create(new)).await;
        let created = created.map_err(refusal)?;
        Ok(Applied {
            result: json!({ "id": created.id }),
            answer: CreatedKey {
                secret: created.secret.expose_secret().to_owned(),
                key: KeySummary::of(&created.record, clock.now()),
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
    JsonBody(request): JsonBody<RevokeKey>,
) -> Result<Json<RevokedKey>, Problem> {
    let keys = managed(&admin)?.clone();
    let change = Change::by(&operator, Action::RevokeKey, &parse_why(&request.why)?).on(id.clone());
    let work = async move {
        let revoked = store_within(DEADLINE, keys.revoke(&id)).await;
        let already = match revoked.map_err(refusal)? {
            Revoked::Done => false,
            Revoked::Already => true,
            Revoked::Absent => return Err(Problem::not_found("No key has this id.")),
        };
        Ok(Applied {
            result: json!({ "already": already }),
            answer: RevokedKey { id, already },
        })
    };
    admin.change(change, work).await.map(Json)
}

fn managed(admin: &AdminState) -> Result<&std::sync::Arc<ApiKeyRegistry>, Problem> {
    admin
        .api_keys
        .as_ref()
        .ok_or_else(|| Problem::conflict("This gateway issues no API keys."))
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
        KeysError::Wire(_) | KeysError::Random(_) | KeysError::NoFreeId => {
            tracing::error!(%error, "API key not created");
            Problem::store_unavailable(format!("Nothing was changed: {error}."))
        }
    }
}

impl KeySummary {
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
