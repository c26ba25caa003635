//! `onceward schema`: the configuration's JSON Schema, for editors and validators.

use std::process::ExitCode;

use onceward_gateway::config;

use crate::output;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let schema = serde_json::to_string_pretty(&config::schema())?;
    output::print(&format!("{schema}\n"))?;
    Ok(ExitCode::SUCCESS)
}
