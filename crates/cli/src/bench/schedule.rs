//! The schedule of a benchmark: which scenarios run, in which order, how often.
//!
//! The speed of a machine varies, so scenarios are compared only within a round. Each round runs
//! every scenario once, every second round in reverse order, with a new gateway and an empty store.
//! After the webhook scenario the schedule waits for all deliveries, so that they do not slow the
//! next scenario. The second stage has two tenants: the latencies of one, at a modest rate, are
//! measured alone and while the other sends as fast as it can. The last stage measures a full store
//! next to an empty one, so that their ratio is from the same minutes.
//! The baseline has the greatest distance from the scenarios that write to disk, so that they do
//! not slow it. No result is left out, and no scenario is repeated for a better figure.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;

use super::deliveries::DeliveryMonitor;
use super::gateway::{Gateway, seed, style};
use super::load::{Length, Load, Run};
use super::loopback::LoopbackOrigin;
use super::stats::LoadResult;
use super::workload::{ApiKey, Workload};

/// The scenarios: the same payment, each time by another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scenario {
    Direct,
    Nginx,
    PassThrough,
    First,
    FirstApiKey,
    Webhook,
    WebhookDelivered,
    Replay,
    ReplayApiKey,
    Restate,
    FirstFull,
    ReplayFull,
    QuietAlone,
    QuietFlooded,
    Flood,
}

impl Scenario {
    pub(super) fn label(self) -> &'static str {
        match self {
            Scenario::Direct => "direct to the upstream",
            Scenario::Nginx => "nginx, plain proxy",
            Scenario::PassThrough => "onceward, no key",
            Scenario::First => "onceward, first run",
            Scenario::FirstApiKey => "onceward, first run, API key",
            Scenario::Webhook => "onceward, webhook, acknowledged",
            Scenario::WebhookDelivered => "onceward, webhook, delivered",
            Scenario::Replay => "onceward, replay",
            Scenario::ReplayApiKey => "onceward, replay, API key",
            Scenario::Restate => "Restate, first run",
            Scenario::FirstFull => "onceward, first run, full store",
            Scenario::ReplayFull => "onceward, replay, full store",
            Scenario::QuietAlone => "a quiet tenant, alone",
            Scenario::QuietFlooded => "a quiet tenant, beside a flood",
            Scenario::Flood => "the flood, served or refused",
        }
    }
}

/// A part of the benchmark. Scenarios are compared only within a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// All scenarios, on an empty store.
    Empty,
    /// An empty store and a full one, side by side.
    Full,
    /// A tenant with a modest rate, beside one that sends as fast as it can.
    Flood,
}

/// The rate and the connections of the quiet tenant.
const QUIET_PER_SECOND: u32 = 200;
const QUIET_CONNECTIONS: usize = 16;
const FLOOD_CONNECTIONS: usize = 64;
/// The limits of each tenant.
const FLOOD_LIMITS: &str = "[limits]\nrequests_per_tenant = { per_second = 1000, burst = 1000 }\n\
                            in_flight_per_tenant = 64\n";

/// How much is measured, and for how long.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) connections: Vec<usize>,
    pub(super) rounds: usize,
    pub(super) warmup_seconds: u64,
    pub(super) measured_seconds: u64,
    pub(super) load_threads: usize,
    /// Number of records in the full store; 0 skips the last stage.
    pub(super) records: u64,
}

/// One scenario in one round.
pub(super) struct Measurement {
    pub(super) stage: Stage,
    pub(super) scenario: Scenario,
    pub(super) connections: usize,
    pub(super) outcome: LoadResult,
}

/// All measurements, those of a scenario in the order of the rounds.
#[derive(Default)]
pub(super) struct Results {
    pub(super) measured: Vec<Measurement>,
    pub(super) gateway_peak_memory_bytes: Option<u64>,
}

/// The servers that take part, and the settings.
pub(super) struct Schedule<'a> {
    pub(super) upstream: LoopbackOrigin,
    pub(super) nginx: Option<LoopbackOrigin>,
    pub(super) restate: Option<LoopbackOrigin>,
    /// A running gateway to use instead of new ones. The contents of its store and its API keys are
    /// not known, so the other stages are skipped.
    pub(super) gateway: Option<LoopbackOrigin>,
    pub(super) stores: &'a Path,
    pub(super) settings: Settings,
}

/// One round at one number of connections.
#[derive(Clone, Copy)]
struct Round {
    stage: Stage,
    number: usize,
    connections: usize,
}

/// A scenario with its load.
struct PlannedLoad {
    scenario: Scenario,
    target: LoopbackOrigin,
    workload: Workload,
    api_key: Option<ApiKey>,
    /// Counts the deliveries that follow the acknowledgements.
    monitor: Option<DeliveryMonitor>,
}

impl PlannedLoad {
    fn new(scenario: Scenario, target: LoopbackOrigin, workload: Workload) -> Self {
        PlannedLoad {
            scenario,
            target,
            workload,
            api_key: None,
            monitor: None,
        }
    }

    fn through(scenario: Scenario, gateway: &Gateway, workload: Workload) -> Self {
        PlannedLoad {
            api_key: gateway.api_key(),
            ..PlannedLoad::new(scenario, gateway.target(), workload)
        }
    }
}

impl Schedule<'_> {
    pub(super) async fn run(&self) -> anyhow::Result<Results> {
        let mut results = Results::default();
        self.empty_stage(&mut results).await?;
        if self.gateway.is_some() {
            return Ok(results);
        }
        self.flood_stage(&mut results).await?;
        if self.settings.records > 0 {
            self.full_stage(&mut results).await?;
        }
        Ok(results)
    }

    async fn empty_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("on an empty store");
        for round in self.rounds(Stage::Empty) {
            let gateway = self.open().await?;
            let configured = match self.gateway {
                Some(_) => None,
                None => Some(Gateway::configured(self.upstream, self.stores, "").await?),
            };
            let loads = self.empty_loads(&gateway, configured.as_ref()).await?;
            self.measure(round, loads, &bar, results).await?;
            for gateway in [Some(gateway), configured].into_iter().flatten() {
                results.record_memory(&gateway);
                gateway.close().await?;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn empty_loads(
        &self,
        gateway: &Gateway,
        configured: Option<&Gateway>,
    ) -> anyhow::Result<Vec<PlannedLoad>> {
        let plain = |scenario, target| PlannedLoad::new(scenario, target, Workload::PassThrough);
        let mut loads = vec![plain(Scenario::Direct, self.upstream)];
        loads.extend(self.nginx.map(|nginx| plain(Scenario::Nginx, nginx)));
        loads.push(plain(Scenario::PassThrough, gateway.target()));
        loads.push(PlannedLoad::through(
            Scenario::Replay,
            gateway,
            gateway.replay(),
        ));
        loads.extend(
            configured.map(|own| PlannedLoad::through(Scenario::ReplayApiKey, own, own.replay())),
        );
        loads.push(PlannedLoad::through(
            Scenario::First,
            gateway,
            gateway.first()?,
        ));
        if let Some((workload, monitor)) = gateway.webhook(self.upstream).await? {
            loads.push(PlannedLoad {
                monitor: Some(monitor),
                ..PlannedLoad::new(Scenario::Webhook, gateway.target(), workload)
            });
        }
        if let Some(own) = configured {
            loads.push(PlannedLoad::through(
                Scenario::FirstApiKey,
                own,
                own.first()?,
            ));
        }
        if let Some(restate) = self.restate {
            loads.push(PlannedLoad::new(
                Scenario::Restate,
                restate,
                Workload::Restate(seed()?),
            ));
        }
        Ok(loads)
    }

    async fn flood_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("a flood beside a quiet tenant");
        bar.set_length(2 * self.settings.rounds as u64);
        for number in 0..self.settings.rounds {
            let gateway = Gateway::configured(self.upstream, self.stores, FLOOD_LIMITS).await?;
            let mut scenarios = [Scenario::QuietAlone, Scenario::QuietFlooded];
            // Alternating order, as in the other stages.
            if number % 2 == 1 {
                scenarios.reverse();
            }
            for scenario in scenarios {
                bar.set_message(scenario.label());
                self.measure_quiet(scenario, &gateway, results).await?;
                bar.inc(1);
            }
            results.record_memory(&gateway);
            gateway.close().await?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Measures the quiet tenant, with the flood or without.
    async fn measure_quiet(
        &self,
        scenario: Scenario,
        gateway: &Gateway,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let load = |workload, api_key, connections| Load {
            target: gateway.target(),
            workload,
            api_key: Some(api_key),
            connections,
            threads: self.settings.load_threads,
            length: self.settings.length(),
        };
        let flood = match scenario {
            Scenario::QuietFlooded => {
                let api_key = gateway.create_api_key("flood").await?;
                let workload = Workload::Flood(seed()?);
                Some(Run::start(&load(workload, api_key, FLOOD_CONNECTIONS))?)
            }
            _ => None,
        };
        let api_key = gateway.create_api_key("quiet").await?;
        let quiet = load(gateway.first()?, api_key, QUIET_CONNECTIONS);
        let quiet = Run::start_paced(&quiet, QUIET_PER_SECOND)?.finish().await;
        let mut add = |scenario: Scenario, connections, outcome| {
            results.measured.push(Measurement {
                stage: Stage::Flood,
                scenario,
                connections,
                outcome,
            });
        };
        add(
            scenario,
            QUIET_CONNECTIONS,
            quiet.context(scenario.label())?,
        );
        if let Some(flood) = flood {
            let flooded = flood.finish().await.context(Scenario::Flood.label())?;
            add(Scenario::Flood, FLOOD_CONNECTIONS, flooded);
        }
        Ok(())
    }

    async fn full_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let full = self.open().await?;
        full.fill(self.settings.records).await?;
        let bar = bar("beside a full store");
        for round in self.rounds(Stage::Full) {
            let empty = self.open().await?;
            let loads = self.full_loads(&empty, &full)?;
            self.measure(round, loads, &bar, results).await?;
            results.record_memory(&empty);
            empty.close().await?;
        }
        bar.finish_and_clear();
        results.record_memory(&full);
        full.close().await
    }

    fn full_loads(&self, empty: &Gateway, full: &Gateway) -> anyhow::Result<Vec<PlannedLoad>> {
        let (baseline, target) = match self.nginx {
            Some(nginx) => (Scenario::Nginx, nginx),
            None => (Scenario::Direct, self.upstream),
        };
        Ok(vec![
            PlannedLoad::new(baseline, target, Workload::PassThrough),
            PlannedLoad::through(Scenario::Replay, empty, empty.replay()),
            PlannedLoad::through(Scenario::ReplayFull, full, full.replay()),
            PlannedLoad::through(Scenario::First, empty, empty.first()?),
            PlannedLoad::through(Scenario::FirstFull, full, full.first()?),
        ])
    }

    async fn open(&self) -> anyhow::Result<Gateway> {
        match self.gateway {
            Some(target) => Gateway::given(target).await,
            None => Gateway::fresh(self.upstream, self.stores).await,
        }
    }

    fn rounds(&self, stage: Stage) -> impl Iterator<Item = Round> {
        let Settings {
            rounds,
            connections,
            ..
        } = self.settings.clone();
        (0..rounds).flat_map(move |number| {
            connections
                .clone()
                .into_iter()
                .map(move |connections| Round {
                    stage,
                    number,
                    connections,
                })
        })
    }

    async fn measure(
        &self,
        round: Round,
        mut loads: Vec<PlannedLoad>,
        bar: &ProgressBar,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let Round {
            stage,
            number,
            connections,
        } = round;
        // Alternating order: work that a scenario leaves behind slows both of its neighbours alike.
        if number % 2 == 1 {
            loads.reverse();
        }
        bar.set_length(
            (loads.len() * self.settings.rounds * self.settings.connections.len()) as u64,
        );
        for planned in loads {
            let PlannedLoad {
                scenario,
                target,
                workload,
                api_key,
                monitor,
            } = planned;
            bar.set_message(format!("{}, {connections} connections", scenario.label()));
            let (threads, length) = (self.settings.load_threads, self.settings.length());
            let load = Load {
                target,
                workload,
                api_key,
                connections,
                threads,
                length,
            };
            let delivery_run = match monitor {
                Some(monitor) => Some(monitor.begin().await?),
                None => None,
            };
            let outcome = Run::start(&load)?
                .finish()
                .await
                .context(scenario.label())?;
            let acknowledged = outcome.answers.by_status_class[2];
            let mut add = |scenario, outcome| {
                results.measured.push(Measurement {
                    stage,
                    scenario,
                    connections,
                    outcome,
                });
            };
            add(scenario, outcome);
            if let Some(delivery_run) = delivery_run {
                let scenario = Scenario::WebhookDelivered;
                bar.set_message(scenario.label());
                let delivered = delivery_run.finish(acknowledged).await;
                add(scenario, delivered.context(scenario.label())?);
            }
            bar.inc(1);
        }
        Ok(())
    }
}

impl Settings {
    fn length(&self) -> Length {
        Length::Time {
            warmup: Duration::from_secs(self.warmup_seconds),
            measured: Duration::from_secs(self.measured_seconds),
        }
    }
}

impl Results {
    fn record_memory(&mut self, gateway: &Gateway) {
        let seen = gateway.peak_memory_bytes();
        self.gateway_peak_memory_bytes = self.gateway_peak_memory_bytes.max(seen);
    }
}

fn bar(stage: &'static str) -> ProgressBar {
    let style = style("{prefix} {bar:30} {pos} of {len}, {eta} left; {msg}");
    ProgressBar::new(0).with_prefix(stage).with_style(style)
}
