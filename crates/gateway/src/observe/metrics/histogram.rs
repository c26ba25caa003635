//! Histograms of durations that count into fixed buckets and keep no samples.
//!
//! The exporter's own histograms keep every sample until they are read. These add to
//! two counts of the recording core, and are rendered with the exporter's functions.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::Key;
use metrics_exporter_prometheus::LabelSet;
use metrics_exporter_prometheus::formatting::{
    write_help_line, write_metric_line, write_type_line,
};

use super::names;
use crate::runtime::cores;

/// Upper bounds of the buckets.
const BOUNDS: [Duration; 14] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// Cores that share a shard slow each other down a little.
const SHARDS: usize = 8;

/// The durations of one series. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Histogram(Arc<[Shard; SHARDS]>);

/// The counts of some cores, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    /// By bucket; the last has no bound.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, time: Duration) {
        let shard = &self.0[cores::position() % SHARDS];
        let bucket = BOUNDS.iter().take_while(|bound| **bound < time).count();
        shard.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        shard.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many durations are in this bucket.
    fn count(&self, bucket: usize) -> u64 {
        let counts = self.0.iter().map(|shard| &shard.counts[bucket]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn sum(&self) -> f64 {
        let sums = self.0.iter().map(|shard| &shard.sum_ns);
        let sum: u64 = sums.map(|sum| sum.load(Ordering::Relaxed)).sum();
        sum as f64 / 1e9
    }

    fn render(&self, page: &mut String, name: &str, labels: &LabelSet) {
        let mut total = 0;
        for (bucket, bound) in BOUNDS.iter().enumerate() {
            total += self.count(bucket);
            let le = Some(("le", bound.as_secs_f64()));
            write_metric_line(page, name, Some("bucket"), labels, le, total, None);
        }
        total += self.count(BOUNDS.len());
        let le = Some(("le", "+Inf"));
        write_metric_line(page, name, Some("bucket"), labels, le, total, None);
        let le = None::<(&str, f64)>;
        write_metric_line(page, name, Some("sum"), labels, le, self.sum(), None);
        write_metric_line(page, name, Some("count"), labels, le, total, None);
    }
}

/// All histograms, by name and labels.
#[derive(Default)]
pub(super) struct Histograms(Mutex<BTreeMap<String, HashMap<LabelSet, Histogram>>>);

impl Histograms {
    /// The histogram of this series; the same one when asked again.
    pub(super) fn get(&self, key: &Key) -> Histogram {
        let labels = LabelSet::from_key_and_global(key, &Default::default());
        let mut by_name = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let by_labels = by_name.entry(key.name().to_owned()).or_default();
        by_labels.entry(labels).or_default().clone()
    }

    /// Appends all histograms to a page of metrics.
    pub(super) fn render(&self, page: &mut String) {
        let by_name = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, by_labels) in &*by_name {
            if let Some(help) = names::help_of_histogram(name) {
                write_help_line(page, name, None, None, help);
            }
            write_type_line(page, name, None, None, "histogram");
            for (labels, histogram) in by_labels {
                histogram.render(page, name, labels);
            }
            page.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics::Label;

    use super::*;

    #[test]
    fn a_histogram_is_rendered_as_the_exporter_would() {
        let histograms = Histograms::default();
        let labels = vec![Label::new("step", "a \"b\"")];
        let key = Key::from_parts("onceward_store_duration_seconds", labels);
        let histogram = histograms.get(&key);
        for time in [Duration::from_micros(500), Duration::from_millis(7)] {
            histogram.record(time);
        }
        histograms.get(&key).record(Duration::from_secs(31));
        let mut page = String::new();
        histograms.render(&mut page);
        let line = |suffix: &str, le: &str, value: &str| {
            format!("onceward_store_duration_seconds_{suffix}{{step=\"a \\\"b\\\"\"{le}}} {value}")
        };
        let bucket = |le: &str, value| line("bucket", &format!(",le=\"{le}\""), value);
        let lines: Vec<_> = page.lines().collect();
        assert!(lines[0].starts_with("# HELP onceward_store_duration_seconds Seconds"));
        assert_eq!(lines[1], "# TYPE onceward_store_duration_seconds histogram");
        assert_eq!(lines[2], bucket("0.0005", "1"));
        assert_eq!(lines[5], bucket("0.005", "1"));
        assert_eq!(lines[6], bucket("0.01", "2"));
        assert_eq!(lines[15], bucket("30", "2"));
        assert_eq!(lines[16], bucket("+Inf", "3"));
        assert_eq!(lines[17], line("sum", "", "31.0075"));
        assert_eq!(lines[18], line("count", "", "3"));
    }
}
