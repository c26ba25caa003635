//! `onceward check`: all mistakes in a configuration or, if there are none, all warnings, one a
//! line and each after file, line and column, so that editors can jump there. Mistakes make the
//! command fail; a gateway starts with warnings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use onceward_gateway::config::{Loaded, Location, Mistake, Warning, load};
use serde_json::{Value, json};

use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration file.
    #[arg(value_name = "FILE", default_value = "onceward.toml")]
    file: PathBuf,
    /// Print one JSON object with `mistakes` and `warnings`.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let loaded = load(&args.file, &environment());
    output::print(&match args.json {
        true => serde_json::to_string_pretty(&as_json(&loaded))? + "\n",
        false => as_text(&loaded),
    })?;
    Ok(match loaded {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// The environment variables of this process that are valid UTF-8; the configuration can refer to
/// no others.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let variables = std::env::vars_os();
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn as_text(loaded: &Result<Loaded, Vec<Mistake>>) -> String {
    let (mut lines, summary): (Vec<String>, String) = match loaded {
        Err(mistakes) => (
            mistakes.iter().map(ToString::to_string).collect(),
            format!(
                "{}. The gateway would not start.",
                count(mistakes.len(), "mistake")
            ),
        ),
        Ok(loaded) if loaded.warnings.is_empty() => {
            (Vec::new(), "No mistakes, no warnings.".to_owned())
        }
        Ok(loaded) => (
            loaded.warnings.iter().map(ToString::to_string).collect(),
            format!(
                "No mistakes, {}. The gateway would start.",
                count(loaded.warnings.len(), "warning")
            ),
        ),
    };
    lines.push(summary);
    lines.join("\n") + "\n"
}

fn as_json(loaded: &Result<Loaded, Vec<Mistake>>) -> Value {
    let (mistakes, warnings): (&[Mistake], &[Warning]) = match loaded {
        Ok(loaded) => (&[], &loaded.warnings),
        Err(mistakes) => (mistakes, &[]),
    };
    let mistakes = mistakes.iter().map(|one| {
        let about = [("problem", &one.problem), ("right", &one.right)];
        finding(&one.location, &one.key, about)
    });
    let warnings = warnings.iter().map(|one| {
        let about = [("problem", &one.problem), ("better", &one.better)];
        finding(&one.location, &one.key, about)
    });
    json!({
        "mistakes": mistakes.collect::<Value>(),
        "warnings": warnings.collect::<Value>(),
    })
}

fn finding(location: &Location, key: &str, about: [(&str, &String); 2]) -> Value {
    let (line, column) = location.line_and_column().unzip();
    let mut finding = json!({
        "file": location.file(),
        "line": line,
        "column": column,
        "variable": location.variable(),
        "key": key,
    });
    for (name, text) in about {
        finding[name] = json!(text);
    }
    finding
}

fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use onceward_gateway::config::parse;

    use super::*;

    fn parsed(text: &str) -> Result<Loaded, Vec<Mistake>> {
        parse(text, Path::new("onceward.toml"), &BTreeMap::new())
    }

    #[test]
    fn mistakes_have_their_line_and_column() {
        let parsed = parsed("[server]\nlisten = 1\ndrain = \"x\"\n");
        assert_eq!(
            as_text(&parsed),
            "onceward.toml:2:10: server.listen: is an integer; write a string in quotes\n\
             onceward.toml:3:9: server.drain: \"x\" is not a number with a unit; write a duration such as \"30s\", \"1h30m\" or \"7d\"\n\
             2 mistakes. The gateway would not start.\n"
        );
        assert_eq!(
            as_json(&parsed)["mistakes"][0],
            json!({
                "file": "onceward.toml", "line": 2, "column": 10, "variable": null,
                "key": "server.listen", "problem": "is an integer",
                "right": "write a string in quotes",
            })
        );
    }

    #[test]
    fn a_gateway_starts_with_warnings() {
        let text = "[store]\nurl = \"memory:\"\n[auth.api_keys]\n[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n\
                    [[routes]]\nendpoint = \"a.b\"\npath = \"/\"\nmethod = \"GET\"\nupstream = \"a\"\n";
        let parsed = parsed(text);
        assert_eq!(
            as_text(&parsed),
            "onceward.toml:2:7: store.url: a restart loses every key, so retries of earlier requests run again; embedded:./onceward-data survives a restart\n\
             No mistakes, 1 warning. The gateway would start.\n"
        );
        assert_eq!(as_json(&parsed)["warnings"][0]["line"], 2);
    }
}
