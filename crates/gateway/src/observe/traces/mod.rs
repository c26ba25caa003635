//! Traces: a span for each request and one for each time an upstream is asked.
//!
//! Without a collector nothing is done, and trace headers pass as they came.
//! With one the gateway is a part of the trace: what the upstream gets names the
//! gateway's own span as its parent, in the same trace and with the same
//! decision whether it is recorded. Spans hold names of the configuration, the
//! caller's tenant and project, and words of the program; never a key, a path or
//! a header.
//!
//! OpenTelemetry's own packages are not used: their batch processor does not
//! tell how many spans it drops, sends from a thread of its own that waits for
//! ours when it is dropped, and what would remain is the JSON in `export`.

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

/// Begins traces, or joins them.
pub(crate) struct Tracer(Option<Arc<Recorder>>);

struct Recorder {
    queue: SpanQueue,
    entropy: Entropy,
    /// Which part of the traces that begin here, from 0 to 1.
    sample: f64,
    exporter: Exporter,
}

impl Tracer {
    /// Does nothing.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Sends what it is given to a collector until it is closed. To be called
    /// within the runtime.
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

    /// The trace of a request, or a new one where it is part of none.
    pub(crate) fn begin<B>(&self, request: &Request<B>) -> Option<Trace> {
        let recorder = self.0.as_ref()?;
        let said = TraceContext::of(request.headers());
        let (context, parent) = match said {
            Some((context, parent)) => (context, Some(parent)),
            None => (recorder.new_trace(), None),
        };
        let method = known_method(request.method());
        let mut span = Span::begin(recorder, context, parent, SpanKind::Server, method.into());
        span.note("http.request.method", method);
        Some(Trace {
            span,
            inherited: said.is_some(),
        })
    }

    /// Sends what is still there; what the collector does not take is dropped.
    /// Traces that end later are dropped too.
    pub(crate) async fn close(&self) {
        if let Some(recorder) = &self.0 {
            recorder.exporter.close().await;
        }
    }
}

impl Recorder {
    fn new_trace(&self) -> TraceContext {
        // A trace's id must not be 0; once in 2^128 is too often to leave it out.
        let id = TraceId::new(self.entropy.next_u128().max(1));
        // The choice depends on the id alone, so that all services with the same rule
        // choose the same traces.
        let chance = id.chance();
        TraceContext::new(id, chance < self.sample)
    }

    fn new_span(&self) -> SpanId {
        SpanId::new(self.entropy.next_u64().max(1))
    }
}

/// A request's part in its trace. Dropped unended, it tells that the client
/// went before the answer came.
pub(crate) struct Trace {
    span: Span,
    inherited: bool,
}

impl Trace {
    /// The trace's id, for the log.
    pub(crate) fn id(&self) -> TraceId {
        self.span.context.id()
    }

    /// Notes the endpoint of the request and, once known, its caller.
    pub(crate) fn about(
        &mut self,
        endpoint: &str,
        policy: Option<Policy>,
        caller: Option<&Caller>,
    ) {
        let span = &mut self.span;
        if !span.is_recorded() {
            return;
        }
        span.name = format!("{} {}", span.name, cut(endpoint)).into();
        span.note("onceward.endpoint", endpoint);
        if let Some(policy) = policy {
            span.note("onceward.policy", policy.as_str());
        }
        if let Some(caller) = caller {
            span.note("onceward.tenant", caller.tenant());
            span.note("onceward.project", caller.project());
        }
    }

    /// What a part of the work needs to make spans beneath this one, even after
    /// the request has ended.
    pub(crate) fn link(&self) -> Link {
        Link {
            recorder: self.span.recorder.clone(),
            context: self.span.context,
            parent: self.span.id,
            inherited: self.inherited,
        }
    }

    /// The request is answered.
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

/// Makes spans beneath a request's.
#[derive(Clone)]
pub(crate) struct Link {
    recorder: Arc<Recorder>,
    context: TraceContext,
    parent: SpanId,
    inherited: bool,
}

impl Link {
    /// An upstream is asked; `attempt` counts from 1.
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

/// One attempt to reach an upstream. A span that is dropped without an end counts
/// as lost: the wait was given up.
pub(crate) struct AttemptSpan {
    span: Span,
    inherited: bool,
}

impl AttemptSpan {
    /// Names this span as the parent of whatever the upstream does. What the
    /// client said of a trace stays only where it could be read.
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

    /// The upstream has begun its answer.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.span.answered(status);
        self.span.failed |= status.is_client_error() || status.is_server_error();
        self.end(SendOutcome::Answered);
    }

    /// There is no answer.
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

/// A span that is under way, or that has ended and waits to be sent.
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

    /// Hands it over to be sent, once, without waiting.
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

/// A method by its name, if it is one that everybody knows: others are the
/// client's to invent.
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
    async fn what_does_not_fit_is_dropped_and_counted() {
        // It takes connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = silent.local_addr().expect("bound");
        let metrics = Metrics::new().expect("metrics");
        let tracer = tracer(format!("http://{address}"), &metrics);
        // Nothing is awaited, so nothing is taken out meanwhile.
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
    async fn ids_are_never_nothing_and_never_the_same() {
        let metrics = Metrics::new().expect("metrics");
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
    fn a_text_is_cut_between_letters() {
        let text = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&text).len(), TEXT_BYTES_MAX);
        assert_eq!(cut(&format!("a{text}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(cut("short"), "short");
    }
}
