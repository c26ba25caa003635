//! What a gateway counts and how it is told to Prometheus.
//!
//! The recorder belongs to the gateway, not to the process, so that two
//! gateways in one test do not count for each other. A label is never a key, a
//! path or anything else that a client may choose: tenants and projects come
//! from known callers and only the first so many have their own, endpoints come
//! from routes, and all other words are the program's or the configuration's.

mod failed_events;
mod family;
mod names;
mod route;
mod store;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::StatusCode;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use onceward_core::caller::Caller;
use onceward_core::deadline::within;
use onceward_core::engine::Engine;
use onceward_core::identity::OperationId;
use onceward_core::store::{Inspect, Stats, Store, StoreError};
use onceward_http::delivery::DeliveryOutcome;
use onceward_http::problem::Code;
use tokio::time::Instant;

use self::failed_events::FailedEvents;
use self::family::{Family, Handle};
use self::route::CallerMetrics;
pub(crate) use self::route::RouteMetrics;
use crate::admin::StoreHealth;
use crate::config::{EndpointName, KnownBy, Limits, SameBytes};
use crate::listen::ConnectionCounts;

/// Upper bounds of the latency histograms, in seconds.
const BUCKETS: [f64; 14] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// How long the store may take to tell how much it holds.
const STATS_DEADLINE: Duration = Duration::from_secs(2);

/// The endpoint where nothing is configured: a path is not a label.
const UNCONFIGURED: &str = "_default";
/// The endpoint of requests that no route matches.
const NO_ROUTE: &str = "_none";
/// What stands for everything beyond a bound.
const OTHER: &str = "other";

const METADATA: Metadata<'static> = Metadata::new("onceward", Level::INFO, None);

/// The label of a route's endpoint.
pub(crate) fn endpoint_label(naming: &EndpointName) -> &str {
    match naming {
        EndpointName::Fixed(endpoint) => endpoint.as_str(),
        EndpointName::ByPath => UNCONFIGURED,
    }
}

/// Where series are made. Clones share them.
#[derive(Clone)]
struct MetricRegistry(Arc<PrometheusRecorder>);

impl MetricRegistry {
    fn get<H: Handle>(&self, key: &Key) -> H {
        H::register(&self.0, key)
    }

    fn plain<H: Handle>(&self, name: &'static str) -> H {
        self.get(&Key::from_static_name(name))
    }
}

/// All metrics of a gateway.
pub(crate) struct Metrics {
    registry: MetricRegistry,
    handle: PrometheusHandle,
    callers: CallerMetrics,
    /// By endpoint, then by class of status.
    requests: Family<Arc<Family<Histogram>>>,
    /// By upstream.
    upstreams: Family<Arc<UpstreamMetrics>>,
    /// By tenant, then by limit.
    limited: Family<Arc<Family<Counter>>>,
    /// By what the caller shows, then by reason.
    auth_refused: Family<Arc<Family<Counter>>>,
    /// By provider, then by reason.
    webhook_refused: Family<Arc<Family<Counter>>>,
    /// By provider, then by what was done.
    same_bytes: Family<Arc<Family<Counter>>>,
    /// By upstream, then by what it came to.
    deliveries: Family<Arc<Family<Counter>>>,
    failed_events: FailedEvents,
    refused: Family<Counter>,
    jwks_failed: Family<Counter>,
    connection_counts: OnceLock<Arc<ConnectionCounts>>,
    connections: Gauge,
    connections_refused: Counter,
    connections_cut: Counter,
    reloads_done: Counter,
    reloads_failed: Counter,
    reload_successful: Gauge,
    loaded_at: Mutex<Instant>,
    config_age: Gauge,
    spans: SpanMetrics,
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

/// Which limit refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests of a tenant in a time.
    Requests,
    /// Operations that run, in all or of a tenant.
    InFlight,
    /// Bytes of bodies held.
    BufferedBytes,
}

impl Limit {
    fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::InFlight => "in-flight",
            Self::BufferedBytes => "buffered-bytes",
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".to_owned()), &BUCKETS)?
            .build_recorder();
        names::describe(&recorder);
        let handle = recorder.handle();
        let registry = MetricRegistry(Arc::new(recorder));
        let build = Key::from_parts(
            "onceward_build_info",
            vec![Label::new("version", env!("CARGO_PKG_VERSION"))],
        );
        registry.get::<Gauge>(&build).set(1.0);
        let reloads = Family::counters(&registry, "onceward_reloads_total", vec![], "outcome");
        let reload_successful: Gauge = registry.plain("onceward_reload_successful");
        reload_successful.set(1.0);
        Ok(Self {
            handle,
            callers: CallerMetrics::new(&registry, Limits::default().label_values),
            requests: family::requests(&registry),
            upstreams: family::upstreams(&registry),
            limited: Family::nested(&registry, "onceward_limited_total", "tenant", "limit"),
            auth_refused: Family::nested(
                &registry,
                "onceward_auth_refused_total",
                "method",
                "reason",
            ),
            webhook_refused: Family::nested(
                &registry,
                "onceward_webhook_refused_total",
                "provider",
                "reason",
            ),
            same_bytes: Family::nested(
                &registry,
                "onceward_webhook_same_bytes_total",
                "provider",
                "answer",
            ),
            deliveries: Family::nested(
                &registry,
                "onceward_webhook_deliveries_total",
                "upstream",
                "outcome",
            ),
            failed_events: FailedEvents::new(registry.plain("onceward_webhook_failed")),
            refused: Family::counters(&registry, "onceward_refused_total", vec![], "code"),
            jwks_failed: Family::counters(
                &registry,
                "onceward_jwks_refresh_failed_total",
                vec![],
                "issuer",
            ),
            connection_counts: OnceLock::new(),
            connections: registry.plain("onceward_connections"),
            connections_refused: registry.plain("onceward_connections_refused_total"),
            connections_cut: registry.plain("onceward_connections_cut_total"),
            reloads_done: reloads.of("done"),
            reloads_failed: reloads.of("failed"),
            reload_successful,
            loaded_at: Mutex::new(Instant::now()),
            config_age: registry.plain("onceward_config_age_seconds"),
            spans: SpanMetrics::new(&registry),
            gauges: Gauges {
                in_flight: registry.plain("onceward_in_flight"),
                waiters: registry.plain("onceward_waiters"),
                queued: registry.plain("onceward_queued"),
                unknown: registry.plain("onceward_unknown"),
                paused: registry.plain("onceward_paused"),
                operations: registry.plain("onceward_stored_operations"),
                bytes: registry.plain("onceward_stored_bytes"),
            },
            registry,
        })
    }

    /// The counters of a caller on a route, found without a lock. `endpoint` is
    /// that of [`endpoint_label`]. The first [`Limits::label_values`] pairs of
    /// tenant and project have counters of their own, all others share one.
    pub(crate) fn of(&self, caller: &Caller, endpoint: &str, class: &str) -> Arc<RouteMetrics> {
        self.callers
            .of(caller.tenant(), caller.project())
            .route(endpoint, class)
    }

    /// How many pairs of tenant and project have their own labels from now on.
    /// Those that have them keep them: a counter does not go backwards.
    pub(crate) fn set_label_values(&self, pairs_max: usize) {
        self.callers.set_max(pairs_max);
    }

    /// How long a request took, from its head to the head of its answer.
    /// Without an endpoint, no route matched.
    pub(crate) fn request_took(&self, endpoint: Option<&str>, status: StatusCode, time: Duration) {
        self.requests
            .of(endpoint.unwrap_or(NO_ROUTE))
            .of(status_class(status))
            .record(time);
    }

    /// The histograms of an upstream, by its name in the configuration.
    pub(crate) fn upstream(&self, name: &str) -> Arc<UpstreamMetrics> {
        self.upstreams.of(name)
    }

    /// A request was answered with a problem.
    pub(crate) fn refused(&self, code: Code) {
        self.refused.of(code.as_str()).increment(1);
    }

    /// A request of this caller went over a limit.
    pub(crate) fn limited(&self, caller: &Caller, limit: Limit) {
        let labels = self.callers.of(caller.tenant(), caller.project());
        self.limited
            .of(labels.tenant())
            .of(limit.as_str())
            .increment(1);
    }

    /// A caller was not let in. `by` is what it showed, if anything; `reason`
    /// is one of the program's own words.
    pub(crate) fn auth_refused(&self, by: Option<KnownBy>, reason: &'static str) {
        self.auth_refused.of(method(by)).of(reason).increment(1);
    }

    /// A request to a webhook of this provider, which is one of ours or of the
    /// configuration's, was not verified.
    pub(crate) fn webhook_refused(&self, provider: &str, reason: &'static str) {
        self.webhook_refused.of(provider).of(reason).increment(1);
    }

    /// An event's bytes came before under another id.
    pub(crate) fn same_bytes(&self, provider: &str, rule: SameBytes) {
        let answer = match rule {
            SameBytes::Deliver => "delivered",
            SameBytes::Refuse => "refused",
        };
        self.same_bytes.of(provider).of(answer).increment(1);
    }

    /// An attempt to deliver an event has ended.
    pub(crate) fn delivered(&self, upstream: &str, id: OperationId, outcome: DeliveryOutcome) {
        self.deliveries
            .of(upstream)
            .of(outcome.as_str())
            .increment(1);
        match outcome {
            DeliveryOutcome::Failed => self.failed_events.add(id),
            // Whether an older failure still stands is not known.
            DeliveryOutcome::NotRecorded => {}
            _ => self.failed_events.remove(id),
        }
    }

    /// Counts the failed events that are in the store: those of an earlier start,
    /// or of other gateways.
    pub(crate) async fn load_failed_events(&self, inspect: &dyn Inspect) -> Result<(), StoreError> {
        self.failed_events.load(inspect).await
    }

    /// How often the keys of an issuer in the configuration could not be fetched.
    pub(crate) fn jwks_failed(&self, issuer: &str, times: u64) {
        self.jwks_failed.of(issuer).absolute(times);
    }

    /// Reports the connections of this listener. Only the first call has an effect.
    pub(crate) fn set_connection_counts(&self, counts: Arc<ConnectionCounts>) {
        let _ = self.connection_counts.set(counts);
    }

    /// A new configuration holds.
    pub(crate) fn reload_done(&self) {
        self.reloads_done.increment(1);
        self.reload_successful.set(1.0);
        *self
            .loaded_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// A new configuration was refused; the old one holds.
    pub(crate) fn reload_failed(&self) {
        self.reloads_failed.increment(1);
        self.reload_successful.set(0.0);
    }

    /// What becomes of spans.
    pub(crate) fn spans(&self) -> SpanMetrics {
        self.spans.clone()
    }

    /// A store whose steps are timed, and whose store_health is taken as it writes.
    pub(crate) fn timed(
        &self,
        store: Arc<dyn Store>,
        store_health: Arc<StoreHealth>,
    ) -> Arc<dyn Store> {
        store::timed(&self.registry, store, store_health)
    }

    /// The page for Prometheus, with the gauges as they are now. A store that
    /// does not answer leaves its gauges as they were.
    pub(crate) async fn render(&self, engine: &Engine, inspect: &dyn Inspect) -> String {
        self.gauges.in_flight.set(engine.running() as f64);
        self.gauges.waiters.set(engine.waiters() as f64);
        let loaded_at = *self
            .loaded_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.config_age.set(loaded_at.elapsed().as_secs_f64());
        if let Some(counts) = self.connection_counts.get() {
            self.connections.set(counts.open() as f64);
            self.connections_refused.absolute(counts.refused());
            self.connections_cut.absolute(counts.cut_off());
        }
        self.failed_events.recheck(inspect, STATS_DEADLINE).await;
        match within(STATS_DEADLINE, inspect.stats()).await {
            Ok(Ok(stats)) => self.gauges.store(&stats),
            Ok(Err(error)) => tracing::warn!(%error, "the store does not tell how much it holds"),
            Err(_) => tracing::warn!("the store takes too long to tell how much it holds"),
        }
        self.handle.render()
    }

    /// What has been counted, where there is neither engine nor store.
    #[cfg(test)]
    pub(crate) fn counted(&self) -> String {
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

fn status_class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

fn method(by: Option<KnownBy>) -> &'static str {
    match by {
        Some(KnownBy::ApiKey) => "api_key",
        Some(KnownBy::Jwt) => "jwt",
        Some(KnownBy::Unkey) => "unkey",
        Some(KnownBy::Scheduler) => "scheduler",
        None => "none",
    }
}

/// How long an upstream takes, by what came of it.
pub(crate) struct UpstreamMetrics(Family<Histogram>);

/// What came of sending a request upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// Its answer began.
    Answered,
    /// No byte of it was sent.
    NotSent,
    /// It was sent, and no answer came, or the wait for it was given up.
    Lost,
}

impl SendOutcome {
    /// The word in metrics and traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NotSent => "not-sent",
            Self::Lost => "lost",
        }
    }
}

impl UpstreamMetrics {
    /// Begins to measure. A timer that is dropped without an end counts as lost:
    /// the wait was given up.
    pub(crate) fn begin(self: &Arc<Self>) -> UpstreamTimer {
        UpstreamTimer {
            metrics: self.clone(),
            start: Instant::now(),
            sent: SendOutcome::Lost,
        }
    }
}

/// A request under way to an upstream.
pub(crate) struct UpstreamTimer {
    metrics: Arc<UpstreamMetrics>,
    start: Instant,
    sent: SendOutcome,
}

impl UpstreamTimer {
    /// Records how long it took.
    pub(crate) fn end(mut self, sent: SendOutcome) {
        self.sent = sent;
    }
}

impl Drop for UpstreamTimer {
    fn drop(&mut self) {
        let histogram = self.metrics.0.of(self.sent.as_str());
        histogram.record(self.start.elapsed());
    }
}

/// What becomes of spans.
#[derive(Clone)]
pub(crate) struct SpanMetrics {
    exported: Counter,
    dropped_full: Counter,
    dropped_refused: Counter,
}

impl SpanMetrics {
    fn new(registry: &MetricRegistry) -> Self {
        let dropped = Family::counters(registry, "onceward_spans_dropped_total", vec![], "reason");
        Self {
            exported: registry.plain("onceward_spans_exported_total"),
            dropped_full: dropped.of("queue-full"),
            dropped_refused: dropped.of("not-taken"),
        }
    }

    /// The collector took so many.
    pub(crate) fn exported(&self, spans: u64) {
        self.exported.increment(spans);
    }

    /// There was no room to keep one.
    pub(crate) fn dropped_full(&self) {
        self.dropped_full.increment(1);
    }

    /// The collector did not take so many.
    pub(crate) fn dropped_refused(&self, spans: u64) {
        self.dropped_refused.increment(spans);
    }
}

#[cfg(test)]
mod tests;
