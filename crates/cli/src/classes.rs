//! `onceward classes`: the retention classes in force, changed while the gateway
//! runs. What is on record keeps the terms that it was claimed under.

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::admin::table::{self, cell};
use crate::admin::{Client, Needs, Reach, path};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The classes with all settings, and which of them are changed.
    List {
        /// Only this one.
        #[arg(value_name = "CLASS")]
        name: Option<String>,
    },
    /// Changes settings of a class, or makes a new one.
    Set {
        /// Its name.
        #[arg(value_name = "CLASS")]
        name: String,
        /// Settings in the words of the configuration: retention=10d remember=60d
        #[arg(value_name = "SETTING=VALUE", required = true)]
        settings: Vec<String>,
        /// Why; the audit keeps it.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
    /// Takes back all changes of a class: it is as the configuration says.
    Unset {
        /// Its name.
        #[arg(value_name = "CLASS")]
        name: String,
        /// Why; the audit keeps it.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.reach)?;
    match args.command {
        Command::List { name: None } => {
            let told = client.get(Needs::Read, "/admin/v1/classes").await?;
            client.tell(&told, |all| {
                let classes = all["classes"].as_array().into_iter().flatten();
                classes.map(shown).collect::<Vec<_>>().join("\n")
            })
        }
        Command::List { name: Some(name) } => {
            let told = client
                .get(Needs::Read, &path("/admin/v1/classes/", &name, ""))
                .await?;
            client.tell(&told, shown)
        }
        Command::Set {
            name,
            settings,
            why,
        } => {
            let url = path("/admin/v1/classes/", &name, "");
            let body = json!({ "settings": parse(&settings)?, "why": why });
            let told = client.post(Needs::Admin, &url, &body).await?;
            client.tell(&told, shown)
        }
        Command::Unset { name, why } => {
            let url = path("/admin/v1/classes/", &name, "/unset");
            let told = client
                .post(Needs::Admin, &url, &json!({ "why": why }))
                .await?;
            client.tell(&told, |answer| match &answer["class"] {
                Value::Null => format!("The class {} is gone.\n", cell(&answer["name"])),
                class => shown(class),
            })
        }
    }
}

/// Settings as JSON: numbers are numbers, a dot goes one level down.
fn parse(settings: &[String]) -> anyhow::Result<Value> {
    let mut all = Map::new();
    for setting in settings {
        let Some((key, text)) = setting.split_once('=') else {
            bail!(
                "`{}` is no setting: write retention=10d",
                table::plain(setting)
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
            bail!("`{}` is said twice", table::plain(key));
        }
    }
    Ok(all.into())
}

/// A class with its settings; what is not built in says where it is from.
fn shown(class: &Value) -> String {
    let settings = class["settings"].as_object();
    let lines = settings.into_iter().flatten().map(|(key, value)| {
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
            Some(source) => table::plain(source),
        };
        vec![table::plain(key), text, source]
    });
    let lines: Vec<_> = lines.collect();
    let name = cell(&class["name"]);
    let mut text = table::table(&[&name, "", ""], &lines, table::width());
    if let Some(why) = class["not_in_force"].as_str() {
        text.push_str(&format!(
            "A change is not in force: {}\n",
            table::plain(why)
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
    fn settings_are_read() {
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
            Err("`retention` is no setting: write retention=10d".to_owned())
        );
        assert_eq!(
            settings(&["wait=1s", "wait=2s"]),
            Err("`wait` is said twice".to_owned())
        );
        assert_eq!(
            settings(&["backoff=1s", "backoff.max=2s"]),
            Err("`backoff.max` is said twice".to_owned())
        );
    }

    #[test]
    fn a_class_says_what_was_changed() {
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
