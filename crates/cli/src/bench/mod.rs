//! `onceward bench`: side-by-side figures on this machine.
//!
//! The same payment is sent directly, through nginx and Restate if their addresses are given, and
//! through gateways of this binary, in turns. `bench/compare` starts the others.
//! An unexpected response makes the whole benchmark fail. A missed target does so only with
//! `--strict`, because the speed of a shared machine varies from day to day.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::output;
use crate::process::Process;
use crate::signals::EndSignals;

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
    /// Numbers of connections; each is a series of its own.
    #[arg(long, value_delimiter = ',', default_value = "64,256", value_parser = connections)]
    connections: Vec<usize>,
    /// Seconds to measure each scenario in each round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Seconds to run each scenario before measuring it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    warmup: u64,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// Number of records in the full store of the last stage; 0 skips the stage.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of threads of the load generator.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    threads: u64,
    /// URL of a running sample upstream, http://ADDRESS:PORT.
    #[arg(long, value_parser = LoopbackOrigin::parse)]
    upstream: Option<LoopbackOrigin>,
    /// URL of nginx as a plain proxy in front of that upstream.
    #[arg(long, value_parser = LoopbackOrigin::parse, requires = "upstream")]
    nginx: Option<LoopbackOrigin>,
    /// URL of Restate's ingress, with a service `Pay` that has a handler `charge`.
    #[arg(long, value_parser = LoopbackOrigin::parse)]
    restate: Option<LoopbackOrigin>,
    /// URL of a running gateway in front of that upstream.
    #[arg(long, value_parser = LoopbackOrigin::parse, requires = "upstream", hide = true)]
    gateway: Option<LoopbackOrigin>,
    /// Directory for the gateways' stores, which are removed at the end. Use a real disk to measure
    /// durable writes.
    #[arg(long, default_value = ".")]
    store_dir: PathBuf,
    /// Write the report to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report to this file as an SVG chart, if every response was as expected.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Exit with status 1 if a target is missed or was not measured.
    #[arg(long)]
    strict: bool,
}

/// Measures and reports. The processes that it started end with it, however it ends.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut signals = EndSignals::install()?;
    tokio::select! {
        report = measure(&args) => publish(&report?, &args),
        signal = signals.receive() => bail!("interrupted by {}", signal.name()),
    }
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    fs::create_dir_all(&args.store_dir)?;
    let stores = TempDir::with_prefix_in("onceward-bench-", &args.store_dir)
        .with_context(|| format!("cannot create a store in {}", args.store_dir.display()))?;
    let machine = Machine::inspect(stores.path());
    // Kept alive until the end.
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

/// The given upstream, or a sample upstream that is started here.
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

fn publish(report: &Report, args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.json {
        write(path, &serde_json::to_string_pretty(report)?)?;
    }
    // A chart cannot show that its figures are invalid.
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
        .with_context(|| format!("cannot write {}", path.display()))
}

/// With more than a few thousand connections the kernel is measured, not the gateway.
fn connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=4096) => Ok(count),
        _ => Err("1 to 4096 connections".into()),
    }
}
