//! `POST /admin/v1/reload`: reloads the configuration.

use axum::extract::State;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::extract::{JsonBody, RequestBody, parse_why};
use super::operators::Operator;
use super::problem::Problem;
use super::{Action, AdminState, Applied, Change};

/// Reloads the configuration.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadRequest {
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for ReloadRequest {}

/// The new configuration is in force.
#[derive(Serialize, JsonSchema)]
pub(super) struct Reloaded {
    /// A sentence about the configuration in force.
    detail: String,
}

pub(super) async fn reload(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<ReloadRequest>,
) -> Result<Json<Reloaded>, Problem> {
    let change = Change::by(&operator, Action::Reload, &parse_why(&request.why)?);
    let reload = admin.reload.clone();
    let work = async move {
        let reload = reload.ok_or_else(|| {
            Problem::conflict(
                "This gateway runs without a configuration file, so there is nothing to reload.",
            )
        })?;
        let detail = reload()
            .await
            .map_err(|why| Problem::conflict(format!("Nothing was changed: {why}")))?;
        Ok(Applied {
            result: json!({ "detail": detail }),
            answer: Reloaded { detail },
        })
    };
    admin.change(change, work).await.map(Json)
}
