//! The binary `onceward`: one line per command, each command in a module of its own with its
//! `Args` and its `run`. What a command does lives in the libraries or in its module, not here.

// The only crate that prints: its standard output is what the user asked for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser;

mod bench;
mod demo;
mod process;
mod sample;
mod serve;

/// Makes retries safe: the work is not done twice, and the same answer comes back.
#[derive(Parser)]
#[command(name = "onceward", version)]
// There is one of it per process.
#[allow(clippy::large_enum_variant)]
enum Cli {
    /// Everything on the embedded store, a sample upstream, a walk through what it does.
    Demo(demo::Args),
    /// The gateway: protects any HTTP service with no configuration.
    Serve(serve::Args),
    /// Side-by-side figures on this machine.
    Bench(bench::Args),
    /// A payments service to try things against.
    #[command(hide = true)]
    Sample(sample::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse() {
        Cli::Demo(args) => demo::run(args).await,
        Cli::Serve(args) => serve::run(args).await,
        Cli::Bench(args) => bench::run(args).await,
        Cli::Sample(args) => sample::run(args).await,
    }
}
