//! `onceward completions`: the completion script for a shell.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell to complete for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = crate::Cli::command();
    // Into memory first: `generate` panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "onceward", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
