//! `onceward bench`: side-by-side figures on this machine.
//!
//! The same payment is sent directly, through other servers whose addresses are given, and through
//! gateways of this binary, in turns. `bench/compare` starts the others.
//! An unexpected response makes the whole benchmark fail. A missed target does so only with
//! `--strict`, because the speed of a shared machine varies from day to day.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use onceward_stores::postgres::migrate;
use tempfile::TempDir;

use crate::output;
use crate::process::{Process, this_program};
use crate::signals::EndSignals;

use gateway::GatewayPlan;
use loopback::LoopbackOrigin;
use machine::Machine;
use report::Report;
use scenario::{Scenario, Stage};
use schedule::{Peer, Peers, Schedule, Settings, StoreServer};
use tools::{Generator, Tools};
use upstream_count::UpstreamCount;

mod chart;
mod cost;
mod deliveries;
mod gateway;
mod h2load;
mod latencies;
mod load;
mod loopback;
mod machine;
mod profile;
mod report;
mod response;
mod scale;
mod scenario;
mod schedule;
mod stats;
mod sync_probe;
mod table;
mod targets;
mod timer;
mod tools;
mod traffic;
mod upstream_count;
mod webhook;
mod workload;
mod wrk;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parts of the benchmark.
    #[arg(long, value_delimiter = ',', default_value = "rates,latencies,flood")]
    stages: Vec<Stage>,
    /// Scenarios of the stage `rates`; all, if none is given. The baselines are always measured.
    #[arg(long, value_delimiter = ',', value_name = "SCENARIOS")]
    only: Vec<Scenario>,
    /// Numbers of connections; each is a series of its own, the first with all scenarios.
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024", value_parser = connections)]
    connections: Vec<usize>,
    /// Seconds to measure each scenario in each round.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Seconds to run each scenario before measuring it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    warmup: u64,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// Short: one round of a second at the first number of connections.
    #[arg(long, conflicts_with_all = ["seconds", "rounds", "warmup"])]
    quick: bool,
    /// Number of records in the full store of the stage `scale`.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of threads of the load generator.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    threads: u64,
    /// Load generator for the highest rates; wrk, if it is installed.
    #[arg(long, value_name = "NAME")]
    generator: Option<GeneratorChoice>,
    /// Binary of the gateways, such as one of an earlier version; this one by default.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// URL of a running upstream, http://ADDRESS:PORT: `onceward sample`, or nginx as in
    /// bench/nginx-upstream.conf.
    #[arg(long, value_name = "URL", value_parser = LoopbackOrigin::parse)]
    upstream: Option<LoopbackOrigin>,
    /// URL of nginx as a plain proxy in front of that upstream.
    #[arg(long, value_name = "URL", value_parser = LoopbackOrigin::parse, requires = "upstream")]
    nginx: Option<LoopbackOrigin>,
    /// URL of the same nginx for HTTP/2.
    #[arg(long, value_name = "URL", value_parser = LoopbackOrigin::parse, requires = "upstream")]
    nginx_http2: Option<LoopbackOrigin>,
    /// URL of a bare proxy in front of that upstream: the floor of requests without a key.
    #[arg(long, value_name = "URL", value_parser = LoopbackOrigin::parse, requires = "upstream")]
    floor_proxy: Option<LoopbackOrigin>,
    /// URL of a bare server: the floor of replays.
    #[arg(long, value_name = "URL", value_parser = LoopbackOrigin::parse)]
    floor_server: Option<LoopbackOrigin>,
    /// URL of Restate's ingress, with a service `Pay` that has a handler `charge`.
    #[arg(long, value_name = "URL", value_parser = LoopbackOrigin::parse)]
    restate: Option<LoopbackOrigin>,
    /// URL of a PostgreSQL for gateways to share; its tables are created.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// URL of a Redis for gateways to share.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
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
    /// Record a profile of the gateway in each scenario to this directory, by perf.
    #[arg(long, value_name = "DIRECTORY")]
    profile: Option<PathBuf>,
    /// Exit with status 1 if a target is missed or was not measured.
    #[arg(long)]
    strict: bool,
}

/// The generators that can be chosen.
#[derive(Clone, Copy, clap::ValueEnum)]
enum GeneratorChoice {
    Wrk,
    Own,
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
    if let Some(directory) = &args.profile {
        fs::create_dir_all(directory)?;
    }
    let machine = Machine::inspect(stores.path());
    let tools = args.tools(stores.path())?;
    if let Some(url) = &args.postgres {
        migrate::apply(url, &migrate::Options::default()).await?;
    }
    // Kept alive until the end.
    let (upstream, _sample) = upstream(args).await?;
    let peer = |origin: Option<LoopbackOrigin>| origin.map(Peer::at);
    let schedule = Schedule {
        peers: Peers {
            upstream: Peer::at(upstream),
            nginx: peer(args.nginx),
            nginx_http2: peer(args.nginx_http2),
            floor_proxy: peer(args.floor_proxy),
            floor_server: peer(args.floor_server),
            restate: peer(args.restate),
            postgres: args.postgres.as_deref().map(StoreServer::at),
            redis: args.redis.as_deref().map(StoreServer::at),
        },
        upstream_count: Arc::new(UpstreamCount::new(upstream)?),
        gateways: GatewayPlan {
            program: match &args.binary {
                Some(binary) => binary.clone(),
                None => this_program()?,
            },
            upstream,
            stores: stores.path().to_owned(),
        },
        settings: args.settings(),
        tools,
        profile: args.profile.clone(),
    };
    let results = Box::pin(schedule.run()).await?;
    let Schedule {
        settings, tools, ..
    } = schedule;
    Ok(Report::new(machine, tools, settings, results))
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
        let mut settings = Settings {
            stages: self.stages.clone(),
            only: self.only.clone(),
            connections: self.connections.clone(),
            rounds: small(self.rounds),
            warmup_seconds: self.warmup,
            measured_seconds: self.seconds,
            load_threads: small(self.threads),
            records: self.records,
        };
        if self.quick {
            settings.connections.truncate(1);
            (settings.rounds, settings.warmup_seconds) = (1, 0);
            settings.measured_seconds = 1;
        }
        settings
    }

    fn tools(&self, directory: &Path) -> anyhow::Result<Tools> {
        let mut tools = Tools::find(directory.to_owned());
        match self.generator {
            Some(GeneratorChoice::Own) => tools.generator = Generator::Own,
            Some(GeneratorChoice::Wrk) => {
                ensure!(tools.generator == Generator::Wrk, "wrk is not installed");
            }
            None => {}
        }
        Ok(tools)
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
        Ok(count @ 2..=4096) => Ok(count),
        _ => Err("2 to 4096 connections".into()),
    }
}
