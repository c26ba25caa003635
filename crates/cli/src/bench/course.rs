//! The course of a bench: which lanes are run, in which order, how often.
//!
//! A machine has moods, so lanes are only compared within a round: each round runs every lane
//! once, every other round backwards, and has a fresh gateway with an empty store. What a lane of
//! events leaves to be delivered is waited for, so that it burdens no other lane. The second
//! stage has two tenants: one asks at a modest rate, and its latencies are taken alone and while
//! the other floods. The last puts a full store beside an empty one, so that their ratio is from
//! the same minutes.
//! The yardstick stands farthest from the lanes that write, so that it is not held up by them.
//! Nothing is left out and nothing is run twice for a better figure.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;

use super::gateway::{Gateway, seed, style};
use super::load::{Length, Load, Run};
use super::script::{Pass, Script};
use super::tally::Outcome;
use super::target::Target;
use super::watch::Watch;

/// What is measured: the same payment, each time by another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Lane {
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

impl Lane {
    pub(super) fn label(self) -> &'static str {
        match self {
            Lane::Direct => "direct to the upstream",
            Lane::Nginx => "nginx, plain proxy",
            Lane::PassThrough => "onceward, no key",
            Lane::First => "onceward, first run",
            Lane::FirstApiKey => "onceward, first run, API key",
            Lane::Webhook => "onceward, webhook, acknowledged",
            Lane::WebhookDelivered => "onceward, webhook, delivered",
            Lane::Replay => "onceward, replay",
            Lane::ReplayApiKey => "onceward, replay, API key",
            Lane::Restate => "Restate, first run",
            Lane::FirstFull => "onceward, first run, full store",
            Lane::ReplayFull => "onceward, replay, full store",
            Lane::QuietAlone => "a quiet tenant, alone",
            Lane::QuietFlooded => "a quiet tenant, beside a flood",
            Lane::Flood => "the flood, served or refused",
        }
    }
}

/// What the rounds of a stage have in common. Lanes are compared only within a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// Everything on an empty store.
    Empty,
    /// An empty store and a full one side by side.
    Full,
    /// A tenant that asks now and then, beside one that asks as often as it can.
    Flood,
}

/// How often the quiet tenant asks, on how many connections.
const QUIET_PER_SECOND: u32 = 200;
const QUIET_CONNECTIONS: usize = 16;
const FLOOD_CONNECTIONS: usize = 64;
/// What either tenant may do.
const FLOOD_LIMITS: &str = "[limits]\nrequests_per_tenant = { per_second = 1000, burst = 1000 }\n\
                            in_flight_per_tenant = 64\n";

/// How often and how long.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pace {
    pub(super) connections: Vec<usize>,
    pub(super) rounds: usize,
    pub(super) warmup_seconds: u64,
    pub(super) measured_seconds: u64,
    pub(super) load_threads: usize,
    /// How many records a full store has; none leaves the last stage out.
    pub(super) records: u64,
}

/// One lane, once.
pub(super) struct Measured {
    pub(super) stage: Stage,
    pub(super) lane: Lane,
    pub(super) connections: usize,
    pub(super) outcome: Outcome,
}

/// All that a bench has seen, the rounds of a lane in their order.
#[derive(Default)]
pub(super) struct Results {
    pub(super) measured: Vec<Measured>,
    pub(super) gateway_peak_memory_bytes: Option<u64>,
}

/// Where the lanes lead.
pub(super) struct Course<'a> {
    pub(super) upstream: Target,
    pub(super) nginx: Option<Target>,
    pub(super) restate: Option<Target>,
    /// A gateway that already runs, instead of fresh ones. How full it is and whom it lets in
    /// cannot be known, so there are no further stages.
    pub(super) gateway: Option<Target>,
    pub(super) stores: &'a Path,
    pub(super) pace: Pace,
}

/// The place of a round in the course.
#[derive(Clone, Copy)]
struct Round {
    stage: Stage,
    number: usize,
    connections: usize,
}

/// A lane, and what runs on it.
struct Entry {
    lane: Lane,
    target: Target,
    script: Script,
    pass: Option<Pass>,
    /// Over what is delivered after it was acknowledged.
    watch: Option<Watch>,
}

impl Entry {
    fn new(lane: Lane, target: Target, script: Script) -> Self {
        Entry {
            lane,
            target,
            script,
            pass: None,
            watch: None,
        }
    }

    fn through(lane: Lane, gateway: &Gateway, script: Script) -> Self {
        Entry {
            pass: gateway.pass(),
            ..Entry::new(lane, gateway.target(), script)
        }
    }
}

impl Course<'_> {
    pub(super) async fn run(&self) -> anyhow::Result<Results> {
        let mut results = Results::default();
        self.empty_stage(&mut results).await?;
        if self.gateway.is_some() {
            return Ok(results);
        }
        self.flood_stage(&mut results).await?;
        if self.pace.records > 0 {
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
            let entries = self.empty_entries(&gateway, configured.as_ref()).await?;
            self.measure(round, entries, &bar, results).await?;
            for gateway in [Some(gateway), configured].into_iter().flatten() {
                results.see_memory(&gateway);
                gateway.close().await?;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn empty_entries(
        &self,
        gateway: &Gateway,
        configured: Option<&Gateway>,
    ) -> anyhow::Result<Vec<Entry>> {
        let plain = |lane, target| Entry::new(lane, target, Script::PassThrough);
        let mut entries = vec![plain(Lane::Direct, self.upstream)];
        entries.extend(self.nginx.map(|nginx| plain(Lane::Nginx, nginx)));
        entries.push(plain(Lane::PassThrough, gateway.target()));
        entries.push(Entry::through(Lane::Replay, gateway, gateway.replay()));
        entries.extend(configured.map(|own| Entry::through(Lane::ReplayApiKey, own, own.replay())));
        entries.push(Entry::through(Lane::First, gateway, gateway.first()?));
        if let Some((script, watch)) = gateway.webhook(self.upstream).await? {
            entries.push(Entry {
                watch: Some(watch),
                ..Entry::new(Lane::Webhook, gateway.target(), script)
            });
        }
        if let Some(own) = configured {
            entries.push(Entry::through(Lane::FirstApiKey, own, own.first()?));
        }
        if let Some(restate) = self.restate {
            entries.push(Entry::new(Lane::Restate, restate, Script::Restate(seed()?)));
        }
        Ok(entries)
    }

    async fn flood_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("a flood beside a quiet tenant");
        bar.set_length(2 * self.pace.rounds as u64);
        for number in 0..self.pace.rounds {
            let gateway = Gateway::configured(self.upstream, self.stores, FLOOD_LIMITS).await?;
            let mut lanes = [Lane::QuietAlone, Lane::QuietFlooded];
            // To and fro, as in the other stages.
            if number % 2 == 1 {
                lanes.reverse();
            }
            for lane in lanes {
                bar.set_message(lane.label());
                self.measure_quiet(lane, &gateway, results).await?;
                bar.inc(1);
            }
            results.see_memory(&gateway);
            gateway.close().await?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// The quiet tenant's lane, with the flood or without.
    async fn measure_quiet(
        &self,
        lane: Lane,
        gateway: &Gateway,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let load = |script, pass, connections| Load {
            target: gateway.target(),
            script,
            pass: Some(pass),
            connections,
            threads: self.pace.load_threads,
            length: self.pace.length(),
        };
        let flood = match lane {
            Lane::QuietFlooded => {
                let pass = gateway.make_pass("flood").await?;
                let script = Script::Flood(seed()?);
                Some(Run::start(&load(script, pass, FLOOD_CONNECTIONS))?)
            }
            _ => None,
        };
        let pass = gateway.make_pass("quiet").await?;
        let quiet = load(gateway.first()?, pass, QUIET_CONNECTIONS);
        let quiet = Run::start_paced(&quiet, QUIET_PER_SECOND)?.finish().await;
        let mut add = |lane: Lane, connections, outcome| {
            results.measured.push(Measured {
                stage: Stage::Flood,
                lane,
                connections,
                outcome,
            });
        };
        add(lane, QUIET_CONNECTIONS, quiet.context(lane.label())?);
        if let Some(flood) = flood {
            let flooded = flood.finish().await.context(Lane::Flood.label())?;
            add(Lane::Flood, FLOOD_CONNECTIONS, flooded);
        }
        Ok(())
    }

    async fn full_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let full = self.open().await?;
        full.fill(self.pace.records).await?;
        let bar = bar("beside a full store");
        for round in self.rounds(Stage::Full) {
            let empty = self.open().await?;
            let entries = self.full_entries(&empty, &full)?;
            self.measure(round, entries, &bar, results).await?;
            results.see_memory(&empty);
            empty.close().await?;
        }
        bar.finish_and_clear();
        results.see_memory(&full);
        full.close().await
    }

    fn full_entries(&self, empty: &Gateway, full: &Gateway) -> anyhow::Result<Vec<Entry>> {
        let (yardstick, target) = match self.nginx {
            Some(nginx) => (Lane::Nginx, nginx),
            None => (Lane::Direct, self.upstream),
        };
        Ok(vec![
            Entry::new(yardstick, target, Script::PassThrough),
            Entry::through(Lane::Replay, empty, empty.replay()),
            Entry::through(Lane::ReplayFull, full, full.replay()),
            Entry::through(Lane::First, empty, empty.first()?),
            Entry::through(Lane::FirstFull, full, full.first()?),
        ])
    }

    async fn open(&self) -> anyhow::Result<Gateway> {
        match self.gateway {
            Some(target) => Gateway::given(target).await,
            None => Gateway::fresh(self.upstream, self.stores).await,
        }
    }

    fn rounds(&self, stage: Stage) -> impl Iterator<Item = Round> {
        let Pace {
            rounds,
            connections,
            ..
        } = self.pace.clone();
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
        mut entries: Vec<Entry>,
        bar: &ProgressBar,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let Round {
            stage,
            number,
            connections,
        } = round;
        // To and fro: a lane that leaves work behind burdens its neighbours on both sides alike.
        if number % 2 == 1 {
            entries.reverse();
        }
        bar.set_length((entries.len() * self.pace.rounds * self.pace.connections.len()) as u64);
        for entry in entries {
            let Entry {
                lane,
                target,
                script,
                pass,
                watch,
            } = entry;
            bar.set_message(format!("{}, {connections} connections", lane.label()));
            let (threads, length) = (self.pace.load_threads, self.pace.length());
            let load = Load {
                target,
                script,
                pass,
                connections,
                threads,
                length,
            };
            let watching = match watch {
                Some(watch) => Some(watch.begin().await?),
                None => None,
            };
            let outcome = Run::start(&load)?.finish().await.context(lane.label())?;
            let acknowledged = outcome.answers.by_class[2];
            let mut add = |lane, outcome| {
                results.measured.push(Measured {
                    stage,
                    lane,
                    connections,
                    outcome,
                });
            };
            add(lane, outcome);
            if let Some(watching) = watching {
                let lane = Lane::WebhookDelivered;
                bar.set_message(lane.label());
                let delivered = watching.finish(acknowledged).await;
                add(lane, delivered.context(lane.label())?);
            }
            bar.inc(1);
        }
        Ok(())
    }
}

impl Pace {
    fn length(&self) -> Length {
        Length::Time {
            warmup: Duration::from_secs(self.warmup_seconds),
            measured: Duration::from_secs(self.measured_seconds),
        }
    }
}

impl Results {
    fn see_memory(&mut self, gateway: &Gateway) {
        let seen = gateway.peak_memory_bytes();
        self.gateway_peak_memory_bytes = self.gateway_peak_memory_bytes.max(seen);
    }
}

fn bar(stage: &'static str) -> ProgressBar {
    let style = style("{prefix} {bar:30} {pos} of {len}, {eta} left; {msg}");
    ProgressBar::new(0).with_prefix(stage).with_style(style)
}
