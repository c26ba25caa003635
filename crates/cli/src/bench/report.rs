//! From what was measured to what is told: medians, ratios, targets. Pure arithmetic.
//!
//! A lane's rate and latencies are the medians over its rounds. A ratio is the median of each
//! round's own ratio, because the two rates of a round are from the same seconds; so it may
//! differ a little from the ratio of the two rates shown. Field names are a promise to programs.

use serde::Serialize;

use super::course::{Lane, Measured, Pace, Results, Stage};
use super::machine::Machine;
use super::tally::Answers;

/// The connections at which the targets are judged.
const TARGET_CONNECTIONS: usize = 64;
const MEMORY_MIB_MAX: f64 = 300.0;
/// How many times its own a quiet tenant's p99 may be while another floods.
const FLOODED_P99_MAX: f64 = 2.0;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) machine: Machine,
    pub(super) pace: Pace,
    /// What the rows' ratios are ratios to.
    pub(super) yardstick: Lane,
    pub(super) rows: Vec<Row>,
    pub(super) targets: Vec<Target>,
}

/// One lane at one number of connections.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) stage: Stage,
    pub(super) lane: Lane,
    pub(super) connections: usize,
    pub(super) rate_per_second: f64,
    pub(super) ratio: Option<f64>,
    /// None of these where nobody waited.
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

/// A figure that is wanted, and what became of it.
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
    pub(super) fn new(machine: Machine, pace: Pace, results: &Results) -> Self {
        let measured = &results.measured;
        let yardstick = match measured.iter().any(|one| one.lane == Lane::Nginx) {
            true => Lane::Nginx,
            false => Lane::Direct,
        };
        let memory = results.gateway_peak_memory_bytes;
        let rows = rows(measured, yardstick);
        Report {
            version: 1,
            machine,
            pace,
            yardstick,
            rows,
            targets: targets(measured, memory),
        }
    }

    /// Whether every answer was the one expected. Without that no figure counts.
    pub(super) fn is_valid(&self) -> bool {
        self.rows.iter().all(|row| row.faults == 0)
    }

    pub(super) fn misses_a_target(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.reached != Reached::Yes)
    }
}

/// What names a row; also where the other side of a ratio is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    stage: Stage,
    lane: Lane,
    connections: usize,
}

impl Place {
    fn of(one: &Measured) -> Self {
        Place {
            stage: one.stage,
            lane: one.lane,
            connections: one.connections,
        }
    }
}

fn rows(measured: &[Measured], yardstick: Lane) -> Vec<Row> {
    let mut places = Vec::new();
    for place in measured.iter().map(Place::of) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.sort_by_key(|place| (place.stage as u8, place.connections, place.lane as u8));
    places
        .into_iter()
        .map(|place| row(measured, place, yardstick))
        .collect()
}

fn row(measured: &[Measured], place: Place, yardstick: Lane) -> Row {
    let Place {
        stage,
        lane,
        connections,
    } = place;
    let rounds = Vec::from_iter(measured.iter().filter(|one| Place::of(one) == place));
    let at = |quantile: f64| {
        let latencies = rounds.iter().map(|one| &one.outcome.latency);
        let latencies = latencies.filter(|latency| !latency.is_empty());
        let values = latencies.map(|latency| latency.value_at_quantile(quantile));
        median(values.map(|us| us as f64 / 1000.0).collect())
    };
    let mut answers = Answers::default();
    rounds
        .iter()
        .for_each(|one| answers.add(one.outcome.answers.clone()));
    let rates = rates(measured, place);
    Row {
        stage,
        lane,
        connections,
        rate_per_second: median(rates.clone()).unwrap_or_default(),
        ratio: ratio(
            measured,
            place,
            Place {
                lane: yardstick,
                ..place
            },
        ),
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: at(1.0),
        rates_by_round: rates,
        answers_by_class: answers.by_class,
        faults: answers.faults,
        first_fault: answers.first_fault,
    }
}

fn targets(measured: &[Measured], memory_bytes: Option<u64>) -> Vec<Target> {
    let at = |stage, lane| Place {
        stage,
        lane,
        connections: TARGET_CONNECTIONS,
    };
    let empty = |lane| at(Stage::Empty, lane);
    let full = |lane| at(Stage::Full, lane);
    let wanted = [
        (
            "first run, durable, to nginx",
            0.25,
            empty(Lane::First),
            empty(Lane::Nginx),
        ),
        (
            "first run, durable, to Restate",
            10.0,
            empty(Lane::First),
            empty(Lane::Restate),
        ),
        (
            "replay to nginx",
            1.3,
            empty(Lane::Replay),
            empty(Lane::Nginx),
        ),
        (
            "no key to nginx",
            0.7,
            empty(Lane::PassThrough),
            empty(Lane::Nginx),
        ),
        (
            "webhook, durable, to first run",
            0.8,
            empty(Lane::Webhook),
            empty(Lane::First),
        ),
        (
            "first run, full store to empty",
            0.9,
            full(Lane::FirstFull),
            full(Lane::First),
        ),
        (
            "replay, full store to empty",
            0.9,
            full(Lane::ReplayFull),
            full(Lane::Replay),
        ),
    ];
    let memory_mib = memory_bytes.map(|bytes| bytes as f64 / 1024.0 / 1024.0);
    wanted
        .into_iter()
        .map(|(name, least, lane, to)| (name, Bound::AtLeast(least), ratio(measured, lane, to)))
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

/// The median of the rounds' ratios of a quiet tenant's p99, beside a flood to alone.
fn flooded_p99(measured: &[Measured]) -> Option<f64> {
    let p99 = |lane| {
        let rounds = measured.iter().filter(move |one| one.lane == lane);
        rounds.map(|one| one.outcome.latency.value_at_quantile(0.99) as f64)
    };
    let pairs = p99(Lane::QuietFlooded).zip(p99(Lane::QuietAlone));
    let pairs = pairs.filter(|(_, alone)| *alone > 0.0);
    median(pairs.map(|(flooded, alone)| flooded / alone).collect())
}

/// A lane's rates in the order of the rounds.
fn rates(measured: &[Measured], place: Place) -> Vec<f64> {
    measured
        .iter()
        .filter(|one| Place::of(one) == place)
        .map(|one| one.outcome.rate)
        .collect()
}

/// The median of the rounds' ratios; none where one side was not measured.
fn ratio(measured: &[Measured], lane: Place, to: Place) -> Option<f64> {
    let pairs = rates(measured, lane).into_iter().zip(rates(measured, to));
    median(
        pairs
            .filter(|(_, to)| *to > 0.0)
            .map(|(lane, to)| lane / to)
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

    use super::super::tally::Outcome;
    use super::*;

    fn one(stage: Stage, lane: Lane, rate: f64) -> Measured {
        let mut latency = Histogram::new(3).expect("three digits are legal");
        latency.record(1_500).expect("the histogram grows");
        let outcome = Outcome {
            rate,
            latency,
            answers: Answers::default(),
        };
        Measured {
            stage,
            lane,
            connections: TARGET_CONNECTIONS,
            outcome,
        }
    }

    /// Nobody waited for it, so it has no latencies.
    fn delivered(rate: f64) -> Measured {
        let mut delivered = one(Stage::Empty, Lane::WebhookDelivered, rate);
        delivered.outcome.latency.clear();
        delivered
    }

    /// Three rounds in which the machine gets slower and slower.
    pub(in super::super) fn results() -> Results {
        let mut measured = Vec::new();
        for mood in [4.0, 2.0, 1.0] {
            let empty = [
                (Lane::Nginx, 10_000.0),
                (Lane::PassThrough, 8_000.0),
                (Lane::First, 3_000.0),
                (Lane::Webhook, 2_700.0),
                (Lane::Replay, 12_000.0),
                (Lane::Restate, 100.0),
            ];
            let full = [(Lane::First, 3_000.0), (Lane::FirstFull, 2_850.0)];
            measured.extend(empty.map(|(lane, rate)| one(Stage::Empty, lane, rate * mood)));
            measured.push(delivered(1_500.0 * mood));
            measured.extend(full.map(|(lane, rate)| one(Stage::Full, lane, rate * mood)));
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
        let pace = Pace {
            connections: vec![TARGET_CONNECTIONS],
            rounds: 3,
            warmup_seconds: 1,
            measured_seconds: 5,
            load_threads: 1,
            records: 1_000_000,
        };
        Report::new(machine, pace, &results())
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
        let place = |lane| Place {
            stage: Stage::Empty,
            lane,
            connections: TARGET_CONNECTIONS,
        };
        let ratio = |lane, to| ratio(&results.measured, place(lane), place(to));
        assert_eq!(ratio(Lane::First, Lane::Nginx), Some(0.3));
        assert_eq!(ratio(Lane::First, Lane::Direct), None);
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
    fn a_flood_is_judged_by_the_quiet_tenants_p99_within_each_round() {
        let at = |lane, us| {
            let mut one = one(Stage::Flood, lane, 200.0);
            one.outcome.latency.clear();
            one.outcome.latency.record(us).expect("the histogram grows");
            one
        };
        let rounds = [(1_000, 1_500), (2_000, 5_000), (500, 600)];
        let measured = rounds
            .map(|(alone, flooded)| [at(Lane::QuietAlone, alone), at(Lane::QuietFlooded, flooded)]);
        let measured = Vec::from_iter(measured.into_iter().flatten());
        let figure = flooded_p99(&measured).expect("both were measured");
        assert!((figure - 1.5).abs() < 0.01, "{figure}");
        assert_eq!(reached(Bound::Below(2.0), Some(figure)), Reached::Yes);
        assert_eq!(reached(Bound::Below(2.0), Some(2.0)), Reached::No);
        assert_eq!(flooded_p99(&[]), None);
    }

    #[test]
    fn rows_are_medians_in_the_order_of_the_lanes() {
        let report = report();
        let rows = report
            .rows
            .iter()
            .map(|row| (row.stage, row.lane, row.rate_per_second));
        let (empty, full) = (Stage::Empty, Stage::Full);
        let expected = [
            (empty, Lane::Nginx, 20_000.0),
            (empty, Lane::PassThrough, 16_000.0),
            (empty, Lane::First, 6_000.0),
            (empty, Lane::Webhook, 5_400.0),
            (empty, Lane::WebhookDelivered, 3_000.0),
            (empty, Lane::Replay, 24_000.0),
            (empty, Lane::Restate, 200.0),
            (full, Lane::First, 6_000.0),
            (full, Lane::FirstFull, 5_700.0),
        ];
        assert_eq!(Vec::from_iter(rows), expected);
        assert_eq!(
            (report.rows[0].p50_ms, report.rows[0].rates_by_round.len()),
            (Some(1.5), 3)
        );
    }

    #[test]
    fn events_are_acknowledged_nearly_as_fast_as_payments_are_made() {
        let figure = |slower: f64| {
            let mut results = results();
            let webhooks = results.measured.iter_mut();
            let webhooks = webhooks.filter(|one| one.lane == Lane::Webhook);
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
