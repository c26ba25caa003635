//! Purging: the gateway forgets an operation, and its key is free.

use axum::extract::State;
use axum::{Extension, Json};
use onceward_core::store::Force;
use schemars::JsonSchema;
use serde::Deserialize;

use super::bulk::{self, BulkAnswer, Selection};
use super::filter::OperationFilter;
use super::{ChangedOperation, Verb, change_one};
use crate::admin::audit::Change;
use crate::admin::extract::{JsonBody, PathParam, RequestBody, parse_operation_id, parse_why};
use crate::admin::operators::Operator;
use crate::admin::problem::Problem;
use crate::admin::{Action, AdminState};

/// Purges the operation that the path names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct PurgeRequest {
    /// Purges the operation even if it is running. Default: false.
    #[serde(default)]
    force: bool,
    /// The reason; the audit log keeps it.
    why: String,
}

/// Purges operations in bulk: `filter` or `all` for the preview, then `set`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct BulkPurgeRequest {
    /// Which operations; not empty.
    filter: Option<OperationFilter>,
    /// Every operation, without a filter. Default: false.
    #[serde(default)]
    all: bool,
    /// Purges running operations too. Default: false.
    force: Option<bool>,
    /// The largest size of the set, from 1 to 10000. Default: 10000.
    limit: Option<usize>,
    /// The cursor from the previous preview: its `next`.
    after: Option<String>,
    /// The set of a preview: purges it.
    set: Option<String>,
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for PurgeRequest {}
impl RequestBody for BulkPurgeRequest {}

pub(in crate::admin) async fn purge(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<PurgeRequest>,
) -> Result<Json<ChangedOperation>, Problem> {
    let id = parse_operation_id(&id)?;
    let verb = Verb::Purge(force(request.force));
    let change = Change::by(&operator, Action::Purge, &parse_why(&request.why)?)
        .with_request(verb.parameters());
    change_one(&admin, change, verb, id, None).await.map(Json)
}

pub(in crate::admin) async fn purge_many(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<BulkPurgeRequest>,
) -> Result<Json<BulkAnswer>, Problem> {
    let selection = Selection {
        has_parameters: request.force.is_some(),
        filter: request.filter,
        all: request.all,
        limit: request.limit,
        after: request.after,
        set: request.set,
        why: request.why,
    };
    let verb = || Ok(Verb::Purge(force(request.force.unwrap_or(false))));
    bulk::change_many(&admin, &operator, Action::Purge, verb, selection)
        .await
        .map(Json)
}

fn force(wanted: bool) -> Force {
    match wanted {
        true => Force::Yes,
        false => Force::No,
    }
}
