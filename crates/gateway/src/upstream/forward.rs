//! Forwards requests to the upstream, and its answers to the client.
//!
//! The gateway sends the upstream the caller and the grant of a request, and
//! removes the client's own headers of these names. For a protected request that
//! fails, `Unanswered` says whether the request may have run.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use onceward_core::caller::Caller;
use onceward_core::deadline::within;
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
use crate::upstream::request_body::StreamedBody;
use crate::upstream::{OutgoingBody, SendError, UpstreamClient};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Headers that belong to the gateway and its client, or that some upstreams trust
/// because proxies set them: the client's address, or a target that replaces the
/// request's own.
const PROXY_HEADERS: [&str; 7] = [
    "expect",
    "forwarded",
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
    upstream: UpstreamClient,
    /// The Host header to send instead of the client's.
    host: Option<HeaderValue>,
    metrics: Arc<UpstreamMetrics>,
    /// How long a client may pause within a streamed body.
    pause_max: Duration,
    /// Upgraded connections, ended by [`Forwarder::close`].
    tunnels: TaskTracker,
    closing: CancellationToken,
}

/// The facts about a request that forwarding needs, besides the request itself.
#[derive(Clone)]
pub(crate) struct ForwardContext {
    pub(crate) peer: Peer,
    pub(crate) route: Arc<PlannedRoute>,
    pub(crate) caller: Caller,
    /// How the caller was authenticated, if it was.
    pub(crate) by: Option<KnownBy>,
    /// The key of a protected request.
    pub(crate) key: Option<Key>,
    /// The number of this attempt, from 1.
    pub(crate) attempt: u32,
    /// The trace that the attempt belongs to.
    pub(crate) link: Option<Link>,
}

impl Forwarder {
    pub(crate) fn new(
        upstream: UpstreamClient,
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

    /// Closes the connections that were not used for too long.
    pub(crate) fn close_expired(&self) {
        self.upstream.close_expired();
    }

    /// Ends all tunnels, because a tunnel may stay open forever; then closes the
    /// connections, each after its last response.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tunnels.close();
        self.tunnels.wait().await;
        self.upstream.close().await;
    }

    /// Sends a protected request once, under its grant.
    pub(crate) fn forward_protected<'a>(
        &'a self,
        request: Request<Bytes>,
        granted: Option<Granted>,
        context: &'a ForwardContext,
    ) -> impl Future<Output = Result<Response<Body>, Unanswered>> + Send + use<'a> {
        let (mut parts, body) = request.into_parts();
        self.prepare(&mut parts, context);
        let headers = &mut parts.headers;
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        // An empty body gets one too: some servers refuse a POST without it.
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        fields::strip_preferred_wait(headers);
        headers.remove(fields::IDEMPOTENCY_KEY);
        match granted {
            Some(granted) => add_grant_headers(headers, &granted, context.route.route.forward_key),
            None => add_bypass_headers(headers, context),
        }
        onceward_core::crash_point!("before-connect");
        let sending = self.send(Request::from_parts(parts, body), context);
        sending.map(|sent| {
            onceward_core::crash_point!("after-sent");
            match sent {
                Ok(response) if is_switch(&response) => {
                    Err(Unanswered::Lost(Box::new(UnexpectedSwitch)))
                }
                Ok(response) => Ok(response),
                Err(SendError::NotSent(cause)) => Err(Unanswered::NotSent(Box::new(cause))),
                Err(SendError::Lost(cause)) => Err(Unanswered::Lost(Box::new(cause))),
            }
        })
    }

    /// Forwards an unprotected request, streaming both bodies.
    pub(crate) fn forward_streaming<'a>(
        &'a self,
        request: Request<Incoming>,
        context: &'a ForwardContext,
    ) -> impl Future<Output = Result<Response<Body>, Problem>> + Send + use<'a> {
        if asks_for_tunnel(&request) {
            return Either::Left(Box::pin(self.upgrade(request, context)));
        }
        let (mut parts, body) = request.into_parts();
        self.prepare(&mut parts, context);
        strip_forged_key(&mut parts.headers);
        if !body.is_end_stream() && !parts.headers.contains_key(header::CONTENT_LENGTH) {
            // Without this header hyper drops the body of a GET of unknown length.
            let chunked = HeaderValue::from_static("chunked");
            parts.headers.insert(header::TRANSFER_ENCODING, chunked);
        }
        let body = StreamedBody::new(body, self.pause_max);
        let progress = body.progress();
        let sending = self.send(Request::from_parts(parts, body), context);
        let waiting = progress.wait_for_answer(context.route.timeout, sending);
        Either::Right(waiting.map(move |sent| match sent {
            Ok(Ok(response)) if is_switch(&response) => {
                tracing::warn!(error = %UnexpectedSwitch, "no answer to an unprotected request");
                Err(Problem::no_answer_unprotected())
            }
            Ok(Ok(mut response)) => {
                strip_for_client(response.headers_mut());
                Ok(response)
            }
            Ok(Err(_)) if progress.is_broken_off() => Err(Problem::new(
                Code::BadRequest,
                "The request body is incomplete or malformed.",
            )),
            Ok(Err(error)) => Err(unanswered_problem(&error)),
            Err(_) => Err(Problem::no_answer_unprotected()),
        }))
    }

    /// Forwards an unprotected request whose body was read already.
    pub(crate) async fn forward_buffered(
        &self,
        request: Request<Bytes>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, Problem> {
        let (mut parts, body) = request.into_parts();
        self.prepare(&mut parts, context);
        strip_forged_key(&mut parts.headers);
        parts
            .headers
            .insert(header::CONTENT_LENGTH, body.len().into());
        let sending = self.send(Request::from_parts(parts, body), context);
        match within(context.route.timeout, sending).await {
            Ok(Ok(response)) if is_switch(&response) => Err(Problem::no_answer_unprotected()),
            Ok(Ok(mut response)) => {
                strip_for_client(response.headers_mut());
                Ok(response)
            }
            Ok(Err(error)) => Err(unanswered_problem(&error)),
            Err(_) => Err(Problem::no_answer_unprotected()),
        }
    }

    /// Sends a request, which goes out at once: the future waits for the answer.
    fn send<'a, B: Into<OutgoingBody>>(
        &'a self,
        mut request: Request<B>,
        context: &ForwardContext,
    ) -> impl Future<Output = Result<Response<Body>, SendError>> + Send + use<'a, B> {
        let span = context.link.as_ref().map(|link| {
            let span = link.attempt(
                &context.route.route.upstream,
                request.method(),
                context.attempt,
            );
            span.headers_for_upstream(request.headers_mut());
            span
        });
        let timer = self.metrics.begin();
        let sending = self.upstream.send(request);
        sending.map(move |sent| {
            let outcome = match &sent {
                Ok(_) => SendOutcome::Answered,
                Err(SendError::NotSent(_)) => SendOutcome::NotSent,
                Err(SendError::Lost(_)) => SendOutcome::Lost,
            };
            timer.end(outcome);
            match (&sent, span) {
                (Ok(response), Some(span)) => span.answered(response.status()),
                (Err(_), Some(span)) => span.unanswered(outcome),
                (_, None) => {}
            }
            let mut response = sent?.map(body::boxed);
            // The version belongs to the connection: the client's is the gateway's own, and
            // stays open after an answer of an HTTP/1.0 upstream.
            *response.version_mut() = Version::HTTP_11;
            Ok(response)
        })
    }

    /// Forwards a request for a protocol upgrade, and opens a tunnel if the upstream
    /// accepts it.
    async fn upgrade(
        &self,
        mut request: Request<Incoming>,
        context: &ForwardContext,
    ) -> Result<Response<Body>, Problem> {
        let protocol = request.headers().get(header::UPGRADE).cloned();
        let client = hyper::upgrade::on(&mut request);
        let (mut parts, _) = request.into_parts();
        self.prepare(&mut parts, context);
        set_upgrade_headers(&mut parts.headers, protocol);
        let request = Request::from_parts(parts, OutgoingBody::Empty);
        let sent = within(context.route.timeout, self.upstream.send(request)).await;
        let mut response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(unanswered_problem(&error)),
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
        set_upgrade_headers(response.headers_mut(), protocol);
        Ok(response.map(body::boxed))
    }

    /// Prepares a request's head for the upstream. Removes hop-by-hop headers, the
    /// headers that only the gateway may set, and headers that an upstream could
    /// take for them; adds the caller, the route's own headers and the
    /// `X-Forwarded-*` headers; sets Host and target.
    fn prepare(&self, parts: &mut Parts, context: &ForwardContext) {
        let takes_trailers = parts
            .headers
            .get(header::TE)
            .is_some_and(|te| te.as_bytes() == b"trailers");
        let peer = &context.peer;
        let client_host = peer.host().cloned().or_else(|| host(parts));
        let headers = &mut parts.headers;
        let is_open = context.route.route.access == Access::Anyone;
        fields::strip_hop_by_hop_and(headers, |name, value| {
            is_withheld(name.as_str())
                || fields::is_from_gateway_only(name)
                || match context.by {
                    Some(by) => is_checked_credential(name, by),
                    None => is_open && is_own_key(name, value),
                }
        });
        if takes_trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        if !context.caller.is_local() {
            add_caller_headers(headers, &context.caller);
        }
        let rules = &context.route.route.request_headers;
        for name in &rules.remove {
            headers.remove(name);
        }
        for (name, value) in &rules.set {
            headers.insert(name.clone(), value.clone());
        }
        headers.insert(X_FORWARDED_FOR, peer.forwarded_for().clone());
        let scheme = HeaderValue::from_static(peer.scheme());
        headers.insert(X_FORWARDED_PROTO, scheme);
        // An upstream with a configured `host` receives this header too, so the
        // fingerprint always includes the client's Host (`plan`).
        if let Some(host) = &client_host {
            headers.insert(X_FORWARDED_HOST, host.clone());
        }
        if let Some(host) = self.host.clone().or(client_host) {
            headers.insert(header::HOST, host);
        } else if let Ok(own) = HeaderValue::try_from(self.upstream.authority().as_str()) {
            // HTTP/1.0 does not require a Host; HTTP/1.1 does.
            headers.insert(header::HOST, own);
        }
        // Only the path: the client must not choose the upstream.
        let path = parts.uri.path_and_query().cloned();
        parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        parts.version = Version::HTTP_11;
    }
}

/// Removes the headers of an upstream's answer that are not for the client.
fn strip_for_client(headers: &mut HeaderMap) {
    fields::strip_hop_by_hop_and(headers, |name, _| fields::is_internal(name));
}

/// Whether a header is not forwarded: proxies set it, or its name has an underscore,
/// which many upstreams read as a hyphen. The gateway has answered `Expect` itself.
fn is_withheld(name: &str) -> bool {
    name.starts_with("x-forwarded-") || PROXY_HEADERS.contains(&name) || name.contains('_')
}

/// Whether a header contains the credential that the gateway has checked. A JWT is
/// kept, because the upstream may read it too; API keys and the scheduler's signature
/// are only for the gateway.
fn is_checked_credential(name: &HeaderName, by: KnownBy) -> bool {
    match by {
        KnownBy::Jwt => false,
        KnownBy::ApiKey | KnownBy::Unkey => *name == header::AUTHORIZATION || *name == X_API_KEY,
        KnownBy::Scheduler => *name == X_SCHEDULE_SIGNATURE,
    }
}

/// Whether a header contains the gateway's own API key or signature: on a route
/// without authentication the upstream must not learn it.
fn is_own_key(name: &HeaderName, value: &HeaderValue) -> bool {
    let is_own = |line: &HeaderValue| {
        let mut words = line.as_bytes().rsplit(|byte| *byte == b' ');
        words.next().is_some_and(|key| key.starts_with(b"ow_"))
    };
    match name.as_str() {
        "authorization" | "x-api-key" => is_own(value),
        name => name == "x-schedule-signature",
    }
}

/// Copies bytes in both directions until one side ends.
async fn tunnel(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        // An error ends the tunnel, which both sides notice.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

/// The upstream answered 101 to a request without an upgrade.
#[derive(Debug, thiserror::Error)]
#[error("the upstream switched protocols without a request to do so")]
struct UnexpectedSwitch;

fn is_switch(response: &Response<Body>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether a request asks for a protocol upgrade.
pub(crate) fn asks_for_upgrade<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11
        && request.headers().contains_key(header::UPGRADE)
        && fields::connection_options(request.headers()).contains(&header::UPGRADE)
}

/// Whether a request asks for an upgrade that the gateway allows. An upgrade to
/// HTTP is not allowed: its requests would reach the upstream unchecked and
/// unprotected. Neither is an upgrade on a request with a body, which would have to
/// be sent first.
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

fn set_upgrade_headers(headers: &mut HeaderMap, protocol: Option<HeaderValue>) {
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

/// Forwards the key of an unprotected request unchanged, unless it looks like a
/// namespaced key (`t-…`), which only the gateway makes.
fn strip_forged_key(headers: &mut HeaderMap) {
    let forged = headers
        .get_all(fields::IDEMPOTENCY_KEY)
        .iter()
        .map(|line| line.as_bytes().trim_ascii())
        .any(|line| line.strip_prefix(b"\"").unwrap_or(line).starts_with(b"t-"));
    if forged {
        headers.remove(fields::IDEMPOTENCY_KEY);
    }
}

/// Adds the key, the fence, the operation's id and the caller of a grant.
fn add_grant_headers(headers: &mut HeaderMap, granted: &Granted, forward_key: ForwardKey) {
    let key = forwarded_key(forward_key, &granted.key, || granted.name.clone());
    if let Some(key) = key {
        set_header(headers, fields::IDEMPOTENCY_KEY, key);
    }
    let fence = granted.fence.0.to_string();
    set_header(headers, fields::IDEMPOTENCY_FENCE, fence);
    set_header(headers, fields::OPERATION_ID, granted.id.to_string());
    add_caller_headers(headers, &granted.caller);
}

/// Adds key and caller where the store is unavailable and the request runs without a
/// grant: the upstream's own handling of the key is the only protection left.
fn add_bypass_headers(headers: &mut HeaderMap, context: &ForwardContext) {
    let Some(key) = &context.key else {
        return;
    };
    let identity = Identity {
        caller: context.caller.clone(),
        endpoint: Endpoint::new(""),
        key: key.clone(),
        // The namespaced key depends on neither the key space nor the endpoint.
        space: KeySpace::Endpoint,
    };
    if let Some(key) = forwarded_key(context.route.route.forward_key, key, || {
        identity.name().unwrap_or_default()
    }) {
        set_header(headers, fields::IDEMPOTENCY_KEY, key);
    }
    add_caller_headers(headers, &context.caller);
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

fn add_caller_headers(headers: &mut HeaderMap, caller: &Caller) {
    set_header(headers, fields::TENANT_ID, caller.tenant().to_owned());
    set_header(headers, fields::PROJECT_ID, caller.project().to_owned());
    set_header(headers, fields::SUBJECT, caller.subject().to_string());
}

/// A value that is not valid in a header is left out.
fn set_header(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

fn unanswered_problem(error: &SendError) -> Problem {
    tracing::warn!(%error, "no answer to an unprotected request");
    match error {
        SendError::NotSent(_) => Problem::not_sent_unprotected(),
        SendError::Lost(_) => Problem::no_answer_unprotected(),
    }
}
