//! The last step: the answer as the client gets it, with the headers of its
//! route.

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use onceward_http::body::Body;
use onceward_http::fields;
use onceward_http::problem::{Problem, ProblemLinks};

use super::cors;
use crate::config;
use crate::listen::peer::Peer;
use crate::observe::report::{Answered, Unanswerable};
use crate::runtime::plan::Plan;
use crate::upstream::forward::asks_for_upgrade;

/// The facts about the request that the answer needs after the request is gone.
pub(super) struct RequestSite {
    scheme: &'static str,
    host: Option<HeaderValue>,
    uri: Uri,
    origin: Option<HeaderValue>,
    asks_for_upgrade: bool,
}

impl RequestSite {
    pub(super) fn of<B>(plan: &Plan, request: &Request<B>, peer: &Peer) -> Self {
        let headers = request.headers();
        let origin = || headers.get(header::ORIGIN).cloned();
        Self {
            scheme: peer.scheme(),
            host: peer.host().or_else(|| headers.get(header::HOST)).cloned(),
            uri: request.uri().clone(),
            origin: plan.has_cors.then(origin).flatten(),
            asks_for_upgrade: asks_for_upgrade(request),
        }
    }

    /// A problem as a response, with links to the gateway as the client addresses
    /// it.
    fn problem(&self, problem: &Problem, public_url: Option<&str>) -> Response<Body> {
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

pub(super) fn respond(
    plan: &Plan,
    site: &RequestSite,
    answered: Result<Answered<'_>, Unanswerable<'_>>,
) -> Response<Body> {
    let (mut response, report) = match answered {
        Ok(Answered { response, report }) => (response, report),
        Err(unanswerable) => {
            let (problem, report) = unanswerable.into_parts();
            let public_url = plan.config.server.public_url.as_deref();
            (site.problem(&problem, public_url), report)
        }
    };
    let headers = response.headers_mut();
    if report.key_is_derived() {
        let derived = HeaderValue::from_static("derived");
        headers.insert(fields::IDEMPOTENCY_KEY_SOURCE, derived);
    }
    if let Some(route) = report.route() {
        add_route_headers(&route.route, site.origin.as_ref(), headers);
    }
    report.end(response.status());
    if site.asks_for_upgrade && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // `listen::framing` stopped checking this connection when it saw the
        // Upgrade header, so the connection must not carry another request.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Changes an answer's headers as the route configures.
fn add_route_headers(route: &config::Route, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    for name in &route.response_headers.remove {
        headers.remove(name);
    }
    for (name, value) in &route.response_headers.set {
        headers.insert(name.clone(), value.clone());
    }
    if let Some(cors) = &route.cors {
        cors::add_headers(cors, origin, headers);
    }
}
