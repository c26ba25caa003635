//! The report as a bar chart in SVG, for the README.
//!
//! A few rectangles and labels need no library. The chart has its own background in both colour
//! schemes, because a page may be dark while the reader's system is light. The bars are ratios,
//! because rates depend on the machine and the day, and ratios hardly do.

use std::fmt::Write;

use super::report::{Report, Row};
use super::scenario::{Scenario, Stage};
use super::table::thousands;

const WIDTH: f64 = 760.0;
const LABEL_X: f64 = 236.0;
const BAR_X: f64 = 248.0;
const BAR_WIDTH_MAX: f64 = 330.0;
const TOP: f64 = 84.0;
const STEP: f64 = 36.0;
const BAR_HEIGHT: f64 = 22.0;
const BOTTOM: f64 = 34.0;

// The halo keeps labels readable where the line at 1 crosses them.
const STYLE: &str = "\
text{font:14px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328;\
stroke:#ffffff;stroke-width:4px;paint-order:stroke}\
.title{font-size:17px;font-weight:600}.note{font-size:12px;fill:#59636e}\
.figure{font-weight:600}.card{fill:#ffffff;stroke:#d1d9e0}\
.ours{fill:#0f7b5f}.theirs{fill:#afb8c1}.line{stroke:#59636e;stroke-dasharray:3 4}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc;stroke:#0d1117}.note{fill:#9198a1}\
.card{fill:#0d1117;stroke:#3d444d}.ours{fill:#3fb58f}.theirs{fill:#656c76}.line{stroke:#9198a1}}";

/// The bars, from top to bottom. Only measured scenarios are drawn.
const BARS: [(Stage, Scenario, &str); 7] = [
    (Stage::Rates, Scenario::Nginx, "nginx, plain proxy"),
    (Stage::Rates, Scenario::PassThrough, "Onceward, no key"),
    (Stage::Rates, Scenario::Replay, "Onceward, replay"),
    (
        Stage::Rates,
        Scenario::First,
        "Onceward, first run, fsynced",
    ),
    (Stage::Scale, Scenario::FirstFull, "the same, full store"),
    (
        Stage::Rates,
        Scenario::Webhook,
        "Onceward, webhook, fsynced",
    ),
    (Stage::Rates, Scenario::Restate, "Restate, first run"),
];

pub(super) fn render(report: &Report) -> String {
    let connections = report
        .settings
        .connections
        .first()
        .copied()
        .unwrap_or_default();
    let bars = bars(report, connections);
    let longest = bars
        .iter()
        .filter_map(|(_, row)| ratio(row))
        .fold(1.0, f64::max);
    let scale = BAR_WIDTH_MAX / longest;
    let height = TOP + STEP * bars.len() as f64 + BOTTOM;
    let mut svg = String::new();
    open(&mut svg, height, report, connections);
    line_at_one(&mut svg, height, BAR_X + scale);
    for (at, (label, row)) in bars.iter().enumerate() {
        bar(&mut svg, TOP + STEP * at as f64, label, row, scale);
    }
    close(&mut svg, height, report);
    svg
}

fn bars(report: &Report, connections: usize) -> Vec<(&'static str, &Row)> {
    let find = |stage, scenario| {
        let mut rows = report
            .rows
            .iter()
            .filter(|row| row.connections == connections);
        rows.find(|row| row.stage == stage && row.scenario == scenario)
    };
    BARS.iter()
        .filter_map(|&(stage, scenario, label)| Some((label, find(stage, scenario)?)))
        .collect()
}

fn ratio(row: &Row) -> Option<f64> {
    row.ratio.map(|ratio| ratio.median)
}

fn open(svg: &mut String, height: f64, report: &Report, connections: usize) {
    let title = match report.baseline {
        Scenario::Nginx => "Payments per second, as a ratio to nginx as a plain proxy",
        _ => "Payments per second, as a ratio to no proxy at all",
    };
    let records = thousands(report.settings.records as f64);
    let (right, inner) = (WIDTH - 1.0, height - 1.0);
    put(
        svg,
        format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect class="card" x="0.5" y="0.5" width="{right}" height="{inner}" rx="8"/>
<text class="title" x="24" y="36">{title}</text>
<text class="note" x="24" y="58">longer is faster; {connections} connections; a full store has {records} records</text>"#
        ),
    );
}

fn line_at_one(svg: &mut String, height: f64, x: f64) {
    let (from, to) = (TOP - 6.0, height - BOTTOM - 8.0);
    put(
        svg,
        format_args!(r#"<line class="line" x1="{x:.1}" y1="{from}" x2="{x:.1}" y2="{to}"/>"#),
    );
}

fn bar(svg: &mut String, y: f64, label: &str, row: &Row, scale: f64) {
    let ratio = ratio(row).unwrap_or_default();
    let width = (ratio * scale).max(1.0);
    let class = match row.scenario {
        Scenario::Direct | Scenario::Nginx | Scenario::Restate => "theirs",
        _ => "ours",
    };
    let baseline = y + 16.0;
    let figure_x = BAR_X + width + 8.0;
    let label = escape(label);
    let rate = thousands(row.rate_per_second);
    let digits = if ratio < 0.1 { 3 } else { 2 };
    put(
        svg,
        format_args!(
            r#"<text x="{LABEL_X}" y="{baseline}" text-anchor="end">{label}</text>
<rect class="{class}" x="{BAR_X}" y="{y}" width="{width:.1}" height="{BAR_HEIGHT}" rx="3"/>
<text x="{figure_x:.1}" y="{baseline}"><tspan class="figure">{ratio:.digits$}</tspan><tspan class="note" dx="8">{rate}/s</tspan></text>"#
        ),
    );
}

/// The machine and the date, below the bars.
fn close(svg: &mut String, height: f64, report: &Report) {
    let machine = &report.machine;
    let day = escape(machine.date.split('T').next().unwrap_or_default());
    let processor = escape(&machine.processor);
    let (cores, y) = (machine.cores, height - 16.0);
    put(
        svg,
        format_args!(
            r#"<text class="note" x="24" y="{y}">{cores} cores ({processor}), shared with the load and the upstream; {day}; bench/compare</text>
</svg>"#
        ),
    );
}

fn put(svg: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(svg, "{text}").expect("writing to a String does not fail");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn text_is_escaped() {
        let svg = render(&report());
        assert!(
            svg.contains("2 cores (Quick &amp; Co &lt;9000&gt;)"),
            "{svg}"
        );
    }

    #[test]
    fn a_bar_is_as_long_as_its_ratio() {
        let svg = render(&report());
        let line =
            r#"<tspan class="figure">0.30</tspan><tspan class="note" dx="8">6,000/s</tspan>"#;
        assert!(svg.contains(line), "{svg}");
        // 1.5 is the longest, so 0.3 is a fifth of it.
        let rect = r#"width="66.0" height="22" rx="3"/>"#;
        assert!(svg.contains(rect), "{svg}");
    }

    #[test]
    fn only_measured_scenarios_are_drawn() {
        let mut report = report();
        report.rows.retain(|row| row.scenario != Scenario::Restate);
        assert!(!render(&report).contains("Restate"));
    }
}
