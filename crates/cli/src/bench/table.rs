//! The report as text for a terminal: the measurements, then the targets.

use std::fmt::Write;

use super::report::{Bound, Reached, Report, Row, Target};
use super::schedule::{Scenario, Stage};

/// The whole report. A row with a fault shows the fault in place of its figures.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("{}\n\n", headline(report));
    text.push_str(&layout(&measurements(report)));
    text.push_str("\nMedians over the rounds; a ratio is the median of each round's own.\n\n");
    text.push_str(&layout(&target_rows(&report.targets)));
    text
}

fn headline(report: &Report) -> String {
    let machine = &report.machine;
    let settings = &report.settings;
    format!(
        "{} cores ({}), Linux {}, store on {}, load before {}, {} rounds of {} s",
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.store_file_system,
        machine.load_average_before,
        settings.rounds,
        settings.measured_seconds,
    )
}

fn measurements(report: &Report) -> Vec<Vec<String>> {
    let ratio = match report.baseline {
        Scenario::Nginx => "to nginx",
        _ => "to direct",
    };
    let titles = [
        "store",
        "connections",
        "what",
        "per second",
        "p50 ms",
        "p99 ms",
        ratio,
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    lines.extend(report.rows.iter().map(measurement_row));
    lines
}

fn measurement_row(row: &Row) -> Vec<String> {
    let store = match row.stage {
        Stage::Empty => "empty",
        Stage::Full => "beside full",
        Stage::Flood => "two tenants",
    };
    let mut line = vec![
        store.into(),
        row.connections.to_string(),
        row.scenario.label().into(),
    ];
    match &row.first_fault {
        Some(fault) => line.push(format!("ERROR {} times: {fault}", row.faults)),
        None => line.extend([
            thousands(row.rate_per_second),
            milliseconds(row.p50_ms),
            milliseconds(row.p99_ms),
            figure(row.ratio),
        ]),
    }
    line
}

fn target_rows(targets: &[Target]) -> Vec<Vec<String>> {
    let titles = ["at 64 connections", "figure", "target", "reached"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    lines.extend(targets.iter().map(target_row));
    lines
}

fn target_row(target: &Target) -> Vec<String> {
    let (figure, bound) = match target.bound {
        Bound::AtLeast(least) => (figure(target.figure), format!("at least {least}")),
        Bound::Below(most) => (figure(target.figure), format!("under {most}")),
        Bound::AtMostMib(most) => (mib(target.figure), format!("under {most} MiB")),
    };
    let reached = match target.reached {
        Reached::Yes => "yes",
        Reached::No => "NO",
        Reached::NotMeasured => "not measured",
    };
    vec![target.name.into(), figure, bound, reached.into()]
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.3}"))
}

fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

fn mib(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.0} MiB"))
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
        let row = "empty                 64  onceward, first run                   6,000    1.50    1.50     0.300\n";
        assert!(text.contains(row), "{text}");
        let row = "empty                 64  onceward, webhook, delivered          3,000       -       -     0.150\n";
        assert!(text.contains(row), "{text}");
        let target = "replay to nginx                   1.200  at least 1.3   NO\n";
        assert!(text.contains(target), "{text}");
    }

    #[test]
    fn a_fault_replaces_the_figures() {
        let mut report = report();
        report.rows[0].faults = 7;
        report.rows[0].first_fault = Some("status 503".into());
        let text = render(&report);
        assert!(
            text.contains("nginx, plain proxy               ERROR 7 times: status 503\n"),
            "{text}"
        );
    }
}
