//! Reading the configuration again, at an operator's word.

use axum::extract::State;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::operators::Who;
use super::problem::Problem;
use super::read::{Ask, Asked, why};
use super::{Action, Deed, Desk, Made};

/// A wish to read the configuration again.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadAsk {
    /// Why; the audit keeps it.
    why: String,
}

impl Ask for ReloadAsk {}

/// The new configuration is in force.
#[derive(Serialize, JsonSchema)]
pub(super) struct Reloaded {
    /// What changed, in a sentence.
    detail: String,
}

pub(super) async fn reload(
    State(desk): State<Desk>,
    Extension(who): Extension<Who>,
    Asked(ask): Asked<ReloadAsk>,
) -> Result<Json<Reloaded>, Problem> {
    let deed = Deed::of(&who, Action::Reload, &why(&ask.why)?);
    let reload = desk.reload.clone();
    let work = async move {
        let reload = reload.ok_or_else(|| {
            Problem::conflict(
                "This gateway runs without a configuration file: there is nothing to read again.",
            )
        })?;
        let detail = reload()
            .await
            .map_err(|why| Problem::conflict(format!("Nothing was changed: {why}")))?;
        Ok(Made {
            result: json!({ "detail": detail }),
            answer: Reloaded { detail },
        })
    };
    desk.change(deed, work).await.map(Json)
}
