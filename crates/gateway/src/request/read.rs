//! The fifth step: takes a request's key by the route's policy, and reads the body
//! of a request that is to be protected.
//!
//! Both happen before any claim: a body that breaks off leaves no trace.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use hyper::body::Incoming;
use onceward_core::caller::Caller;
use onceward_core::deadline::within;
use onceward_core::key::Key;
use onceward_http::fields::IDEMPOTENCY_KEY;
use onceward_http::problem::{Code, Problem};
use onceward_http::read;
use onceward_http::rules::KeySource;

use super::admit::{Admitted, AdmittedCaller, refuse_over_limit};
use super::idempotency_key::{self, KeyDecision};
use super::limits::Buffered;
use super::route::Routed;
use crate::config::{KnownBy, Policy};
use crate::observe::metrics::Limit;
use crate::observe::report::{Refused, Report, Reported};
use crate::runtime::Runtime;
use crate::runtime::plan::Plan;

/// A request as the client sent it, its body read or not.
pub(crate) enum ClientRequest {
    Streaming(Box<Parts>, Incoming),
    Whole(WholeRequest),
}

/// A request whose body was read.
pub(crate) struct WholeRequest {
    pub(crate) head: Box<Parts>,
    pub(crate) body: Bytes,
    /// Counts the body's bytes.
    pub(crate) buffered: Buffered,
}

/// A request that is ready to be forwarded. Only [`read`] makes one.
pub(super) enum Ready {
    Unprotected(Unprotected),
    Protected(Protected),
}

/// A request that is forwarded without a claim. Only [`read`] makes one.
pub(super) struct Unprotected(UnprotectedParts);

impl Unprotected {
    pub(super) fn into_parts(self) -> UnprotectedParts {
        self.0
    }
}

/// The parts of an [`Unprotected`] request.
pub(super) struct UnprotectedParts {
    pub(super) routed: Routed,
    pub(super) caller: AdmittedCaller,
    pub(super) by: Option<KnownBy>,
    pub(super) request: ClientRequest,
    pub(super) why: WhyUnprotected,
}

/// Why a request is forwarded without a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhyUnprotected {
    /// The policy does not protect this request.
    Policy,
    /// The policy accepts keys, and the request has none.
    NoKey,
    /// The handler keeps its own keys (`HANDLER_INTERNAL_C`).
    Handler,
}

/// A request with a key and its whole body. Only [`read`] makes one.
pub(super) struct Protected(ProtectedParts);

impl Protected {
    pub(super) fn into_parts(self) -> ProtectedParts {
        self.0
    }
}

/// The parts of a [`Protected`] request.
pub(super) struct ProtectedParts {
    pub(super) routed: Routed,
    pub(super) caller: AdmittedCaller,
    pub(super) by: Option<KnownBy>,
    pub(super) key: Key,
    pub(super) source: KeySource,
    pub(super) request: WholeRequest,
}

impl Reported for Ready {
    fn add_to<'a>(&self, report: Report<'a>) -> Report<'a> {
        match self {
            Self::Protected(request) => report.keyed(&request.0.key, request.0.source),
            Self::Unprotected(request) => match request.0.why {
                WhyUnprotected::NoKey => report.unkeyed(),
                WhyUnprotected::Policy | WhyUnprotected::Handler => report,
            },
        }
    }
}

pub(super) async fn read(
    runtime: &Runtime,
    plan: &Plan,
    admitted: Admitted,
) -> Result<Ready, Refused> {
    let (routed, caller, by, mut request) = admitted.into_parts();
    let limit = routed.route().body_limit;
    let route = &routed.route().route;
    let decision =
        idempotency_key::decide(route, &request.head().method, &request.head().headers, by)?;
    let why = match decision {
        KeyDecision::Unprotected(why) => why,
        KeyDecision::Given(key) => {
            let request = read_body(runtime, plan, limit, &caller, request).await?;
            return Ok(Ready::Protected(Protected(ProtectedParts {
                routed,
                caller,
                by,
                key,
                source: KeySource::Header,
                request,
            })));
        }
        KeyDecision::Derived(derived) => {
            let whole = read_body(runtime, plan, limit, &caller, request).await?;
            let window = derived.window;
            let (key, whole) = derive(runtime, &routed, &caller, whole).await;
            match key {
                Some(key) => {
                    return Ok(Ready::Protected(Protected(ProtectedParts {
                        routed,
                        caller,
                        by,
                        key,
                        source: KeySource::Derived { window },
                        request: whole,
                    })));
                }
                None => {
                    request = ClientRequest::Whole(whole);
                    idempotency_key::without(routed.policy().unwrap_or(Policy::Accepted))?
                }
            }
        }
    };
    if why == WhyUnprotected::Handler {
        request.head_mut().headers.remove(IDEMPOTENCY_KEY);
    }
    Ok(Ready::Unprotected(Unprotected(UnprotectedParts {
        routed,
        caller,
        by,
        request,
        why,
    })))
}

/// Makes a key from the parts of a request that its route names.
async fn derive(
    runtime: &Runtime,
    routed: &Routed,
    caller: &Caller,
    request: WholeRequest,
) -> (Option<Key>, WholeRequest) {
    let (route, endpoint) = (Arc::clone(routed.route()), routed.endpoint().clone());
    let (caller, bytes) = (caller.clone(), request.body.len());
    let deriving = move || {
        let derived = route.route.derived_key.as_ref();
        let key = derived
            .and_then(|derived| idempotency_key::derive(derived, &caller, &endpoint, &request));
        (key, request)
    };
    runtime.protection().body_work.run(bytes, deriving).await
}

/// Reads the whole body of a request, within its deadline and within what all
/// bodies together may take.
pub(crate) async fn read_body(
    runtime: &Runtime,
    plan: &Plan,
    limit: usize,
    caller: &Caller,
    request: ClientRequest,
) -> Result<WholeRequest, Refused> {
    let (head, body) = match request {
        ClientRequest::Whole(request) => return Ok(request),
        ClientRequest::Streaming(head, body) => (head, body),
    };
    let mut buffered = runtime.limiter().buffer();
    let reading = read::read(buffered.counting(body), limit);
    let deadline = plan.config.server.body_deadline;
    match within(deadline, reading).await {
        Ok(Ok(body)) => Ok(WholeRequest {
            head,
            body,
            buffered,
        }),
        Ok(Err(_)) if buffered.is_refused() => Err(refuse_over_limit(caller, Limit::BufferedBytes)),
        Ok(Err(problem)) => Err(problem.into()),
        Err(_) => Err(Problem::new(
            Code::BadRequest,
            format!("The request's body did not arrive within {deadline:?}."),
        )
        .into()),
    }
}

impl ClientRequest {
    fn head(&self) -> &Parts {
        match self {
            Self::Streaming(head, _) => head,
            Self::Whole(request) => &request.head,
        }
    }

    fn head_mut(&mut self) -> &mut Parts {
        match self {
            Self::Streaming(head, _) => head,
            Self::Whole(request) => &mut request.head,
        }
    }
}
