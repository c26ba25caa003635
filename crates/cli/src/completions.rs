//! `onceward completions`: what a shell needs to complete this program's commands.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut command = crate::Cli::command();
    clap_complete::generate(args.shell, &mut command, "onceward", &mut std::io::stdout());
    ExitCode::SUCCESS
}
