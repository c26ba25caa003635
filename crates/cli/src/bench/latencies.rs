//! The stage of latencies: an open loop at parts of the highest rate.
//!
//! At the highest rate a latency is only the number of connections over the rate. At a constant rate
//! below it, it tells how long a request takes. The same rates are parts of each scenario's own
//! highest rate, as the first stage measured it.
//! Beside the first runs, syncs of the disk are measured: a durable answer cannot be faster.

use anyhow::Context;

use super::gateway::Gateway;
use super::load::{Load, Run};
use super::loopback::LoopbackOrigin;
use super::report::median;
use super::scenario::{Scenario, Stage};
use super::schedule::{Measurement, Results, Schedule, bar};
use super::sync_probe::{self, SyncProbe};
use super::workload::{ApiKey, Workload};

/// The parts of the highest rate.
pub(super) const LOAD_PERCENTS: [u32; 3] = [25, 50, 75];
/// The connections of the open loop, and those at which the highest rate was measured.
pub(super) const CONNECTIONS: usize = 64;

impl Schedule {
    pub(super) async fn latency_stage(&self, results: &mut Results) -> anyhow::Result<()> {
        let bar = bar("latencies");
        for number in 0..self.settings.rounds {
            let gateway = self.fresh().await?;
            let mut scenarios = vec![Scenario::Replay, Scenario::First];
            scenarios.extend(self.peers.nginx.as_ref().map(|_| Scenario::Nginx));
            // Alternating order, as in the other stages.
            if number % 2 == 1 {
                scenarios.reverse();
            }
            for scenario in scenarios {
                let highest = self.highest_rate(scenario, &gateway, results).await?;
                for percent in LOAD_PERCENTS {
                    bar.set_message(format!(
                        "round {} of {}: {} at {percent} %",
                        number + 1,
                        self.settings.rounds,
                        scenario.label()
                    ));
                    let per_second = highest * f64::from(percent) / 100.0;
                    self.measure_latency(scenario, &gateway, percent, per_second, results)
                        .await?;
                }
            }
            results.record_memory(&gateway);
            gateway.close().await?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// The median of the rates that were measured before. Without any, it is measured now.
    async fn highest_rate(
        &self,
        scenario: Scenario,
        gateway: &Gateway,
        results: &mut Results,
    ) -> anyhow::Result<f64> {
        let measured = |results: &Results| {
            let rates = results.measured.iter().filter(|one| {
                let same = (one.scenario, one.connections) == (scenario, CONNECTIONS);
                same && one.stage == Stage::Rates
            });
            median(rates.map(|one| one.outcome.rate).collect())
        };
        if measured(results).is_none() {
            let load = match (scenario, &self.peers.nginx) {
                (Scenario::Nginx, Some(nginx)) => {
                    self.to_peer(scenario, nginx, Workload::PassThrough)
                }
                (Scenario::Replay, _) => self.through(scenario, gateway, gateway.replay()),
                _ => self.through(scenario, gateway, gateway.first()?),
            };
            self.measure(Stage::Rates, load, CONNECTIONS, results)
                .await?;
        }
        measured(results).context("a rate was measured")
    }

    async fn measure_latency(
        &self,
        scenario: Scenario,
        gateway: &Gateway,
        percent: u32,
        per_second: f64,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let (target, workload) = self.latency_load(scenario, gateway)?;
        let load = Load {
            target,
            workload,
            api_key: None::<ApiKey>,
            connections: CONNECTIONS,
            threads: 1,
            length: self.settings.length(),
        };
        let probe = match scenario {
            Scenario::First => {
                let bytes = sync_probe::batch_bytes(&self.gateways.stores, per_second)?;
                results.sync_bytes = results.sync_bytes.max(Some(bytes));
                Some(SyncProbe::start(&self.gateways.stores, bytes)?)
            }
            _ => None,
        };
        let outcome = Run::start_paced(&load, per_second)?.finish().await;
        let outcome = outcome.with_context(|| scenario.label())?;
        let mut add = |scenario, outcome| {
            results.measured.push(Measurement {
                load_percent: Some(percent),
                ..Measurement::new(Stage::Latencies, scenario, CONNECTIONS, outcome)
            });
        };
        add(scenario, outcome);
        if let Some(probe) = probe {
            add(Scenario::Sync, probe.finish().await?);
        }
        if let Some(server) = gateway.server() {
            results.settle(&server, scenario.label()).await;
        }
        Ok(())
    }

    fn latency_load(
        &self,
        scenario: Scenario,
        gateway: &Gateway,
    ) -> anyhow::Result<(LoopbackOrigin, Workload)> {
        Ok(match (scenario, &self.peers.nginx) {
            (Scenario::Nginx, Some(nginx)) => (nginx.origin, Workload::PassThrough),
            (Scenario::Replay, _) => (gateway.target(), gateway.replay()),
            _ => (gateway.target(), gateway.first()?),
        })
    }
}
