//! What a gateway counts and how it is told to Prometheus.
//!
//! The recorder belongs to the gateway, not to the process, so that two
//! gateways in one test do not count for each other. Labels come from known
//! callers and routes only; a key is never a label.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use onceward_core::caller::Caller;
use onceward_core::engine::Engine;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{Ask, Claim, Inspect, Stats, Store, StoreError};
use onceward_http::problem::Code;
use onceward_http::run::Outcome;

/// Upper bounds of the latency histograms, in seconds.
const BUCKETS: [f64; 14] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// How long the store may take to tell how much it holds.
const STATS_DEADLINE: Duration = Duration::from_secs(2);

const METADATA: Metadata<'static> = Metadata::new("onceward", Level::INFO, None);

/// The labels that every request's counters carry.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    /// The caller's tenant.
    pub(crate) tenant: String,
    /// The caller's project.
    pub(crate) project: String,
    /// The route's endpoint.
    pub(crate) endpoint: String,
    /// The route's class.
    pub(crate) class: String,
}

impl Labels {
    /// The labels where nothing is configured: paths are not labels.
    pub(crate) fn unconfigured(caller: &Caller, class: &str) -> Self {
        Self {
            tenant: caller.tenant().to_owned(),
            project: caller.project().to_owned(),
            endpoint: "_default".to_owned(),
            class: class.to_owned(),
        }
    }

    fn with(&self, more: Option<(&'static str, &'static str)>) -> Vec<Label> {
        let mut labels = vec![
            Label::new("tenant", self.tenant.clone()),
            Label::new("project", self.project.clone()),
            Label::new("endpoint", self.endpoint.clone()),
        ];
        labels.extend(more.map(|(name, value)| Label::new(name, value)));
        labels
    }
}

/// All metrics of a gateway.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    request_seconds: Histogram,
    upstream_seconds: Histogram,
    gauges: Gauges,
}

struct Gauges {
    in_flight: Gauge,
    waiters: Gauge,
    queued: Gauge,
    unknown: Gauge,
    paused: Gauge,
    operations: Gauge,
    bytes: Gauge,
}

/// The counters of one route, found once and not for each request.
pub(crate) struct RouteMetrics {
    present: Counter,
    missing: Counter,
    collision: Counter,
    hit_completed: Counter,
    hit_failed: Counter,
    bypassed: Counter,
    labels: Labels,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
            .build_recorder();
        describe(&recorder);
        let gauge = |name| recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        let histogram = |name| recorder.register_histogram(&Key::from_static_name(name), &METADATA);
        Ok(Self {
            handle: recorder.handle(),
            request_seconds: histogram("onceward_request_duration_seconds"),
            upstream_seconds: histogram("onceward_upstream_duration_seconds"),
            gauges: Gauges {
                in_flight: gauge("onceward_in_flight"),
                waiters: gauge("onceward_waiters"),
                queued: gauge("onceward_queued"),
                unknown: gauge("onceward_unknown"),
                paused: gauge("onceward_paused"),
                operations: gauge("onceward_stored_operations"),
                bytes: gauge("onceward_stored_bytes"),
            },
            recorder,
        })
    }

    /// The counters of a route.
    pub(crate) fn route(&self, labels: Labels) -> RouteMetrics {
        let counter = |name, more| self.counter(name, labels.with(more));
        RouteMetrics {
            present: counter("idempotency_key_present_total", Some(("case", "A"))),
            missing: self.missing(&labels),
            collision: counter("idempotency_key_collision_total", None),
            hit_completed: counter(
                "idempotency_cache_hit_total",
                Some(("restate_status", "completed")),
            ),
            hit_failed: counter(
                "idempotency_cache_hit_total",
                Some(("restate_status", "failed")),
            ),
            bypassed: counter("onceward_bypassed_total", None),
            labels,
        }
    }

    fn missing(&self, labels: &Labels) -> Counter {
        let mut all = labels.with(None);
        all.push(Label::new("class", labels.class.clone()));
        self.counter("idempotency_key_missing_total", all)
    }

    fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        let key = Key::from_parts(name, labels);
        self.recorder.register_counter(&key, &METADATA)
    }

    /// A key that was refused. Rare, so its counter is looked up each time.
    pub(crate) fn invalid_key(&self, route: &RouteMetrics, reason: &'static str) {
        let labels = route.labels.with(Some(("reason", reason)));
        self.counter("idempotency_key_invalid_total", labels)
            .increment(1);
    }

    /// How long a request took, from its head to the head of its answer.
    pub(crate) fn request_took(&self, time: Duration) {
        self.request_seconds.record(time);
    }

    /// How long the upstream took to the head of its answer.
    pub(crate) fn upstream_took(&self, time: Duration) {
        self.upstream_seconds.record(time);
    }

    /// A store whose steps are timed.
    pub(crate) fn timed(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let step = |name| {
            let key = Key::from_parts(
                "onceward_store_duration_seconds",
                vec![Label::new("step", name)],
            );
            self.recorder.register_histogram(&key, &METADATA)
        };
        Arc::new(TimedStore {
            claim: step("claim"),
            settle: step("settle"),
            inner: store,
        })
    }

    /// The page for Prometheus, with the gauges as they are now. A store that
    /// does not answer leaves its gauges as they were.
    pub(crate) async fn render(&self, engine: &Engine, inspect: &dyn Inspect) -> String {
        self.gauges.in_flight.set(engine.running() as f64);
        self.gauges.waiters.set(engine.waiters() as f64);
        match tokio::time::timeout(STATS_DEADLINE, inspect.stats()).await {
            Ok(Ok(stats)) => self.gauges.store(&stats),
            Ok(Err(error)) => tracing::warn!(%error, "the store does not tell how much it holds"),
            Err(_) => tracing::warn!("the store takes too long to tell how much it holds"),
        }
        self.handle.render()
    }

    /// Folds what histograms have gathered; without it they grow until asked for.
    pub(crate) fn fold(&self) {
        self.handle.run_upkeep();
    }
}

impl Gauges {
    fn store(&self, stats: &Stats) {
        self.queued.set(stats.queued as f64);
        self.unknown.set(stats.unknown as f64);
        self.paused.set(stats.paused as f64);
        self.operations.set(stats.operations as f64);
        self.bytes.set(stats.bytes as f64);
    }
}

impl RouteMetrics {
    /// A request came with a key.
    pub(crate) fn key_present(&self) {
        self.present.increment(1);
    }

    /// A request that could have had a key came without one.
    pub(crate) fn key_missing(&self) {
        self.missing.increment(1);
    }

    /// A protected request has ended.
    pub(crate) fn ended(&self, outcome: Outcome) {
        match outcome {
            Outcome::Replayed(State::Failed) => self.hit_failed.increment(1),
            Outcome::Replayed(_) => self.hit_completed.increment(1),
            Outcome::Refused(Code::KeyReused) => self.collision.increment(1),
            Outcome::Bypassed => self.bypassed.increment(1),
            _ => {}
        }
    }
}

fn describe(recorder: &PrometheusRecorder) {
    let counter = |name: &'static str, text: &'static str| {
        recorder.describe_counter(name.into(), None, text.into());
    };
    counter(
        "idempotency_key_present_total",
        "Requests that came with a key.",
    );
    counter(
        "idempotency_key_missing_total",
        "Requests that could have had a key and came without one.",
    );
    counter(
        "idempotency_key_invalid_total",
        "Requests refused for a malformed key.",
    );
    counter(
        "idempotency_key_collision_total",
        "Requests refused because their key belongs to a different request.",
    );
    counter("idempotency_cache_hit_total", "Kept replies given again.");
    counter(
        "onceward_bypassed_total",
        "Requests forwarded unprotected while the store was away.",
    );
    let gauge = |name: &'static str, text: &'static str| {
        recorder.describe_gauge(name.into(), None, text.into());
    };
    gauge("onceward_in_flight", "Operations that this gateway runs.");
    gauge(
        "onceward_waiters",
        "Requests that wait for an operation under way.",
    );
    gauge("onceward_queued", "Operations that wait for delivery.");
    gauge("onceward_unknown", "Operations that may have run.");
    gauge("onceward_paused", "Operations whose attempts are used up.");
    gauge("onceward_stored_operations", "Operations on record.");
    gauge("onceward_stored_bytes", "Bytes that the store takes.");
    let seconds = |name: &'static str, text: &'static str| {
        recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into());
    };
    seconds(
        "onceward_request_duration_seconds",
        "From a request's head to its answer's head.",
    );
    seconds(
        "onceward_upstream_duration_seconds",
        "From sending to the head of the upstream's answer.",
    );
    seconds(
        "onceward_store_duration_seconds",
        "One step of the store, made durable.",
    );
}

/// A store that tells how long its steps take.
struct TimedStore {
    inner: Arc<dyn Store>,
    claim: Histogram,
    settle: Histogram,
}

#[async_trait]
impl Store for TimedStore {
    async fn claim(&self, ask: &Ask) -> Result<Claim, StoreError> {
        let start = Instant::now();
        let answer = self.inner.claim(ask).await;
        self.claim.record(start.elapsed());
        answer
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        self.inner.withdraw(digest, attempt).await
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        self.inner.renew(digest, fence).await
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let start = Instant::now();
        let answer = self.inner.settle(digest, fence, settlement).await;
        self.settle.record(start.elapsed());
        answer
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.inner.get(digest).await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.inner.find(id).await
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        self.inner.wait(digest, limit).await
    }
}
