//! Retention classes over the wire: look, change, take back.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::operators::Who;
use super::problem::Problem;
use super::read::{Ask, Asked, Named, why};
use super::{Action, Deed, Desk, Made};
use crate::config::RawClass;
use crate::runtime::classes::{ClassError, Listed, Source};

/// Every class.
#[derive(Serialize, JsonSchema)]
pub(super) struct Classes {
    /// By name.
    classes: Vec<Class>,
}

/// A class in force.
#[derive(Serialize, JsonSchema)]
pub(super) struct Class {
    /// Its name.
    name: String,
    /// All of its settings, in the words of the configuration.
    settings: RawClass,
    /// Where each setting comes from: `built-in`, `file` or `changed`.
    sources: BTreeMap<String, &'static str>,
    /// Why a change that was made at run time is not in force any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_in_force: Option<String>,
}

impl From<Listed> for Class {
    fn from(listed: Listed) -> Self {
        let word = |source| match source {
            Source::BuiltIn => "built-in",
            Source::File => "file",
            Source::Changed => "changed",
        };
        let sources = listed.sources.into_iter();
        Self {
            name: listed.class.name.as_ref().to_owned(),
            settings: RawClass::of(&listed.class),
            sources: sources.map(|(key, source)| (key, word(source))).collect(),
            not_in_force: listed.unfit,
        }
    }
}

/// A change of a class, or a new one.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetNamed {
    /// Which class.
    name: String,
    /// The settings to change; the others stay.
    settings: RawClass,
    /// Why; the audit keeps it.
    why: String,
}

/// A change of the class that the path names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    /// The settings to change; the others stay.
    settings: RawClass,
    /// Why; the audit keeps it.
    why: String,
}

/// A wish to take back all changes of a class.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Unset {
    /// Why; the audit keeps it.
    why: String,
}

impl Ask for SetNamed {}
impl Ask for Set {}
impl Ask for Unset {}

/// A class is as the configuration says.
#[derive(Serialize, JsonSchema)]
pub(super) struct IsUnset {
    /// Which.
    name: String,
    /// What it is now; null where it is gone.
    class: Option<Class>,
}

pub(super) async fn list(State(desk): State<Desk>) -> Json<Classes> {
    let classes = desk.classes.list().into_iter().map(Class::from);
    Json(Classes {
        classes: classes.collect(),
    })
}

pub(super) async fn show(
    State(desk): State<Desk>,
    Named(name): Named,
) -> Result<Json<Class>, Problem> {
    let listed = desk.classes.show(&name);
    let listed = listed.ok_or_else(|| Problem::absent("There is no class of this name."))?;
    Ok(Json(listed.into()))
}

pub(super) async fn set_named(
    State(desk): State<Desk>,
    Extension(who): Extension<Who>,
    Asked(ask): Asked<SetNamed>,
) -> Result<Json<Class>, Problem> {
    change(&desk, &who, ask.name, ask.settings, &ask.why).await
}

pub(super) async fn set(
    State(desk): State<Desk>,
    Extension(who): Extension<Who>,
    Named(name): Named,
    Asked(ask): Asked<Set>,
) -> Result<Json<Class>, Problem> {
    change(&desk, &who, name, ask.settings, &ask.why).await
}

async fn change(
    desk: &Desk,
    who: &Who,
    name: String,
    settings: RawClass,
    reason: &str,
) -> Result<Json<Class>, Problem> {
    if settings == RawClass::default() {
        return Err(Problem::bad(
            "`settings` is empty: there is nothing to change.",
        ));
    }
    let deed = Deed::of(who, Action::SetClass, &why(reason)?)
        .on(name.clone())
        .asking(json!(settings));
    let classes = desk.classes.clone();
    let work = async move {
        let set = classes.set(&name, &settings).await;
        set.map_err(refusal)?;
        let listed = classes.show(&name);
        let listed = listed.ok_or_else(|| Problem::conflict("The class was taken back again."))?;
        let class = Class::from(listed);
        Ok(Made {
            result: json!(class.settings),
            answer: class,
        })
    };
    desk.change(deed, work).await.map(Json)
}

pub(super) async fn unset(
    State(desk): State<Desk>,
    Extension(who): Extension<Who>,
    Named(name): Named,
    Asked(ask): Asked<Unset>,
) -> Result<Json<IsUnset>, Problem> {
    let deed = Deed::of(&who, Action::UnsetClass, &why(&ask.why)?).on(name.clone());
    let classes = desk.classes.clone();
    let work = async move {
        classes.unset(&name).await.map_err(refusal)?;
        let class = classes.show(&name).map(Class::from);
        Ok(Made {
            result: json!(class.as_ref().map(|class| &class.settings)),
            answer: IsUnset { name, class },
        })
    };
    desk.change(deed, work).await.map(Json)
}

fn refusal(error: ClassError) -> Problem {
    match error {
        ClassError::Mistaken(why) => Problem::bad(format!("Nothing was changed: {why}.")),
        ClassError::Unchanged(_) => Problem::conflict(format!("Nothing was changed: {error}.")),
        ClassError::Store(error) => Problem::unwritten(&error),
    }
}
