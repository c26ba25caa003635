//! `onceward classes`: the retention classes of a running gateway. A change applies to new claims;
//! existing operations keep the settings that they were claimed under.

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::admin::table::{self, cell};
use crate::admin::{AdminArgs, Client, Role, path};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the classes with their settings and where each setting comes from.
    List {
        /// Only this class.
        #[arg(value_name = "CLASS")]
        name: Option<String>,
    },
    /// Change settings of a class, or add a class.
    Set {
        /// Name of the class.
        #[arg(value_name = "CLASS")]
        name: String,
        /// Settings as in the configuration: retention=10d remember=60d
        #[arg(value_name = "SETTING=VALUE", required = true)]
        settings: Vec<String>,
        /// The reason for the change, recorded in the audit log.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
    /// Undo all changes of a class: the configuration applies again.
    Unset {
        /// Name of the class.
        #[arg(value_name = "CLASS")]
        name: String,
        /// The reason for the change, recorded in the audit log.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.admin)?;
    match args.command {
        Command::List { name: None } => {
            let result = client.get(Role::Read, "/admin/v1/classes").await?;
            client.report(&result, |all| {
                let classes = all["classes"].as_array().into_iter().flatten();
                classes.map(shown).collect::<Vec<_>>().join("\n")
            })
        }
        Command::List { name: Some(name) } => {
            let result = client
                .get(Role::Read, &path("/admin/v1/classes/", &name, ""))
                .await?;
            client.report(&result, shown)
        }
        Command::Set {
            name,
            settings,
            why,
        } => {
            let url = path("/admin/v1/classes/", &name, "");
            let body = json!({ "settings": parse(&settings)?, "why": why });
            let result = client.post(Role::Admin, &url, &body).await?;
            client.report(&result, shown)
        }
        Command::Unset { name, why } => {
            let url = path("/admin/v1/classes/", &name, "/unset");
            let result = client
                .post(Role::Admin, &url, &json!({ "why": why }))
                .await?;
            client.report(&result, |answer| match &answer["class"] {
                Value::Null => format!(
                    "Class {} is removed: the configuration does not define it.\n",
                    cell(&answer["name"])
                ),
                class => shown(class),
            })
        }
    }
}

/// Converts `SETTING=VALUE` arguments to JSON; a dot in a name goes one level down.
fn parse(settings: &[String]) -> anyhow::Result<Value> {
    let mut all = Map::new();
    for setting in settings {
        let Some((key, text)) = setting.split_once('=') else {
            bail!(
                "invalid setting `{}`: write SETTING=VALUE, such as retention=10d",
                table::escape(setting)
            );
        };
        let value = match (key, text.parse::<u32>()) {
            ("max_attempts", Ok(number)) => number.into(),
            _ => Value::from(text),
        };
        let before = match key.split_once('.') {
            None => all.insert(key.to_owned(), value),
            Some((outer, inner)) => {
                let outer = all.entry(outer).or_insert_with(|| json!({}));
                match outer.as_object_mut() {
                    Some(outer) => outer.insert(inner.to_owned(), value),
                    None => Some(value),
                }
            }
        };
        if before.is_some() {
            bail!("`{}` is given twice", table::escape(key));
        }
    }
    Ok(all.into())
}

/// A class with its settings, and the source of each that is not built in.
fn shown(class: &Value) -> String {
    let settings = class["settings"].as_object();
    let rows = settings.into_iter().flatten().map(|(key, value)| {
        let text = match value.as_object() {
            None => cell(value),
            Some(parts) => {
                let parts = parts
                    .iter()
                    .map(|(key, value)| format!("{key} {}", cell(value)));
                parts.collect::<Vec<_>>().join(", ")
            }
        };
        let source = match class["sources"][key].as_str() {
            Some("built-in") | None => String::new(),
            Some(source) => table::escape(source),
        };
        vec![table::escape(key), text, source]
    });
    let rows: Vec<_> = rows.collect();
    let name = cell(&class["name"]);
    let mut text = table::table(&[&name, "", ""], &rows, table::width());
    if let Some(why) = class["not_in_force"].as_str() {
        text.push_str(&format!(
            "Warning: a change is not in force: {}\n",
            table::escape(why)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(words: &[&str]) -> Result<Value, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_become_json() {
        assert_eq!(
            settings(&[
                "retention=10d",
                "max_attempts=3",
                "mismatch=409",
                "backoff.first=1s",
                "backoff.max=1m"
            ]),
            Ok(json!({
                "retention": "10d", "max_attempts": 3, "mismatch": "409",
                "backoff": { "first": "1s", "max": "1m" },
            }))
        );
        assert_eq!(
            settings(&["retention"]),
            Err(
                "invalid setting `retention`: write SETTING=VALUE, such as retention=10d"
                    .to_owned()
            )
        );
        assert_eq!(
            settings(&["wait=1s", "wait=2s"]),
            Err("`wait` is given twice".to_owned())
        );
        assert_eq!(
            settings(&["backoff=1s", "backoff.max=2s"]),
            Err("`backoff.max` is given twice".to_owned())
        );
    }

    #[test]
    fn a_class_shows_the_source_of_each_setting() {
        let class = json!({
            "name": "financial",
            "settings": { "retention": "10d", "lease": "2m", "backoff": { "first": "500ms", "max": "1m" } },
            "sources": { "retention": "changed", "lease": "file", "backoff": "built-in" },
        });
        assert_eq!(
            shown(&class),
            concat!(
                "financial\n",
                "backoff    first 500ms, max 1m\n",
                "lease      2m                   file\n",
                "retention  10d                  changed\n",
            )
        );
    }
}
