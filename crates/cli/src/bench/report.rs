//! The report of a benchmark: medians, ratios, targets. Pure arithmetic.
//!
//! The rate, the latencies and the processor time of a scenario are medians over its rounds. A ratio
//! is the median of the ratios within each round, because the two figures of a round are from the
//! same seconds; it may differ slightly from the ratio of the two medians. The JSON field names are
//! stable within a version.

use serde::Serialize;

use super::cost::Cost;
use super::machine::Machine;
use super::scale::Scale;
use super::scenario::{Scenario, Stage};
use super::schedule::{Measurement, Results, Settings, Stored};
use super::stats::{Faults, Latency};
use super::targets::{Reached, Target, targets};
use super::tools::Tools;
use super::traffic::TrafficPerRequest;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) machine: Machine,
    pub(super) tools: Tools,
    pub(super) settings: Settings,
    /// What the ratios of the rows relate to.
    pub(super) baseline: Scenario,
    pub(super) rows: Vec<Row>,
    pub(super) sync_bytes: Option<u64>,
    pub(super) stored: Vec<Stored>,
    pub(super) scale: Option<Scale>,
    /// The servers that were not idle when the wait for them ended, once for each time.
    pub(super) still_busy: Vec<String>,
    pub(super) targets: Vec<Target>,
}

/// One scenario at one number of connections, and for latencies at one rate.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) stage: Stage,
    pub(super) scenario: Scenario,
    pub(super) connections: usize,
    pub(super) load_percent: Option<u32>,
    pub(super) rate_per_second: f64,
    pub(super) ratio: Option<Spread>,
    /// Processor time per request of the server that answers.
    pub(super) cost: Option<Cost>,
    pub(super) cost_ratio: Option<Spread>,
    /// Processor time per request of the store's server, and the traffic to it.
    pub(super) store_cost: Option<Cost>,
    pub(super) store_traffic: Option<TrafficPerRequest>,
    /// Latencies; none for deliveries, which no client waits for.
    pub(super) p50_ms: Option<f64>,
    pub(super) p90_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) p999_ms: Option<f64>,
    pub(super) max_ms: Option<f64>,
    pub(super) rates_by_round: Vec<f64>,
    pub(super) costs_us_by_round: Vec<f64>,
    pub(super) faults: u64,
    pub(super) first_fault: Option<String>,
}

/// A figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

impl Spread {
    pub(super) fn of(values: Vec<f64>) -> Option<Self> {
        let lowest = values.iter().copied().reduce(f64::min)?;
        let highest = values.iter().copied().reduce(f64::max)?;
        Some(Spread {
            median: median(values)?,
            lowest,
            highest,
        })
    }
}

impl Report {
    pub(super) fn new(
        machine: Machine,
        tools: Tools,
        settings: Settings,
        results: Results,
    ) -> Self {
        let measured = &results.measured;
        let baseline = match measured.iter().any(|one| one.scenario == Scenario::Nginx) {
            true => Scenario::Nginx,
            false => Scenario::Direct,
        };
        let rows = rows(measured, baseline);
        let targets = targets(&results);
        Report {
            version: 2,
            machine,
            tools,
            settings,
            baseline,
            rows,
            sync_bytes: results.sync_bytes,
            stored: results.stored,
            scale: results.scale,
            still_busy: results.still_busy,
            targets,
        }
    }

    /// Whether every response was the expected one. Otherwise no figure is valid.
    pub(super) fn is_valid(&self) -> bool {
        self.rows.iter().all(|row| row.faults == 0)
    }

    pub(super) fn misses_a_target(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.reached != Reached::Yes)
    }
}

/// The identity of a row, also used to find the other side of a ratio.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RowKey {
    pub(super) stage: Stage,
    pub(super) scenario: Scenario,
    pub(super) connections: usize,
    pub(super) load_percent: Option<u32>,
}

impl RowKey {
    fn of(one: &Measurement) -> Self {
        RowKey {
            stage: one.stage,
            scenario: one.scenario,
            connections: one.connections,
            load_percent: one.load_percent,
        }
    }
}

/// A figure of a measurement.
#[derive(Clone, Copy)]
pub(super) enum Figure {
    Rate,
    /// Processor time of the server that answers.
    Cost,
    P99,
}

impl Figure {
    fn of(self, one: &Measurement) -> Option<f64> {
        match self {
            Figure::Rate => Some(one.outcome.rate),
            Figure::Cost => one.cost.map(Cost::total_us),
            Figure::P99 => one.outcome.latency.map(|latency| latency.p99_us as f64),
        }
    }
}

fn rows(measured: &[Measurement], baseline: Scenario) -> Vec<Row> {
    let mut keys = Vec::new();
    for key in measured.iter().map(RowKey::of) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.sort_by_key(|key| {
        let RowKey {
            stage,
            scenario,
            connections,
            load_percent,
        } = *key;
        // One connection of HTTP/2 follows the others.
        let connections = if connections == 1 {
            usize::MAX
        } else {
            connections
        };
        (stage as u8, load_percent, connections, scenario as u8)
    });
    keys.into_iter()
        .map(|key| row(measured, key, baseline))
        .collect()
}

fn row(measured: &[Measurement], key: RowKey, baseline: Scenario) -> Row {
    let rounds = Vec::from_iter(measured.iter().filter(|one| RowKey::of(one) == key));
    let at = |percentile: fn(&Latency) -> u64| {
        let latencies = rounds.iter().filter_map(|one| one.outcome.latency);
        median(
            latencies
                .map(|all| percentile(&all) as f64 / 1000.0)
                .collect(),
        )
    };
    let mut faults = Faults::default();
    rounds
        .iter()
        .for_each(|one| faults.add(one.outcome.faults.clone()));
    let rates = figures(measured, key, Figure::Rate);
    let to = RowKey {
        scenario: match key.connections {
            1 => Scenario::NginxHttp2,
            _ => baseline,
        },
        ..key
    };
    let ratio_to = |figure| Spread::of(ratios(measured, (key, to), figure));
    Row {
        stage: key.stage,
        scenario: key.scenario,
        connections: key.connections,
        load_percent: key.load_percent,
        rate_per_second: median(rates.clone()).unwrap_or_default(),
        ratio: ratio_to(Figure::Rate),
        cost: median_cost(rounds.iter().filter_map(|one| one.cost)),
        cost_ratio: ratio_to(Figure::Cost),
        store_cost: median_cost(rounds.iter().filter_map(|one| one.store?.cost)),
        store_traffic: median_traffic(rounds.iter().filter_map(|one| one.store?.traffic)),
        p50_ms: at(|latency| latency.p50_us),
        p90_ms: at(|latency| latency.p90_us),
        p99_ms: at(|latency| latency.p99_us),
        p999_ms: at(|latency| latency.p999_us),
        max_ms: at(|latency| latency.max_us),
        rates_by_round: rates,
        costs_us_by_round: figures(measured, key, Figure::Cost),
        faults: faults.count,
        first_fault: faults.first,
    }
}

fn median_cost(costs: impl Iterator<Item = Cost>) -> Option<Cost> {
    let all = Vec::from_iter(costs);
    let middle = |of: fn(&Cost) -> f64| median(all.iter().map(of).collect());
    Some(Cost {
        user_us: middle(|one| one.user_us)?,
        system_us: middle(|one| one.system_us)?,
        written_bytes: middle(|one| one.written_bytes)?,
    })
}

fn median_traffic(traffic: impl Iterator<Item = TrafficPerRequest>) -> Option<TrafficPerRequest> {
    let all = Vec::from_iter(traffic);
    let middle = |of: fn(&TrafficPerRequest) -> f64| median(all.iter().map(of).collect());
    Some(TrafficPerRequest {
        sends: middle(|one| one.sends)?,
        sent_bytes: middle(|one| one.sent_bytes)?,
        received_bytes: middle(|one| one.received_bytes)?,
    })
}

/// A figure of a row in the order of the rounds.
fn figures(measured: &[Measurement], key: RowKey, figure: Figure) -> Vec<f64> {
    let rounds = measured.iter().filter(|one| RowKey::of(one) == key);
    rounds.filter_map(|one| figure.of(one)).collect()
}

/// The ratios of a figure of two rows in the order of the rounds; none if one was not measured.
pub(super) fn ratios(
    measured: &[Measurement],
    (key, to): (RowKey, RowKey),
    figure: Figure,
) -> Vec<f64> {
    let pairs = figures(measured, key, figure).into_iter();
    let pairs = pairs.zip(figures(measured, to, figure));
    pairs
        .filter(|(_, to)| *to > 0.0)
        .map(|(one, to)| one / to)
        .collect()
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::super::schedule::StoreUse;
    use super::super::stats::LoadResult;
    use super::*;

    pub(in super::super) fn one(stage: Stage, scenario: Scenario, rate: f64) -> Measurement {
        let latency = Latency {
            p50_us: 1_000,
            p90_us: 1_200,
            p99_us: 1_500,
            p999_us: 2_000,
            max_us: 3_000,
        };
        let outcome = LoadResult {
            rate,
            latency: Some(latency),
            answered: rate as u64,
            faults: Faults::default(),
        };
        Measurement {
            cost: Some(Cost {
                user_us: 30_000.0 / rate,
                system_us: 10_000.0 / rate,
                written_bytes: 0.0,
            }),
            ..Measurement::new(stage, scenario, 64, outcome)
        }
    }

    /// Deliveries have no latencies.
    fn delivered(rate: f64) -> Measurement {
        let mut delivered = one(Stage::Rates, Scenario::WebhookDelivered, rate);
        delivered.outcome.latency = None;
        delivered.cost = None;
        delivered
    }

    fn on_redis(rate: f64) -> Measurement {
        Measurement {
            store: Some(StoreUse {
                cost: Some(Cost {
                    user_us: 8.0,
                    system_us: 4.0,
                    written_bytes: 900.0,
                }),
                traffic: Some(TrafficPerRequest {
                    sends: 1.5,
                    sent_bytes: 700.0,
                    received_bytes: 90.0,
                }),
            }),
            ..one(Stage::Rates, Scenario::RedisFirst, rate)
        }
    }

    /// Three rounds, each slower than the one before.
    pub(in super::super) fn results() -> Results {
        let mut measured = Vec::new();
        for speed in [4.0, 2.0, 1.0] {
            let rates = [
                (Scenario::Nginx, 10_000.0),
                (Scenario::PassThrough, 8_000.0),
                (Scenario::First, 3_000.0),
                (Scenario::Webhook, 2_700.0),
                (Scenario::Replay, 15_000.0),
                (Scenario::Restate, 100.0),
            ];
            let full = [(Scenario::First, 3_000.0), (Scenario::FirstFull, 2_850.0)];
            measured
                .extend(rates.map(|(scenario, rate)| one(Stage::Rates, scenario, rate * speed)));
            measured.push(on_redis(2_500.0 * speed));
            measured.push(delivered(1_500.0 * speed));
            measured.extend(full.map(|(scenario, rate)| one(Stage::Scale, scenario, rate * speed)));
            measured.extend(
                [Scenario::First, Scenario::Sync].map(|scenario| Measurement {
                    load_percent: Some(50),
                    ..one(Stage::Latencies, scenario, 1_500.0)
                }),
            );
        }
        Results {
            measured,
            gateway_peak_memory_bytes: Some(100 * 1024 * 1024),
            sync_bytes: Some(8192),
            ..Results::default()
        }
    }

    pub(in super::super) fn report() -> Report {
        let machine = Machine {
            cores: 2,
            processor: "Quick & Co <9000>".into(),
            kernel: "6.1".into(),
            store_file_system: "ext4".into(),
            load_average_before: "0.10".into(),
            date: "2026-11-15T12:00:00Z".into(),
        };
        let settings = Settings {
            stages: vec![Stage::Rates, Stage::Latencies, Stage::Scale],
            only: vec![],
            connections: vec![64],
            rounds: 3,
            warmup_seconds: 1,
            measured_seconds: 5,
            load_threads: 1,
            records: 1_000_000,
        };
        let tools = Tools::find(PathBuf::new());
        Report::new(machine, tools, settings, results())
    }

    #[test]
    fn the_median_is_the_middle() {
        let cases = [
            (vec![], None),
            (vec![5.0], Some(5.0)),
            (vec![9.0, 1.0, 5.0], Some(5.0)),
            (vec![4.0, 1.0, 2.0, 9.0], Some(3.0)),
        ];
        for (values, expected) in cases {
            assert_eq!(median(values), expected);
        }
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        let results = results();
        let key = |scenario| RowKey {
            stage: Stage::Rates,
            scenario,
            connections: 64,
            load_percent: None,
        };
        let ratio = |one, to| ratios(&results.measured, (key(one), key(to)), Figure::Rate);
        assert_eq!(ratio(Scenario::First, Scenario::Nginx), [0.3; 3]);
        assert!(ratio(Scenario::First, Scenario::Direct).is_empty());
    }

    #[test]
    fn a_spread_has_its_ends() {
        let expected = Spread {
            median: 2.0,
            lowest: 1.0,
            highest: 7.0,
        };
        assert_eq!(Spread::of(vec![7.0, 1.0, 2.0]), Some(expected));
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn rows_are_medians_in_the_order_of_the_scenarios() {
        let report = report();
        let rows = report
            .rows
            .iter()
            .map(|row| (row.stage, row.scenario, row.rate_per_second));
        let (rates, latencies, scale) = (Stage::Rates, Stage::Latencies, Stage::Scale);
        let expected = [
            (rates, Scenario::Nginx, 20_000.0),
            (rates, Scenario::PassThrough, 16_000.0),
            (rates, Scenario::Replay, 30_000.0),
            (rates, Scenario::First, 6_000.0),
            (rates, Scenario::Webhook, 5_400.0),
            (rates, Scenario::WebhookDelivered, 3_000.0),
            (rates, Scenario::RedisFirst, 5_000.0),
            (rates, Scenario::Restate, 200.0),
            (latencies, Scenario::First, 1_500.0),
            (latencies, Scenario::Sync, 1_500.0),
            (scale, Scenario::FirstFull, 5_700.0),
            (scale, Scenario::First, 6_000.0),
        ];
        let mut rows = Vec::from_iter(rows);
        rows[10..].sort_by(|one, other| one.2.total_cmp(&other.2));
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_row_has_its_cost_and_the_ratio_of_it() {
        let report = report();
        let row = report
            .rows
            .iter()
            .find(|row| (row.stage, row.scenario) == (Stage::Rates, Scenario::First))
            .expect("it was measured");
        let expected = Cost {
            user_us: 5.0,
            system_us: 10.0 / 6.0,
            written_bytes: 0.0,
        };
        assert_eq!(row.cost, Some(expected));
        let ratio = row.cost_ratio.expect("nginx was measured").median;
        assert!((ratio - 10.0 / 3.0).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn a_fault_makes_the_report_invalid() {
        let mut results = results();
        assert!(report().is_valid());
        results.measured[0].outcome.faults = Faults::of(1, || "status 503".into());
        let rows = rows(&results.measured, Scenario::Nginx);
        assert_eq!(rows[0].first_fault.as_deref(), Some("status 503"));
        let report = Report { rows, ..report() };
        assert!(!report.is_valid());
    }
}
