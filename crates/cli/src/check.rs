//! `onceward check`: every mistake in a configuration, or every warning,
//! one a line, with file, line and column in front, so that editors can jump
//! there. With mistakes it fails; warnings alone do not keep a gateway from starting.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use onceward_gateway::config::{Loaded, Location, Mistake, Warning, load};
use serde_json::{Value, json};

use crate::schema::print;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration.
    #[arg(value_name = "FILE", default_value = "onceward.toml")]
    file: PathBuf,
    /// For programs: one JSON object with `mistakes` and `warnings`.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let judged = load(&args.file, &environment());
    let told = match args.json {
        true => serde_json::to_string_pretty(&for_programs(&judged))? + "\n",
        false => for_people(&judged),
    };
    print(&told)?;
    Ok(match judged {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// The variables of this process. One that is not text cannot be meant.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let variables = std::env::vars_os();
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn for_people(judged: &Result<Loaded, Vec<Mistake>>) -> String {
    let (mut lines, verdict): (Vec<String>, String) = match judged {
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
    lines.push(verdict);
    lines.join("\n") + "\n"
}

fn for_programs(judged: &Result<Loaded, Vec<Mistake>>) -> Value {
    let (mistakes, warnings): (&[Mistake], &[Warning]) = match judged {
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

    fn judged(text: &str) -> Result<Loaded, Vec<Mistake>> {
        parse(text, Path::new("onceward.toml"), &BTreeMap::new())
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let judged = judged("[server]\nlisten = 1\ndrain = \"x\"\n");
        assert_eq!(
            for_people(&judged),
            "onceward.toml:2:10: server.listen: is a whole number; write a text in quotes\n\
             onceward.toml:3:9: server.drain: \"x\" is not a number with a unit; write a length of time such as \"30s\", \"1h30m\" or \"7d\"\n\
             2 mistakes. The gateway would not start.\n"
        );
        assert_eq!(
            for_programs(&judged)["mistakes"][0],
            json!({
                "file": "onceward.toml", "line": 2, "column": 10, "variable": null,
                "key": "server.listen", "problem": "is a whole number",
                "right": "write a text in quotes",
            })
        );
    }

    #[test]
    fn warnings_do_not_keep_a_gateway_from_starting() {
        let text = "[store]\nurl = \"memory:\"\n[auth.api_keys]\n[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n\
                    [[routes]]\nendpoint = \"a.b\"\npath = \"/\"\nmethod = \"GET\"\nupstream = \"a\"\n";
        let judged = judged(text);
        assert_eq!(
            for_people(&judged),
            "onceward.toml:2:7: store.url: a restart forgets every key, and what ran before it runs again; embedded:./onceward-data survives a restart\n\
             No mistakes, 1 warning. The gateway would start.\n"
        );
        assert_eq!(for_programs(&judged)["warnings"][0]["line"], 2);
    }
}
