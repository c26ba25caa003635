//! The gateway's metrics, in Prometheus's text format.
//!
//! The recorder belongs to the gateway, not to the process, so that two gateways in
//! one test do not count for each other. A client can choose no label's value, so a
//! label is never a key or a path: tenants and projects come from authenticated
//! callers and have a bounded number of series, endpoints come from routes, and all
//! other values come from the program or the configuration.

mod failed_events;
mod family;
mod histogram;
mod names;
mod route;
mod store;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::StatusCode;
use metrics::{Counter, Gauge, Key, Label, Level, Metadata};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use onceward_core::caller::Caller;
use onceward_core::deadline::within;
use onceward_core::engine::Engine;
use onceward_core::identity::OperationId;
use onceward_core::record::Record;
use onceward_core::store::{Inspect, Stats, Store, StoreError};
use onceward_http::delivery::DeliveryOutcome;
use onceward_http::problem::Code;
use tokio::time::Instant;

use self::failed_events::FailedEvents;
use self::family::{Family, Handle, Positioned};
use self::histogram::{Histogram, Histograms};
use self::route::CallerMetrics;
pub(crate) use self::route::{PlannedMetrics, RouteMetrics};
use crate::admin::StoreHealth;
use crate::config::{EndpointName, KnownBy, Limits, SameBytes};
use crate::listen::ConnectionCounts;

/// The deadline of the store's statistics.
const STATS_DEADLINE: Duration = Duration::from_secs(2);

/// The endpoint of a gateway without configuration: a path is not a label.
const UNCONFIGURED: &str = "_default";
/// The endpoint of requests that no route matches.
const NO_ROUTE: &str = "_none";
/// The value that stands for all values beyond a bound.
const OTHER: &str = "other";

const METADATA: Metadata<'static> = Metadata::new("onceward", Level::INFO, None);

/// The label of a route's endpoint.
pub(crate) fn endpoint_label(naming: &EndpointName) -> &str {
    match naming {
        EndpointName::Fixed(endpoint) => endpoint.as_str(),
        EndpointName::ByPath => UNCONFIGURED,
    }
}

/// Registers series. Clones share them.
#[derive(Clone)]
struct MetricRegistry {
    recorder: Arc<PrometheusRecorder>,
    histograms: Arc<Histograms>,
}

impl MetricRegistry {
    fn get<H: Handle>(&self, key: &Key) -> H {
        H::register(self, key)
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
    /// By endpoint.
    requests: Family<Arc<RequestMetrics>>,
    /// By upstream.
    upstreams: Family<Arc<UpstreamMetrics>>,
    /// By tenant, then by limit.
    limited: Family<Arc<Family<Counter>>>,
    /// By kind of credential, then by reason.
    auth_refused: Family<Arc<Family<Counter>>>,
    /// By provider, then by reason.
    webhook_refused: Family<Arc<Family<Counter>>>,
    /// By provider, then by answer.
    same_bytes: Family<Arc<Family<Counter>>>,
    /// By upstream, then by outcome.
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
    /// The rate of a tenant's requests.
    Requests,
    /// Running operations, in total or of a tenant.
    InFlight,
    /// Bytes of buffered bodies.
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
    pub(crate) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        names::describe(&recorder);
        let handle = recorder.handle();
        let registry = MetricRegistry {
            recorder: Arc::new(recorder),
            histograms: Arc::default(),
        };
        let build = Key::from_parts(
            "onceward_build_info",
            vec![Label::new("version", env!("CARGO_PKG_VERSION"))],
        );
        registry.get::<Gauge>(&build).set(1.0);
        let reloads = Family::counters(&registry, "onceward_reloads_total", vec![], "outcome");
        let reload_successful: Gauge = registry.plain("onceward_reload_successful");
        reload_successful.set(1.0);
        Self {
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
        }
    }

    /// The counters of a caller on a route, found without a lock. `endpoint` is
    /// that of [`endpoint_label`]. The first [`Limits::label_values`] pairs of
    /// tenant and project have separate counters; all others share one set.
    pub(crate) fn of(&self, caller: &Caller, endpoint: &str, class: &str) -> Arc<RouteMetrics> {
        self.callers
            .of(caller.tenant(), caller.project())
            .route(endpoint, class)
    }

    /// Sets how many pairs of tenant and project have their own labels. Existing
    /// pairs keep theirs, because a counter must not go backwards.
    pub(crate) fn set_label_values(&self, pairs_max: usize) {
        self.callers.set_max(pairs_max);
    }

    /// Records the time from a request's head to its answer's head. `endpoint` is
    /// `None` if no route matched.
    pub(crate) fn request_took(&self, endpoint: Option<&str>, status: StatusCode, time: Duration) {
        self.requests
            .of(endpoint.unwrap_or(NO_ROUTE))
            .took(status, time);
    }

    /// The metrics of a planned route. `endpoint` is that of [`endpoint_label`].
    pub(crate) fn planned(&self, endpoint: &str) -> PlannedMetrics {
        PlannedMetrics::new(self.requests.of(endpoint))
    }

    /// The histograms of an upstream, by its name in the configuration.
    pub(crate) fn upstream(&self, name: &str) -> Arc<UpstreamMetrics> {
        self.upstreams.of(name)
    }

    /// Counts a request answered with a problem.
    pub(crate) fn refused(&self, code: Code) {
        self.refused.of(code.as_str()).increment(1);
    }

    /// Counts a request of this caller that exceeded a limit.
    pub(crate) fn limited(&self, caller: &Caller, limit: Limit) {
        let labels = self.callers.of(caller.tenant(), caller.project());
        self.limited
            .of(labels.tenant())
            .of(limit.as_str())
            .increment(1);
    }

    /// Counts a refused caller. `by` is the kind of credential that it sent, if
    /// any.
    pub(crate) fn auth_refused(&self, by: Option<KnownBy>, reason: &'static str) {
        self.auth_refused.of(method(by)).of(reason).increment(1);
    }

    /// Counts a request to a webhook that was not verified. `provider` is built in
    /// or configured, never the sender's choice.
    pub(crate) fn webhook_refused(&self, provider: &str, reason: &'static str) {
        self.webhook_refused.of(provider).of(reason).increment(1);
    }

    /// Counts an event whose bytes came before under another id.
    pub(crate) fn same_bytes(&self, provider: &str, rule: SameBytes) {
        let answer = match rule {
            SameBytes::Deliver => "delivered",
            SameBytes::Refuse => "refused",
        };
        self.same_bytes.of(provider).of(answer).increment(1);
    }

    /// Counts an attempt to deliver an event.
    pub(crate) fn delivered(&self, upstream: &str, id: OperationId, outcome: DeliveryOutcome) {
        self.deliveries
            .of(upstream)
            .of(outcome.as_str())
            .increment(1);
        match outcome {
            DeliveryOutcome::Failed => self.failed_events.add(id),
            // An earlier failure may or may not stand.
            DeliveryOutcome::NotRecorded => {}
            _ => self.failed_events.remove(id),
        }
    }

    /// Counts an event that failed for good within its provider's request.
    pub(crate) fn event_failed(&self, id: OperationId) {
        self.failed_events.add(id);
    }

    /// Counts an event that an operator resolved, if it failed.
    pub(crate) fn event_resolved(&self, record: &Record) {
        self.failed_events.add_resolved(record);
    }

    /// Counts the failed events in the store, from earlier starts and other
    /// gateways.
    pub(crate) async fn load_failed_events(&self, inspect: &dyn Inspect) -> Result<(), StoreError> {
        self.failed_events.load(inspect).await
    }

    /// Sets how many attempts to fetch an issuer's keys have failed.
    pub(crate) fn jwks_failed(&self, issuer: &str, times: u64) {
        self.jwks_failed.of(issuer).absolute(times);
    }

    /// Reports the connections of this listener. Only the first call has an effect.
    pub(crate) fn set_connection_counts(&self, counts: Arc<ConnectionCounts>) {
        let _ = self.connection_counts.set(counts);
    }

    /// Counts a reload that put a new configuration in force.
    pub(crate) fn reload_done(&self) {
        self.reloads_done.increment(1);
        self.reload_successful.set(1.0);
        *self
            .loaded_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Counts a reload that failed; the configuration in force stays.
    pub(crate) fn reload_failed(&self) {
        self.reloads_failed.increment(1);
        self.reload_successful.set(0.0);
    }

    /// The counters of spans.
    pub(crate) fn spans(&self) -> SpanMetrics {
        self.spans.clone()
    }

    /// Wraps a store: its steps are timed, and its writes determine the store's
    /// health.
    pub(crate) fn timed(
        &self,
        store: Arc<dyn Store>,
        store_health: Arc<StoreHealth>,
    ) -> Arc<dyn Store> {
        store::timed(&self.registry, store, store_health)
    }

    /// Renders all metrics with current gauges. If the store does not answer, its
    /// gauges keep their last values.
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
            Ok(Err(error)) => tracing::warn!(%error, "the store's statistics could not be read"),
            Err(_) => tracing::warn!("reading the store's statistics timed out"),
        }
        self.counted()
    }

    /// Renders the metrics without an engine and a store.
    pub(crate) fn counted(&self) -> String {
        let mut page = self.handle.render();
        self.registry.histograms.render(&mut page);
        page
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

/// The durations of requests at an endpoint, by status class.
pub(crate) struct RequestMetrics(Positioned<Histogram, 5>);

impl RequestMetrics {
    /// Records the time from a request's head to its answer's head.
    fn took(&self, status: StatusCode, time: Duration) {
        let (position, class) = match status.as_u16() {
            100..200 => (0, "1xx"),
            200..300 => (1, "2xx"),
            300..400 => (2, "3xx"),
            400..500 => (3, "4xx"),
            _ => (4, "5xx"),
        };
        self.0.at(position, class).record(time);
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

/// The durations of requests to an upstream, by outcome.
pub(crate) struct UpstreamMetrics(Positioned<Histogram, 3>);

/// The outcome of sending a request upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The head of the answer arrived.
    Answered,
    /// No byte of the request was sent.
    NotSent,
    /// The request was sent, and no answer arrived before the wait ended.
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
    /// Starts a timer. A timer that is dropped before its end counts as lost,
    /// because the wait was given up.
    pub(crate) fn begin(&self) -> UpstreamTimer<'_> {
        UpstreamTimer {
            metrics: self,
            start: Instant::now(),
            sent: SendOutcome::Lost,
        }
    }
}

/// Times a request to an upstream.
pub(crate) struct UpstreamTimer<'a> {
    metrics: &'a UpstreamMetrics,
    start: Instant,
    sent: SendOutcome,
}

impl UpstreamTimer<'_> {
    /// Records the duration under its outcome.
    pub(crate) fn end(mut self, sent: SendOutcome) {
        self.sent = sent;
    }
}

impl Drop for UpstreamTimer<'_> {
    fn drop(&mut self) {
        let series = &self.metrics.0;
        let histogram = series.at(self.sent as usize, self.sent.as_str());
        histogram.record(self.start.elapsed());
    }
}

/// The counters of spans.
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

    /// Counts spans that the collector accepted.
    pub(crate) fn exported(&self, spans: u64) {
        self.exported.increment(spans);
    }

    /// Counts a span that did not fit into the queue.
    pub(crate) fn dropped_full(&self) {
        self.dropped_full.increment(1);
    }

    /// Counts spans that the collector did not accept.
    pub(crate) fn dropped_refused(&self, spans: u64) {
        self.dropped_refused.increment(spans);
    }
}

#[cfg(test)]
mod tests;
