//! `onceward bench`: side-by-side figures on this machine.
//!
//! The same payment is sent directly, through nginx and through Restate where they are given, and
//! through gateways of this very binary, in turns. `bench/compare` sets the others up.
//! A wrong answer anywhere makes the whole bench fail; a missed target only with `--strict`,
//! because how fast a shared machine is today is not a fault of the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::output;
use crate::process::Process;

use loopback::LoopbackOrigin;
use machine::Machine;
use report::Report;
use schedule::{Schedule, Settings};

mod chart;
mod deliveries;
mod gateway;
mod load;
mod loopback;
mod machine;
mod report;
mod response;
mod schedule;
mod stats;
mod table;
mod webhook;
mod workload;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many connections, one series each.
    #[arg(long, value_delimiter = ',', default_value = "64,256", value_parser = connections)]
    connections: Vec<usize>,
    /// How long each lane is measured in each round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// How long each lane runs before it is measured.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    warmup: u64,
    /// How often every lane is run; the median is told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// How many records fill the store for the last stage; 0 leaves it out.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Threads of the load generator.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    threads: u64,
    /// A sample upstream that already runs, `http://ADDRESS:PORT`.
    #[arg(long, value_parser = LoopbackOrigin::parse)]
    upstream: Option<LoopbackOrigin>,
    /// nginx as a plain proxy before that upstream.
    #[arg(long, value_parser = LoopbackOrigin::parse, requires = "upstream")]
    nginx: Option<LoopbackOrigin>,
    /// Restate's ingress, with a service `Pay` that has a handler `charge`.
    #[arg(long, value_parser = LoopbackOrigin::parse)]
    restate: Option<LoopbackOrigin>,
    /// A gateway that already runs before that upstream.
    #[arg(long, value_parser = LoopbackOrigin::parse, requires = "upstream", hide = true)]
    gateway: Option<LoopbackOrigin>,
    /// Where the gateways' stores are made, and removed at the end. On a real disk, if durable
    /// figures are wanted.
    #[arg(long, default_value = ".")]
    store_dir: PathBuf,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as a chart, if every answer was as expected.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Exit with 1 when a target is missed or was not measured.
    #[arg(long)]
    strict: bool,
}

/// Measures and tells. Whatever way it ends, the processes that it started are ended too.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    tokio::select! {
        report = measure(&args) => tell(&report?, &args),
        interrupted = interrupted() => bail!("interrupted by {}", interrupted?),
    }
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    fs::create_dir_all(&args.store_dir)?;
    let stores = TempDir::with_prefix_in("onceward-bench-", &args.store_dir)
        .with_context(|| format!("no store can be made in {}", args.store_dir.display()))?;
    let machine = Machine::look(stores.path());
    // Held to the end, where it was started.
    let (upstream, _sample) = upstream(args).await?;
    let schedule = Schedule {
        upstream,
        nginx: args.nginx,
        restate: args.restate,
        gateway: args.gateway,
        stores: stores.path(),
        settings: args.settings(),
    };
    let results = Box::pin(schedule.run()).await?;
    Ok(Report::new(machine, schedule.settings, &results))
}

/// The upstream that was given, or else a sample of our own.
async fn upstream(args: &Args) -> anyhow::Result<(LoopbackOrigin, Option<Process>)> {
    if let Some(given) = args.upstream {
        return Ok((given, None));
    }
    let sample = Process::sample().await?;
    Ok((LoopbackOrigin::at(sample.listen())?, Some(sample)))
}

impl Args {
    fn settings(&self) -> Settings {
        let small = |number| usize::try_from(number).expect("the argument's range is small");
        Settings {
            connections: self.connections.clone(),
            rounds: small(self.rounds),
            warmup_seconds: self.warmup,
            measured_seconds: self.seconds,
            load_threads: small(self.threads),
            records: self.records,
        }
    }
}

fn tell(report: &Report, args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.json {
        write(path, &serde_json::to_string_pretty(report)?)?;
    }
    // A chart has no room to say that its figures are worth nothing.
    if let Some(path) = args.svg.as_ref().filter(|_| report.is_valid()) {
        write(path, &chart::render(report))?;
    }
    output::print(&table::render(report))?;
    Ok(match report.is_valid() {
        false => ExitCode::FAILURE,
        true if args.strict && report.misses_a_target() => ExitCode::FAILURE,
        true => ExitCode::SUCCESS,
    })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("{} cannot be written", path.display()))
}

async fn interrupted() -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.map(|()| "Ctrl-C").map_err(Into::into),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

/// More than a few thousand say nothing about a gateway and much about the kernel.
fn connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=4096) => Ok(count),
        _ => Err("1 to 4096 connections".into()),
    }
}
