//! `/admin/v1/classes`: retention classes are listed, shown, changed and reverted.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::extract::{JsonBody, PathParam, RequestBody, parse_why};
use super::operators::Operator;
use super::problem::Problem;
use super::{Action, AdminState, Applied, Change};
use crate::config::ClassSettings;
use crate::runtime::classes::{ClassError, ClassListing, SettingSource};

/// Every class.
#[derive(Serialize, JsonSchema)]
pub(super) struct ClassList {
    /// The classes, by name.
    classes: Vec<ClassDetails>,
}

/// A class in force.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Class")]
pub(super) struct ClassDetails {
    /// The name.
    name: String,
    /// All settings, in the words of the configuration.
    settings: ClassSettings,
    /// The source of each setting: `built-in`, `file` or `changed`.
    sources: BTreeMap<String, &'static str>,
    /// Why a change that was made at run time is no longer in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_in_force: Option<String>,
}

impl From<ClassListing> for ClassDetails {
    fn from(listed: ClassListing) -> Self {
        let word = |source| match source {
            SettingSource::BuiltIn => "built-in",
            SettingSource::File => "file",
            SettingSource::Changed => "changed",
        };
        let sources = listed.sources.into_iter();
        Self {
            name: listed.class.name.as_ref().to_owned(),
            settings: ClassSettings::of(&listed.class),
            sources: sources.map(|(key, source)| (key, word(source))).collect(),
            not_in_force: listed.misfit,
        }
    }
}

/// Changes the class that the path names, or creates it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetClassRequest {
    /// The settings to change; the others stay as they are.
    settings: ClassSettings,
    /// The reason; the audit log keeps it.
    why: String,
}

/// Reverts all changes of a class.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UnsetClassRequest {
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for SetClassRequest {}
impl RequestBody for UnsetClassRequest {}

/// A class whose changes were reverted.
#[derive(Serialize, JsonSchema)]
pub(super) struct UnsetClass {
    /// The name.
    name: String,
    /// The class as it is now; null if it no longer exists.
    class: Option<ClassDetails>,
}

pub(super) async fn list(State(admin): State<AdminState>) -> Json<ClassList> {
    let classes = admin.classes.list().into_iter().map(ClassDetails::from);
    Json(ClassList {
        classes: classes.collect(),
    })
}

pub(super) async fn show(
    State(admin): State<AdminState>,
    PathParam(name): PathParam,
) -> Result<Json<ClassDetails>, Problem> {
    let listed = admin.classes.show(&name);
    let listed = listed.ok_or_else(|| Problem::not_found("No class has this name."))?;
    Ok(Json(listed.into()))
}

pub(super) async fn set(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(name): PathParam,
    JsonBody(request): JsonBody<SetClassRequest>,
) -> Result<Json<ClassDetails>, Problem> {
    change(&admin, &operator, name, request.settings, &request.why).await
}

async fn change(
    admin: &AdminState,
    operator: &Operator,
    name: String,
    settings: ClassSettings,
    reason: &str,
) -> Result<Json<ClassDetails>, Problem> {
    if settings == ClassSettings::default() {
        return Err(Problem::bad_request(
            "`settings` is empty: there is nothing to change.",
        ));
    }
    let change = Change::by(operator, Action::SetClass, &parse_why(reason)?)
        .on(name.clone())
        .with_request(json!(settings));
    let classes = admin.classes.clone();
    let work = async move {
        let set = classes.set(&name, &settings).await;
        set.map_err(refusal)?;
        let listed = classes.show(&name);
        let listed =
            listed.ok_or_else(|| Problem::conflict("The class was reverted at the same time."))?;
        let class = ClassDetails::from(listed);
        Ok(Applied {
            result: json!(class.settings),
            answer: class,
        })
    };
    admin.change(change, work).await.map(Json)
}

pub(super) async fn unset(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(name): PathParam,
    JsonBody(request): JsonBody<UnsetClassRequest>,
) -> Result<Json<UnsetClass>, Problem> {
    let change =
        Change::by(&operator, Action::UnsetClass, &parse_why(&request.why)?).on(name.clone());
    let classes = admin.classes.clone();
    let work = async move {
        classes.unset(&name).await.map_err(refusal)?;
        let class = classes.show(&name).map(ClassDetails::from);
        Ok(Applied {
            result: json!(class.as_ref().map(|class| &class.settings)),
            answer: UnsetClass { name, class },
        })
    };
    admin.change(change, work).await.map(Json)
}

fn refusal(error: ClassError) -> Problem {
    match error {
        ClassError::Mistaken(why) => Problem::bad_request(format!("Nothing was changed: {why}.")),
        ClassError::Unchanged(_) => Problem::conflict(format!("Nothing was changed: {error}.")),
        ClassError::Store(error) => Problem::store_write(&error),
    }
}
