//! Sending a request on to the upstream, and its answer back.
//!
//! The upstream hears from us, and only from us, who sends and under which
//! grant. On a protected request the answer must say whether anything can have
//! happened: that is `Unanswered`'s business, and `upstream`'s to know.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use onceward_core::caller::Caller;
use onceward_core::identity::{Endpoint, Identity, KeySpace};
use onceward_core::key::Key;
use onceward_http::body::{self, Body};
use onceward_http::fields;
use onceward_http::problem::{Code, Problem};
use onceward_http::run::{Granted, Unanswered};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Access, ForwardKey, KnownBy};
use crate::listen::peer::Peer;
use crate::observe::metrics::{SendOutcome, UpstreamMetrics};
use crate::observe::traces::Link;
use crate::runtime::plan::PlannedRoute;
use crate::upstream::request_body::Passing;
use crate::upstream::{RequestBody, SendError, Upstream};

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// More of what some upstreams believe of a proxy: the client's address, or
/// another target than the one that was routed.
const PROXIES_SAY: [&str; 5] = [
    "x-real-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-original-url",
    "x-rewrite-url",
];
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_SCHEDULE_SIGNATURE: HeaderName = HeaderName::from_static("x-schedule-signature");

/// Sends requests to one upstream.
pub(crate) struct Forwarder {
    upstream: Upstream,
    /// The Host to name, where it is not the client's.
    host: Option<HeaderValue>,
    metrics: Arc<UpstreamMetrics>,
    /// How long a client may pause within a body that streams through.
    pause_max: Duration,
    /// Upgraded connections, ended by [`Forwarder::close`].
    tunnels: TaskTracker,
    closing: CancellationToken,
}

/// A request's way through: from whom, by which route.
#[derive(Clone)]
pub(crate) struct ForwardContext {
    pub(crate) peer: Peer,
    pub(crate) route: Arc<PlannedRoute>,
    pub(crate) caller: Caller,
    /// How the caller is known, if at all.
    pub(crate) by: Option<KnownBy>,
    /// The key of a protected request.
    pub(crate) key: Option<Key>,
    /// How often the upstream is asked by now, this time included.
    pub(crate) attempt: u32,
    /// The trace that asking the upstream is a part of.
    pub(crate) link: Option<Link>,
}

impl Forwarder {
    pub(crate) fn new(
        upstream: Upstream,
        host: Option<HeaderValue>,
        metrics: Arc<UpstreamMetrics>,
        pause_max: Duration,
    ) -> Self {
        Self {
            upstream,
            host,
            metrics,
            pause_max,
            tunnels: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Ends all tunnels, because nobody knows what is said in them, nor for how
    /// long; then closes connections as they are done.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tunnels.close();
        self.tunnels.wait().await;
        self.upstream.close().await;
    }

    /// Sends a protected request once, in the name of its grant.
    pub(crate) async fn protected(
        &self,
        request: Request<Bytes>,
        granted: Option<Granted>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, Unanswered> {
        let (mut parts, body) = request.into_parts();
        self.prepare(&mut parts, context);
        let headers = &mut parts.headers;
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        // Said also of an empty body, without which some servers refuse a POST.
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        fields::strip_preferred_wait(headers);
        headers.remove(fields::IDEMPOTENCY_KEY);
        match granted {
            Some(granted) => introduce(headers, &granted, context.route.route.forward_key),
            None => introduce_bypassed(headers, context),
        }
        onceward_core::crash_point!("before-connect");
        let sent = self.send(Request::from_parts(parts, body), context).await;
        onceward_core::crash_point!("after-sent");
        match sent {
            Ok(response) if is_switch(&response) => Err(Unanswered::Lost(Box::new(Switched))),
            Ok(response) => Ok(response),
            Err(SendError::NotSent(cause)) => Err(Unanswered::NotSent(Box::new(cause))),
            Err(SendError::Lost(cause)) => Err(Unanswered::Lost(Box::new(cause))),
        }
    }

    /// Passes an unprotected request through, streaming both ways.
    pub(crate) async fn pass(
        &self,
        request: Request<Incoming>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, Problem> {
        if asks_for_tunnel(&request) {
            return self.upgrade(request, context).await;
        }
        let (mut parts, body) = request.into_parts();
        self.prepare(&mut parts, context);
        strip_forged_name(&mut parts.headers);
        if !body.is_end_stream() && !parts.headers.contains_key(header::CONTENT_LENGTH) {
            // Unless told so, hyper sends a GET of unknown length without its body.
            let chunked = HeaderValue::from_static("chunked");
            parts.headers.insert(header::TRANSFER_ENCODING, chunked);
        }
        let body = Passing::new(body, self.pause_max);
        let progress = body.progress();
        let request = Request::from_parts(parts, body::boxed(body));
        let timeout = context.route.timeout;
        match progress
            .answered(timeout, self.send(request, context))
            .await
        {
            Ok(Ok(response)) if is_switch(&response) => {
                tracing::warn!(error = %Switched, "an unprotected request has no answer");
                Err(Problem::no_answer_unprotected())
            }
            Ok(Ok(mut response)) => {
                fields::strip_hop_by_hop(response.headers_mut());
                fields::strip_internal(response.headers_mut());
                Ok(response)
            }
            Ok(Err(_)) if progress.is_broken_off() => Err(Problem::new(
                Code::BadRequest,
                "The request's body broke off or is malformed.",
            )),
            Ok(Err(error)) => Err(unanswered(&error)),
            Err(_) => Err(Problem::no_answer_unprotected()),
        }
    }

    /// Passes an unprotected request through whose body was read already.
    pub(crate) async fn pass_whole(
        &self,
        request: Request<Bytes>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, Problem> {
        let (mut parts, body) = request.into_parts();
        self.prepare(&mut parts, context);
        strip_forged_name(&mut parts.headers);
        parts
            .headers
            .insert(header::CONTENT_LENGTH, body.len().into());
        let sending = self.send(Request::from_parts(parts, body), context);
        match tokio::time::timeout(context.route.timeout, sending).await {
            Ok(Ok(response)) if is_switch(&response) => Err(Problem::no_answer_unprotected()),
            Ok(Ok(mut response)) => {
                fields::strip_hop_by_hop(response.headers_mut());
                fields::strip_internal(response.headers_mut());
                Ok(response)
            }
            Ok(Err(error)) => Err(unanswered(&error)),
            Err(_) => Err(Problem::no_answer_unprotected()),
        }
    }

    async fn send<B: Into<RequestBody>>(
        &self,
        mut request: Request<B>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, SendError> {
        let span = context.link.as_ref().map(|link| {
            let span = link.attempt(
                &context.route.route.upstream,
                request.method(),
                context.attempt,
            );
            span.headers_for_upstream(request.headers_mut());
            span
        });
        let sending = self.metrics.begin();
        let sent = self.upstream.send(request).await;
        let word = match &sent {
            Ok(_) => SendOutcome::Answered,
            Err(SendError::NotSent(_)) => SendOutcome::NotSent,
            Err(SendError::Lost(_)) => SendOutcome::Lost,
        };
        sending.end(word);
        match (&sent, span) {
            (Ok(response), Some(span)) => span.answered(response.status()),
            (Err(_), Some(span)) => span.unanswered(word),
            (_, None) => {}
        }
        Ok(sent?.map(body::boxed))
    }

    /// Passes a request for another protocol, and the protocol if it is granted.
    async fn upgrade(
        &self,
        mut request: Request<Incoming>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, Problem> {
        let protocol = request.headers().get(header::UPGRADE).cloned();
        let client = hyper::upgrade::on(&mut request);
        let (mut parts, _) = request.into_parts();
        self.prepare(&mut parts, context);
        switch_to(&mut parts.headers, protocol);
        let request = Request::from_parts(parts, RequestBody::Empty);
        let sent = tokio::time::timeout(context.route.timeout, self.upstream.send(request)).await;
        let mut response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(unanswered(&error)),
            Err(_) => return Err(Problem::no_answer_unprotected()),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            fields::strip_hop_by_hop(response.headers_mut());
            return Ok(response.map(body::boxed));
        }
        let protocol = response.headers().get(header::UPGRADE).cloned();
        let tunnel = tunnel(client, hyper::upgrade::on(&mut response));
        let closing = self.closing.clone();
        self.tunnels
            .spawn(closing.run_until_cancelled_owned(tunnel));
        fields::strip_hop_by_hop(response.headers_mut());
        switch_to(response.headers_mut(), protocol);
        Ok(response.map(body::boxed))
    }

    /// Makes a request ours: what belongs to the client's connection, what only
    /// we may say and what could be mistaken for it goes; who sends and where it
    /// came from is said.
    fn prepare(&self, parts: &mut Parts, context: &ForwardContext) {
        let takes_trailers = parts
            .headers
            .get(header::TE)
            .is_some_and(|te| te.as_bytes() == b"trailers");
        let peer = &context.peer;
        let host = peer.host().cloned().or_else(|| host(parts));
        let headers = &mut parts.headers;
        fields::strip_hop_by_hop(headers);
        headers.remove(header::EXPECT);
        for name in &fields::FROM_GATEWAY_ONLY {
            headers.remove(name);
        }
        for name in foreign(headers) {
            headers.remove(name);
        }
        if takes_trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        match context.by {
            Some(by) => strip_credentials(headers, by),
            None if context.route.route.access == Access::Anyone => strip_own_keys(headers),
            None => {}
        }
        if !context.caller.is_local() {
            introduce_caller(headers, &context.caller);
        }
        let rules = &context.route.route.request_headers;
        for name in &rules.remove {
            headers.remove(name);
        }
        for (name, value) in &rules.set {
            headers.insert(name.clone(), value.clone());
        }
        let ip = peer.address().ip().to_string();
        let ip = HeaderValue::try_from(ip).expect("an address is visible ASCII");
        headers.insert(X_FORWARDED_FOR, ip);
        let scheme = HeaderValue::from_static(peer.scheme());
        headers.insert(X_FORWARDED_PROTO, scheme);
        if let Some(host) = &host {
            headers.insert(X_FORWARDED_HOST, host.clone());
        }
        if let Some(host) = self.host.clone().or(host) {
            headers.insert(header::HOST, host);
        } else if let Ok(own) = HeaderValue::try_from(self.upstream.authority().as_str()) {
            // HTTP/1.0 need not name a host; what goes upstream must.
            headers.insert(header::HOST, own);
        }
        // Only the path: the upstream is ours to choose, not the client's.
        let path = parts.uri.path_and_query().cloned();
        parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        parts.version = Version::HTTP_11;
    }
}

/// Tokens of an issuer are the upstream's to read too; our own keys and
/// signatures open our own door, and no other.
fn strip_credentials(headers: &mut HeaderMap, by: KnownBy) {
    match by {
        KnownBy::Jwt => {}
        KnownBy::ApiKey | KnownBy::Unkey => {
            headers.remove(header::AUTHORIZATION);
            headers.remove(X_API_KEY);
        }
        KnownBy::Scheduler => drop(headers.remove(X_SCHEDULE_SIGNATURE)),
    }
}

/// Where nobody is asked who they are, what opens our own door is still not the
/// upstream's to know.
fn strip_own_keys(headers: &mut HeaderMap) {
    let is_own = |line: &HeaderValue| {
        let mut words = line.as_bytes().rsplit(|byte| *byte == b' ');
        words.next().is_some_and(|key| key.starts_with(b"ow_"))
    };
    for name in [header::AUTHORIZATION, X_API_KEY] {
        if headers.get_all(&name).iter().any(is_own) {
            headers.remove(name);
        }
    }
    headers.remove(X_SCHEDULE_SIGNATURE);
}

/// Carries bytes both ways until one side ends.
async fn tunnel(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        // A tunnel that breaks has ended; both sides have noticed.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

/// The upstream speaks another protocol now, and nobody asked for it.
#[derive(Debug, thiserror::Error)]
#[error("the upstream switched to another protocol unasked")]
struct Switched;

fn is_switch(response: &Response<Body>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether a request asks for another protocol on its connection.
pub(crate) fn asks_for_upgrade<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11
        && request.headers().contains_key(header::UPGRADE)
        && fields::connection_options(request.headers()).contains(&header::UPGRADE)
}

/// Whether that protocol may pass. HTTP itself may not: its requests would
/// reach the upstream unscreened and unprotected. Nor may one that comes after
/// a body, which has to go first.
fn asks_for_tunnel(request: &Request<Incoming>) -> bool {
    let is_http = |line: &HeaderValue| {
        line.as_bytes().split(|byte| *byte == b',').any(|protocol| {
            let protocol = protocol.trim_ascii().to_ascii_lowercase();
            protocol.starts_with(b"h2") || protocol.starts_with(b"http")
        })
    };
    asks_for_upgrade(request)
        && request.body().is_end_stream()
        && !request
            .headers()
            .get_all(header::UPGRADE)
            .iter()
            .any(is_http)
}

fn switch_to(headers: &mut HeaderMap, protocol: Option<HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
}

fn host(parts: &Parts) -> Option<HeaderValue> {
    match parts.headers.get(header::HOST) {
        Some(host) => Some(host.clone()),
        None => HeaderValue::try_from(parts.uri.authority()?.as_str()).ok(),
    }
}

/// Names that claim a proxy's knowledge, and names with an underscore, which
/// many upstreams read as if it were a hyphen.
fn foreign(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .keys()
        .filter(|name| {
            let text = name.as_str();
            **name == FORWARDED
                || text.starts_with("x-forwarded-")
                || text.contains('_')
                || PROXIES_SAY.contains(&text)
        })
        .cloned()
        .collect()
}

/// A key that passes unprotected is the upstream's business, unless it looks
/// like a namespaced name, which only we give.
fn strip_forged_name(headers: &mut HeaderMap) {
    let forged = headers
        .get_all(fields::IDEMPOTENCY_KEY)
        .iter()
        .map(|line| line.as_bytes().trim_ascii())
        .any(|line| line.strip_prefix(b"\"").unwrap_or(line).starts_with(b"t-"));
    if forged {
        headers.remove(fields::IDEMPOTENCY_KEY);
    }
}

/// Tells the upstream under which grant it works, and for whom.
fn introduce(headers: &mut HeaderMap, granted: &Granted, forward_key: ForwardKey) {
    let key = forwarded_key(forward_key, &granted.key, || granted.name.clone());
    if let Some(key) = key {
        say(headers, fields::IDEMPOTENCY_KEY, key);
    }
    say(
        headers,
        fields::IDEMPOTENCY_FENCE,
        granted.fence.0.to_string(),
    );
    say(headers, fields::OPERATION_ID, granted.id.to_string());
    introduce_caller(headers, &granted.caller);
}

/// The same where the store is away: there is no grant, and what the upstream
/// itself knows of the key is all the protection that is left.
fn introduce_bypassed(headers: &mut HeaderMap, context: &ForwardContext) {
    let Some(key) = &context.key else {
        return;
    };
    let identity = Identity {
        caller: context.caller.clone(),
        endpoint: Endpoint::new(""),
        key: key.clone(),
        // Names do not depend on it, nor on the endpoint.
        space: KeySpace::Endpoint,
    };
    if let Some(key) = forwarded_key(context.route.route.forward_key, key, || {
        identity.name().unwrap_or_default()
    }) {
        say(headers, fields::IDEMPOTENCY_KEY, key);
    }
    introduce_caller(headers, &context.caller);
}

fn forwarded_key(
    forward_key: ForwardKey,
    key: &Key,
    name: impl FnOnce() -> String,
) -> Option<String> {
    match forward_key {
        ForwardKey::Namespaced => Some(name()),
        ForwardKey::Raw => Some(key.to_string()),
        ForwardKey::None => None,
    }
}

fn introduce_caller(headers: &mut HeaderMap, caller: &Caller) {
    say(headers, fields::TENANT_ID, caller.tenant().to_owned());
    say(headers, fields::PROJECT_ID, caller.project().to_owned());
    say(headers, fields::SUBJECT, caller.subject().to_string());
}

fn say(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

fn unanswered(error: &SendError) -> Problem {
    tracing::warn!(%error, "an unprotected request has no answer");
    match error {
        SendError::NotSent(_) => Problem::not_sent_unprotected(),
        SendError::Lost(_) => Problem::no_answer_unprotected(),
    }
}
