//! The report as text for a terminal: rates with processor time, latencies, the traffic to shared
//! stores, a full store, and the targets.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cost::Cost;
use super::report::{Report, Row, Spread};
use super::scale::Scale;
use super::scenario::{Scenario, Stage};
use super::targets::{Bound, Reached, Target};
use super::tools::Generator;

/// The whole report. A row with a fault shows the fault in place of its figures.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("{}\n", headline(report));
    let mut section = |title: &str, rows: Vec<Vec<String>>| {
        // The first row has the names of the columns.
        if rows.len() > 1 {
            write!(text, "\n{title}\n\n{}", layout(&rows)).expect("a String can be written to");
        }
    };
    section(
        "Highest rates, and processor time per request until the server is idle again; ratios with \
         their lowest and highest",
        rates(report),
    );
    section(
        "The server of a shared store, per request; a send is a segment with data from the gateway",
        stores(report),
    );
    section(
        "Latencies in milliseconds at a constant rate, from the time that a request was due",
        latencies(report),
    );
    section("A store with many records", scale(report.scale.as_ref()));
    section(
        "NOT IDLE when the wait ended: processor time is incomplete, and the next scenario was slowed",
        still_busy(report),
    );
    section("Targets", target_rows(&report.targets));
    text.push_str("\nMedians over the rounds; a ratio is the median of each round's own.\n");
    text
}

fn headline(report: &Report) -> String {
    let machine = &report.machine;
    let settings = &report.settings;
    let load = match report.tools.generator {
        Generator::Wrk => "wrk",
        _ => "this program (wrk is not installed)",
    };
    format!(
        "{} cores ({}), Linux {}, store on {}, load before {}, {} rounds of {} s, load by {load}",
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.store_file_system,
        machine.load_average_before,
        settings.rounds,
        settings.measured_seconds,
    )
}

fn rates(report: &Report) -> Vec<Vec<String>> {
    let to = baseline(report);
    let titles = [
        "connections",
        "what",
        "per second",
        to,
        "",
        "µs user",
        "µs system",
        to,
        "",
        "p50 ms",
        "p99 ms",
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    let rows = report.rows.iter();
    let rows = rows.filter(|row| matches!(row.stage, Stage::Rates | Stage::Scale));
    lines.extend(rows.map(rate_row));
    lines
}

fn rate_row(row: &Row) -> Vec<String> {
    let connections = match row.connections {
        1 => "1, 100 streams".to_owned(),
        number => number.to_string(),
    };
    let mut line = vec![connections, row.scenario.label().into()];
    let (user, system) = cost(row.cost);
    match &row.first_fault {
        Some(fault) => line.push(format!("ERROR {} times: {fault}", row.faults)),
        None => line.extend([
            thousands(row.rate_per_second),
            middle(row.ratio),
            ends(row.ratio),
            user,
            system,
            middle(row.cost_ratio),
            ends(row.cost_ratio),
            milliseconds(row.p50_ms),
            milliseconds(row.p99_ms),
        ]),
    }
    line
}

fn stores(report: &Report) -> Vec<Vec<String>> {
    let titles = [
        "what",
        "µs user",
        "µs system",
        "sends",
        "bytes sent",
        "bytes received",
        "bytes to disk",
        "bytes stored",
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for row in report.rows.iter().filter(|row| row.faults == 0) {
        let (user, system) = cost(row.store_cost);
        if let Some(traffic) = row.store_traffic {
            let stored = report.stored.iter();
            let stored = stored.filter(|stored| stored.scenario == row.scenario);
            let stored = stored.map(|stored| stored.bytes_per_operation).next();
            let written = row.store_cost.map(|cost| cost.written_bytes);
            lines.push(vec![
                row.scenario.label().into(),
                user,
                system,
                format!("{:.2}", traffic.sends),
                thousands(traffic.sent_bytes),
                thousands(traffic.received_bytes),
                written.map_or_else(none, thousands),
                stored.map_or_else(none, thousands),
            ]);
        }
    }
    lines
}

fn latencies(report: &Report) -> Vec<Vec<String>> {
    let titles = ["load", "what", "per second", "p50", "p99", "p99.9"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    let stages = [Stage::Latencies, Stage::Flood];
    for row in report.rows.iter().filter(|row| stages.contains(&row.stage)) {
        let load = match row.load_percent {
            Some(percent) => format!("{percent} %"),
            None => "two tenants".into(),
        };
        let label = match (row.scenario, report.sync_bytes) {
            (Scenario::Sync, Some(bytes)) => {
                format!("{}, up to {} KiB", row.scenario.label(), bytes / 1024)
            }
            _ => row.scenario.label().to_owned(),
        };
        let mut line = vec![load, label];
        match &row.first_fault {
            Some(fault) => line.push(format!("ERROR {} times: {fault}", row.faults)),
            None => line.extend([
                thousands(row.rate_per_second),
                milliseconds(row.p50_ms),
                milliseconds(row.p99_ms),
                milliseconds(row.p999_ms),
            ]),
        }
        lines.push(line);
    }
    lines
}

fn scale(scale: Option<&Scale>) -> Vec<Vec<String>> {
    let mut lines = vec![vec!["what".to_owned(), "figure".to_owned()]];
    let Some(scale) = scale else {
        return lines;
    };
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / 1024.0 / 1024.0);
    let fill_cost = scale.fill_cost.map(|cost| cost.total_us());
    let sweep = &scale.sweep;
    let figures = [
        ("records", thousands(scale.records as f64)),
        ("filled per second", thousands(scale.fill_per_second)),
        ("µs of processor per filled record", number(fill_cost, 1)),
        (
            "resident memory when idle, MiB",
            scale.memory_bytes.map_or_else(none, mib),
        ),
        (
            "peak of it, MiB",
            scale.peak_memory_bytes.map_or_else(none, mib),
        ),
        (
            "disk bytes per operation",
            thousands(scale.disk_bytes_per_operation),
        ),
        (
            "reopening after a kill, ms",
            number(Some(scale.reopen_ms), 0),
        ),
        (
            "a list of operations, empty store, ms",
            number(Some(scale.list_empty_ms), 2),
        ),
        (
            "a list of operations, full store, ms",
            number(Some(scale.list_full_ms), 2),
        ),
        (
            "expired records swept per hour",
            thousands(sweep.swept_per_hour),
        ),
        (
            "p99 of first runs before the sweep, ms",
            number(sweep.p99_before_ms, 2),
        ),
        (
            "p99 of first runs during the sweep, ms",
            number(sweep.p99_during_ms, 2),
        ),
    ];
    lines.extend(figures.map(|(name, figure)| vec![name.to_owned(), figure]));
    lines
}

/// Each server that stayed busy, and how often.
fn still_busy(report: &Report) -> Vec<Vec<String>> {
    let mut lines = vec![vec!["what".to_owned(), "times".to_owned()]];
    let mut times = BTreeMap::<&str, usize>::new();
    for name in &report.still_busy {
        *times.entry(name).or_default() += 1;
    }
    lines.extend(
        times
            .iter()
            .map(|(name, times)| vec![(*name).to_owned(), times.to_string()]),
    );
    lines
}

fn target_rows(targets: &[Target]) -> Vec<Vec<String>> {
    let titles = ["at 64 connections", "figure", "wanted", "met"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    lines.extend(targets.iter().map(target_row));
    lines
}

fn target_row(target: &Target) -> Vec<String> {
    let wanted = match target.bound {
        Bound::AtLeast(least) => format!("at least {least}"),
        Bound::AtMost(most) => format!("at most {most}"),
        Bound::Below(limit) => format!("under {limit}"),
    };
    let met = match target.reached {
        Reached::Yes => "yes",
        Reached::No => "NO",
        Reached::NotMeasured => "not measured",
    };
    let figure = match target.figure {
        Some(figure) if figure >= 100.0 => thousands(figure),
        figure => number(figure, 3),
    };
    vec![target.name.clone(), figure, wanted, met.into()]
}

fn baseline(report: &Report) -> &'static str {
    match report.baseline {
        Scenario::Nginx => "to nginx",
        _ => "to direct",
    }
}

fn none() -> String {
    "-".into()
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(none, |value| format!("{value:.digits$}"))
}

fn milliseconds(value: Option<f64>) -> String {
    number(value, 2)
}

fn cost(cost: Option<Cost>) -> (String, String) {
    let part = |of: fn(Cost) -> f64| number(cost.map(of), 1);
    (part(|cost| cost.user_us), part(|cost| cost.system_us))
}

fn middle(spread: Option<Spread>) -> String {
    number(spread.map(|spread| spread.median), 3)
}

fn ends(spread: Option<Spread>) -> String {
    spread.map_or_else(
        none,
        |Spread {
             lowest, highest, ..
         }| { format!("{lowest:.2}–{highest:.2}") },
    )
}

/// `12345.6` as `12,346`.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Columns as wide as their widest cell; a fault at the end of a short line may be wider.
fn layout(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let widths = (0..columns).map(|column| {
        let cells = lines.iter().filter(|line| line.len() == columns);
        cells
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    let widths = Vec::from_iter(widths);
    let mut text = String::new();
    for line in lines {
        for (cell, width) in line.iter().zip(&widths) {
            let number = cell.starts_with(|first: char| first.is_ascii_digit() || first == '-');
            match number {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:<width$}  "),
            }
            .expect("writing to a String does not fail");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let cases = [
            (0.4, "0"),
            (999.0, "999"),
            (1000.0, "1,000"),
            (1234567.8, "1,234,568"),
        ];
        for (value, expected) in cases {
            assert_eq!(thousands(value), expected);
        }
    }

    #[test]
    fn rows_have_figures_and_targets_have_results() {
        let text = render(&report());
        for line in [
            "         64  onceward, first run                   6,000     0.300  0.30–0.30      5.0        1.7     3.333      3.33–3.33    1.00    1.50\n",
            "         64  onceward, webhook, delivered          3,000     0.150  0.15–0.15        -          -         -              -       -       -\n",
            "onceward on Redis, first run      8.0        4.0   1.50         700              90            900             -\n",
            "50 %  onceward, first run                                      1,500  1.00  1.50   2.00\n",
            "50 %  a sync of the disk, beside first runs, up to 8 KiB       1,500  1.00  1.50   2.00\n",
            "replay to nginx, rate                          1.500  at least 1.4   yes\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_server_that_stays_busy_is_named() {
        let mut report = report();
        assert!(!render(&report).contains("NOT IDLE"));
        let first = Scenario::First.label();
        report.still_busy = vec![first.into(), "another".into(), first.into()];
        let text = render(&report);
        assert!(text.contains("NOT IDLE"), "{text}");
        assert!(text.contains("onceward, first run      2\n"), "{text}");
    }

    #[test]
    fn a_fault_replaces_the_figures() {
        let mut report = report();
        report.rows[0].faults = 7;
        report.rows[0].first_fault = Some("status 503".into());
        let text = render(&report);
        assert!(text.contains("ERROR 7 times: status 503\n"), "{text}");
    }
}
