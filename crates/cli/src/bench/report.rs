//! The report of a benchmark: medians, ratios, targets. Pure arithmetic.
//!
//! The rate and the latencies of a scenario are medians over its rounds. A ratio is the median of
//! the ratios within each round, because the two rates of a round are from the same seconds; it may
//! differ slightly from the ratio of the two medians. The JSON field names are stable.

use serde::Serialize;

use super::machine::Machine;
use super::schedule::{Measurement, Results, Scenario, Settings, Stage};
use super::stats::ResponseCounts;

/// The connections at which the targets are judged.
const TARGET_CONNECTIONS: usize = 64;
const MEMORY_MIB_MAX: f64 = 300.0;
/// The maximum ratio of the quiet tenant's p99 during a flood to its p99 alone.
const FLOODED_P99_MAX: f64 = 2.0;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) machine: Machine,
    #[serde(rename = "pace")]
    pub(super) settings: Settings,
    /// What the ratios of the rows relate to.
    #[serde(rename = "yardstick")]
    pub(super) baseline: Scenario,
    pub(super) rows: Vec<Row>,
    pub(super) targets: Vec<Target>,
}

/// One scenario at one number of connections.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) stage: Stage,
    #[serde(rename = "lane")]
    pub(super) scenario: Scenario,
    pub(super) connections: usize,
    pub(super) rate_per_second: f64,
    pub(super) ratio: Option<f64>,
    /// Latencies; none for deliveries, which no client waits for.
    pub(super) p50_ms: Option<f64>,
    pub(super) p90_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) p999_ms: Option<f64>,
    pub(super) max_ms: Option<f64>,
    pub(super) rates_by_round: Vec<f64>,
    pub(super) answers_by_class: [u64; 6],
    pub(super) faults: u64,
    pub(super) first_fault: Option<String>,
}

/// A figure to reach, and whether it was reached.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) bound: Bound,
    pub(super) figure: Option<f64>,
    pub(super) reached: Reached,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtLeast(f64),
    Below(f64),
    AtMostMib(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reached {
    Yes,
    No,
    NotMeasured,
}

impl Report {
    pub(super) fn new(machine: Machine, settings: Settings, results: &Results) -> Self {
        let measured = &results.measured;
        let baseline = match measured.iter().any(|one| one.scenario == Scenario::Nginx) {
            true => Scenario::Nginx,
            false => Scenario::Direct,
        };
        let memory = results.gateway_peak_memory_bytes;
        let rows = rows(measured, baseline);
        Report {
            version: 1,
            machine,
            settings,
            baseline,
            rows,
            targets: targets(measured, memory),
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
struct RowKey {
    stage: Stage,
    scenario: Scenario,
    connections: usize,
}

impl RowKey {
    fn of(one: &Measurement) -> Self {
        RowKey {
            stage: one.stage,
            scenario: one.scenario,
            connections: one.connections,
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
    keys.sort_by_key(|key| (key.stage as u8, key.connections, key.scenario as u8));
    keys.into_iter()
        .map(|key| row(measured, key, baseline))
        .collect()
}

fn row(measured: &[Measurement], key: RowKey, baseline: Scenario) -> Row {
    let RowKey {
        stage,
        scenario,
        connections,
    } = key;
    let rounds = Vec::from_iter(measured.iter().filter(|one| RowKey::of(one) == key));
    let at = |quantile: f64| {
        let latencies = rounds.iter().map(|one| &one.outcome.latency);
        let latencies = latencies.filter(|latency| !latency.is_empty());
        let values = latencies.map(|latency| latency.value_at_quantile(quantile));
        median(values.map(|us| us as f64 / 1000.0).collect())
    };
    let mut answers = ResponseCounts::default();
    rounds
        .iter()
        .for_each(|one| answers.add(one.outcome.answers.clone()));
    let rates = rates(measured, key);
    Row {
        stage,
        scenario,
        connections,
        rate_per_second: median(rates.clone()).unwrap_or_default(),
        ratio: ratio(
            measured,
            key,
            RowKey {
                scenario: baseline,
                ..key
            },
        ),
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: at(1.0),
        rates_by_round: rates,
        answers_by_class: answers.by_status_class,
        faults: answers.faults,
        first_fault: answers.first_fault,
    }
}

fn targets(measured: &[Measurement], memory_bytes: Option<u64>) -> Vec<Target> {
    let at = |stage, scenario| RowKey {
        stage,
        scenario,
        connections: TARGET_CONNECTIONS,
    };
    let empty = |scenario| at(Stage::Empty, scenario);
    let full = |scenario| at(Stage::Full, scenario);
    let wanted = [
        (
            "first run, durable, to nginx",
            0.25,
            empty(Scenario::First),
            empty(Scenario::Nginx),
        ),
        (
            "first run, durable, to Restate",
            10.0,
            empty(Scenario::First),
            empty(Scenario::Restate),
        ),
        (
            "replay to nginx",
            1.3,
            empty(Scenario::Replay),
            empty(Scenario::Nginx),
        ),
        (
            "no key to nginx",
            0.7,
            empty(Scenario::PassThrough),
            empty(Scenario::Nginx),
        ),
        (
            "webhook, durable, to first run",
            0.8,
            empty(Scenario::Webhook),
            empty(Scenario::First),
        ),
        (
            "first run, full store to empty",
            0.9,
            full(Scenario::FirstFull),
            full(Scenario::First),
        ),
        (
            "replay, full store to empty",
            0.9,
            full(Scenario::ReplayFull),
            full(Scenario::Replay),
        ),
    ];
    let memory_mib = memory_bytes.map(|bytes| bytes as f64 / 1024.0 / 1024.0);
    wanted
        .into_iter()
        .map(|(name, least, scenario, to)| {
            (name, Bound::AtLeast(least), ratio(measured, scenario, to))
        })
        .chain([
            (
                "p99 of a tenant beside a flood",
                Bound::Below(FLOODED_P99_MAX),
                flooded_p99(measured),
            ),
            (
                "gateway's peak memory",
                Bound::AtMostMib(MEMORY_MIB_MAX),
                memory_mib,
            ),
        ])
        .map(|(name, bound, figure)| Target {
            name,
            bound,
            figure,
            reached: reached(bound, figure),
        })
        .collect()
}

fn reached(bound: Bound, figure: Option<f64>) -> Reached {
    match (bound, figure) {
        (_, None) => Reached::NotMeasured,
        (Bound::AtLeast(least), Some(figure)) if figure >= least => Reached::Yes,
        (Bound::Below(most), Some(figure)) if figure < most => Reached::Yes,
        (Bound::AtMostMib(most), Some(figure)) if figure <= most => Reached::Yes,
        _ => Reached::No,
    }
}

/// The median over the rounds of the quiet tenant's p99 during a flood, relative to its p99 alone.
fn flooded_p99(measured: &[Measurement]) -> Option<f64> {
    let p99 = |scenario| {
        let rounds = measured.iter().filter(move |one| one.scenario == scenario);
        rounds.map(|one| one.outcome.latency.value_at_quantile(0.99) as f64)
    };
    let pairs = p99(Scenario::QuietFlooded).zip(p99(Scenario::QuietAlone));
    let pairs = pairs.filter(|(_, alone)| *alone > 0.0);
    median(pairs.map(|(flooded, alone)| flooded / alone).collect())
}

/// The rates of a scenario in the order of the rounds.
fn rates(measured: &[Measurement], key: RowKey) -> Vec<f64> {
    measured
        .iter()
        .filter(|one| RowKey::of(one) == key)
        .map(|one| one.outcome.rate)
        .collect()
}

/// The median of the ratios of the rounds; `None` if one side was not measured.
fn ratio(measured: &[Measurement], scenario: RowKey, to: RowKey) -> Option<f64> {
    let pairs = rates(measured, scenario)
        .into_iter()
        .zip(rates(measured, to));
    median(
        pairs
            .filter(|(_, to)| *to > 0.0)
            .map(|(scenario, to)| scenario / to)
            .collect(),
    )
}

fn median(mut values: Vec<f64>) -> Option<f64> {
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
    use hdrhistogram::Histogram;

    use super::super::stats::LoadResult;
    use super::*;

    fn one(stage: Stage, scenario: Scenario, rate: f64) -> Measurement {
        let mut latency = Histogram::new(3).expect("three digits are legal");
        latency.record(1_500).expect("the histogram grows");
        let outcome = LoadResult {
            rate,
            latency,
            answers: ResponseCounts::default(),
        };
        Measurement {
            stage,
            scenario,
            connections: TARGET_CONNECTIONS,
            outcome,
        }
    }

    /// Deliveries have no latencies.
    fn delivered(rate: f64) -> Measurement {
        let mut delivered = one(Stage::Empty, Scenario::WebhookDelivered, rate);
        delivered.outcome.latency.clear();
        delivered
    }

    /// Three rounds, each slower than the one before.
    pub(in super::super) fn results() -> Results {
        let mut measured = Vec::new();
        for speed in [4.0, 2.0, 1.0] {
            let empty = [
                (Scenario::Nginx, 10_000.0),
                (Scenario::PassThrough, 8_000.0),
                (Scenario::First, 3_000.0),
                (Scenario::Webhook, 2_700.0),
                (Scenario::Replay, 12_000.0),
                (Scenario::Restate, 100.0),
            ];
            let full = [(Scenario::First, 3_000.0), (Scenario::FirstFull, 2_850.0)];
            measured
                .extend(empty.map(|(scenario, rate)| one(Stage::Empty, scenario, rate * speed)));
            measured.push(delivered(1_500.0 * speed));
            measured.extend(full.map(|(scenario, rate)| one(Stage::Full, scenario, rate * speed)));
        }
        Results {
            measured,
            gateway_peak_memory_bytes: Some(100 * 1024 * 1024),
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
            connections: vec![TARGET_CONNECTIONS],
            rounds: 3,
            warmup_seconds: 1,
            measured_seconds: 5,
            load_threads: 1,
            records: 1_000_000,
        };
        Report::new(machine, settings, &results())
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
            stage: Stage::Empty,
            scenario,
            connections: TARGET_CONNECTIONS,
        };
        let ratio = |scenario, to| ratio(&results.measured, key(scenario), key(to));
        assert_eq!(ratio(Scenario::First, Scenario::Nginx), Some(0.3));
        assert_eq!(ratio(Scenario::First, Scenario::Direct), None);
    }

    #[test]
    fn targets_are_reached_missed_or_not_measured() {
        let report = report();
        let reached = report.targets.iter().map(|target| target.reached);
        let (yes, no, not) = (Reached::Yes, Reached::No, Reached::NotMeasured);
        assert_eq!(
            Vec::from_iter(reached),
            [yes, yes, no, yes, yes, yes, not, not, yes]
        );
        assert!(report.misses_a_target());
    }

    #[test]
    fn a_flood_is_rated_by_the_quiet_tenants_p99_within_each_round() {
        let at = |scenario, us| {
            let mut one = one(Stage::Flood, scenario, 200.0);
            one.outcome.latency.clear();
            one.outcome.latency.record(us).expect("the histogram grows");
            one
        };
        let rounds = [(1_000, 1_500), (2_000, 5_000), (500, 600)];
        let measured = rounds.map(|(alone, flooded)| {
            [
                at(Scenario::QuietAlone, alone),
                at(Scenario::QuietFlooded, flooded),
            ]
        });
        let measured = Vec::from_iter(measured.into_iter().flatten());
        let figure = flooded_p99(&measured).expect("both were measured");
        assert!((figure - 1.5).abs() < 0.01, "{figure}");
        assert_eq!(reached(Bound::Below(2.0), Some(figure)), Reached::Yes);
        assert_eq!(reached(Bound::Below(2.0), Some(2.0)), Reached::No);
        assert_eq!(flooded_p99(&[]), None);
    }

    #[test]
    fn rows_are_medians_in_the_order_of_the_scenarios() {
        let report = report();
        let rows = report
            .rows
            .iter()
            .map(|row| (row.stage, row.scenario, row.rate_per_second));
        let (empty, full) = (Stage::Empty, Stage::Full);
        let expected = [
            (empty, Scenario::Nginx, 20_000.0),
            (empty, Scenario::PassThrough, 16_000.0),
            (empty, Scenario::First, 6_000.0),
            (empty, Scenario::Webhook, 5_400.0),
            (empty, Scenario::WebhookDelivered, 3_000.0),
            (empty, Scenario::Replay, 24_000.0),
            (empty, Scenario::Restate, 200.0),
            (full, Scenario::First, 6_000.0),
            (full, Scenario::FirstFull, 5_700.0),
        ];
        assert_eq!(Vec::from_iter(rows), expected);
        assert_eq!(
            (report.rows[0].p50_ms, report.rows[0].rates_by_round.len()),
            (Some(1.5), 3)
        );
    }

    #[test]
    fn webhooks_are_compared_with_first_runs() {
        let figure = |slower: f64| {
            let mut results = results();
            let webhooks = results.measured.iter_mut();
            let webhooks = webhooks.filter(|one| one.scenario == Scenario::Webhook);
            webhooks.for_each(|one| one.outcome.rate *= slower);
            let mut targets = targets(&results.measured, None).into_iter();
            let target = targets.find(|target| target.name.starts_with("webhook"));
            target.map(|target| (target.figure, target.reached))
        };
        assert_eq!(figure(1.0), Some((Some(0.9), Reached::Yes)));
        assert_eq!(figure(0.5), Some((Some(0.45), Reached::No)));
    }

    #[test]
    fn one_fault_makes_the_report_invalid() {
        let mut report = report();
        assert!(report.is_valid());
        report.rows[2].faults = 1;
        assert!(!report.is_valid());
    }
}
