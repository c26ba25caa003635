//! Sends spans to a collector: OTLP over HTTP, as JSON.
//!
//! Requests never wait for it. An ended span enters a bounded queue, or is dropped
//! and counted if the queue is full. One task takes spans from the queue in batches
//! and retries each batch a few times until the collector accepts it.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use onceward_core::deadline::within;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::context::{SpanId, TraceContext};
use super::{AttributeValue, SpanKind};
use crate::config::Otlp;
use crate::observe::metrics::SpanMetrics;
use crate::upstream::fetch::{Fetch, FetchError, FetchLimits, Fetched};

/// The length of the queue.
const QUEUE_SPANS_MAX: usize = 8192;
/// The size of a batch.
const BATCH_SPANS_MAX: usize = 512;
/// How long a span waits for others in its batch.
const LINGER: Duration = Duration::from_millis(500);
/// The maximum number of attempts per batch.
const ATTEMPTS_MAX: u32 = 3;
/// The pause before the second attempt; it doubles with each attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The deadline of one attempt.
const DEADLINE: Duration = Duration::from_secs(5);
/// The deadline of the remaining batches when the gateway stops.
const FLUSH_DEADLINE: Duration = Duration::from_secs(3);
/// The path of a collector whose URL has none.
const DEFAULT_PATH: &str = "/v1/traces";

/// A span that has ended.
pub(super) struct FinishedSpan {
    pub(super) context: TraceContext,
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) kind: SpanKind,
    pub(super) name: Cow<'static, str>,
    pub(super) began_at: SystemTime,
    pub(super) took: Duration,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    pub(super) failed: bool,
}

/// The queue of spans to send.
pub(super) struct SpanQueue {
    spans: mpsc::Sender<FinishedSpan>,
    metrics: SpanMetrics,
}

impl SpanQueue {
    /// Queues a span, or drops and counts it if the queue is full.
    pub(super) fn put(&self, span: FinishedSpan) {
        if self.spans.try_send(span).is_err() {
            self.metrics.dropped_full();
        }
    }
}

/// The task that sends spans.
pub(super) struct Exporter {
    stop: Arc<Stop>,
    tasks: TaskTracker,
}

impl Exporter {
    /// Waits until all queued spans are sent or dropped, at most [`FLUSH_DEADLINE`].
    pub(super) async fn close(&self) {
        self.stop.begin();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.begin();
    }
}

/// The signal to stop, and the time when sending ends.
#[derive(Default)]
struct Stop {
    called: CancellationToken,
    over_at: OnceLock<Instant>,
}

impl Stop {
    fn begin(&self) {
        self.over_at.get_or_init(|| Instant::now() + FLUSH_DEADLINE);
        self.called.cancel();
    }

    fn is_called(&self) -> bool {
        self.called.is_cancelled()
    }

    /// Returns when the time for sending is over.
    async fn over(&self) {
        self.called.cancelled().await;
        if let Some(over_at) = self.over_at.get() {
            tokio::time::sleep_until(*over_at).await;
        }
    }
}

/// Starts the task that sends spans.
pub(super) fn start(
    otlp: &Otlp,
    metrics: SpanMetrics,
) -> Result<(SpanQueue, Exporter), FetchError> {
    let limits = FetchLimits {
        deadline: DEADLINE,
        ..FetchLimits::default()
    };
    let collector = Collector {
        fetch: Fetch::new(&otlp.endpoint, limits)?,
        path: path(&otlp.endpoint),
        service: otlp.service.clone(),
        metrics: metrics.clone(),
    };
    let (spans, waiting) = mpsc::channel(QUEUE_SPANS_MAX);
    let exporter = Exporter {
        stop: Arc::default(),
        tasks: TaskTracker::new(),
    };
    let stop = exporter.stop.clone();
    exporter.tasks.spawn(send_all(collector, waiting, stop));
    Ok((SpanQueue { spans, metrics }, exporter))
}

/// The path to send to, if the URL has none.
fn path(url: &str) -> Option<&'static str> {
    let own = url.parse::<Uri>().ok();
    let own = own.as_ref().map_or("", Uri::path);
    matches!(own, "" | "/").then_some(DEFAULT_PATH)
}

async fn send_all(
    collector: Collector,
    mut waiting: mpsc::Receiver<FinishedSpan>,
    stop: Arc<Stop>,
) {
    let mut batch = Vec::with_capacity(BATCH_SPANS_MAX);
    loop {
        let came = tokio::select! {
            came = waiting.recv_many(&mut batch, BATCH_SPANS_MAX) => came,
            () = stop.called.cancelled() => break,
        };
        if came == 0 {
            return;
        }
        let more = fill(&mut batch, &mut waiting);
        let more = within(LINGER, more);
        // The batch is sent when it is full, after `LINGER`, or at a stop.
        let _ = stop.called.run_until_cancelled(more).await;
        collector.send(&batch, &stop).await;
        batch.clear();
    }
    waiting.close();
    while waiting.recv_many(&mut batch, BATCH_SPANS_MAX).await > 0 {
        collector.send(&batch, &stop).await;
        batch.clear();
    }
}

async fn fill(batch: &mut Vec<FinishedSpan>, waiting: &mut mpsc::Receiver<FinishedSpan>) {
    while batch.len() < BATCH_SPANS_MAX {
        let room = BATCH_SPANS_MAX - batch.len();
        if waiting.recv_many(batch, room).await == 0 {
            return;
        }
    }
}

struct Collector {
    fetch: Fetch,
    path: Option<&'static str>,
    service: String,
    metrics: SpanMetrics,
}

/// A collector's answer to a batch.
enum ExportOutcome {
    /// Accepted, except for `refused` spans.
    Accepted { refused: u64 },
    /// Not accepted now; another attempt may succeed.
    Later(String),
    /// Not accepted; another attempt would fail too.
    Refused(String),
}

impl Collector {
    /// Sends a batch until the collector accepts it; only once after a stop.
    async fn send(&self, batch: &[FinishedSpan], stop: &Stop) {
        let spans = batch.len() as u64;
        let Ok(body) = serde_json::to_vec(&Export::of(batch, &self.service)) else {
            return self.metrics.dropped_refused(spans);
        };
        let body = Bytes::from(body);
        for attempt in 1.. {
            let outcome = tokio::select! {
                biased;
                outcome = self.post(body.clone()) => outcome,
                () = stop.over() => ExportOutcome::Later("the gateway stops".to_owned()),
            };
            let why = match outcome {
                ExportOutcome::Accepted { refused } => {
                    let refused = refused.min(spans);
                    self.metrics.exported(spans - refused);
                    return self.metrics.dropped_refused(refused);
                }
                ExportOutcome::Later(why) if attempt < ATTEMPTS_MAX && !stop.is_called() => {
                    tracing::debug!(why, "collector did not accept spans; retrying");
                    let pause = tokio::time::sleep(RETRY_PAUSE * 2u32.pow(attempt - 1));
                    let _ = stop.called.run_until_cancelled(pause).await;
                    continue;
                }
                ExportOutcome::Later(why) | ExportOutcome::Refused(why) => why,
            };
            tracing::warn!(spans, why, "collector did not accept spans; dropped");
            return self.metrics.dropped_refused(spans);
        }
    }

    async fn post(&self, body: Bytes) -> ExportOutcome {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        match self.fetch.post(self.path, headers, body).await {
            Ok(answer) => classify(&answer),
            Err(error) => ExportOutcome::Later(error.to_string()),
        }
    }
}

fn classify(answer: &Fetched) -> ExportOutcome {
    match answer.status {
        status if status.is_success() => ExportOutcome::Accepted {
            refused: refused(&answer.body),
        },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => ExportOutcome::Later(answer.status.to_string()),
        status => ExportOutcome::Refused(status.to_string()),
    }
}

/// How many spans of a batch the collector reports as rejected. The report is
/// optional.
fn refused(body: &[u8]) -> u64 {
    let answer = serde_json::from_slice::<ExportResponse>(body).unwrap_or_default();
    match answer.partial_success.rejected_spans {
        serde_json::Value::String(count) => count.parse().unwrap_or(0),
        count => count.as_u64().unwrap_or(0),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExportResponse {
    partial_success: Partial,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Partial {
    /// A 64-bit number, which OTLP's JSON writes as a string.
    rejected_spans: serde_json::Value,
}

/// A batch in OTLP's form: `ExportTraceServiceRequest` in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Export<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: [Attribute<'a>; 2],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: InstrumentationScope,
    spans: Vec<SpanJson<'a>>,
}

#[derive(Serialize)]
struct InstrumentationScope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpanJson<'a> {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    flags: u32,
    name: &'a str,
    kind: u32,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<Attribute<'a>>,
    status: Status,
}

#[derive(Serialize)]
struct Status {
    code: u32,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'a str,
    value: AnyValue<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum AnyValue<'a> {
    StringValue(&'a str),
    /// A 64-bit number, which OTLP's JSON writes as a string.
    IntValue(String),
}

impl<'a> Export<'a> {
    fn of(batch: &'a [FinishedSpan], service: &'a str) -> Self {
        let text = |key, value| Attribute {
            key,
            value: AnyValue::StringValue(value),
        };
        let version = env!("CARGO_PKG_VERSION");
        Self {
            resource_spans: [ResourceSpans {
                resource: Resource {
                    attributes: [
                        text("service.name", service),
                        text("service.version", version),
                    ],
                },
                scope_spans: [ScopeSpans {
                    scope: InstrumentationScope {
                        name: "onceward",
                        version,
                    },
                    spans: batch.iter().map(SpanJson::of).collect(),
                }],
            }],
        }
    }
}

impl<'a> SpanJson<'a> {
    fn of(span: &'a FinishedSpan) -> Self {
        /// Flag: it is known whether the parent is remote.
        const KNOWN: u32 = 0x100;
        const REMOTE: u32 = 0x200;
        let remote = span.kind == SpanKind::Server && span.parent.is_some();
        let began_at = span.began_at.duration_since(SystemTime::UNIX_EPOCH);
        let began_at = began_at.unwrap_or_default();
        Self {
            trace_id: span.context.id().to_string(),
            span_id: span.id.to_string(),
            parent_span_id: span.parent.map(|parent| parent.to_string()),
            flags: u32::from(span.context.flags()) | KNOWN | if remote { REMOTE } else { 0 },
            name: &span.name,
            kind: match span.kind {
                SpanKind::Server => 2,
                SpanKind::Client => 3,
            },
            start_time_unix_nano: began_at.as_nanos().to_string(),
            end_time_unix_nano: (began_at + span.took).as_nanos().to_string(),
            attributes: span.attributes.iter().map(attribute).collect(),
            status: Status {
                code: if span.failed { 2 } else { 0 },
            },
        }
    }
}

fn attribute<'a>((key, value): &'a (&'static str, AttributeValue)) -> Attribute<'a> {
    Attribute {
        key,
        value: match value {
            AttributeValue::Text(text) => AnyValue::StringValue(text),
            AttributeValue::Count(count) => AnyValue::IntValue(count.to_string()),
        },
    }
}
