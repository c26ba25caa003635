//! Resuming: a paused operation runs at the next retry, or is delivered if it is
//! queued work.

use axum::extract::State;
use axum::{Extension, Json};

use super::bulk::{self, BulkAnswer, BulkRequest};
use super::{ChangedOperation, Verb, WhyRequest, change_one};
use crate::admin::audit::Change;
use crate::admin::extract::{JsonBody, PathParam, parse_operation_id, parse_why};
use crate::admin::operators::Operator;
use crate::admin::problem::Problem;
use crate::admin::{Action, AdminState};

pub(in crate::admin) async fn resume(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<WhyRequest>,
) -> Result<Json<ChangedOperation>, Problem> {
    let id = parse_operation_id(&id)?;
    let change = Change::by(&operator, Action::Resume, &parse_why(&request.why)?);
    change_one(&admin, change, Verb::Resume, id, None)
        .await
        .map(Json)
}

pub(in crate::admin) async fn resume_many(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Json<BulkAnswer>, Problem> {
    let verb = || Ok(Verb::Resume);
    bulk::change_many(&admin, &operator, Action::Resume, verb, request.into())
        .await
        .map(Json)
}
