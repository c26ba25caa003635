//! Redelivering: the stored request of an event is delivered again, under a
//! higher fence.

use axum::extract::State;
use axum::{Extension, Json};

use super::bulk::{self, BulkAnswer, BulkRequest};
use super::{ChangedOperation, Verb, WhyRequest, change_one};
use crate::admin::audit::Change;
use crate::admin::extract::{JsonBody, PathParam, parse_operation_id, parse_why};
use crate::admin::operators::Operator;
use crate::admin::problem::Problem;
use crate::admin::{Action, AdminState};

pub(in crate::admin) async fn redeliver(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<WhyRequest>,
) -> Result<Json<ChangedOperation>, Problem> {
    let id = parse_operation_id(&id)?;
    let change = Change::by(&operator, Action::Redeliver, &parse_why(&request.why)?);
    change_one(&admin, change, Verb::Redeliver, id, None)
        .await
        .map(Json)
}

pub(in crate::admin) async fn redeliver_many(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Json<BulkAnswer>, Problem> {
    let verb = || Ok(Verb::Redeliver);
    bulk::change_many(&admin, &operator, Action::Redeliver, verb, request.into())
        .await
        .map(Json)
}
