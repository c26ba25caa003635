//! The course of a bench: which lanes are run, in which order, how often.
//!
//! A machine has moods, so lanes are only compared within a round: each round runs every lane
//! once, every other round backwards, and has a fresh gateway with an empty store. The second
//! stage puts a full store beside an empty one, so that their ratio is from the same minutes.
//! The yardstick stands farthest from the lanes that write, so that it is not held up by them.
//! Nothing is left out and nothing is run twice for a better figure.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;

use super::gateway::{Gateway, seed, style};
use super::load::{Length, Load, Run};
use super::script::Script;
use super::tally::Outcome;
use super::target::Target;

/// What is measured: the same payment, each time by another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Lane {
    Direct,
    Nginx,
    PassThrough,
    First,
    Replay,
    Restate,
    FirstFull,
    ReplayFull,
}

impl Lane {
    pub(super) fn label(self) -> &'static str {
        match self {
            Lane::Direct => "direct to the upstream",
            Lane::Nginx => "nginx, plain proxy",
            Lane::PassThrough => "onceward, no key",
            Lane::First => "onceward, first run",
            Lane::Replay => "onceward, replay",
            Lane::Restate => "Restate, first run",
            Lane::FirstFull => "onceward, first run, full store",
            Lane::ReplayFull => "onceward, replay, full store",
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
}

/// How often and how long.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pace {
    pub(super) connections: Vec<usize>,
    pub(super) rounds: usize,
    pub(super) warmup_seconds: u64,
    pub(super) measured_seconds: u64,
    pub(super) load_threads: usize,
    /// How many records a full store has; none leaves the second stage out.
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
    /// A gateway that already runs, instead of fresh ones. How full it is cannot be known, so
    /// there is no second stage.
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

type Entry = (Lane, Target, Script);

impl Course<'_> {
    pub(super) async fn run(&self) -> anyhow::Result<Results> {
        let mut results = Results::default();
        self.empty_stage(&mut results).await?;
        if self.pace.records > 0 && self.gateway.is_none() {
            self.full_stage(&mut results).await?;
        }
        Ok(results)
    }

    async fn empty_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("on an empty store");
        for round in self.rounds(Stage::Empty) {
            let gateway = self.open().await?;
            let entries = self.empty_entries(&gateway)?;
            self.measure(round, entries, &bar, results).await?;
            results.see_memory(&gateway);
            gateway.close().await?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn empty_entries(&self, gateway: &Gateway) -> anyhow::Result<Vec<Entry>> {
        let mut entries = vec![(Lane::Direct, self.upstream, Script::PassThrough)];
        entries.extend(
            self.nginx
                .map(|nginx| (Lane::Nginx, nginx, Script::PassThrough)),
        );
        entries.push((Lane::PassThrough, gateway.target(), Script::PassThrough));
        entries.push((Lane::Replay, gateway.target(), gateway.replay()));
        entries.push((Lane::First, gateway.target(), gateway.first()?));
        if let Some(restate) = self.restate {
            entries.push((Lane::Restate, restate, Script::Restate(seed()?)));
        }
        Ok(entries)
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
        let yardstick = match self.nginx {
            Some(nginx) => (Lane::Nginx, nginx, Script::PassThrough),
            None => (Lane::Direct, self.upstream, Script::PassThrough),
        };
        Ok(vec![
            yardstick,
            (Lane::Replay, empty.target(), empty.replay()),
            (Lane::ReplayFull, full.target(), full.replay()),
            (Lane::First, empty.target(), empty.first()?),
            (Lane::FirstFull, full.target(), full.first()?),
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
        for (lane, target, script) in entries {
            bar.set_message(format!("{}, {connections} connections", lane.label()));
            let (threads, length) = (self.pace.load_threads, self.pace.length());
            let load = Load {
                target,
                script,
                connections,
                threads,
                length,
            };
            let outcome = Run::start(load)?.finish().await.context(lane.label())?;
            results.measured.push(Measured {
                stage,
                lane,
                connections,
                outcome,
            });
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
