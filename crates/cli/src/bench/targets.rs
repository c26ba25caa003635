//! The figures that a gateway should reach, and whether it did.

use serde::Serialize;

use super::latencies;
use super::report::{Figure, RowKey, median, ratios};
use super::scenario::{Scenario, Stage};
use super::schedule::{Measurement, QUIET_CONNECTIONS, Results};

/// The connections at which the targets are judged.
const CONNECTIONS: usize = 64;
const MEMORY_MIB_MAX: f64 = 300.0;
/// The load at which latencies are judged.
const LOAD_PERCENT: u32 = 50;
/// Up to this many records, a full store must need little memory.
const FEW_RECORDS: u64 = 1_000_000;
const MEMORY_MIB_MAX_FEW: f64 = 200.0;
const MEMORY_MIB_MAX_MANY: f64 = 1024.0;
const DISK_BYTES_MAX: f64 = 3000.0;
const REOPEN_MS_MAX: f64 = 2000.0;
const SWEPT_PER_HOUR_MIN: f64 = 1e6;

/// A figure to reach, and whether it was reached.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) bound: Bound,
    pub(super) figure: Option<f64>,
    pub(super) reached: Reached,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reached {
    Yes,
    No,
    NotMeasured,
}

impl Target {
    fn new(name: impl Into<String>, bound: Bound, figure: Option<f64>) -> Self {
        Target {
            name: name.into(),
            bound,
            figure,
            reached: reached(bound, figure),
        }
    }
}

fn reached(bound: Bound, figure: Option<f64>) -> Reached {
    let Some(figure) = figure else {
        return Reached::NotMeasured;
    };
    let holds = match bound {
        Bound::AtLeast(least) => figure >= least,
        Bound::AtMost(most) => figure <= most,
        Bound::Below(limit) => figure < limit,
    };
    match holds {
        true => Reached::Yes,
        false => Reached::No,
    }
}

/// The targets of the stages that were measured.
pub(super) fn targets(results: &Results) -> Vec<Target> {
    let measured = &results.measured;
    let has = |stage| measured.iter().any(|one| one.stage == stage);
    let mut targets = Vec::new();
    if has(Stage::Rates) {
        targets.extend(rate_targets(measured));
        targets.extend(connection_targets(measured));
        let peak = results.gateway_peak_memory_bytes.map(mib);
        let bound = Bound::AtMost(MEMORY_MIB_MAX);
        targets.push(Target::new("gateway's peak memory, MiB", bound, peak));
    }
    if has(Stage::Latencies) {
        targets.extend(latency_targets(measured));
    }
    if has(Stage::Flood) {
        let key = |scenario| RowKey {
            stage: Stage::Flood,
            ..key(scenario, QUIET_CONNECTIONS)
        };
        let pair = (key(Scenario::QuietFlooded), key(Scenario::QuietAlone));
        let ratio = median(ratios(measured, pair, Figure::P99));
        let name = "p99 of a quiet tenant, beside a flood to alone";
        targets.push(Target::new(name, Bound::Below(2.0), ratio));
    }
    if has(Stage::Scale) {
        targets.extend(scale_targets(results));
    }
    targets
}

/// Rates and processor times to nginx, and to each other.
fn rate_targets(measured: &[Measurement]) -> Vec<Target> {
    use Scenario::{
        First, FirstApiKey, Nginx, PassThrough, PostgresFirst, PostgresReplay, RedisFirst,
        RedisReplay, Replay, ReplayApiKey, Restate, Webhook,
    };
    let (least, most) = (Bound::AtLeast, Bound::AtMost);
    let (rate, cost) = (Figure::Rate, Figure::Cost);
    let wanted = [
        (
            "no key to nginx, rate",
            rate,
            least(0.85),
            PassThrough,
            Nginx,
        ),
        (
            "no key to nginx, processor time",
            cost,
            most(1.3),
            PassThrough,
            Nginx,
        ),
        ("replay to nginx, rate", rate, least(1.4), Replay, Nginx),
        (
            "replay to nginx, processor time",
            cost,
            most(0.8),
            Replay,
            Nginx,
        ),
        ("first run to nginx, rate", rate, least(0.35), First, Nginx),
        (
            "first run to nginx, processor time",
            cost,
            most(3.5),
            First,
            Nginx,
        ),
        (
            "first run on PostgreSQL to nginx, rate",
            rate,
            least(0.09),
            PostgresFirst,
            Nginx,
        ),
        (
            "replay on PostgreSQL to nginx, rate",
            rate,
            least(0.5),
            PostgresReplay,
            Nginx,
        ),
        (
            "first run on Redis to nginx, rate",
            rate,
            least(0.2),
            RedisFirst,
            Nginx,
        ),
        (
            "replay on Redis to nginx, rate",
            rate,
            least(0.7),
            RedisReplay,
            Nginx,
        ),
        (
            "webhook to first run, rate",
            rate,
            least(0.8),
            Webhook,
            First,
        ),
        (
            "first run with API key to without, rate",
            rate,
            least(0.9),
            FirstApiKey,
            First,
        ),
        (
            "replay with API key to without, rate",
            rate,
            least(0.9),
            ReplayApiKey,
            Replay,
        ),
        (
            "first run to Restate, rate",
            rate,
            least(10.0),
            First,
            Restate,
        ),
    ];
    let target = |(name, figure, bound, scenario, to)| {
        let pair = (key(scenario, CONNECTIONS), key(to, CONNECTIONS));
        Target::new(name, bound, median(ratios(measured, pair, figure)))
    };
    wanted.into_iter().map(target).collect()
}

/// The ratios to nginx with more connections, to those with the usual number.
fn connection_targets(measured: &[Measurement]) -> Vec<Target> {
    let mut numbers = Vec::new();
    for one in measured.iter().filter(|one| one.stage == Stage::Rates) {
        if one.connections > CONNECTIONS && !numbers.contains(&one.connections) {
            numbers.push(one.connections);
        }
    }
    numbers.sort_unstable();
    let to_nginx = |scenario, connections| {
        let pair = (
            key(scenario, connections),
            key(Scenario::Nginx, connections),
        );
        median(ratios(measured, pair, Figure::Rate))
    };
    let named = [
        ("no key", Scenario::PassThrough),
        ("replay", Scenario::Replay),
        ("first run", Scenario::First),
    ];
    let all = numbers
        .into_iter()
        .flat_map(|number| named.map(|(name, scenario)| (number, name, scenario)));
    all.map(|(number, name, scenario)| {
        let pair = to_nginx(scenario, number).zip(to_nginx(scenario, CONNECTIONS));
        let figure = pair.map(|(many, usual)| many / usual);
        let name = format!("{name}, ratio with {number} connections to {CONNECTIONS}");
        Target::new(name, Bound::AtLeast(0.9), figure)
    })
    .collect()
}

fn latency_targets(measured: &[Measurement]) -> [Target; 2] {
    let key = |scenario| RowKey {
        stage: Stage::Latencies,
        load_percent: Some(LOAD_PERCENT),
        ..key(scenario, latencies::CONNECTIONS)
    };
    let ratio = |scenario, to| median(ratios(measured, (key(scenario), key(to)), Figure::P99));
    [
        Target::new(
            format!("p99 at {LOAD_PERCENT} %, first run to a sync"),
            Bound::Below(4.0),
            ratio(Scenario::First, Scenario::Sync),
        ),
        Target::new(
            format!("p99 at {LOAD_PERCENT} %, replay to nginx"),
            Bound::Below(1.5),
            ratio(Scenario::Replay, Scenario::Nginx),
        ),
    ]
}

fn scale_targets(results: &Results) -> Vec<Target> {
    let ratio = |full, to| {
        let key = |scenario| RowKey {
            stage: Stage::Scale,
            ..key(scenario, CONNECTIONS)
        };
        let pair = (key(full), key(to));
        median(ratios(&results.measured, pair, Figure::Rate))
    };
    let first = ratio(Scenario::FirstFull, Scenario::First);
    let replay = ratio(Scenario::ReplayFull, Scenario::Replay);
    // An empty store has no records to draw from.
    let drawn = ratio(Scenario::ReplayDrawnFull, Scenario::ReplayDrawnSmall);
    let rates = [
        ("first run, full store to empty", first),
        ("replay of a few keys, full store to empty", replay),
        ("replay over all records, full store to small", drawn),
    ];
    let least = Bound::AtLeast(0.9);
    let rates = rates.map(|(name, figure)| Target::new(name, least, figure));
    let mut targets = Vec::from(rates);
    if let Some(scale) = &results.scale {
        let memory_max = match scale.records {
            0..=FEW_RECORDS => MEMORY_MIB_MAX_FEW,
            _ => MEMORY_MIB_MAX_MANY,
        };
        let figures = [
            (
                "peak memory, MiB",
                Bound::Below(memory_max),
                scale.peak_memory_bytes.map(mib),
            ),
            (
                "disk bytes per operation",
                Bound::AtMost(DISK_BYTES_MAX),
                Some(scale.disk_bytes_per_operation),
            ),
            (
                "reopening, ms",
                Bound::Below(REOPEN_MS_MAX),
                Some(scale.reopen_ms),
            ),
            (
                "swept per hour",
                Bound::AtLeast(SWEPT_PER_HOUR_MIN),
                Some(scale.sweep.swept_per_hour),
            ),
        ];
        let named =
            |(name, bound, figure)| Target::new(format!("full store: {name}"), bound, figure);
        targets.extend(figures.map(named));
    }
    targets
}

fn key(scenario: Scenario, connections: usize) -> RowKey {
    RowKey {
        stage: Stage::Rates,
        scenario,
        connections,
        load_percent: None,
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{one, results};
    use super::*;

    fn find<'a>(targets: &'a [Target], name: &str) -> &'a Target {
        let mut found = targets.iter().filter(|target| target.name == name);
        found.next().expect("a target has this name")
    }

    #[test]
    fn targets_are_reached_missed_or_not_measured() {
        let targets = targets(&results());
        let cases = [
            ("no key to nginx, rate", Reached::No),
            ("no key to nginx, processor time", Reached::Yes),
            ("replay to nginx, rate", Reached::Yes),
            ("first run to nginx, processor time", Reached::Yes),
            ("first run on Redis to nginx, rate", Reached::Yes),
            (
                "first run on PostgreSQL to nginx, rate",
                Reached::NotMeasured,
            ),
            ("webhook to first run, rate", Reached::Yes),
            ("p99 at 50 %, first run to a sync", Reached::Yes),
            ("p99 at 50 %, replay to nginx", Reached::NotMeasured),
            ("first run, full store to empty", Reached::Yes),
            ("gateway's peak memory, MiB", Reached::Yes),
        ];
        for (name, expected) in cases {
            assert_eq!(find(&targets, name).reached, expected, "{name}");
        }
    }

    #[test]
    fn bounds_include_their_ends_where_they_say_so() {
        let cases = [
            (Bound::AtLeast(2.0), 2.0, Reached::Yes),
            (Bound::AtMost(2.0), 2.0, Reached::Yes),
            (Bound::Below(2.0), 2.0, Reached::No),
            (Bound::AtLeast(2.0), 1.9, Reached::No),
            (Bound::AtMost(2.0), 2.1, Reached::No),
        ];
        for (bound, figure, expected) in cases {
            assert_eq!(reached(bound, Some(figure)), expected, "{bound:?} {figure}");
        }
        assert_eq!(reached(Bound::Below(2.0), None), Reached::NotMeasured);
    }

    #[test]
    fn a_flood_is_rated_by_the_quiet_tenants_p99_within_each_round() {
        let at = |scenario, us| {
            let mut one = one(Stage::Flood, scenario, 200.0);
            one.connections = QUIET_CONNECTIONS;
            one.outcome.latency.as_mut().expect("it has some").p99_us = us;
            one
        };
        let rounds = [(1_000, 1_500), (2_000, 5_000), (500, 600)];
        let measured = rounds.map(|(alone, flooded)| {
            [
                at(Scenario::QuietAlone, alone),
                at(Scenario::QuietFlooded, flooded),
            ]
        });
        let results = Results {
            measured: measured.into_iter().flatten().collect(),
            ..Results::default()
        };
        let targets = targets(&results);
        assert_eq!((targets.len(), targets[0].figure), (1, Some(1.5)));
    }

    #[test]
    fn more_connections_are_judged_by_their_ratio_to_nginx() {
        let with = |connections, scenario, rate| Measurement {
            connections,
            ..one(Stage::Rates, scenario, rate)
        };
        let measured = vec![
            with(64, Scenario::Nginx, 1000.0),
            with(64, Scenario::Replay, 1500.0),
            with(256, Scenario::Nginx, 800.0),
            with(256, Scenario::Replay, 960.0),
        ];
        let results = Results {
            measured,
            ..Results::default()
        };
        let targets = targets(&results);
        let target = find(&targets, "replay, ratio with 256 connections to 64");
        let figure = target.figure.expect("both were measured");
        assert!((figure - 0.8).abs() < 1e-9, "{figure}");
        assert_eq!(target.reached, Reached::No);
    }
}
