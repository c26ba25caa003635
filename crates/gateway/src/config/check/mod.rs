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
use super::class::{ClassSettings, class};
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

/// Reads the file and the variables. Nothing else is looked at but the files
/// that the configuration names.
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

/// The same for a text that is at hand; `file` is its name in mistakes, and
/// relative paths in it are relative to the directory of `file`.
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
            // The schema lets something through that the types do not take.
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
    let mut config = config(&raw, &mut checker);
    // The database server gives up a statement when the gateway does.
    config.store.deadline = config.limits.store_deadline;
    // Settings cannot be compared if a part of the file could not be parsed.
    if source.whole {
        consistency::judge(&config, &mut checker);
    }
    let mut mistakes = source.mistakes;
    mistakes.append(&mut checker.mistakes);
    if mistakes.is_empty() {
        let warnings = warnings::find(&config, &source.locations);
        return Ok(Loaded { config, warnings });
    }
    Err(in_order(mistakes))
}

fn config(raw: &raw::Config, checker: &mut Checker<'_>) -> Config {
    Config {
        server: server::server(&raw.server, checker),
        store: store::settings(&raw.store, checker),
        secrets: server::secrets(&raw.secrets, checker),
        auth: auth::auth(&raw.auth, checker),
        classes: classes(&raw.classes, checker),
        upstreams: server::upstreams(&raw.upstreams, checker),
        routes: routes::routes(&raw.routes, raw.cors.as_ref(), checker),
        webhooks: webhooks::webhooks(&raw.webhooks, checker),
        limits: server::limits(&raw.limits, checker),
        telemetry: server::telemetry(&raw.telemetry, checker),
    }
}

fn classes(
    raw: &BTreeMap<String, ClassSettings>,
    checker: &mut Checker<'_>,
) -> BTreeMap<std::sync::Arc<str>, Class> {
    let built_in = [Class::interactive(), Class::webhook(), Class::financial()];
    let mut classes: BTreeMap<_, _> = built_in.map(|class| (class.name.clone(), class)).into();
    for (name, raw) in raw {
        let key = source::join("classes", name);
        checker.name(&key, name);
        let base = classes.get(name.as_str()).cloned();
        let base = base.unwrap_or_else(Class::interactive);
        let made = class(name, raw, &base).unwrap_or_else(|mistakes| {
            for mistake in mistakes {
                let key = format!("{key}.{}", mistake.key);
                checker.wrong(&key, mistake.problem, mistake.right);
            }
            // The name is known, whatever is wrong with it.
            base.with(|class| {
                class.name = name.as_str().into();
                class.lease = super::units::TIME_MAX;
            })
        });
        classes.insert(made.name.clone(), made);
    }
    classes
}

/// By line, then what came from variables; what is not TOML hides the rest of
/// its line.
fn in_order(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
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
