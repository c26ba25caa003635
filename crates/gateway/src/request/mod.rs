//! The life of a request, top to bottom.
//!
//! Each step takes what the step before returned, so none can be skipped:
//! screen, route, authenticate, admit, read; then identify, claim, forward and
//! record, which are one function shared with the tower layer; then respond.

mod cors;
pub(crate) mod idempotency_key;
pub(crate) mod limits;
pub(crate) mod routes;
mod screen;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::{Endpoint, OperationId};
use onceward_core::record::Record;
use onceward_http::body::Body;
use onceward_http::fields::{self, IDEMPOTENCY_KEY};
use onceward_http::problem::{Code, Problem, ProblemLinks};
use onceward_http::read::read;
use onceward_http::recovery::{
    RecoveryContext, RecoveryPath, RecoveryTarget, recover, recover_record,
};
use onceward_http::rules::KeySource;
use onceward_http::run::{Call, ProtectedResponse, run, store_unavailable};

use crate::callers::{self, AuthError, Known, Presented};
use crate::config::{self, EndpointName, KnownBy, Policy};
use crate::listen::peer::Peer;
use crate::observe::access_log::{Refusal, Source, Subject};
use crate::observe::metrics::{Limit, RouteMetrics, endpoint_label};
use crate::observe::traces::{Trace, TraceId};
use crate::pages::{self, Page, Published};
use crate::request::idempotency_key::{KeyRefusal, Keyed};
use crate::request::limits::Buffered;
use crate::request::routes::{Found, has_dot_segment, has_doubtful_slash};
use crate::request::screen::screen;
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};
use crate::upstream::forward::{ForwardContext, asks_for_upgrade};
use crate::webhooks::ingest::WebhookPath;

/// Where operations are found by their id.
const OPERATIONS: &str = "/api/v1/operations/";

/// Where a request goes.
enum Turn<'a> {
    /// On, by this route.
    Serve(&'a Arc<PlannedRoute>),
    /// To a page of our own.
    Page(Page),
    /// Back to a browser that asks what it may do.
    Preflight(&'a config::Cors, Method),
    /// To the reply of an earlier one, by its key.
    Recover(RecoveryPath<'a>, Vec<(&'a Arc<PlannedRoute>, Endpoint)>),
    /// To the reply of an earlier one, by its id.
    Operation(&'a str, RecoveryTarget),
    /// To a webhook.
    Webhook(WebhookPath),
}

/// A request whose caller is known, or that needs none.
struct Arrival {
    caller: Caller,
    by: Option<KnownBy>,
    request: ClientRequest,
}

/// A request, its body read or not.
pub(crate) enum ClientRequest {
    Streaming(Request<Incoming>),
    Whole(Request<Bytes>, Buffered),
}

impl ClientRequest {
    fn method(&self) -> &Method {
        match self {
            Self::Streaming(request) => request.method(),
            Self::Whole(request, _) => request.method(),
        }
    }

    fn headers(&self) -> &HeaderMap {
        match self {
            Self::Streaming(request) => request.headers(),
            Self::Whole(request, _) => request.headers(),
        }
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        match self {
            Self::Streaming(request) => request.headers_mut(),
            Self::Whole(request, _) => request.headers_mut(),
        }
    }
}

impl Runtime {
    /// Answers a request.
    pub(crate) async fn serve(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        peer: Peer,
    ) -> Response<Body> {
        let start = Instant::now();
        // The plan of this moment serves to the end.
        let plan = self.plan();
        let peer = peer.of_request(request.headers(), &plan.trusted);
        let place = Place::of(&request, &peer);
        let origin = request.headers().get(header::ORIGIN).cloned();
        let upgrade = asks_for_upgrade(&request);
        join_cookies(request.headers_mut());
        let mut seen = Seen {
            trace: self.tracer().begin(&request),
            trace_id: TraceId::of(request.headers()),
            ..Seen::default()
        };
        let answer = self.answer(&plan, request, peer, &mut seen).await;
        let public_url = plan.config.server.public_url.as_deref();
        let mut response = answer.unwrap_or_else(|problem| {
            self.metrics().refused(problem.code());
            if seen.outcome.is_none() {
                self.access_log().refused(seen.refusal(problem.code()));
            }
            seen.outcome = seen.outcome.or(Some(problem.code().as_str()));
            place.write(&problem, public_url)
        });
        if seen.derived {
            let derived = HeaderValue::from_static("derived");
            response
                .headers_mut()
                .insert(fields::IDEMPOTENCY_KEY_SOURCE, derived);
        }
        let endpoint = seen.route.as_ref().map(|route| {
            finish(&route.route, origin.as_ref(), response.headers_mut());
            endpoint_label(&route.route.endpoint)
        });
        let endpoint = endpoint.or(seen.label.as_deref());
        let (took, status) = (start.elapsed(), response.status());
        self.metrics().request_took(endpoint, status, took);
        if let Some(trace) = seen.trace {
            trace.end(status, seen.outcome.unwrap_or("passed"), seen.id);
        }
        if upgrade && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            // The head asked for another protocol, so `framing` has stopped
            // watching: this connection must not carry another request.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }

    async fn answer(
        &self,
        plan: &Arc<Plan>,
        mut request: Request<Incoming>,
        peer: Peer,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        screen(&request)?;
        peer.name_host(&mut request);
        let route = match route(plan, &request)? {
            Turn::Serve(route) => route.clone(),
            Turn::Page(page) => {
                // Made anew for each: classes change at run time.
                let published = Published::new(&plan.config, &self.classes().all());
                return Ok(pages::answer(page, request.headers(), &published));
            }
            Turn::Preflight(cors, method) => {
                return Ok(cors::preflight(cors, &method, request.headers()));
            }
            Turn::Recover(recovery, candidates) => {
                seen.route = candidates.first().map(|(route, _)| (*route).clone());
                let headers = request.headers();
                // Boxed, here and below: what is large is not carried by all.
                return Box::pin(self.recover(plan, recovery, &candidates, headers, seen)).await;
            }
            Turn::Operation(id, target) => {
                let headers = request.headers();
                return Box::pin(self.operation(plan, id, target, headers, seen)).await;
            }
            Turn::Webhook(to) => {
                return Box::pin(self.ingest(plan, to, request, peer, seen)).await;
            }
        };
        seen.route = Some(route.clone());
        let endpoint = endpoint(&route.route, request.method(), request.uri().path());
        let policy = route.route.policy_for(request.method());
        (seen.endpoint, seen.policy) = (Some(endpoint.clone()), policy);
        // Taken before anything is waited for: a change of classes is for later.
        let class = self.class(plan, &route.route.class)?;
        let arrival = self.authenticate(plan, &route, &endpoint, request).await?;
        self.admit(&arrival.caller).await?;
        let label = endpoint_label(&route.route.endpoint);
        let metrics = self.metrics().of(&arrival.caller, label, &class.name);
        let Arrival {
            caller,
            by,
            mut request,
        } = arrival;
        seen.caller = Some(caller.clone());
        if let Some(trace) = &mut seen.trace {
            trace.about(label, policy, Some(&caller));
        }
        let context = ForwardContext {
            peer,
            route: route.clone(),
            caller: caller.clone(),
            by,
            attempt: 1,
            key: None,
            link: seen.trace.as_ref().map(Trace::link),
        };
        let keyed = idempotency_key::judge(&route.route, request.method(), request.headers(), by);
        let (key, source, request) = match keyed {
            Ok(Keyed::Pass) => return pass(request, &context).await,
            Ok(Keyed::Without) => {
                metrics.key_missing();
                return pass(request, &context).await;
            }
            Ok(Keyed::Handler) => {
                request.headers_mut().remove(IDEMPOTENCY_KEY);
                let answer = pass(request, &context).await;
                if let Ok(response) = &answer {
                    metrics.handler_answered(response.headers());
                }
                return answer;
            }
            Ok(Keyed::Given(key)) => {
                let read = self.read(plan, route.body_limit, &caller, request).await?;
                (key, KeySource::Header, read)
            }
            Ok(Keyed::Derived(derived)) => {
                let read = self.read(plan, route.body_limit, &caller, request).await?;
                let window = derived.window;
                match idempotency_key::derive(derived, &caller, &endpoint, &read.0) {
                    Some(key) => (key, KeySource::Derived { window }, read),
                    None => {
                        metrics.key_missing();
                        idempotency_key::without(policy.unwrap_or(Policy::Accepted))
                            .map_err(|refusal| refusal.to_problem())?;
                        let (request, held) = read;
                        return pass(ClientRequest::Whole(request, held), &context).await;
                    }
                }
            }
            Err(refusal) => {
                count(&refusal, &metrics);
                seen.reason = refusal.reason();
                return Err(refusal.to_problem());
            }
        };
        seen.derived = matches!(source, KeySource::Derived { .. });
        // Who has a key to show here has a policy.
        let policy = policy.unwrap_or(Policy::Accepted);
        metrics.key_present(policy.case());
        let (request, buffered) = request;
        let running = self.limiter().begin(caller.tenant());
        let running = running.map_err(|limit| self.limited(&caller, limit))?;
        let line = self.access_log().begin(Subject {
            caller: &caller,
            endpoint: &endpoint,
            key: &key,
            source: source.into(),
            policy: Some(policy),
            trace: seen.trace_id(),
        });
        let call = Call {
            caller,
            endpoint,
            key,
            source,
            class,
            rules: route.rules.clone(),
            held: Some(Box::new((running, buffered))),
            request,
        };
        // Identify, claim, forward, record. Boxed: what is large is not moved
        // about with each request.
        let mut attempt = 0;
        let sent = call.key.clone();
        let ended = Box::pin(run(self.protection(), call, move |request, granted| {
            attempt += 1;
            let context = ForwardContext {
                attempt,
                key: Some(sent.clone()),
                ..context.clone()
            };
            async move {
                let forwarder = &context.route.forwarder;
                forwarder.protected(request, granted, &context).await
            }
        }))
        .await;
        self.access_log().end(line, ended.outcome, ended.id);
        (seen.outcome, seen.id) = (Some(ended.outcome.as_str()), ended.id);
        respond(ended, &metrics)
    }

    /// Who sends, and whether they may. Everybody is asked each time: whoever
    /// may no longer call reads nothing either.
    async fn authenticate(
        &self,
        plan: &Plan,
        route: &Arc<PlannedRoute>,
        endpoint: &Endpoint,
        request: Request<Incoming>,
    ) -> Result<Arrival, Problem> {
        let presented = self.present(plan, route, request.headers()).await?;
        let (known, request) = match presented {
            None => {
                return Ok(Arrival {
                    caller: Caller::local(),
                    by: None,
                    request: ClientRequest::Streaming(request),
                });
            }
            Some(Presented::Known(known)) => (known, ClientRequest::Streaming(request)),
            // What was signed with the body is proven with the body.
            Some(Presented::Signed(signed)) => {
                let arrived = ClientRequest::Streaming(request);
                let limit = route.body_limit;
                let (request, held) = self.read(plan, limit, &Caller::local(), arrived).await?;
                let key = idempotency_key::signed_text(request.headers());
                let known = signed.verify(endpoint.as_str(), key, request.body());
                let scheduler = Some(KnownBy::Scheduler);
                let known = known.map_err(|error| self.unknown(&error, scheduler))?;
                (known, ClientRequest::Whole(request, held))
            }
        };
        let caller = self.authorise(&known, route)?;
        Ok(Arrival {
            caller,
            by: Some(known.by()),
            request,
        })
    }

    /// What a request shows of its sender; nothing where nobody looks.
    async fn present(
        &self,
        plan: &Plan,
        route: &PlannedRoute,
        headers: &HeaderMap,
    ) -> Result<Option<Presented>, Problem> {
        if !plan.config.auth.knows_callers() || route.route.access == config::Access::Anyone {
            return Ok(None);
        }
        // Boxed: it may be a long way to who knows a caller, and every request
        // would carry room for it to its end.
        let presented = Box::pin(plan.callers.authenticate(headers)).await;
        presented
            .map(Some)
            .map_err(|error| self.unknown(&error, callers::shown(headers)))
    }

    fn authorise(&self, known: &Known, route: &PlannedRoute) -> Result<Caller, Problem> {
        known
            .may(&route.route.access)
            .and_then(|()| known.caller(route.route.scope))
            .map_err(|error| self.unknown(&error, Some(known.by())))
    }

    fn unknown(&self, error: &AuthError, by: Option<KnownBy>) -> Problem {
        let problem = error.problem();
        self.metrics().auth_refused(by, problem.code().as_str());
        problem
    }

    pub(crate) async fn admit(&self, caller: &Caller) -> Result<(), Problem> {
        let admitted = self.limiter().admit(caller.tenant()).await;
        admitted.map_err(|limit| self.limited(caller, limit))
    }

    pub(crate) fn limited(&self, caller: &Caller, limit: Limit) -> Problem {
        self.metrics().limited(caller, limit);
        limits::refuse(limit)
    }

    /// The whole body, before any claim: what breaks off here leaves no trace.
    pub(crate) async fn read(
        &self,
        plan: &Plan,
        limit: usize,
        caller: &Caller,
        request: ClientRequest,
    ) -> Result<(Request<Bytes>, Buffered), Problem> {
        let request = match request {
            ClientRequest::Whole(request, held) => return Ok((request, held)),
            ClientRequest::Streaming(request) => request,
        };
        let (parts, body) = request.into_parts();
        let mut held = self.limiter().buffer();
        let reading = read(held.counting(body), limit);
        let deadline = plan.config.server.body_deadline;
        match tokio::time::timeout(deadline, reading).await {
            Ok(Ok(body)) => Ok((Request::from_parts(parts, body), held)),
            Ok(Err(_)) if held.is_refused() => Err(self.limited(caller, Limit::BufferedBytes)),
            Ok(Err(problem)) => Err(problem),
            Err(_) => Err(Problem::new(
                Code::BadRequest,
                format!("The request's body did not come within {deadline:?}."),
            )),
        }
    }

    async fn recover(
        &self,
        plan: &Plan,
        recovery: RecoveryPath<'_>,
        candidates: &[(&Arc<PlannedRoute>, Endpoint)],
        headers: &HeaderMap,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let text = recovery.key.map_err(Problem::invalid_key)?;
        let mut refused = None;
        for (route, endpoint) in candidates {
            let (caller, by) = match self.asker(plan, route, endpoint, &text, headers).await {
                Ok(asker) => asker,
                // Another route of the same path may let them in.
                Err(problem) => {
                    refused = refused.or(Some(problem));
                    continue;
                }
            };
            self.admit(&caller).await?;
            let key = idempotency_key::from_path(&text, by).map_err(Problem::invalid_key)?;
            let class = self.class(plan, &route.route.class)?;
            let context = RecoveryContext {
                caller: &caller,
                class: &class,
                rules: &route.rules,
                headers,
            };
            let place = (std::slice::from_ref(endpoint), recovery.path);
            let ended = recover(self.protection(), context, place, &key, recovery.target).await;
            let line = self.access_log().begin(Subject {
                caller: &caller,
                endpoint,
                key: &key,
                source: Source::Path,
                policy: route.route.policy,
                trace: seen.trace_id(),
            });
            self.access_log().end(line, ended.outcome, ended.id);
            (seen.outcome, seen.id) = (Some(ended.outcome.as_str()), ended.id);
            if is_not_found(&ended) {
                refused = Some(Problem::no_operation());
                continue;
            }
            let label = endpoint_label(&route.route.endpoint);
            let metrics = self.metrics().of(&caller, label, &class.name);
            seen.route = Some((*route).clone());
            return respond(ended, &metrics);
        }
        Err(refused.unwrap_or_else(Problem::no_operation))
    }

    /// Who asks for an earlier reply. A scheduler signs an empty body.
    async fn asker(
        &self,
        plan: &Plan,
        route: &PlannedRoute,
        endpoint: &Endpoint,
        key: &str,
        headers: &HeaderMap,
    ) -> Result<(Caller, Option<KnownBy>), Problem> {
        let known = match self.present(plan, route, headers).await? {
            None => return Ok((Caller::local(), None)),
            Some(Presented::Known(known)) => known,
            Some(Presented::Signed(signed)) => signed
                .verify(endpoint.as_str(), key, &[])
                .map_err(|error| self.unknown(&error, Some(KnownBy::Scheduler)))?,
        };
        Ok((self.authorise(&known, route)?, Some(known.by())))
    }

    /// An operation by its id: for its own caller, who still must be let in
    /// where it ran.
    async fn operation(
        &self,
        plan: &Plan,
        id: &str,
        target: RecoveryTarget,
        headers: &HeaderMap,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let known = if plan.config.auth.knows_callers() {
            match plan.callers.authenticate(headers).await {
                Ok(Presented::Known(known)) => Some(known),
                // A scheduler signs the id in the key's place, and no body.
                Ok(Presented::Signed(signed)) => {
                    let known = signed.verify("operations", id, &[]);
                    let scheduler = Some(KnownBy::Scheduler);
                    Some(known.map_err(|error| self.unknown(&error, scheduler))?)
                }
                // What open routes were sent is its sender's to read, whatever
                // else the sender shows.
                Err(AuthError::Missing | AuthError::Refused(_)) if has_open_route(plan) => None,
                Err(error) => return Err(self.unknown(&error, callers::shown(headers))),
            }
        } else {
            None
        };
        let asker = match &known {
            Some(known) => known.caller(config::Scope::Tenant),
            None => Ok(Caller::local()),
        };
        let asker = asker.map_err(|error| self.unknown(&error, None))?;
        self.admit(&asker).await?;
        let Some(id) = OperationId::parse(id) else {
            return Err(Problem::no_operation());
        };
        let found = self.engine().find(id).await;
        let found = found.map_err(|error| store_unavailable(&error))?;
        let own = found.and_then(|record| {
            let own = self.own(plan, known.as_ref(), &record)?;
            Some((record, own))
        });
        let Some((record, (caller, route, class))) = own else {
            return Err(Problem::no_operation());
        };
        let context = RecoveryContext {
            caller: &caller,
            class: &class,
            rules: &route.rules,
            headers,
        };
        let ended = recover_record(self.protection(), context, record, target).await;
        if !is_not_found(&ended) {
            seen.route = Some(route.clone());
        }
        ended.response
    }

    /// The route of an operation, if it is the asker's own and may be used by
    /// them still.
    fn own(
        &self,
        plan: &Plan,
        known: Option<&Known>,
        record: &Record,
    ) -> Option<(Caller, Arc<PlannedRoute>, Arc<Class>)> {
        let there = &record.identity;
        let route = match plan.routes.named(there.endpoint.as_str()) {
            Some(route) => route,
            None => {
                let (method, path) = there.endpoint.as_str().split_once(' ')?;
                plan.routes.at(&method.parse().ok()?, path)?
            }
        };
        let caller = match known {
            _ if route.route.access == config::Access::Anyone => Caller::local(),
            Some(known) => self.authorise(known, route).ok()?,
            None if plan.config.auth.knows_callers() => return None,
            None => Caller::local(),
        };
        let class = self.class(plan, &route.route.class).ok()?;
        (there.caller == caller).then(|| (caller, route.clone(), class))
    }
}

/// What is known of a request when its answer is written.
#[derive(Default)]
pub(crate) struct Seen {
    route: Option<Arc<PlannedRoute>>,
    /// What metrics call the endpoint, where there is no route.
    pub(crate) label: Option<String>,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) caller: Option<Caller>,
    pub(crate) policy: Option<Policy>,
    /// Why it was refused, more precisely than by its code.
    pub(crate) reason: Option<&'static str>,
    trace: Option<Trace>,
    /// The trace that the client says it is part of.
    trace_id: Option<TraceId>,
    /// What it came to, once that is in the log.
    pub(crate) outcome: Option<&'static str>,
    pub(crate) id: Option<OperationId>,
    /// Whether the key was made of the request's parts.
    derived: bool,
}

impl Seen {
    pub(crate) fn trace_id(&self) -> Option<TraceId> {
        self.trace.as_ref().map(Trace::id).or(self.trace_id)
    }

    fn refusal(&self, code: Code) -> Refusal<'_> {
        Refusal {
            reason: self.reason,
            caller: self.caller.as_ref(),
            endpoint: self.endpoint.as_ref(),
            policy: self.policy,
            trace: self.trace_id(),
            ..Refusal::new(code)
        }
    }
}

fn count(refusal: &KeyRefusal, metrics: &RouteMetrics) {
    match refusal {
        KeyRefusal::Missing => metrics.key_missing(),
        KeyRefusal::Invalid(error) => metrics.key_invalid(error.reason()),
        KeyRefusal::Prohibited => {}
        KeyRefusal::Untranslated => metrics.translation_failed("none"),
    }
}

/// Where a request goes. A declared route wins over a path of ours, unless it
/// only takes what remains.
fn route<'a>(plan: &'a Plan, request: &'a Request<Incoming>) -> Result<Turn<'a>, Problem> {
    let (method, path) = (request.method(), request.uri().path());
    // Such a path could pass by the route that it means, or beyond the only one.
    let unconfigured = |route: &Arc<PlannedRoute>| route.route.endpoint == EndpointName::ByPath;
    if !plan.routes.all().iter().all(unconfigured) && has_dot_segment(path) {
        return Err(Problem::new(
            Code::BadRequest,
            "The path has a segment `.` or `..`; send the path that is meant.",
        ));
    }
    if let Some(asked) = cors::preflighted(request)
        && let Some(route) = asked_for(plan, &asked, path)
        && let Some(cors) = &route.route.cors
    {
        return Ok(Turn::Preflight(cors, asked));
    }
    let found = plan.routes.find(method, path);
    let declared = matches!(&found, Found::Route(route) if !takes_what_remains(route));
    if !declared
        && matches!(*method, Method::GET | Method::HEAD)
        && let Some(turn) = own_path(plan, path)
    {
        return Ok(turn);
    }
    if !declared && let Some(to) = WebhookPath::parse(plan, method, path) {
        return Ok(Turn::Webhook(to));
    }
    match found {
        // What only remains could be another route's, read as an upstream may.
        Found::Route(route)
            if takes_what_remains(route)
                && plan.routes.all().len() > 1
                && has_doubtful_slash(path) =>
        {
            Err(Problem::new(
                Code::BadRequest,
                "The path has a double, escaped or backward slash; send the path that is meant.",
            ))
        }
        Found::Route(route) => Ok(Turn::Serve(route)),
        Found::OtherMethods(methods) => Err(Problem::new(
            Code::MethodNotAllowed,
            format!("{method} is not served here."),
        )
        .with_allowed_methods(&methods)),
        Found::Nothing => Err(Problem::new(
            Code::NoRoute,
            "Nothing is served at this path.",
        )),
    }
}

/// The route that a browser asks leave for; an earlier reply belongs to the
/// route that made it.
fn asked_for<'a>(plan: &'a Plan, method: &Method, path: &'a str) -> Option<&'a Arc<PlannedRoute>> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match own_path(plan, path) {
        Some(Turn::Recover(_, candidates)) if reads => candidates.first().map(|(route, _)| *route),
        _ => plan.routes.at(method, path),
    }
}

fn takes_what_remains(route: &PlannedRoute) -> bool {
    route.route.path.contains("{*")
}

/// A path of ours.
fn own_path<'a>(plan: &'a Plan, path: &'a str) -> Option<Turn<'a>> {
    if let Some(page) = pages::find(path) {
        return Some(Turn::Page(page));
    }
    if let Some(rest) = path.strip_prefix(OPERATIONS) {
        let (id, target) = RecoveryTarget::split(rest)?;
        return id.starts_with("op_").then_some(Turn::Operation(id, target));
    }
    let recovery = RecoveryPath::parse(path)?;
    let candidates = recoverable(plan, recovery.path);
    (!candidates.is_empty()).then_some(Turn::Recover(recovery, candidates))
}

/// The routes at a path whose operations can be asked for, and what they are
/// called there.
fn recoverable<'a>(plan: &'a Plan, path: &str) -> Vec<(&'a Arc<PlannedRoute>, Endpoint)> {
    let mut candidates: Vec<(&Arc<PlannedRoute>, Endpoint)> = Vec::new();
    let methods = [
        Method::POST,
        Method::PATCH,
        Method::PUT,
        Method::DELETE,
        Method::GET,
    ];
    for method in methods {
        let Some(route) = plan.routes.at(&method, path) else {
            continue;
        };
        let policy = route.route.policy_for(&method);
        let endpoint = endpoint(&route.route, &method, path);
        let known = candidates.iter().any(|(_, known)| *known == endpoint);
        if matches!(policy, Some(Policy::RequiredA | Policy::Accepted)) && !known {
            candidates.push((route, endpoint));
        }
    }
    candidates
}

fn has_open_route(plan: &Plan) -> bool {
    let routes = plan.routes.all().iter();
    routes
        .map(|route| &route.route.access)
        .any(|access| *access == config::Access::Anyone)
}

/// Passes a request on unprotected.
pub(crate) async fn pass(
    request: ClientRequest,
    context: &ForwardContext,
) -> Result<Response<Body>, Problem> {
    let forwarder = &context.route.forwarder;
    match request {
        ClientRequest::Streaming(request) => Box::pin(forwarder.pass(request, context)).await,
        ClientRequest::Whole(request, _held) => {
            Box::pin(forwarder.pass_whole(request, context)).await
        }
    }
}

fn respond(ended: ProtectedResponse, metrics: &RouteMetrics) -> Result<Response<Body>, Problem> {
    metrics.ended(ended.outcome);
    ended.response
}

fn is_not_found(ended: &ProtectedResponse) -> bool {
    matches!(&ended.response, Err(problem) if problem.code() == Code::NoOperation)
}

/// What a route says in all its answers.
fn finish(route: &config::Route, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    for name in &route.response_headers.remove {
        headers.remove(name);
    }
    for (name, value) in &route.response_headers.set {
        headers.insert(name.clone(), value.clone());
    }
    if let Some(cors) = &route.cors {
        cors::expose(cors, origin, headers);
    }
}

/// HTTP/2 may send cookies in crumbs; they are one header to all who come after.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<_> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if let Ok(cookies) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(header::COOKIE, cookies);
    }
}

/// What an operation is called: by its route's name, or by method and path
/// where nothing is configured.
fn endpoint(route: &config::Route, method: &Method, path: &str) -> Endpoint {
    match &route.endpoint {
        EndpointName::Fixed(endpoint) => endpoint.clone(),
        EndpointName::ByPath => Endpoint::new(&format!("{method} {path}")),
    }
}

/// Where the client thinks it is, for the links in a problem.
struct Place {
    scheme: &'static str,
    host: Option<HeaderValue>,
    uri: Uri,
}

impl Place {
    fn of(request: &Request<Incoming>, peer: &Peer) -> Self {
        let host = peer.host().or_else(|| request.headers().get(header::HOST));
        Self {
            scheme: peer.scheme(),
            host: host.cloned(),
            uri: request.uri().clone(),
        }
    }

    fn write(&self, problem: &Problem, public_url: Option<&str>) -> Response<Body> {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        let host = host.or_else(|| self.uri.authority().map(Authority::as_str));
        let site = match (public_url, host) {
            (Some(url), _) => url.to_owned(),
            (None, Some(host)) => format!("{}://{host}", self.scheme),
            (None, None) => String::new(),
        };
        problem.to_response(&ProblemLinks::of_gateway(&site), self.uri.path())
    }
}
