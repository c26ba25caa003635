//! The binary `onceward`: one line per command, each command in a module of its own with its
//! `Args` and its `run`. What a command does lives in the libraries or in its module, not here.

// The only crate that prints: its standard output is what the user asked for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser;

// Many small allocations on two threads or more: measured at a tenth more replays than with glibc's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod admin;
mod audit;
mod bench;
mod check;
mod classes;
mod completions;
mod demo;
mod keys;
mod migrate;
mod operations;
mod process;
mod reload;
mod sample;
mod schema;
mod serve;
mod webhooks;

/// Makes retries safe: the work is not done twice, and the same answer comes back.
#[derive(Parser)]
#[command(name = "onceward", version)]
// There is one of it per process.
#[allow(clippy::large_enum_variant)]
enum Cli {
    /// Everything on the embedded store, a sample upstream, a walk through what it does.
    Demo(demo::Args),
    /// The gateway: before one HTTP service with no configuration, or as a file says.
    Serve(serve::Args),
    /// Every mistake and every warning in a configuration, with line numbers.
    Check(check::Args),
    /// The configuration's JSON Schema.
    Schema,
    /// API keys of a running gateway.
    Keys(keys::Args),
    /// Webhooks of a running gateway: URLs for providers, and their secrets.
    Webhooks(webhooks::Args),
    /// Operations of a running gateway: look, purge, resolve, resume.
    Operations(operations::Args),
    /// Retention classes of a running gateway.
    Classes(classes::Args),
    /// Who changed what, when and why.
    Audit(audit::Args),
    /// Lets a running gateway read its configuration again.
    Reload(reload::Args),
    /// The tables of the PostgreSQL store.
    Migrate(migrate::Args),
    /// Side-by-side figures on this machine.
    Bench(bench::Args),
    /// What a shell needs to complete these commands.
    Completions(completions::Args),
    /// A payments service to try things against.
    #[command(hide = true)]
    Sample(sample::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Cli::parse() {
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
        Cli::Completions(args) => Ok(completions::run(&args)),
        Cli::Sample(args) => sample::run(args).await,
    };
    ended.unwrap_or_else(|error| {
        eprintln!("Error: {}", in_one_line(&error));
        ExitCode::FAILURE
    })
}

/// An error with its causes. A cause that the text before it already tells is
/// not told again.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match line.as_str() {
            "" => line = cause,
            told if told.contains(&cause) => {}
            told => line = format!("{told}: {cause}"),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::in_one_line;

    #[test]
    fn each_cause_is_told_once() {
        let error = anyhow!("the port is taken").context("cannot listen: the port is taken");
        let error = error.context("no gateway");
        assert_eq!(
            in_one_line(&error),
            "no gateway: cannot listen: the port is taken"
        );
    }
}
