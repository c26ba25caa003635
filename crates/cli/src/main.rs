//! The binary `onceward`. Each command has a module with its `Args` and its `run`; the work is done
//! in the libraries or in that module, not here.

#![allow(
    clippy::disallowed_methods,
    reason = "the command line hands in clock, randomness and environment"
)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

// Many small allocations on several threads: a tenth more replays than with glibc's allocator.
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

mod admin;
mod allocator;
mod audit;
mod bench;
mod check;
mod classes;
mod completions;
mod demo;
mod keys;
mod log;
mod migrate;
mod operations;
mod output;
mod process;
mod reload;
mod sample_upstream;
mod scheduling;
mod schema;
mod serve;
mod signals;
mod webhooks;

/// Idempotency for HTTP services: a retried request runs once and gets the same reply.
#[derive(Parser)]
#[command(name = "onceward", version)]
// The process holds one value of this type.
#[allow(clippy::large_enum_variant)]
enum Cli {
    /// Run a sample service behind a gateway and walk through what the gateway does.
    Demo(demo::Args),
    /// Run the gateway, in front of one HTTP service or from a configuration file.
    Serve(serve::Args),
    /// Check a configuration: all mistakes and warnings, with line numbers.
    Check(check::Args),
    /// Print the JSON Schema of the configuration.
    Schema,
    /// Manage the API keys of a running gateway.
    Keys(keys::Args),
    /// Manage the webhooks of a running gateway: URLs for providers, and their secrets.
    Webhooks(webhooks::Args),
    /// List, show, purge, resolve and resume the operations of a running gateway.
    Operations(operations::Args),
    /// List and change the retention classes of a running gateway.
    Classes(classes::Args),
    /// List the changes that operators made: who, what, when and why.
    Audit(audit::Args),
    /// Make a running gateway read its configuration again.
    Reload(reload::Args),
    /// Create or print the tables of the PostgreSQL store.
    Migrate(migrate::Args),
    /// Measure this gateway side by side with others on this machine.
    Bench(bench::Args),
    /// Print the completion script for a shell.
    Completions(completions::Args),
    /// Run a sample payments service to send requests to.
    #[command(hide = true)]
    Sample(sample_upstream::Args),
}

/// How long the process waits, before it exits, for work that blocks a thread, such as
/// resolving a name. Nothing interrupts such work.
const BLOCKING_WITHIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Cli::Serve(_) | Cli::Demo(_) = cli {
        // Before any thread is started: threads inherit it.
        scheduling::ask_for_short_slices();
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::note(&format!("Error: no threads can be started: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    let status = runtime.block_on(run(cli));
    runtime.shutdown_timeout(BLOCKING_WITHIN);
    status
}

async fn run(cli: Cli) -> ExitCode {
    let result = match cli {
        Cli::Demo(args) => demo::run(args).await,
        Cli::Serve(args) => serve::run(args).await,
        Cli::Check(args) => check::run(&args),
        Cli::Schema => schema::run(),
        Cli::Keys(args) => keys::run(args).await,
        Cli::Webhooks(args) => webhooks::run(args).await,
        Cli::Operations(args) => operations::run(args).await,
        Cli::Classes(args) => classes::run(args).await,
        Cli::Audit(args) => audit::run(args).await,
        Cli::Reload(args) => reload::run(args).await,
        Cli::Migrate(args) => migrate::run(args).await,
        Cli::Bench(args) => bench::run(args).await,
        Cli::Completions(args) => completions::run(&args),
        Cli::Sample(args) => sample_upstream::run(args).await,
    };
    result.unwrap_or_else(|error| {
        if error.is::<output::Closed>() {
            return ExitCode::from(output::CLOSED_STATUS);
        }
        output::note(&format!("Error: {}\n", in_one_line(&error)));
        ExitCode::FAILURE
    })
}

/// An error with its causes. A cause that is already part of the text before it is left out.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match line.as_str() {
            "" => line = cause,
            before if before.contains(&cause) => {}
            before => line = format!("{before}: {cause}"),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use clap::{Command, CommandFactory as _};

    use super::{Cli, in_one_line};

    const HELP_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/help.txt");

    /// The help of a command and of all its subcommands that are not hidden.
    fn help_of(command: &mut Command, path: &str, text: &mut String) {
        text.push_str(&format!("$ {path} --help\n"));
        for line in command.render_long_help().to_string().lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
        for subcommand in command.get_subcommands_mut() {
            if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
                let path = format!("{path} {}", subcommand.get_name());
                help_of(subcommand, &path, text);
            }
        }
    }

    #[test]
    fn help_of_every_command_is_as_recorded() {
        let mut command = Cli::command();
        command.build();
        let mut help = String::new();
        help_of(&mut command, "onceward", &mut help);
        if std::env::var_os("UPDATE_HELP").is_some() {
            std::fs::write(HELP_FILE, &help).expect("the file can be written");
        }
        let recorded = std::fs::read_to_string(HELP_FILE).expect("the file can be read");
        let changed = help.lines().zip(recorded.lines()).find(|(a, b)| a != b);
        assert!(
            help == recorded,
            "the help differs from {HELP_FILE}, first at {changed:#?}; if the change is intended, run \
             `UPDATE_HELP=1 cargo test -p onceward-cli --bin onceward help_of_every_command` and review the diff"
        );
    }

    #[test]
    fn each_cause_appears_once() {
        let error = anyhow!("the port is taken").context("cannot listen: the port is taken");
        let error = error.context("no gateway");
        assert_eq!(
            in_one_line(&error),
            "no gateway: cannot listen: the port is taken"
        );
    }
}
