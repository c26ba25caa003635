//! The facts about one request for metrics, traces and the access log.
//!
//! The line of a request (`request`) hands its report on from step to step. A step
//! returns its result or its refusal; the report takes the facts from there and
//! passes them to the observers, so that no step counts or logs. A report that is
//! dropped belongs to a client that disconnected before its answer: its trace and
//! its log entry record that when they are dropped.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use onceward_core::caller::Caller;
use onceward_core::identity::{Endpoint, OperationId};
use onceward_core::key::Key;
use onceward_http::body::Body;
use onceward_http::problem::{Code, Problem};
use onceward_http::rules::KeySource;
use onceward_http::run::{Outcome, ProtectedResponse};
use tokio::time::Instant;

use crate::config::{KnownBy, Policy};
use crate::observe::access_log::{self, AccessEntry, KeyedRequest, LoggedSource, RefusedRequest};
use crate::observe::metrics::{Limit, RouteMetrics, endpoint_label};
use crate::observe::traces::{Link, Trace, TraceId};
use crate::runtime::Runtime;
use crate::runtime::plan::PlannedRoute;

/// The facts known about a request so far. Boxed, because the report moves with
/// every step of a request.
pub(crate) struct Report<'a>(Box<Facts<'a>>);

struct Facts<'a> {
    runtime: &'a Runtime,
    start: Instant,
    /// None where traces are off.
    trace: Option<Trace>,
    /// The trace named by the request's headers, where the access log is on.
    trace_id: Option<TraceId>,
    route: Option<Arc<PlannedRoute>>,
    /// The endpoint's label in metrics, if there is no route.
    label: Option<String>,
    /// Endpoint and caller are kept only where the access log is on.
    is_logged: bool,
    endpoint: Option<Endpoint>,
    caller: Option<Caller>,
    policy: Option<Policy>,
    metrics: Option<Arc<RouteMetrics>>,
    /// The access-log entry of a request with a key; none where the log is off.
    entry: Option<AccessEntry>,
    /// Set once the access log has the outcome.
    outcome: Option<&'static str>,
    id: Option<OperationId>,
    key_is_derived: bool,
}

/// A request that is answered, with its report.
pub(crate) struct Answered<'a> {
    pub(crate) response: Response<Body>,
    pub(crate) report: Report<'a>,
}

/// A request that is answered with a problem, with its report. The problem is boxed,
/// because the results of every step have space for it.
pub(crate) struct Unanswerable<'a>(Box<Problem>, Report<'a>);

/// A step's result with facts for the observers.
pub(crate) trait Reported {
    /// Adds the facts of this result to the report.
    fn add_to<'a>(&self, report: Report<'a>) -> Report<'a>;
}

/// Why a step refuses a request.
#[derive(Debug)]
pub(crate) struct Refused {
    // Boxed: results that carry a refusal stay small.
    problem: Box<Problem>,
    cause: Cause,
}

/// What refusals are counted by, beside the problem's code.
#[derive(Debug)]
pub(crate) enum Cause {
    /// The code alone.
    Other,
    /// The caller is not authenticated or not authorised; this is the credential
    /// that it sent.
    Caller(Option<KnownBy>),
    /// This caller exceeds this limit.
    Limit(Caller, Limit),
    /// No key was sent where one is required.
    KeyMissing,
    /// The key is malformed; CONTRACT lists the reasons.
    KeyInvalid(&'static str),
    /// A request of this provider has no identifier that can become a key.
    Untranslated {
        provider: String,
        reason: Option<&'static str>,
    },
    /// A request to a webhook is not verified.
    Unverified {
        provider: String,
        reason: &'static str,
    },
}

impl Refused {
    pub(crate) fn new(problem: Problem, cause: Cause) -> Self {
        Self {
            problem: Box::new(problem),
            cause,
        }
    }

    pub(crate) fn code(&self) -> Code {
        self.problem.code()
    }

    pub(crate) fn into_problem(self) -> Problem {
        *self.problem
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::new(problem, Cause::Other)
    }
}

impl Cause {
    /// The reason in the access log, more precise than the problem's code.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::KeyInvalid(reason) | Self::Unverified { reason, .. } => Some(reason),
            Self::Untranslated { reason, .. } => *reason,
            Self::Other | Self::Caller(_) | Self::Limit(..) | Self::KeyMissing => None,
        }
    }
}

impl<'a> Report<'a> {
    /// Begins the report of a request, and its trace.
    pub(crate) fn begin<B>(runtime: &'a Runtime, request: &Request<B>) -> Self {
        let is_logged = access_log::is_on();
        let trace_id = is_logged.then(|| TraceId::of(request.headers()));
        Self(Box::new(Facts {
            runtime,
            start: Instant::now(),
            trace: runtime.tracer().begin(request),
            trace_id: trace_id.flatten(),
            is_logged,
            route: None,
            label: None,
            endpoint: None,
            caller: None,
            policy: None,
            metrics: None,
            entry: None,
            outcome: None,
            id: None,
            key_is_derived: false,
        }))
    }

    /// Continues with a step's result, or ends with its refusal.
    pub(crate) fn carry<T>(
        self,
        result: Result<T, impl Into<Refused>>,
    ) -> Result<(T, Self), Unanswerable<'a>> {
        match result {
            Ok(value) => Ok((value, self)),
            Err(refused) => Err(self.refused(refused.into())),
        }
    }

    /// Like [`carry`](Self::carry), for a result with facts for the observers.
    pub(crate) fn after<T: Reported>(
        self,
        result: Result<T, impl Into<Refused>>,
    ) -> Result<(T, Self), Unanswerable<'a>> {
        let (value, report) = self.carry(result)?;
        let report = value.add_to(report);
        Ok((value, report))
    }

    /// Ends the line with an answer.
    pub(crate) fn answered(self, response: Response<Body>) -> Answered<'a> {
        Answered {
            response,
            report: self,
        }
    }

    /// Ends the line with an outcome that has already been counted and logged.
    pub(crate) fn concluded(
        self,
        answer: Result<Response<Body>, Problem>,
    ) -> Result<Answered<'a>, Unanswerable<'a>> {
        match answer {
            Ok(response) => Ok(self.answered(response)),
            Err(problem) => Err(self.refused(problem.into())),
        }
    }

    /// Ends the line with a refusal. It is counted, and logged unless the access
    /// log has an entry of this request.
    pub(crate) fn refused(mut self, refused: Refused) -> Unanswerable<'a> {
        let Refused { problem, cause } = refused;
        let code = problem.code();
        if let Some(entry) = self.0.entry.take() {
            // The refusal is an entry of its own, without the key.
            entry.discard();
        }
        self.count(&cause, code.as_str());
        self.0.runtime.metrics().refused(code);
        if self.0.outcome.is_none() {
            self.0.runtime.access_log().refused(RefusedRequest {
                reason: cause.reason(),
                caller: self.0.caller.as_ref(),
                endpoint: self.0.endpoint.as_ref(),
                policy: self.0.policy,
                trace: self.trace_id(),
                ..RefusedRequest::new(code)
            });
            self.0.outcome = Some(code.as_str());
        }
        Unanswerable(problem, self)
    }

    /// Counts a refusal that does not end the line: another route of the same
    /// path may still serve the request.
    pub(crate) fn count_refusal(&self, refused: &Refused) {
        self.count(&refused.cause, refused.problem.code().as_str());
    }

    fn count(&self, cause: &Cause, code: &'static str) {
        let metrics = self.0.runtime.metrics();
        match (cause, &self.0.metrics) {
            (Cause::Caller(by), _) => metrics.auth_refused(*by, code),
            (Cause::Limit(caller, limit), _) => metrics.limited(caller, *limit),
            (Cause::Unverified { provider, reason }, _) => {
                metrics.webhook_refused(provider, reason);
            }
            (Cause::KeyMissing, Some(of_route)) => of_route.key_missing(),
            (Cause::KeyInvalid(reason), Some(of_route)) => of_route.key_invalid(reason),
            (Cause::Untranslated { provider, .. }, Some(of_route)) => {
                of_route.translation_failed(provider);
            }
            // The others are counted by route, and only an authenticated caller has
            // one.
            (Cause::Other, _) | (_, None) => {}
        }
    }

    /// Adds the request's route. Its headers are added to the answer.
    pub(crate) fn by_route(mut self, route: &Arc<PlannedRoute>) -> Self {
        self.0.route = Some(route.clone());
        self
    }

    /// Adds the request's endpoint, and the policy for keys there.
    pub(crate) fn at_endpoint(mut self, endpoint: &Endpoint, policy: Option<Policy>) -> Self {
        self.0.endpoint = self.0.is_logged.then(|| endpoint.clone());
        self.0.policy = policy;
        self
    }

    /// Sets the endpoint's label in metrics, if there is no route.
    pub(crate) fn labelled(mut self, label: String) -> Self {
        self.0.label = Some(label);
        self
    }

    pub(crate) fn under(mut self, policy: Policy) -> Self {
        self.0.policy = Some(policy);
        self
    }

    /// Adds the caller; the request is counted for it on its endpoint.
    pub(crate) fn sent_by(mut self, caller: &Caller, class: &str) -> Self {
        let label = self.endpoint_label().unwrap_or_default();
        let metrics = self.0.runtime.metrics();
        let of_caller = match &self.0.route {
            Some(route) => route.metrics.of(metrics, caller, (label, class)),
            None => metrics.of(caller, label, class),
        };
        self.0.metrics = Some(of_caller);
        self.0.caller = self.0.is_logged.then(|| caller.clone());
        self
    }

    /// Writes endpoint, policy and caller to the request's span.
    pub(crate) fn on_span(mut self, caller: &Caller) -> Self {
        if let Some(mut trace) = self.0.trace.take() {
            let label = self.endpoint_label().unwrap_or_default();
            trace.about(label, self.0.policy, caller);
            self.0.trace = Some(trace);
        }
        self
    }

    /// Counts a request with this key, and begins its access-log entry.
    pub(crate) fn keyed(mut self, key: &Key, source: KeySource) -> Self {
        if let Some(metrics) = &self.0.metrics {
            metrics.key_present(self.0.policy.unwrap_or(Policy::Accepted));
        }
        self.0.entry = self.begin_entry(key, source.into());
        self.0.key_is_derived = matches!(source, KeySource::Derived { .. });
        self
    }

    /// Counts a request without a key, where the policy accepts one.
    pub(crate) fn unkeyed(self) -> Self {
        if let Some(metrics) = &self.0.metrics {
            metrics.key_missing();
        }
        self
    }

    /// Counts the answer of a handler that keeps its own keys.
    pub(crate) fn handler_answered(self, headers: &HeaderMap) -> Self {
        if let Some(metrics) = &self.0.metrics {
            metrics.handler_answered(headers);
        }
        self
    }

    /// Adds an outcome that the access log already has.
    pub(crate) fn logged(mut self, outcome: &'static str, id: Option<OperationId>) -> Self {
        self.0.outcome = Some(outcome);
        self.0.id = id;
        self
    }

    /// Adds the outcome of a protected request: counts it, and writes its
    /// access-log entry.
    pub(crate) fn ended(mut self, outcome: Outcome, id: Option<OperationId>) -> Self {
        if let Some(metrics) = &self.0.metrics {
            metrics.ended(outcome);
        }
        if let Some(entry) = self.0.entry.take() {
            entry.end(outcome, id);
        }
        self.logged(outcome.as_str(), id)
    }

    /// A recovery by this key came to this: in the access log, whether or not the
    /// route answers the request.
    pub(crate) fn recovered(
        self,
        caller: &Caller,
        (endpoint, policy): (&Endpoint, Option<Policy>),
        key: &Key,
        ended: &ProtectedResponse,
    ) -> Self {
        let entry = self.0.runtime.access_log().begin(KeyedRequest {
            caller,
            endpoint,
            key,
            source: LoggedSource::Path,
            policy,
            trace: self.trace_id(),
        });
        if let Some(entry) = entry {
            entry.end(ended.outcome, ended.id);
        }
        self.logged(ended.outcome.as_str(), ended.id)
    }

    fn begin_entry(&self, key: &Key, source: LoggedSource) -> Option<AccessEntry> {
        self.0.runtime.access_log().begin(KeyedRequest {
            caller: self.0.caller.as_ref()?,
            endpoint: self.0.endpoint.as_ref()?,
            key,
            source,
            policy: self.0.policy,
            trace: self.trace_id(),
        })
    }

    /// The request's trace, for its log entries.
    pub(crate) fn trace_id(&self) -> Option<TraceId> {
        self.0.trace.as_ref().map(Trace::id).or(self.0.trace_id)
    }

    /// The parent of the spans of calls to the upstream.
    pub(crate) fn link(&self) -> Option<Link> {
        self.0.trace.as_ref().map(Trace::link)
    }

    pub(crate) fn route(&self) -> Option<&PlannedRoute> {
        self.0.route.as_deref()
    }

    /// Whether the key was derived from parts of the request.
    pub(crate) fn key_is_derived(&self) -> bool {
        self.0.key_is_derived
    }

    /// Ends the request with the answer's status.
    pub(crate) fn end(mut self, status: StatusCode) {
        let took = self.0.start.elapsed();
        match &self.0.route {
            Some(route) => route.metrics.request_took(status, took),
            None => {
                let metrics = self.0.runtime.metrics();
                metrics.request_took(self.0.label.as_deref(), status, took);
            }
        }
        if let Some(trace) = self.0.trace.take() {
            trace.end(status, self.0.outcome.unwrap_or("passed"), self.0.id);
        }
    }

    fn endpoint_label(&self) -> Option<&str> {
        let route = self.0.route.as_deref();
        let of_route = route.map(|route| endpoint_label(&route.route.endpoint));
        of_route.or(self.0.label.as_deref())
    }
}

impl<'a> Unanswerable<'a> {
    pub(crate) fn into_parts(self) -> (Problem, Report<'a>) {
        (*self.0, self.1)
    }
}

impl Reported for ProtectedResponse {
    fn add_to<'a>(&self, report: Report<'a>) -> Report<'a> {
        report.ended(self.outcome, self.id)
    }
}
