//! The configuration: every mistake at once, every warning, every source, and a
//! manual that cannot go out of date.

mod manual;
mod mistakes;
mod random;
mod sources;
mod start;
mod warnings;
mod webhooks;

use std::collections::BTreeMap;
use std::path::Path;

use onceward_gateway::config::{self, Mistake};

/// A route to add lines to; the first of them is line 7.
const ROUTE: &str = "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'a'\n";

/// The mistakes of a text, without the file's name.
fn mistakes(text: &str) -> Vec<String> {
    match config::parse(text, Path::new("onceward.toml"), &BTreeMap::new()) {
        Ok(_) => Vec::new(),
        Err(mistakes) => mistakes
            .iter()
            .map(|mistake| nameless(&mistake.to_string()))
            .collect(),
    }
}

/// The warnings about a text, without the file's name.
fn warnings(text: &str) -> Vec<String> {
    match config::parse(text, Path::new("onceward.toml"), &BTreeMap::new()) {
        Ok(loaded) => loaded
            .warnings
            .iter()
            .map(|warning| nameless(&warning.to_string()))
            .collect(),
        Err(mistakes) => panic!("{}", lines(&mistakes)),
    }
}

/// All mistakes, as `onceward check` prints them.
fn report(text: &str, environment: &BTreeMap<String, String>) -> String {
    match config::parse(text, Path::new("onceward.toml"), environment) {
        Ok(_) => String::new(),
        Err(mistakes) => lines(&mistakes),
    }
}

fn lines(mistakes: &[Mistake]) -> String {
    mistakes
        .iter()
        .map(|mistake| format!("{mistake}\n"))
        .collect()
}

fn nameless(line: &str) -> String {
    line.strip_prefix("onceward.toml:")
        .unwrap_or(line)
        .to_owned()
}

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let variables = variables.iter();
    variables
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}
