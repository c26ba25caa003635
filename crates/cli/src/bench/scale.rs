//! The stage of scale: a store with many records beside an empty one, both behind gateways.
//!
//! The full store is filled by ordinary requests. Replays are of two kinds. Those of the other stages
//! repeat a few keys, which the gateway has in memory, in an empty store as in a full one. Drawn
//! replays ask for a key of all records each time, so that nearly all are looked up in the database.
//! An empty store has nothing to draw from, so they are compared with those of a small store, whose
//! gateway was just started and has nothing in memory either.
//! Then the gateway of the full store is killed and started again, and at last short-lived records
//! expire in it and are swept while a constant rate of first runs goes on.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::time::{sleep, sleep_until};

use super::cost::Cost;
use super::gateway::{Gateway, expect_clean, seed};
use super::load::{Length, Load, Run};
use super::report::median;
use super::scenario::{Scenario, Stage};
use super::schedule::{PlannedLoad, Results, Schedule, bar};
use super::stats::LoadResult;
use super::workload::{DrawnKeys, Seed, Workload};

/// Filling is fastest with many connections, whose writes share a sync.
const FILL_CONNECTIONS: usize = 256;
/// Several times as many as the replies that a gateway has in memory, and more than are asked for in
/// a round.
const SMALL_RECORDS: u64 = 300_000;
const BAR_PAUSE: Duration = Duration::from_millis(200);
/// How long short-lived records are kept.
const SHORT_LIFE: Duration = Duration::from_secs(90);
/// Short-lived records; a gateway sweeps at most 50,000 every ten seconds.
const SHORT_LIVED: u64 = 100_000;
const SWEPT_FOR: Duration = Duration::from_secs(40);
/// The rate of first runs while records are swept, and their connections.
const BESIDE_SWEEP_PER_SECOND: f64 = 1000.0;
const BESIDE_SWEEP_CONNECTIONS: usize = 64;
const CONNECTIONS: usize = 64;
const LISTS: usize = 20;
const LIST_LIMIT: usize = 50;
const SHORT_LIVED_CLASS: &str = "[classes.short]\nretention = \"90s\"\nremember = \"90s\"\n\
     [[routes]]\nendpoint = \"short.create\"\nmethod = \"POST\"\npath = \"/short\"\n\
     upstream = \"sample\"\npolicy = \"REQUIRED_A\"\nclass = \"short\"\n";

/// What a full store is like, beside what the scenarios of this stage show.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scale {
    pub(super) records: u64,
    pub(super) fill_per_second: f64,
    pub(super) fill_cost: Option<Cost>,
    /// Resident memory when the full store is idle, after the fill.
    pub(super) memory_bytes: Option<u64>,
    /// The highest resident memory over the whole stage.
    pub(super) peak_memory_bytes: Option<u64>,
    pub(super) disk_bytes_per_operation: f64,
    /// From the start of the process until it is ready, after a kill.
    pub(super) reopen_ms: f64,
    /// One page of the newest operations.
    pub(super) list_empty_ms: f64,
    pub(super) list_full_ms: f64,
    pub(super) sweep: Sweep,
}

/// Expired records are swept, beside first runs at a constant rate.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sweep {
    pub(super) swept_per_hour: f64,
    /// The p99 of the first runs before anything expired, and during the sweep.
    pub(super) p99_before_ms: Option<f64>,
    pub(super) p99_during_ms: Option<f64>,
}

/// A gateway whose store has, or will have, the records of the first keys of a seed.
struct Filled {
    gateway: Gateway,
    seed: Seed,
    records: u64,
}

impl Filled {
    fn empty(gateway: Gateway, records: u64) -> anyhow::Result<Self> {
        Ok(Filled {
            gateway,
            seed: seed()?,
            records,
        })
    }
}

impl Schedule {
    pub(super) async fn scale_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let records = self.settings.records;
        let mut full = Filled::empty(self.with_short_lived_class().await?, records)?;
        let before = full.gateway.server().map(|server| server.usage());
        let started = Instant::now();
        self.fill_all(&full).await?;
        let fill_per_second = records as f64 / started.elapsed().as_secs_f64();
        let server = full.gateway.server().context("a gateway is a process")?;
        let settled = results.settle(&server, "filling the store").await;
        let fill_cost = before.and_then(|before| settled.since(&before, records));
        let stored = full.gateway.gauge("onceward_stored_operations").await?;
        let disk_bytes_per_operation = full.gateway.disk_bytes()? as f64 / stored.max(1) as f64;
        let memory_bytes = full.gateway.memory().map(|memory| memory.now_bytes);

        let small = self.with_short_lived_class().await?;
        let mut small = Filled::empty(small, records.min(SMALL_RECORDS))?;
        self.fill_all(&small).await?;
        let (list_empty_ms, list_full_ms) = self
            .measure_beside_empty(&mut small, &full, results)
            .await?;
        small.gateway.close().await?;

        results.record_memory(&full.gateway);
        let peak = |gateway: &Gateway| gateway.memory().map(|memory| memory.peak_bytes);
        let peak_before = peak(&full.gateway);
        let reopen_ms = milliseconds(full.gateway.reopen(&self.gateways).await?);
        let sweep = self.sweep(&full.gateway).await?;
        let peak_memory_bytes = peak_before.max(peak(&full.gateway));
        full.gateway.close().await?;
        results.scale = Some(Scale {
            records,
            fill_per_second,
            fill_cost,
            memory_bytes,
            peak_memory_bytes,
            disk_bytes_per_operation,
            reopen_ms,
            list_empty_ms,
            list_full_ms,
            sweep,
        });
        Ok(())
    }

    async fn with_short_lived_class(&self) -> anyhow::Result<Gateway> {
        Gateway::configured(&self.gateways, SHORT_LIVED_CLASS).await
    }

    async fn fill_all(&self, store: &Filled) -> anyhow::Result<()> {
        let workload = Workload::First(store.seed);
        self.fill(&store.gateway, workload, store.records).await
    }

    /// Records this many operations by ordinary requests, with a progress bar.
    async fn fill(
        &self,
        gateway: &Gateway,
        workload: Workload,
        records: u64,
    ) -> anyhow::Result<()> {
        let style = "filling the store {bar:30} {human_pos} of {human_len} records, {eta} left";
        let style = ProgressStyle::with_template(style);
        let style = style.expect("the template is a literal that parses");
        let bar = ProgressBar::new(records).with_style(style);
        let run = Run::start(&Load {
            length: Length::Count(records),
            ..self.load(gateway, workload, FILL_CONNECTIONS)
        })?;
        let begun = run.begun();
        let mut finish = pin!(run.finish());
        let outcome = loop {
            tokio::select! {
                outcome = &mut finish => break outcome?,
                () = sleep(BAR_PAUSE) => bar.set_position(begun()),
            }
        };
        bar.finish_and_clear();
        expect_clean("filling the store", &outcome.faults)
    }

    /// Measures first runs and replays in turns, and returns the times of a list in milliseconds, of
    /// an empty and of the full store.
    async fn measure_beside_empty(
        &self,
        small: &mut Filled,
        full: &Filled,
        results: &mut Results,
    ) -> anyhow::Result<(f64, f64)> {
        let bar = bar("beside a full store");
        let mut lists = [Vec::new(), Vec::new()];
        for number in 0..self.settings.rounds {
            let empty = self.with_short_lived_class().await?;
            // With a memory that has nothing of the small store.
            small.gateway.reopen(&self.gateways).await?;
            let peers = &self.peers;
            let (baseline, peer) = match &peers.nginx {
                Some(nginx) => (Scenario::Nginx, nginx),
                None => (Scenario::Direct, &peers.upstream),
            };
            let mut loads = vec![
                self.to_peer(baseline, peer, Workload::PassThrough),
                self.through(Scenario::Replay, &empty, empty.replay()),
                self.through(Scenario::ReplayFull, &full.gateway, full.gateway.replay()),
                self.drawn(Scenario::ReplayDrawnSmall, small)?,
                self.drawn(Scenario::ReplayDrawnFull, full)?,
                self.through(Scenario::First, &empty, empty.first()?),
                self.through(Scenario::FirstFull, &full.gateway, full.gateway.first()?),
            ];
            // Alternating order, as in the other stages.
            if number % 2 == 1 {
                loads.reverse();
            }
            for load in loads {
                self.measure(Stage::Scale, load, CONNECTIONS, results)
                    .await?;
            }
            for _ in 0..LISTS {
                for (gateway, times) in [&empty, &full.gateway].into_iter().zip(&mut lists) {
                    times.push(milliseconds(gateway.list(LIST_LIMIT).await?));
                }
            }
            empty.close().await?;
        }
        bar.finish_and_clear();
        let [empty, full] = lists.map(|times| median(times).unwrap_or_default());
        Ok((empty, full))
    }

    fn drawn(&self, scenario: Scenario, store: &Filled) -> anyhow::Result<PlannedLoad> {
        let keys = DrawnKeys {
            of: store.seed,
            count: store.records,
            draw: seed()?,
        };
        Ok(self.through(scenario, &store.gateway, Workload::ReplayDrawn(keys)))
    }

    async fn sweep(&self, gateway: &Gateway) -> anyhow::Result<Sweep> {
        let begun = Instant::now();
        let short_lived = Workload::ShortLived(seed()?);
        self.fill(gateway, short_lived, SHORT_LIVED).await?;
        let before = self
            .beside_sweep(gateway, self.settings.measured_seconds)
            .await?;
        ensure!(
            begun.elapsed() < SHORT_LIFE,
            "records expire before there are enough of them"
        );
        // From then on they expire, in the order in which they were recorded.
        sleep_until((begun + SHORT_LIFE).into()).await;
        let stored_before = gateway.gauge("onceward_stored_operations").await?;
        let during = self.beside_sweep(gateway, SWEPT_FOR.as_secs()).await?;
        let stored_after = gateway.gauge("onceward_stored_operations").await?;
        let swept = (stored_before + during.answered).saturating_sub(stored_after);
        let p99 = |result: LoadResult| result.latency.map(|latency| latency.p99_us as f64 / 1000.0);
        Ok(Sweep {
            swept_per_hour: swept as f64 / SWEPT_FOR.as_secs_f64() * 3600.0,
            p99_before_ms: p99(before),
            p99_during_ms: p99(during),
        })
    }

    async fn beside_sweep(&self, gateway: &Gateway, seconds: u64) -> anyhow::Result<LoadResult> {
        let load = Load {
            length: Length::Time {
                warmup: Duration::ZERO,
                measured: Duration::from_secs(seconds),
            },
            ..self.load(gateway, gateway.first()?, BESIDE_SWEEP_CONNECTIONS)
        };
        let run = Run::start_paced(&load, BESIDE_SWEEP_PER_SECOND)?;
        let result = run.finish().await?;
        expect_clean("first runs beside a sweep", &result.faults)?;
        Ok(result)
    }

    fn load(&self, gateway: &Gateway, workload: Workload, connections: usize) -> Load {
        Load {
            target: gateway.target(),
            workload,
            api_key: gateway.api_key(),
            connections,
            threads: self.settings.load_threads,
            length: self.settings.length(),
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
