//! Series that differ in one label, found by its value without a lock.
//!
//! A family grows while the gateway runs and never shrinks, so it is read through a
//! pointer and copied when a value is new. It is bounded: values beyond the bound
//! share the series `other`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use metrics::{Counter, Gauge, Key, Label, Recorder};

use super::histogram::Histogram;
use super::{METADATA, MetricRegistry, OTHER, RequestMetrics, UpstreamMetrics};

/// The maximum number of values of a label, if they come from the program or the
/// configuration.
const VALUES_MAX: usize = 1024;

/// A handle of one series.
pub(super) trait Handle: Clone {
    fn register(registry: &MetricRegistry, key: &Key) -> Self;
}

impl Handle for Counter {
    fn register(registry: &MetricRegistry, key: &Key) -> Self {
        registry.recorder.register_counter(key, &METADATA)
    }
}

impl Handle for Gauge {
    fn register(registry: &MetricRegistry, key: &Key) -> Self {
        registry.recorder.register_gauge(key, &METADATA)
    }
}

impl Handle for Histogram {
    fn register(registry: &MetricRegistry, key: &Key) -> Self {
        registry.histograms.get(key)
    }
}

/// Hashed cheaply: the number of values is bounded.
type SeriesByValue<T> = HashMap<Box<str>, T, RandomState>;
type Make<T> = Arc<dyn Fn(&str) -> T + Send + Sync>;

/// Series by the value of a label.
pub(super) struct Family<T> {
    known: ArcSwap<SeriesByValue<T>>,
    /// Returns the same series when called again for the same value.
    make: Make<T>,
}

impl<T> Clone for Family<T> {
    fn clone(&self) -> Self {
        Self {
            known: ArcSwap::new(self.known.load_full()),
            make: self.make.clone(),
        }
    }
}

impl<T: Clone> Family<T> {
    pub(super) fn new(make: impl Fn(&str) -> T + Send + Sync + 'static) -> Self {
        Self {
            known: ArcSwap::default(),
            make: Arc::new(make),
        }
    }

    /// The series with this value.
    pub(super) fn of(&self, value: &str) -> T {
        if let Some(found) = self.known.load().get(value) {
            return found.clone();
        }
        self.known.rcu(|known| self.with(known, value));
        let known = self.known.load();
        match known.get(value).or_else(|| known.get(OTHER)) {
            Some(found) => found.clone(),
            None => (self.make)(OTHER),
        }
    }

    /// Adds this value, or `other` once the family is full.
    fn with(&self, known: &Arc<SeriesByValue<T>>, value: &str) -> Arc<SeriesByValue<T>> {
        let value = if known.len() < VALUES_MAX {
            value
        } else {
            OTHER
        };
        if known.contains_key(value) {
            return known.clone();
        }
        let mut more = HashMap::clone(known);
        more.insert(value.into(), (self.make)(value));
        Arc::new(more)
    }
}

impl<H: Handle + 'static> Family<H> {
    fn of_handles(
        registry: &MetricRegistry,
        name: &'static str,
        labels: Vec<Label>,
        label: &'static str,
    ) -> Self {
        let registry = registry.clone();
        Self::new(move |value| {
            let mut labels = labels.clone();
            labels.push(Label::new(label, value.to_owned()));
            registry.get(&Key::from_parts(name, labels))
        })
    }
}

impl Family<Counter> {
    /// Counters with these labels and the family's own.
    pub(super) fn counters(
        registry: &MetricRegistry,
        name: &'static str,
        labels: Vec<Label>,
        label: &'static str,
    ) -> Self {
        Self::of_handles(registry, name, labels, label)
    }
}

impl Family<Histogram> {
    /// Histograms with these labels and the family's own.
    pub(super) fn histograms(
        registry: &MetricRegistry,
        name: &'static str,
        labels: Vec<Label>,
        label: &'static str,
    ) -> Self {
        Self::of_handles(registry, name, labels, label)
    }
}

impl Family<Arc<Family<Counter>>> {
    /// Counters with two labels.
    pub(super) fn nested(
        registry: &MetricRegistry,
        name: &'static str,
        outer: &'static str,
        inner: &'static str,
    ) -> Self {
        let registry = registry.clone();
        Self::new(move |value| {
            let labels = vec![Label::new(outer, value.to_owned())];
            Arc::new(Family::counters(&registry, name, labels, inner))
        })
    }
}

/// A family whose usual values the program counts by position, so that finding their
/// series takes no look-up. A series begins when it is first used.
#[derive(Clone)]
pub(super) struct Positioned<T, const N: usize> {
    series: [OnceLock<T>; N],
    family: Family<T>,
}

impl<T: Clone, const N: usize> Positioned<T, N> {
    pub(super) fn new(family: Family<T>) -> Self {
        Self {
            series: [const { OnceLock::new() }; N],
            family,
        }
    }

    /// The series with this value, which always has this position.
    pub(super) fn at(&self, position: usize, value: &'static str) -> &T {
        self.series[position].get_or_init(|| self.family.of(value))
    }

    /// The series with a value that has no position.
    pub(super) fn of(&self, value: &str) -> T {
        self.family.of(value)
    }
}

/// The durations of requests, by endpoint and status class.
pub(super) fn requests(registry: &MetricRegistry) -> Family<Arc<RequestMetrics>> {
    const NAME: &str = "onceward_request_duration_seconds";
    let registry = registry.clone();
    Family::new(move |endpoint| {
        let labels = vec![Label::new("endpoint", endpoint.to_owned())];
        let histograms = Family::histograms(&registry, NAME, labels, "status");
        Arc::new(RequestMetrics(Positioned::new(histograms)))
    })
}

/// The durations of requests to upstreams, by upstream and outcome.
pub(super) fn upstreams(registry: &MetricRegistry) -> Family<Arc<UpstreamMetrics>> {
    const NAME: &str = "onceward_upstream_duration_seconds";
    let registry = registry.clone();
    Family::new(move |upstream| {
        let labels = vec![Label::new("upstream", upstream.to_owned())];
        let histograms = Family::histograms(&registry, NAME, labels, "outcome");
        Arc::new(UpstreamMetrics(Positioned::new(histograms)))
    })
}
