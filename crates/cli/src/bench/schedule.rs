//! The schedule of a benchmark: which scenarios run, in which order, how often.
//!
//! The speed of a machine varies, so scenarios are compared only within a round. Each round runs
//! every scenario once, every second round in reverse order, with new gateways and an empty store.
//! After each scenario the schedule waits until its server is idle: what a server does behind counts
//! as its processor time and does not slow the next scenario.
//! The baseline has the greatest distance from the scenarios that write to disk, so that they do
//! not slow it. No result is left out, and no scenario is repeated for a better figure.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::cost::{Cost, Server, Usage};
use super::deliveries::DeliveryMonitor;
use super::gateway::{Gateway, GatewayPlan, StoreChoice, seed};
use super::load::{Length, Load, Run};
use super::loopback::LoopbackOrigin;
use super::profile;
use super::scale::Scale;
use super::scenario::{Scenario, Stage};
use super::stats::LoadResult;
use super::tools::{Generator, Tools};
use super::traffic::{Traffic, TrafficPerRequest};
use super::upstream_count::{self, UpstreamCount};
use super::workload::{ApiKey, Workload};

/// The rate and the connections of the quiet tenant.
const QUIET_PER_SECOND: f64 = 200.0;
pub(super) const QUIET_CONNECTIONS: usize = 16;
/// A refusal is delayed by 50 to 250 ms, so that a closed loop sends about seven requests a second
/// over each connection: with these, seven times what its tenant may send.
const FLOOD_CONNECTIONS: usize = 1024;
/// The limits of each tenant, the same for the flood and the quiet one.
const FLOOD_LIMITS: &str = "[limits]\nrequests_per_tenant = { per_second = 1000, burst = 1000 }\n\
                            in_flight_per_tenant = 64\n";

/// How much is measured, and for how long.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) stages: Vec<Stage>,
    /// The scenarios of the first stage; none means all.
    pub(super) only: Vec<Scenario>,
    pub(super) connections: Vec<usize>,
    pub(super) rounds: usize,
    pub(super) warmup_seconds: u64,
    pub(super) measured_seconds: u64,
    pub(super) load_threads: usize,
    /// Number of records in the full store.
    pub(super) records: u64,
}

/// One scenario in one round.
pub(super) struct Measurement {
    pub(super) stage: Stage,
    pub(super) scenario: Scenario,
    pub(super) connections: usize,
    /// The part of the highest rate, for latencies.
    pub(super) load_percent: Option<u32>,
    pub(super) outcome: LoadResult,
    /// Processor time of the server that answers.
    pub(super) cost: Option<Cost>,
    /// What the server of a shared store adds.
    pub(super) store: Option<StoreUse>,
}

impl Measurement {
    pub(super) fn new(
        stage: Stage,
        scenario: Scenario,
        connections: usize,
        outcome: LoadResult,
    ) -> Self {
        Measurement {
            stage,
            scenario,
            connections,
            load_percent: None,
            outcome,
            cost: None,
            store: None,
        }
    }
}

/// The use of a shared store's server, per request.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreUse {
    pub(super) cost: Option<Cost>,
    pub(super) traffic: Option<TrafficPerRequest>,
}

/// All measurements, those of a scenario in the order of the rounds.
#[derive(Default)]
pub(super) struct Results {
    pub(super) measured: Vec<Measurement>,
    pub(super) gateway_peak_memory_bytes: Option<u64>,
    /// The size of the batches whose syncs were measured.
    pub(super) sync_bytes: Option<u64>,
    /// How much the shared stores keep for each operation.
    pub(super) stored: Vec<Stored>,
    pub(super) scale: Option<Scale>,
    /// The servers that were not idle when the wait for them ended.
    pub(super) still_busy: Vec<String>,
}

/// What a store keeps for each operation, as the gateway reports it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Stored {
    /// The scenario that filled it.
    pub(super) scenario: Scenario,
    pub(super) operations: u64,
    pub(super) bytes_per_operation: f64,
}

/// A server that takes part.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) origin: LoopbackOrigin,
    server: Option<Server>,
}

impl Peer {
    pub(super) fn at(origin: LoopbackOrigin) -> Self {
        Peer {
            origin,
            server: Server::listening_on(origin.addr()),
        }
    }
}

/// The server of a shared store.
#[derive(Clone, Debug)]
pub(super) struct StoreServer {
    url: String,
    /// `None` if the URL does not name one address.
    addr: Option<SocketAddr>,
}

impl StoreServer {
    pub(super) fn at(url: &str) -> Self {
        let uri = url.parse::<hyper::Uri>().ok();
        let addr = uri.and_then(|uri| {
            let host = uri.host()?.parse().ok()?;
            Some(SocketAddr::new(host, uri.port_u16()?))
        });
        StoreServer {
            url: url.to_owned(),
            addr,
        }
    }
}

/// The servers that take part beside the gateways.
pub(super) struct Peers {
    pub(super) upstream: Peer,
    pub(super) nginx: Option<Peer>,
    pub(super) nginx_http2: Option<Peer>,
    pub(super) floor_proxy: Option<Peer>,
    pub(super) floor_server: Option<Peer>,
    pub(super) restate: Option<Peer>,
    pub(super) postgres: Option<StoreServer>,
    pub(super) redis: Option<StoreServer>,
}

pub(super) struct Schedule {
    pub(super) peers: Peers,
    pub(super) upstream_count: Arc<UpstreamCount>,
    pub(super) gateways: GatewayPlan,
    pub(super) settings: Settings,
    pub(super) tools: Tools,
    /// The directory for profiles of the gateways, if they are recorded.
    pub(super) profile: Option<PathBuf>,
}

/// A scenario with its load.
pub(super) struct PlannedLoad {
    scenario: Scenario,
    target: LoopbackOrigin,
    workload: Workload,
    api_key: Option<ApiKey>,
    generator: Generator,
    /// The server whose time is counted.
    server: Option<Server>,
    store: Option<StoreServer>,
    /// Counts the deliveries that follow the acknowledgements.
    monitor: Option<DeliveryMonitor>,
}

/// The gateways of a round, as far as the chosen scenarios need them.
struct Gateways {
    plain: Option<Gateway>,
    with_api_keys: Option<Gateway>,
    redis: Option<Gateway>,
    postgres: Option<Gateway>,
}

impl Schedule {
    pub(super) async fn run(&self) -> anyhow::Result<Results> {
        let mut results = Results::default();
        for stage in &self.settings.stages {
            match stage {
                Stage::Rates => self.rate_stage(&mut results).await?,
                Stage::Latencies => self.latency_stage(&mut results).await?,
                Stage::Flood => self.flood_stage(&mut results).await?,
                Stage::Scale => self.scale_stage(&mut results).await?,
            }
        }
        Ok(results)
    }

    async fn rate_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("rates");
        let series = &self.settings.connections;
        for number in 0..self.settings.rounds {
            for (at, &connections) in series.iter().enumerate() {
                let gateways = self.open_gateways().await?;
                let mut loads = self.rate_loads(&gateways).await?;
                loads.retain(|load| self.takes_part(load.scenario, at));
                // Alternating order: work that a scenario leaves behind slows both of its neighbours
                // alike.
                if number % 2 == 1 {
                    loads.reverse();
                }
                for load in loads {
                    bar.set_message(format!(
                        "round {} of {}, {connections} connections: {}",
                        number + 1,
                        self.settings.rounds,
                        load.scenario.label()
                    ));
                    self.measure(Stage::Rates, load, connections, results)
                        .await?;
                    bar.inc(1);
                }
                results.stored = gateways.stored().await?;
                for gateway in gateways.into_each() {
                    results.record_memory(&gateway);
                    gateway.close().await?;
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Whether a scenario is measured in the series with this index.
    fn takes_part(&self, scenario: Scenario, series: usize) -> bool {
        let basic = series == 0 || scenario.is_basic();
        basic && self.is_chosen(scenario)
    }

    /// The baselines are always chosen.
    fn is_chosen(&self, scenario: Scenario) -> bool {
        let only = &self.settings.only;
        only.is_empty()
            || only.contains(&scenario)
            || matches!(scenario, Scenario::Direct | Scenario::Nginx)
    }

    async fn open_gateways(&self) -> anyhow::Result<Gateways> {
        use Scenario::{
            First, FirstApiKey, PassThrough, PassThroughHttp2, PostgresFirst, PostgresReplay,
            RedisFirst, RedisReplay, Replay, ReplayApiKey, ReplayHttp2, Webhook,
        };
        let any = |scenarios: &[Scenario]| scenarios.iter().any(|&one| self.is_chosen(one));
        let plain = [
            PassThrough,
            Replay,
            First,
            Webhook,
            PassThroughHttp2,
            ReplayHttp2,
        ];
        let plan = &self.gateways;
        let on = async |store: Option<&StoreServer>, scenarios: &[Scenario]| match store {
            Some(store) if any(scenarios) => {
                let store = StoreChoice::Shared(&store.url);
                Gateway::fresh(plan, store).await.map(Some)
            }
            _ => Ok(None),
        };
        Ok(Gateways {
            plain: match any(&plain) {
                true => Some(self.fresh().await?),
                false => None,
            },
            with_api_keys: match any(&[ReplayApiKey, FirstApiKey]) {
                true => Some(Gateway::configured(plan, "").await?),
                false => None,
            },
            redis: on(self.peers.redis.as_ref(), &[RedisReplay, RedisFirst]).await?,
            postgres: on(
                self.peers.postgres.as_ref(),
                &[PostgresReplay, PostgresFirst],
            )
            .await?,
        })
    }

    /// A new gateway with an empty embedded store.
    pub(super) async fn fresh(&self) -> anyhow::Result<Gateway> {
        Gateway::fresh(&self.gateways, StoreChoice::Embedded).await
    }

    async fn rate_loads(&self, gateways: &Gateways) -> anyhow::Result<Vec<PlannedLoad>> {
        let peers = &self.peers;
        let mut loads = Vec::new();
        for (scenario, peer) in [
            (Scenario::Direct, Some(&peers.upstream)),
            (Scenario::Nginx, peers.nginx.as_ref()),
            (Scenario::FloorProxy, peers.floor_proxy.as_ref()),
            (Scenario::FloorServer, peers.floor_server.as_ref()),
        ] {
            loads.extend(peer.map(|peer| self.to_peer(scenario, peer, Workload::PassThrough)));
        }
        self.add_http2_loads(gateways, &mut loads);
        if let Some(gateway) = &gateways.plain {
            let through = |scenario, workload| self.through(scenario, gateway, workload);
            loads.push(through(Scenario::PassThrough, Workload::PassThrough));
            loads.push(through(Scenario::Replay, gateway.replay()));
        }
        let on_stores = [
            (
                &gateways.with_api_keys,
                None,
                Scenario::ReplayApiKey,
                Scenario::FirstApiKey,
            ),
            (
                &gateways.redis,
                peers.redis.as_ref(),
                Scenario::RedisReplay,
                Scenario::RedisFirst,
            ),
            (
                &gateways.postgres,
                peers.postgres.as_ref(),
                Scenario::PostgresReplay,
                Scenario::PostgresFirst,
            ),
        ];
        for (gateway, store, replay, _) in &on_stores {
            loads.extend(gateway.as_ref().map(|gateway| PlannedLoad {
                store: store.cloned(),
                ..self.through(*replay, gateway, gateway.replay())
            }));
        }
        if let Some(gateway) = &gateways.plain {
            loads.push(self.through(Scenario::First, gateway, gateway.first()?));
            let (workload, monitor) = gateway.webhook(self.upstream_count.clone()).await?;
            loads.push(PlannedLoad {
                monitor: Some(monitor),
                ..self.through(Scenario::Webhook, gateway, workload)
            });
        }
        for (gateway, store, _, first) in on_stores {
            if let Some(gateway) = gateway {
                loads.push(PlannedLoad {
                    store: store.cloned(),
                    ..self.through(first, gateway, gateway.first()?)
                });
            }
        }
        if let Some(peer) = &peers.restate {
            loads.push(self.to_peer(Scenario::Restate, peer, Workload::Restate(seed()?)));
        }
        Ok(loads)
    }

    fn add_http2_loads(&self, gateways: &Gateways, loads: &mut Vec<PlannedLoad>) {
        if !self.tools.h2load {
            return;
        }
        let by_h2load = |load| PlannedLoad {
            generator: Generator::H2load,
            ..load
        };
        loads.extend(self.peers.nginx_http2.as_ref().map(|peer| {
            by_h2load(self.to_peer(Scenario::NginxHttp2, peer, Workload::PassThrough))
        }));
        if let Some(gateway) = &gateways.plain {
            let pass = Workload::PassThrough;
            loads.push(by_h2load(self.through(
                Scenario::PassThroughHttp2,
                gateway,
                pass,
            )));
            let replay = gateway.replay();
            loads.push(by_h2load(self.through(
                Scenario::ReplayHttp2,
                gateway,
                replay,
            )));
        }
    }

    pub(super) fn to_peer(
        &self,
        scenario: Scenario,
        peer: &Peer,
        workload: Workload,
    ) -> PlannedLoad {
        PlannedLoad {
            scenario,
            target: peer.origin,
            workload,
            api_key: None,
            generator: self.tools.generator,
            server: peer.server.clone(),
            store: None,
            monitor: None,
        }
    }

    pub(super) fn through(
        &self,
        scenario: Scenario,
        gateway: &Gateway,
        workload: Workload,
    ) -> PlannedLoad {
        PlannedLoad {
            scenario,
            target: gateway.target(),
            workload,
            api_key: gateway.api_key(),
            generator: self.tools.generator,
            server: gateway.server(),
            store: None,
            monitor: None,
        }
    }

    /// Measures one scenario once.
    pub(super) async fn measure(
        &self,
        stage: Stage,
        planned: PlannedLoad,
        connections: usize,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let (scenario, generator) = (planned.scenario, planned.generator);
        let unanswered = Tools::unanswered_max(generator, connections);
        let delivery_run = match planned.monitor {
            Some(monitor) => Some(monitor.begin().await?),
            None => None,
        };
        let arrived_before = self.upstream_count.read().await?;
        let store_watch = StoreWatch::begin(planned.store.as_ref()).await;
        let before = planned.server.as_ref().map(Server::usage);
        let load = Load {
            target: planned.target,
            workload: planned.workload,
            api_key: planned.api_key,
            connections,
            threads: self.settings.load_threads,
            length: self.settings.length(),
        };
        let recording = match (&self.profile, &planned.server) {
            (Some(directory), Some(server)) if !is_peer(scenario) => Some(profile::record(
                directory,
                &scenario.name(),
                server,
                load.length,
            )?),
            _ => None,
        };
        let outcome = self.tools.run(generator, &load).await;
        let mut outcome = outcome.with_context(|| scenario.label())?;
        if let Some(recording) = recording {
            recording.finish().await?;
        }
        let delivered = match delivery_run {
            Some(run) => Some(run.finish(outcome.answered, unanswered).await?),
            None => None,
        };
        let settled = match &planned.server {
            Some(server) => Some(results.settle(server, scenario.label()).await),
            None => None,
        };
        if delivered.is_none() && reaches_upstream(scenario) {
            let arrived = self.upstream_count.read().await? - arrived_before;
            let answered = outcome.answered;
            let faults = upstream_count::check(&load.workload, answered, arrived, unanswered);
            outcome.faults.add(faults);
        }
        let answered = outcome.answered;
        let cost = settled
            .zip(before)
            .and_then(|(after, before)| after.since(&before, answered));
        let store = store_watch.finish(answered, scenario, results).await;
        results.measured.push(Measurement {
            cost,
            store,
            ..Measurement::new(
                stage,
                scenario,
                match generator {
                    Generator::H2load => 1,
                    _ => connections,
                },
                outcome,
            )
        });
        results.measured.extend(delivered.map(|outcome| {
            Measurement::new(stage, Scenario::WebhookDelivered, connections, outcome)
        }));
        Ok(())
    }

    async fn flood_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("a flood beside a quiet tenant");
        for number in 0..self.settings.rounds {
            let gateway = Gateway::configured(&self.gateways, FLOOD_LIMITS).await?;
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
        let api_key = gateway.create_api_key("quiet").await?;
        let quiet = load(gateway.first()?, api_key, QUIET_CONNECTIONS);
        let quiet = async { Run::start_paced(&quiet, QUIET_PER_SECOND)?.finish().await };
        let mut add = |scenario: Scenario, connections, outcome| {
            let measured = Measurement::new(Stage::Flood, scenario, connections, outcome);
            results.measured.push(measured);
        };
        if scenario == Scenario::QuietFlooded {
            let api_key = gateway.create_api_key("flood").await?;
            let flood = load(Workload::Flood(seed()?), api_key, FLOOD_CONNECTIONS);
            // By the own generator: wrk warms up in a run of its own, so that its flood
            // would begin again, with new connections, when the measurement begins.
            let flood = async { Run::start(&flood)?.finish().await };
            let (quiet, flood) = tokio::join!(quiet, flood);
            add(
                scenario,
                QUIET_CONNECTIONS,
                quiet.context("beside a flood")?,
            );
            add(
                Scenario::Flood,
                FLOOD_CONNECTIONS,
                flood.context("a flood")?,
            );
        } else {
            add(scenario, QUIET_CONNECTIONS, quiet.await.context("alone")?);
        }
        Ok(())
    }
}

impl Gateways {
    async fn stored(&self) -> anyhow::Result<Vec<Stored>> {
        let mut stored = Vec::new();
        for (scenario, gateway) in [
            (Scenario::RedisFirst, &self.redis),
            (Scenario::PostgresFirst, &self.postgres),
        ] {
            if let Some(gateway) = gateway {
                let operations = gateway.gauge("onceward_stored_operations").await?;
                let bytes = gateway.gauge("onceward_stored_bytes").await?;
                stored.push(Stored {
                    scenario,
                    operations,
                    bytes_per_operation: bytes as f64 / operations.max(1) as f64,
                });
            }
        }
        Ok(stored)
    }

    fn into_each(self) -> impl Iterator<Item = Gateway> {
        let Gateways {
            plain,
            with_api_keys,
            redis,
            postgres,
        } = self;
        [plain, with_api_keys, redis, postgres]
            .into_iter()
            .flatten()
    }
}

/// Counts what the server of a shared store does during a load.
struct StoreWatch {
    watched: Option<(SocketAddr, Option<Traffic>)>,
    server: Option<(Server, Usage)>,
}

impl StoreWatch {
    async fn begin(store: Option<&StoreServer>) -> Self {
        let addr = store.and_then(|store| store.addr);
        let server = addr.and_then(Server::listening_on);
        StoreWatch {
            watched: match addr {
                Some(addr) => Some((addr, Traffic::to_port(addr.port()).await)),
                None => None,
            },
            server: server.map(|server| {
                let usage = server.usage();
                (server, usage)
            }),
        }
    }

    async fn finish(
        self,
        requests: u64,
        scenario: Scenario,
        results: &mut Results,
    ) -> Option<StoreUse> {
        let (addr, before) = self.watched?;
        let after = Traffic::to_port(addr.port()).await;
        let traffic = after.zip(before);
        let cost = match self.server {
            Some((server, before)) => {
                let name = format!("{}: the store's server", scenario.label());
                let usage = results.settle(&server, &name).await;
                usage.since(&before, requests)
            }
            None => None,
        };
        Some(StoreUse {
            cost,
            traffic: traffic.map(|(after, before)| after.since(before, requests)),
        })
    }
}

/// Whether the server of a scenario is not a gateway.
fn is_peer(scenario: Scenario) -> bool {
    use Scenario::{Direct, FloorProxy, FloorServer, Nginx, NginxHttp2, Restate};
    matches!(
        scenario,
        Direct | Nginx | NginxHttp2 | FloorProxy | FloorServer | Restate
    )
}

/// Whether requests of a scenario can be counted at the upstream.
fn reaches_upstream(scenario: Scenario) -> bool {
    !matches!(scenario, Scenario::FloorServer | Scenario::Restate)
}

impl Settings {
    pub(super) fn length(&self) -> Length {
        Length::Time {
            warmup: Duration::from_secs(self.warmup_seconds),
            measured: Duration::from_secs(self.measured_seconds),
        }
    }
}

impl Results {
    /// Waits until a server is idle, and returns the time used by then. One that stays busy is
    /// reported by this name.
    pub(super) async fn settle(&mut self, server: &Server, name: &str) -> Usage {
        let settled = server.settle().await;
        if !settled.is_idle {
            self.still_busy.push(name.to_owned());
        }
        settled.usage
    }

    pub(super) fn record_memory(&mut self, gateway: &Gateway) {
        let seen = gateway.memory().map(|memory| memory.peak_bytes);
        self.gateway_peak_memory_bytes = self.gateway_peak_memory_bytes.max(seen);
    }
}

/// The progress of a stage, on a terminal.
pub(super) fn bar(stage: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix}: {spinner} {elapsed} {msg}")
        .expect("the template is a literal that parses");
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_prefix(stage).with_style(style)
}
