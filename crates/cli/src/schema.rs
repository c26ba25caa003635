//! `onceward schema`: the configuration's JSON Schema, for editors and checks.

use std::process::ExitCode;

use onceward_gateway::config;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    println!("{}", serde_json::to_string_pretty(&config::schema())?);
    Ok(ExitCode::SUCCESS)
}
