//! The life of a request, top to bottom.
//!
//! Each step takes what the step before returned, so none can be skipped:
//! screen, route, authenticate, read; then identify, claim, forward and record,
//! which are one function shared with the tower layer; then respond.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::Endpoint;
use onceward_core::key::{Key, KeyError};
use onceward_http::body::Body;
use onceward_http::fields::IDEMPOTENCY_KEY;
use onceward_http::problem::{Code, Problem};
use onceward_http::read::read;
use onceward_http::recovery::{Recovery, recover};
use onceward_http::run::{Call, Ended, Protection, run};

use crate::access::{Access, Source};
use crate::forward::{Forwarder, asks_for_upgrade};
use crate::metrics::{Metrics, RouteMetrics};
use crate::pages::{self, Page};
use crate::screen::screen;

/// Everything that a request meets on its way.
pub(crate) struct Pipeline {
    pub(crate) protection: Arc<Protection>,
    pub(crate) class: Arc<Class>,
    pub(crate) caller: Caller,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) route_metrics: RouteMetrics,
    pub(crate) access: Access,
    pub(crate) body_limit: usize,
    pub(crate) body_deadline: Duration,
}

/// Where a request goes.
enum Route {
    /// Through, untouched.
    Pass,
    /// To a page of our own.
    Page(Page),
    /// To the reply of an earlier one.
    Recover,
    /// Through, at most once.
    Protect(Key),
}

impl Pipeline {
    /// Answers a request.
    pub(crate) async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response<Body> {
        let start = Instant::now();
        let place = Place::of(&request);
        let upgrade = asks_for_upgrade(&request);
        let answer = self.answer(request, peer).await;
        self.metrics.request_took(start.elapsed());
        let mut response = answer.unwrap_or_else(|problem| place.write(&problem));
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
        mut request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<Response<Body>, Problem> {
        screen(&request)?;
        join_cookies(request.headers_mut());
        let key = match self.route(&request) {
            // Boxed, as is `run` below: what is large is not moved about with each request.
            Ok(Route::Pass) => return Box::pin(self.forwarder.pass(request, peer)).await,
            Ok(Route::Page(page)) => return Ok(pages::answer(page, &self.class)),
            Ok(Route::Recover) => return self.recover(&request).await,
            Ok(Route::Protect(key)) => key,
            Err(error) => return Err(self.refuse_key(error)),
        };
        self.route_metrics.key_present();
        let caller = self.authenticate(&request);
        let request = self.read(request).await?;
        let call = Call {
            endpoint: endpoint(request.method(), request.uri().path()),
            class: self.class.clone(),
            caller,
            key,
            request,
        };
        let access = self.access.begin(&call);
        let forwarder = self.forwarder.clone();
        // Identify, claim, forward, record.
        let ended = Box::pin(run(&self.protection, call, move |request, granted| async move {
            forwarder.protected(request, granted, peer).await
        }))
        .await;
        self.access.end(access, &ended);
        self.respond(ended)
    }

    /// Where nothing is configured, POST and PATCH are `ACCEPTED`.
    fn route(&self, request: &Request<Incoming>) -> Result<Route, KeyError> {
        let path = request.uri().path();
        match *request.method() {
            Method::POST | Method::PATCH => {
                let lines = request.headers().get_all(IDEMPOTENCY_KEY);
                match Key::from_header(lines.iter().map(HeaderValue::as_bytes))? {
                    Some(key) => Ok(Route::Protect(key)),
                    None => {
                        self.route_metrics.key_missing();
                        Ok(Route::Pass)
                    }
                }
            }
            Method::GET | Method::HEAD => Ok(match pages::find(path) {
                Some(page) => Route::Page(page),
                None if Recovery::parse(path).is_some() => Route::Recover,
                None => Route::Pass,
            }),
            _ => Ok(Route::Pass),
        }
    }

    /// Where nothing is configured there is one caller; what clients send to
    /// identify themselves joins the fingerprint instead.
    fn authenticate(&self, _request: &Request<Incoming>) -> Caller {
        self.caller.clone()
    }

    /// The whole body, before any claim: what breaks off here leaves no trace.
    async fn read(&self, request: Request<Incoming>) -> Result<Request<Bytes>, Problem> {
        let (parts, body) = request.into_parts();
        let reading = read(body, self.body_limit);
        match tokio::time::timeout(self.body_deadline, reading).await {
            Ok(body) => Ok(Request::from_parts(parts, body?)),
            Err(_) => Err(Problem::new(
                Code::BadRequest,
                format!(
                    "The request's body did not come within {:?}.",
                    self.body_deadline
                ),
            )),
        }
    }

    async fn recover(&self, request: &Request<Incoming>) -> Result<Response<Body>, Problem> {
        let caller = self.authenticate(request);
        let Some(recovery) = Recovery::parse(request.uri().path()) else {
            return Err(Problem::new(
                Code::NoOperation,
                "There is no such operation.",
            ));
        };
        let endpoints = [Method::POST, Method::PATCH].map(|m| endpoint(&m, recovery.path));
        let key = recovery.key.clone().ok();
        let ended = recover(
            &self.protection,
            &self.class,
            &caller,
            &endpoints,
            recovery,
            request.headers(),
        )
        .await;
        self.access
            .recovered(&caller, key.as_ref(), &endpoints[0], &ended);
        self.respond(ended)
    }

    fn respond(&self, ended: Ended) -> Result<Response<Body>, Problem> {
        self.route_metrics.ended(ended.outcome);
        ended.answer
    }

    fn refuse_key(&self, error: KeyError) -> Problem {
        self.metrics
            .invalid_key(&self.route_metrics, error.reason());
        self.access.refused_key(&self.caller, Source::Header, error);
        Problem::invalid_key(error)
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

fn endpoint(method: &Method, path: &str) -> Endpoint {
    Endpoint::new(&format!("{method} {path}"))
}

/// Where the client thinks it is, for the links in a problem.
struct Place {
    host: Option<HeaderValue>,
    uri: Uri,
}

impl Place {
    fn of(request: &Request<Incoming>) -> Self {
        Self {
            host: request.headers().get(header::HOST).cloned(),
            uri: request.uri().clone(),
        }
    }

    fn write(&self, problem: &Problem) -> Response<Body> {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        let host = host.or_else(|| self.uri.authority().map(Authority::as_str));
        let site = host.map(|host| format!("http://{host}"));
        problem.to_response(&site.unwrap_or_default(), self.uri.path())
    }
}
