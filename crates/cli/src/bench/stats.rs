//! The statistics of a load: latencies within the window, the number of responses, faults.
//!
//! The rate counts only expected responses within the window. All responses are checked, including
//! those of the warm-up.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::load::Length;
use super::response::{Malformed, Response};
use super::workload::{Unexpected, Workload};

const LATENCY_US_MAX: u64 = 60_000_000;

/// The result of a load.
#[derive(Debug)]
pub(super) struct LoadResult {
    /// Expected responses per second.
    pub(super) rate: f64,
    /// `None` if the load generator does not measure latencies.
    pub(super) latency: Option<Latency>,
    /// All responses, including those of the warm-up.
    pub(super) answered: u64,
    pub(super) faults: Faults,
}

/// Percentiles of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latency {
    pub(super) p50_us: u64,
    pub(super) p90_us: u64,
    pub(super) p99_us: u64,
    pub(super) p999_us: u64,
    pub(super) max_us: u64,
}

impl Latency {
    /// `None` without a single latency.
    pub(super) fn of(histogram: &Histogram<u64>) -> Option<Self> {
        (!histogram.is_empty()).then(|| Latency {
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        })
    }
}

/// What makes a load invalid: how often, and the first reason.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) count: u64,
    pub(super) first: Option<String>,
}

impl Faults {
    /// Faults of one kind; `reason` is used if there are any.
    pub(super) fn of(count: u64, reason: impl FnOnce() -> String) -> Self {
        Faults {
            count,
            first: (count > 0).then(reason),
        }
    }

    pub(super) fn add(&mut self, other: Faults) {
        self.count += other.count;
        self.first = self.first.take().or(other.first);
    }
}

/// Why a load is invalid.
pub(super) enum Fault {
    Unexpected(Unexpected),
    Io(io::Error),
    Malformed(Malformed),
    TooLarge,
    /// More bytes than one response.
    Surplus,
    Stalled,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unexpected(Unexpected::Status(status)) => write!(f, "status {status}"),
            Fault::Unexpected(Unexpected::RanAgain) => f.write_str("not replayed"),
            Fault::Unexpected(Unexpected::ReplayedTooSoon) => f.write_str("replayed a first run"),
            Fault::Io(error) => write!(f, "connection: {error}"),
            Fault::Malformed(error) => write!(f, "{error}"),
            Fault::TooLarge => f.write_str("response too large"),
            Fault::Surplus => f.write_str("more than one response"),
            Fault::Stalled => f.write_str("no response for too long"),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

/// The time in which responses are counted.
#[derive(Clone, Copy)]
pub(super) struct Window {
    from: Instant,
    until: Option<Instant>,
}

/// The part of the window that an instant is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowPart {
    Warmup,
    Counted,
    After,
}

impl Window {
    pub(super) fn open(length: Length) -> Self {
        let now = Instant::now();
        match length {
            Length::Time { warmup, measured } => Window {
                from: now + warmup,
                until: Some(now + warmup + measured),
            },
            Length::Count(_) => Window {
                from: now,
                until: None,
            },
        }
    }

    pub(super) fn part(&self, now: Instant) -> WindowPart {
        match self.until {
            Some(until) if now >= until => WindowPart::After,
            _ if now < self.from => WindowPart::Warmup,
            _ => WindowPart::Counted,
        }
    }

    fn length(&self) -> Duration {
        self.until.unwrap_or_else(Instant::now) - self.from
    }
}

/// The statistics of one thread.
pub(super) struct Stats {
    latency: Histogram<u64>,
    answered: u64,
    faults: Faults,
    seconds: f64,
}

impl Stats {
    pub(super) fn new() -> Self {
        Stats {
            latency: no_latencies(),
            answered: 0,
            faults: Faults::default(),
            seconds: 0.0,
        }
    }

    pub(super) fn answer(
        &mut self,
        workload: &Workload,
        response: &Response,
        took: Duration,
        part: WindowPart,
    ) {
        self.answered += 1;
        match workload.check(response) {
            Err(wrong) => self.fault(&Fault::Unexpected(wrong)),
            Ok(()) if part == WindowPart::Counted => {
                self.latency.saturating_record(micros(took));
            }
            Ok(()) => {}
        }
    }

    pub(super) fn fault(&mut self, fault: &Fault) {
        self.faults.add(Faults::of(1, || fault.to_string()));
    }

    /// The number of responses of any kind.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    pub(super) fn closed(mut self, window: Window) -> Self {
        self.seconds = window.length().as_secs_f64();
        self
    }

    pub(super) fn add(&mut self, other: Stats) {
        self.latency
            .add(&other.latency)
            .expect("all histograms have the same bounds");
        self.answered += other.answered;
        self.faults.add(other.faults);
        self.seconds = self.seconds.max(other.seconds);
    }

    pub(super) fn outcome(self) -> LoadResult {
        LoadResult {
            rate: self.latency.len() as f64 / self.seconds.max(f64::EPSILON),
            latency: Latency::of(&self.latency),
            answered: self.answered,
            faults: self.faults,
        }
    }
}

/// A duration for a histogram.
pub(super) fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros())
        .unwrap_or(LATENCY_US_MAX)
        .max(1)
}

pub(super) fn no_latencies() -> Histogram<u64> {
    let latencies = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
    latencies.expect("the bounds and three digits are legal for a histogram")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_latencies() {
        let mut histogram = no_latencies();
        assert_eq!(Latency::of(&histogram), None);
        (1..=1000).for_each(|us| histogram.saturating_record(us));
        let expected = Latency {
            p50_us: 500,
            p90_us: 900,
            p99_us: 990,
            p999_us: 999,
            max_us: 1000,
        };
        assert_eq!(Latency::of(&histogram), Some(expected));
    }

    #[test]
    fn the_first_reason_of_a_fault_is_kept() {
        let mut faults = Faults::of(0, || unreachable!("there is none"));
        faults.add(Faults::of(2, || "one".into()));
        faults.add(Faults::of(1, || "other".into()));
        assert_eq!((faults.count, faults.first.as_deref()), (3, Some("one")));
    }
}
