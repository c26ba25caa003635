//! Sending spans to a collector: OTLP over HTTP, as JSON.
//!
//! Requests never wait for it. A span that ends is put into a queue of bounded
//! length, or dropped and counted when that is full. One task takes them out in
//! batches and sends each batch until the collector takes it, at most a few
//! times.

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

/// How many spans wait to be sent.
const QUEUE_SPANS_MAX: usize = 8192;
/// How many spans are sent at a time.
const BATCH_SPANS_MAX: usize = 512;
/// How long a span waits for others to be sent with.
const LINGER: Duration = Duration::from_millis(500);
/// How often one batch is sent at most.
const TRIES_MAX: u32 = 3;
/// How long to rest before a batch is sent again, the first time.
const REST: Duration = Duration::from_millis(250);
/// How long the collector may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long sending may take in all once the gateway stops.
const FLUSH: Duration = Duration::from_secs(3);
/// Where a collector takes traces, unless its URL says.
const USUAL_PATH: &str = "/v1/traces";

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

/// Where spans wait to be sent.
pub(super) struct SpanQueue {
    spans: mpsc::Sender<FinishedSpan>,
    metrics: SpanMetrics,
}

impl SpanQueue {
    /// Takes a span, or drops and counts it where there is no room.
    pub(super) fn put(&self, span: FinishedSpan) {
        if self.spans.try_send(span).is_err() {
            self.metrics.dropped_full();
        }
    }
}

/// The task that sends.
pub(super) struct Exporter {
    stop: Arc<Stop>,
    tasks: TaskTracker,
}

impl Exporter {
    /// Waits until what is queued has been sent or dropped, [`FLUSH`] at most.
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

/// The end of sending: when it was called for, a short while is left.
#[derive(Default)]
struct Stop {
    called: CancellationToken,
    over_at: OnceLock<Instant>,
}

impl Stop {
    fn begin(&self) {
        self.over_at.get_or_init(|| Instant::now() + FLUSH);
        self.called.cancel();
    }

    fn is_called(&self) -> bool {
        self.called.is_cancelled()
    }

    /// Returns when nothing may be sent any more.
    async fn over(&self) {
        self.called.cancelled().await;
        if let Some(over_at) = self.over_at.get() {
            tokio::time::sleep_until(*over_at).await;
        }
    }
}

/// Begins to send.
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

/// The path to send to, where the URL has none of its own.
fn path(url: &str) -> Option<&'static str> {
    let own = url.parse::<Uri>().ok();
    let own = own.as_ref().map_or("", Uri::path);
    matches!(own, "" | "/").then_some(USUAL_PATH)
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
        // Filled, waited long enough, or told to stop: it goes.
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

/// What a collector says of a batch.
enum ExportOutcome {
    /// Taken, but for so many.
    Taken { refused: u64 },
    /// Not now.
    Later(String),
    /// Never.
    Refused(String),
}

impl Collector {
    /// Sends a batch until it is taken. When it is time to stop, once.
    async fn send(&self, batch: &[FinishedSpan], stop: &Stop) {
        let spans = batch.len() as u64;
        let Ok(body) = serde_json::to_vec(&Export::of(batch, &self.service)) else {
            return self.metrics.dropped_refused(spans);
        };
        let body = Bytes::from(body);
        for attempt in 1.. {
            let outcome = tokio::select! {
                biased;
                outcome = self.ask(body.clone()) => outcome,
                () = stop.over() => ExportOutcome::Later("the gateway stops".to_owned()),
            };
            let why = match outcome {
                ExportOutcome::Taken { refused } => {
                    let refused = refused.min(spans);
                    self.metrics.exported(spans - refused);
                    return self.metrics.dropped_refused(refused);
                }
                ExportOutcome::Later(why) if attempt < TRIES_MAX && !stop.is_called() => {
                    tracing::debug!(why, "the collector takes no spans now");
                    let rest = tokio::time::sleep(REST * 2u32.pow(attempt - 1));
                    let _ = stop.called.run_until_cancelled(rest).await;
                    continue;
                }
                ExportOutcome::Later(why) | ExportOutcome::Refused(why) => why,
            };
            tracing::warn!(spans, why, "the collector did not take spans");
            return self.metrics.dropped_refused(spans);
        }
    }

    async fn ask(&self, body: Bytes) -> ExportOutcome {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        match self.fetch.post(self.path, headers, body).await {
            Ok(answer) => judge(&answer),
            Err(error) => ExportOutcome::Later(error.to_string()),
        }
    }
}

fn judge(answer: &Fetched) -> ExportOutcome {
    match answer.status {
        status if status.is_success() => ExportOutcome::Taken {
            refused: refused(&answer.body),
        },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => ExportOutcome::Later(answer.status.to_string()),
        status => ExportOutcome::Refused(status.to_string()),
    }
}

/// How many spans of a batch a collector says that it did not take. It need not
/// say anything.
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
    /// A number of 64 bits, which JSON writes as a string.
    rejected_spans: serde_json::Value,
}

/// A batch as the collector reads it: `ExportTraceServiceRequest` in JSON.
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
    /// A number of 64 bits, which JSON writes as a string.
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
        /// The flags say whether the parent is elsewhere.
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
