//! Resolving: an operator states what happened to an unknown operation.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use onceward_core::record::Fence;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::bulk::{self, BulkAnswer, Selection};
use super::filter::OperationFilter;
use super::{ChangedOperation, Statement, Verb, change_one};
use crate::admin::audit::Change;
use crate::admin::extract::{JsonBody, PathParam, RequestBody, parse_operation_id, parse_why};
use crate::admin::operators::Operator;
use crate::admin::problem::Problem;
use crate::admin::{Action, AdminState};
use crate::runtime::reconcile::WireReply;

/// Resolves the operation that the path names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct ResolveRequest {
    /// What happened to the operation.
    outcome: StatedOutcome,
    /// The fence of the run that the outcome is about. Default: the operation's last one.
    fence: Option<u64>,
    /// The reply of the run; required with `ran`, and only with it.
    reply: Option<WireReply>,
    /// The reason; the audit log keeps it.
    why: String,
}

/// Resolves operations in bulk: `filter` or `all` and `outcome` for the preview, then `set`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct BulkResolveRequest {
    /// Which unknown operations; not empty.
    filter: Option<OperationFilter>,
    /// Every unknown operation, without a filter. Default: false.
    #[serde(default)]
    all: bool,
    /// What happened to the operations.
    outcome: Option<StatedOutcome>,
    /// The reply of each run; required with `ran`, and only with it.
    reply: Option<WireReply>,
    /// The largest size of the set, from 1 to 10000. Default: 10000.
    limit: Option<usize>,
    /// The cursor from the previous preview: its `next`.
    after: Option<String>,
    /// The set of a preview: resolves it.
    set: Option<String>,
    /// The reason; the audit log keeps it.
    why: String,
}

/// What happened to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StatedOutcome {
    /// It ran, and `reply` is its reply.
    Ran,
    /// It did not run, and will not run under its fence or a lower one.
    NotRun,
    /// Not known: it stays unknown, and the audit log keeps the reason.
    Unsure,
}

impl RequestBody for ResolveRequest {
    fn bytes_max(admin: &AdminState) -> usize {
        WireReply::bytes_max(admin.reply_limit)
    }
}

impl RequestBody for BulkResolveRequest {
    fn bytes_max(admin: &AdminState) -> usize {
        WireReply::bytes_max(admin.reply_limit)
    }
}

pub(in crate::admin) async fn resolve(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<ResolveRequest>,
) -> Result<Json<ChangedOperation>, Problem> {
    let id = parse_operation_id(&id)?;
    let verb = verb(Some(request.outcome), request.reply, admin.reply_limit)?;
    let mut parameters = verb.parameters();
    parameters["fence"] = json!(request.fence);
    let change =
        Change::by(&operator, Action::Resolve, &parse_why(&request.why)?).with_request(parameters);
    let fence = request.fence.map(Fence);
    change_one(&admin, change, verb, id, fence).await.map(Json)
}

pub(in crate::admin) async fn resolve_many(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<BulkResolveRequest>,
) -> Result<Json<BulkAnswer>, Problem> {
    let selection = Selection {
        has_parameters: request.outcome.is_some() || request.reply.is_some(),
        filter: request.filter,
        all: request.all,
        limit: request.limit,
        after: request.after,
        set: request.set,
        why: request.why,
    };
    let verb = || verb(request.outcome, request.reply, admin.reply_limit);
    bulk::change_many(&admin, &operator, Action::Resolve, verb, selection)
        .await
        .map(Json)
}

fn verb(
    outcome: Option<StatedOutcome>,
    reply: Option<WireReply>,
    reply_limit: usize,
) -> Result<Verb, Problem> {
    let reply = reply.map(|reply| reply.to_reply(reply_limit)).transpose();
    let reply = reply.map_err(|error| Problem::bad_request(format!("`reply`: {error}.")))?;
    let resolved = match (outcome, reply) {
        (None, _) => {
            return Err(Problem::bad_request(
                "`outcome` is missing: `ran`, `not_run` or `unsure`.",
            ));
        }
        (Some(StatedOutcome::Ran), Some(reply)) => Statement::Ran(Arc::new(reply)),
        (Some(StatedOutcome::Ran), None) => {
            return Err(Problem::bad_request(
                "`ran` needs the `reply` that retries will receive.",
            ));
        }
        (Some(_), Some(_)) => {
            return Err(Problem::bad_request(
                "A `reply` is allowed with `ran` only.",
            ));
        }
        (Some(StatedOutcome::NotRun), None) => Statement::NotRun,
        (Some(StatedOutcome::Unsure), None) => Statement::Unsure,
    };
    Ok(Verb::Resolve(Arc::new(resolved)))
}
