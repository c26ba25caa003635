//! Makes the checked configuration from the raw one, and reports every mistake at
//! once.
//!
//! A wrong value is reported and replaced by its default, so that the check can
//! continue; a configuration with a mistake is never returned.

mod auth;
mod checker;
pub(super) mod consistency;
mod routes;
mod server;
mod webhooks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use onceward_core::class::Class;

pub(super) use self::checker::Checker;
use super::class::{ClassSettings, build_class};
use super::mistake::{Location, Mistake, Warning};
use super::raw;
use super::{Config, schema, source, store, warnings};

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A configuration and its warnings.
#[derive(Debug)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// Settings that work but are probably not intended.
    pub warnings: Vec<Warning>,
}

/// Reads the file and the variables. Apart from them, only the files that the
/// configuration names are read.
pub fn load(path: &Path, environment: &BTreeMap<String, String>) -> Result<Loaded, Vec<Mistake>> {
    let unreadable = |problem: String, right: &str| {
        vec![Mistake {
            location: Location::File(path.to_owned()),
            key: String::new(),
            problem,
            right: right.to_owned(),
        }]
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            let problem = format!("the file cannot be read: {error}");
            unreadable(problem, "name a file that the gateway can read")
        })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let problem = "the file is larger than 4MiB".to_owned();
        return Err(unreadable(problem, "name a configuration"));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        let problem = "the file is not UTF-8".to_owned();
        unreadable(problem, "name a configuration, saved as UTF-8")
    })?;
    parse(&text, path, environment)
}

/// Like [`load`], for a text in memory. Mistakes name it `file`, and relative paths
/// in it are relative to the directory of `file`.
pub fn parse(
    text: &str,
    file: &Path,
    environment: &BTreeMap<String, String>,
) -> Result<Loaded, Vec<Mistake>> {
    let mut source = source::read(text, file, environment);
    schema::validate(&mut source, &schema::schema());
    let raw: raw::Config = match serde_json::from_value(source.root.to_json()) {
        Ok(raw) => raw,
        Err(error) => {
            // The schema accepts a value that the types do not.
            source.mistakes.push(Mistake {
                location: Location::File(file.to_owned()),
                key: String::new(),
                problem: format!("the file cannot be parsed: {error}"),
                right: "this is a bug in Onceward: please report it".to_owned(),
            });
            return Err(source.mistakes);
        }
    };
    let directory = file.parent().unwrap_or(Path::new(""));
    let mut checker = Checker::new(&source.locations, directory);
    let mut config = check_all(&raw, &mut checker);
    // The database server cancels a statement when the gateway gives it up.
    config.store.deadline = config.limits.store_deadline;
    // Settings cannot be compared if a part of the file could not be parsed.
    if source.whole {
        consistency::check_consistency(&config, &mut checker);
    }
    let mut mistakes = source.mistakes;
    mistakes.append(&mut checker.mistakes);
    if mistakes.is_empty() {
        let warnings = warnings::find(&config, &source.locations);
        return Ok(Loaded { config, warnings });
    }
    Err(sort(mistakes))
}

fn check_all(raw: &raw::Config, checker: &mut Checker<'_>) -> Config {
    Config {
        server: server::check_server(&raw.server, checker),
        store: store::check_store(&raw.store, checker),
        secrets: server::check_secrets(&raw.secrets, checker),
        auth: auth::check_auth(&raw.auth, checker),
        classes: check_classes(&raw.classes, checker),
        upstreams: server::check_upstreams(&raw.upstreams, checker),
        routes: routes::check_routes(&raw.routes, raw.cors.as_ref(), checker),
        webhooks: webhooks::check_webhooks(&raw.webhooks, checker),
        limits: server::check_limits(&raw.limits, checker),
        telemetry: server::check_telemetry(&raw.telemetry, checker),
    }
}

fn check_classes(
    raw: &BTreeMap<String, ClassSettings>,
    checker: &mut Checker<'_>,
) -> BTreeMap<std::sync::Arc<str>, Class> {
    let built_in = [Class::interactive(), Class::webhook(), Class::financial()];
    let mut classes: BTreeMap<_, _> = built_in.map(|class| (class.name.clone(), class)).into();
    for (name, raw) in raw {
        let key = source::join("classes", name);
        checker.check_name(&key, name);
        let base = classes.get(name.as_str()).cloned();
        let base = base.unwrap_or_else(Class::interactive);
        let made = build_class(name, raw, &base).unwrap_or_else(|mistakes| {
            for mistake in mistakes {
                let key = format!("{key}.{}", mistake.key);
                checker.report(&key, mistake.problem, mistake.right);
            }
            // The class exists, although its settings are wrong: routes may name it.
            base.with(|class| {
                class.name = name.as_str().into();
                class.lease = super::units::TIME_MAX;
            })
        });
        classes.insert(made.name.clone(), made);
    }
    classes
}

/// Sorts mistakes by line, those in variables last. A syntax error hides the other
/// mistakes of its line.
fn sort(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    let lines = |mistake: &Mistake| mistake.location.line_and_column().map(|(line, _)| line);
    let not_toml: BTreeSet<_> = mistakes
        .iter()
        .filter(|mistake| mistake.key.is_empty())
        .filter_map(lines)
        .collect();
    mistakes.retain(|mistake| {
        mistake.key.is_empty() || lines(mistake).is_none_or(|line| !not_toml.contains(&line))
    });
    mistakes.sort_by_key(|mistake| {
        let location = mistake.location.line_and_column();
        let variable = mistake.location.variable().map(ToOwned::to_owned);
        (variable, location, mistake.key.clone())
    });
    mistakes.dedup();
    mistakes
}
