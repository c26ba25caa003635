//! Traces: a span for each request and one for each request to an upstream.
//!
//! Without a collector the gateway makes no spans and forwards trace headers
//! unchanged. With one it takes part in the trace: the upstream receives a
//! `traceparent` that names the gateway's span as the parent, in the same trace and
//! with the same sampling decision. Spans contain configured names, the caller's
//! tenant and project, and words of the program; never a key, a path or a header.
//!
//! OpenTelemetry's own packages are not used: their batch processor does not report
//! how many spans it drops, and its thread blocks ours when it is dropped. Without
//! the processor, they would replace only the JSON in `export`.

mod context;
mod export;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use onceward_core::caller::Caller;
use onceward_core::entropy::Entropy;
use onceward_core::identity::OperationId;
use tokio::time::Instant;

pub(crate) use self::context::TraceId;
use self::context::{SpanId, TraceContext};
use self::export::{Exporter, SpanQueue};
use crate::config::{Otlp, Policy};
use crate::observe::metrics::{SendOutcome, SpanMetrics};
use crate::upstream::fetch::FetchError;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The longest text in a span, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Begins traces and joins existing ones.
pub(crate) struct Tracer(Option<Arc<Recorder>>);

struct Recorder {
    queue: SpanQueue,
    entropy: Entropy,
    /// The share of recorded traces among those that begin here, from 0 to 1.
    sample: f64,
    exporter: Exporter,
}

impl Tracer {
    /// A tracer that makes no spans.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Starts a tracer that sends its spans to a collector until it is closed. Call
    /// this within the async runtime.
    pub(crate) fn start(
        otlp: &Otlp,
        entropy: Entropy,
        metrics: SpanMetrics,
    ) -> Result<Self, FetchError> {
        let (queue, exporter) = export::start(otlp, metrics)?;
        Ok(Self(Some(Arc::new(Recorder {
            queue,
            entropy,
            sample: otlp.sample,
            exporter,
        }))))
    }

    /// Joins the trace of a request, or begins a new trace if the request has none.
    pub(crate) fn begin<B>(&self, request: &Request<B>) -> Option<Trace> {
        let recorder = self.0.as_ref()?;
        let inherited = TraceContext::of(request.headers());
        let (context, parent) = match inherited {
            Some((context, parent)) => (context, Some(parent)),
            None => (recorder.new_trace(), None),
        };
        let method = known_method(request.method());
        let mut span = Span::begin(recorder, context, parent, SpanKind::Server, method.into());
        span.note("http.request.method", method);
        Some(Trace {
            span,
            inherited: inherited.is_some(),
        })
    }

    /// Sends the queued spans and drops those that the collector does not accept.
    /// Spans that end later are dropped too.
    pub(crate) async fn close(&self) {
        if let Some(recorder) = &self.0 {
            recorder.exporter.close().await;
        }
    }
}

impl Recorder {
    fn new_trace(&self) -> TraceContext {
        // W3C forbids the id 0.
        let id = TraceId::new(self.entropy.next_u128().max(1));
        // Sampling depends on the id alone, so that all services with the same rule
        // record the same traces.
        let chance = id.chance();
        TraceContext::new(id, chance < self.sample)
    }

    fn new_span(&self) -> SpanId {
        SpanId::new(self.entropy.next_u64().max(1))
    }
}

/// The span of a request. Dropping it before its end records the outcome
/// `client-gone`: the client disconnected before its answer.
pub(crate) struct Trace {
    span: Span,
    inherited: bool,
}

impl Trace {
    /// The trace's id, for the log.
    pub(crate) fn id(&self) -> TraceId {
        self.span.context.id()
    }

    /// Adds the endpoint of the request, its policy and its caller.
    pub(crate) fn about(&mut self, endpoint: &str, policy: Option<Policy>, caller: &Caller) {
        let span = &mut self.span;
        if !span.is_recorded() {
            return;
        }
        span.name = format!("{} {}", span.name, cut(endpoint)).into();
        span.note("onceward.endpoint", endpoint);
        if let Some(policy) = policy {
            span.note("onceward.policy", policy.as_str());
        }
        span.note("onceward.tenant", caller.tenant());
        span.note("onceward.project", caller.project());
    }

    /// A link that makes child spans of this one, even after the request has ended.
    pub(crate) fn link(&self) -> Link {
        Link {
            recorder: self.span.recorder.clone(),
            context: self.span.context,
            parent: self.span.id,
            inherited: self.inherited,
        }
    }

    /// Ends the span of an answered request.
    pub(crate) fn end(
        mut self,
        status: StatusCode,
        outcome: &'static str,
        id: Option<OperationId>,
    ) {
        let span = &mut self.span;
        span.answered(status);
        span.failed |= status.is_server_error();
        span.note("onceward.outcome", outcome);
        if let Some(id) = id {
            span.note("onceward.operation_id", &id.to_string());
        }
        span.finish();
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // After an end it is finished already.
        self.span.note("onceward.outcome", "client-gone");
        self.span.finish();
    }
}

/// Makes child spans of a request's span.
#[derive(Clone)]
pub(crate) struct Link {
    recorder: Arc<Recorder>,
    context: TraceContext,
    parent: SpanId,
    inherited: bool,
}

impl Link {
    /// Begins the span of a request to an upstream; `attempt` counts from 1.
    pub(crate) fn attempt(&self, upstream: &str, method: &Method, attempt: u32) -> AttemptSpan {
        let method = known_method(method);
        let mut span = Span::begin(
            &self.recorder,
            self.context,
            Some(self.parent),
            SpanKind::Client,
            method.into(),
        );
        span.note("http.request.method", method);
        span.note("onceward.upstream", upstream);
        if attempt > 1 {
            span.count("http.request.resend_count", i64::from(attempt) - 1);
        }
        AttemptSpan {
            span,
            inherited: self.inherited,
        }
    }
}

/// One attempt to reach an upstream. A span that is dropped before its end counts
/// as lost, because the wait was given up.
pub(crate) struct AttemptSpan {
    span: Span,
    inherited: bool,
}

impl AttemptSpan {
    /// Sets the `traceparent` for the upstream: this span is the parent. The client's
    /// `tracestate` stays only if its `traceparent` was readable.
    pub(crate) fn headers_for_upstream(&self, headers: &mut HeaderMap) {
        let parent = self.span.context.to_header(self.span.id);
        if !self.inherited {
            headers.remove(TRACESTATE);
        }
        match HeaderValue::try_from(parent) {
            Ok(parent) => headers.insert(TRACEPARENT, parent),
            Err(_) => headers.remove(TRACEPARENT),
        };
    }

    /// Ends the span of an attempt whose answer has begun.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.span.answered(status);
        self.span.failed |= status.is_client_error() || status.is_server_error();
        self.end(SendOutcome::Answered);
    }

    /// Ends the span of an attempt without an answer.
    pub(crate) fn unanswered(mut self, sent: SendOutcome) {
        self.end(sent);
    }

    fn end(&mut self, sent: SendOutcome) {
        self.span.failed |= sent != SendOutcome::Answered;
        self.span.note("onceward.outcome", sent.as_str());
        self.span.finish();
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        // After an end it is finished already.
        self.end(SendOutcome::Lost);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpanKind {
    Server,
    Client,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AttributeValue {
    Text(String),
    Count(i64),
}

/// A span until it ends and is queued.
struct Span {
    recorder: Arc<Recorder>,
    context: TraceContext,
    id: SpanId,
    parent: Option<SpanId>,
    kind: SpanKind,
    name: Cow<'static, str>,
    began_at: SystemTime,
    start: Instant,
    attributes: Vec<(&'static str, AttributeValue)>,
    failed: bool,
    finished: bool,
}

impl Span {
    #[expect(
        clippy::disallowed_methods,
        reason = "collectors want wall time; nothing is decided by it"
    )]
    fn begin(
        recorder: &Arc<Recorder>,
        context: TraceContext,
        parent: Option<SpanId>,
        kind: SpanKind,
        name: Cow<'static, str>,
    ) -> Self {
        Self {
            recorder: recorder.clone(),
            context,
            id: recorder.new_span(),
            parent,
            kind,
            name,
            began_at: SystemTime::now(),
            start: Instant::now(),
            attributes: Vec::new(),
            failed: false,
            finished: false,
        }
    }

    fn is_recorded(&self) -> bool {
        self.context.is_sampled() && !self.finished
    }

    fn note(&mut self, name: &'static str, text: &str) {
        if self.is_recorded() {
            self.attributes
                .push((name, AttributeValue::Text(cut(text).to_owned())));
        }
    }

    fn count(&mut self, name: &'static str, count: i64) {
        if self.is_recorded() {
            self.attributes.push((name, AttributeValue::Count(count)));
        }
    }

    fn answered(&mut self, status: StatusCode) {
        self.count("http.response.status_code", i64::from(status.as_u16()));
    }

    /// Queues the span for sending, once and without waiting.
    fn finish(&mut self) {
        if !self.is_recorded() {
            return;
        }
        self.finished = true;
        self.recorder.queue.put(export::FinishedSpan {
            context: self.context,
            id: self.id,
            parent: self.parent,
            kind: self.kind,
            name: std::mem::take(&mut self.name),
            began_at: self.began_at,
            took: self.start.elapsed(),
            attributes: std::mem::take(&mut self.attributes),
            failed: self.failed,
        });
    }
}

/// The name of a standard method. Others become `_OTHER`, because clients could
/// invent any number of names.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "_OTHER",
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::Metrics;

    fn tracer(endpoint: String, metrics: &Metrics) -> Tracer {
        let otlp = Otlp {
            endpoint,
            service: "edge".to_owned(),
            sample: 1.0,
        };
        Tracer::start(&otlp, Entropy::seeded(1), metrics.spans()).expect("a URL")
    }

    #[tokio::test]
    async fn spans_that_do_not_fit_are_dropped_and_counted() {
        // The collector accepts connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = silent.local_addr().expect("bound");
        let metrics = Metrics::new();
        let tracer = tracer(format!("http://{address}"), &metrics);
        // This loop never awaits, so no span leaves the queue meanwhile.
        for _ in 0..10_000 {
            let trace = tracer.begin(&Request::new(())).expect("it is on");
            trace.end(StatusCode::OK, "completed", None);
        }
        let page = metrics.counted();
        let line = "onceward_spans_dropped_total{reason=\"queue-full\"} 1808";
        assert!(page.contains(line), "{page}");
        tracer.close().await;
        let page = metrics.counted();
        let line = "onceward_spans_dropped_total{reason=\"not-taken\"} 8192";
        assert!(page.contains(line), "{page}");
    }

    #[test]
    fn without_a_collector_there_is_no_trace() {
        assert!(Tracer::off().begin(&Request::new(())).is_none());
    }

    #[tokio::test]
    async fn ids_are_never_zero_and_never_repeated() {
        let metrics = Metrics::new();
        let tracer = tracer("http://127.0.0.1:9".to_owned(), &metrics);
        let mut headers = HeaderMap::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let trace = tracer.begin(&Request::new(())).expect("it is on");
            let attempt = trace.link().attempt("u", &Method::GET, 1);
            attempt.headers_for_upstream(&mut headers);
            assert_eq!(TraceId::of(&headers), Some(trace.id()));
            seen.insert(headers[TRACEPARENT].clone());
        }
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&text).len(), TEXT_BYTES_MAX);
        assert_eq!(cut(&format!("a{text}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(cut("short"), "short");
    }
}
