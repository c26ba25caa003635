//! The statistics of a load: latencies within the window, responses by status class, faults.
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
    /// Latencies in microseconds.
    pub(super) latency: Histogram<u64>,
    pub(super) answers: ResponseCounts,
}

impl LoadResult {
    /// A result without latencies, for deliveries that no client waits for.
    pub(super) fn without_latency(rate: f64, answers: ResponseCounts) -> Self {
        LoadResult {
            rate,
            latency: no_latencies(),
            answers,
        }
    }
}

/// All responses by the first digit of their status, and the faults.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseCounts {
    pub(super) by_status_class: [u64; 6],
    pub(super) faults: u64,
    pub(super) first_fault: Option<String>,
}

impl ResponseCounts {
    pub(super) fn add(&mut self, other: ResponseCounts) {
        for (mine, theirs) in self.by_status_class.iter_mut().zip(other.by_status_class) {
            *mine += theirs;
        }
        self.faults += other.faults;
        self.first_fault = self.first_fault.take().or(other.first_fault);
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
    answers: ResponseCounts,
    seconds: f64,
}

impl Stats {
    pub(super) fn new() -> Self {
        Stats {
            latency: no_latencies(),
            answers: ResponseCounts::default(),
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
        self.answers.by_status_class[usize::from(response.status / 100).min(5)] += 1;
        match workload.check(response) {
            Err(wrong) => self.fault(&Fault::Unexpected(wrong)),
            Ok(()) if part == WindowPart::Counted => {
                let took_us = u64::try_from(took.as_micros()).unwrap_or(LATENCY_US_MAX);
                self.latency.saturating_record(took_us.max(1));
            }
            Ok(()) => {}
        }
    }

    pub(super) fn fault(&mut self, fault: &Fault) {
        self.answers.faults += 1;
        self.answers
            .first_fault
            .get_or_insert_with(|| fault.to_string());
    }

    /// The number of responses of any kind.
    pub(super) fn answered(&self) -> u64 {
        self.answers.by_status_class.iter().sum()
    }

    pub(super) fn closed(mut self, window: Window) -> Self {
        self.seconds = window.length().as_secs_f64();
        self
    }

    pub(super) fn add(&mut self, other: Stats) {
        self.latency
            .add(&other.latency)
            .expect("all histograms have the same bounds");
        self.answers.add(other.answers);
        self.seconds = self.seconds.max(other.seconds);
    }

    pub(super) fn outcome(self) -> LoadResult {
        let rate = self.latency.len() as f64 / self.seconds.max(f64::EPSILON);
        LoadResult {
            rate,
            latency: self.latency,
            answers: self.answers,
        }
    }
}

fn no_latencies() -> Histogram<u64> {
    let latencies = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
    latencies.expect("the bounds and three digits are legal for a histogram")
}
