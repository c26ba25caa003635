//! The tower layer: idempotency for any HTTP service in this process.
//!
//! POST and PATCH with an `Idempotency-Key` run at most once per granted claim,
//! and the recovery routes are answered. All other requests pass untouched. The
//! layer calls the same [`run`] as the gateway.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::engine::Engine;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::identity::Endpoint;
use onceward_core::key::Key;
use tower::{Layer, Service, ServiceExt};

use crate::body::{self, Body, BoxError};
use crate::fields::IDEMPOTENCY_KEY;
use crate::problem::{Problem, ProblemLinks, pages};
use crate::read::read;
use crate::recovery::{RecoveryContext, RecoveryPath, recover};
use crate::rules::{Credentials, Hosts, Rules};
use crate::run::{Call, Granted, Protection, Unanswered, host, run};

/// Whether a POST or PATCH may come without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Accepted,
    Required,
}

type NameCaller = dyn Fn(&Parts) -> Caller + Send + Sync;

/// Makes the service inside it safe to retry.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(Arc<Guard>);

/// The state that a layer shares with its services.
struct Guard {
    protection: Arc<Protection>,
    class: Arc<Class>,
    rules: Arc<Rules>,
    caller: Box<NameCaller>,
    demand: Demand,
    body_limit: usize,
    pages: Option<Arc<ProblemPages>>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("class", &self.class)
            .field("rules", &self.rules)
            .field("demand", &self.demand)
            .field("body_limit", &self.body_limit)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

/// The options of a layer.
#[must_use]
pub struct IdempotencyBuilder {
    engine: Arc<Engine>,
    fingerprinter: Fingerprinter,
    class: Class,
    caller: Option<Box<NameCaller>>,
    hosts: Hosts,
    demand: Demand,
    body_limit: usize,
    reply_limit: usize,
    timeout: Duration,
    pages: Option<String>,
}

/// The secret of the fingerprints is left out.
impl fmt::Debug for IdempotencyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyBuilder")
            .field("class", &self.class)
            .field("demand", &self.demand)
            .field("body_limit", &self.body_limit)
            .field("reply_limit", &self.reply_limit)
            .field("timeout", &self.timeout)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// The options of a layer on this engine. The defaults are those of a gateway
    /// without configuration.
    pub fn builder(engine: Arc<Engine>) -> IdempotencyBuilder {
        IdempotencyBuilder {
            engine,
            fingerprinter: Fingerprinter::plain(),
            class: Class::interactive(),
            caller: None,
            hosts: Hosts::Compared,
            demand: Demand::Accepted,
            body_limit: 1 << 20,
            reply_limit: 1 << 20,
            timeout: Duration::from_secs(30),
            pages: None,
        }
    }
}

impl IdempotencyBuilder {
    /// The class of all operations of this layer.
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// A secret for the fingerprints, so that requests cannot be guessed from the
    /// store. All processes on one store need the same secret.
    pub fn secret(self, secret: [u8; 32]) -> Self {
        Self {
            fingerprinter: Fingerprinter::keyed(secret),
            ..self
        }
    }

    /// Names the caller of a request, which an earlier layer has authenticated.
    /// Callers never see each other's replies. Within one caller credentials are
    /// no longer compared, so unauthenticated requests must be refused before
    /// this layer.
    pub fn caller(self, name: impl Fn(&Parts) -> Caller + Send + Sync + 'static) -> Self {
        Self {
            caller: Some(Box::new(name)),
            ..self
        }
    }

    /// Does not compare the Host, for a service that answers alike under all its
    /// names. Without this, requests to different virtual hosts are different
    /// requests, and never get each other's replies.
    pub fn ignore_host(self) -> Self {
        Self {
            hosts: Hosts::Ignored,
            ..self
        }
    }

    /// Refuses POST and PATCH without a key.
    pub fn required(self) -> Self {
        Self {
            demand: Demand::Required,
            ..self
        }
    }

    /// The largest body of a protected request, in bytes.
    pub fn body_limit(self, body_limit: usize) -> Self {
        Self { body_limit, ..self }
    }

    /// The largest reply that is kept, in bytes.
    pub fn reply_limit(self, reply_limit: usize) -> Self {
        Self {
            reply_limit,
            ..self
        }
    }

    /// How long the service may take before the outcome counts as unknown.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Serves the problem pages below this path, such as `/problems`, or below
    /// the path of this URL, such as `https://api.example.com/problems`; the
    /// `type` of a problem leads there. With a path alone, `type` begins with the
    /// request's own scheme and host: give the URL where a proxy changes them.
    ///
    /// Without pages, `type` is `urn:onceward:problem:{code}`.
    pub fn problem_pages(self, at: impl Into<String>) -> Self {
        Self {
            pages: Some(at.into()),
            ..self
        }
    }

    /// Makes the layer.
    ///
    /// # Errors
    ///
    /// Options that contradict each other.
    pub fn build(self) -> Result<IdempotencyLayer, BuildError> {
        if self.class.lease < self.timeout {
            return Err(BuildError::ShortLease {
                lease: self.class.lease,
                timeout: self.timeout,
            });
        }
        if self.class.remember < self.class.retention {
            return Err(BuildError::ShortMemory {
                remember: self.class.remember,
                retention: self.class.retention,
            });
        }
        let pages = match self.pages {
            Some(at) => Some(Arc::new(ProblemPages::parse(at)?)),
            None => None,
        };
        let credentials = match self.caller {
            Some(_) => Credentials::Trusted,
            None => Credentials::Compared,
        };
        Ok(IdempotencyLayer(Arc::new(Guard {
            protection: Arc::new(Protection::new(self.engine, self.fingerprinter)),
            rules: Arc::new(Rules {
                upstream_timeout: self.timeout,
                reply_limit: self.reply_limit,
                hosts: self.hosts,
                ..Rules::new(credentials)
            }),
            class: Arc::new(self.class),
            caller: self.caller.unwrap_or_else(|| Box::new(|_| Caller::local())),
            demand: self.demand,
            body_limit: self.body_limit,
            pages,
        })))
    }
}

/// Why a layer cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The lease is shorter than the time that the service may take.
    #[error("the lease ({lease:?}) is shorter than the timeout ({timeout:?}); make it longer")]
    ShortLease {
        /// The class's lease.
        lease: Duration,
        /// How long the service may take.
        timeout: Duration,
    },
    /// Keys would be forgotten before their replies.
    #[error(
        "keys are remembered for {remember:?} and replies kept for {retention:?}; remember them at least as long"
    )]
    ShortMemory {
        /// How long keys are remembered.
        remember: Duration,
        /// How long replies are kept.
        retention: Duration,
    },
    /// The problem pages have no usable path or URL.
    #[error(
        "{at:?} is no place for problem pages; use a path such as \"/problems\" or a URL with a path"
    )]
    ProblemPages {
        /// The given value.
        at: String,
    },
}

/// Where the layer serves the problem pages.
#[derive(Debug)]
pub(crate) struct ProblemPages {
    /// Scheme and host, such as `https://api.example.com`, where they were given.
    site: Option<String>,
    /// The path, without a slash at its end.
    path: String,
}

impl ProblemPages {
    fn parse(at: String) -> Result<Self, BuildError> {
        let Ok(uri) = at.parse::<Uri>() else {
            return Err(BuildError::ProblemPages { at });
        };
        let path = uri.path().trim_end_matches('/').to_owned();
        let site = match (uri.scheme_str(), uri.authority()) {
            (Some(scheme), Some(authority)) => Some(format!("{scheme}://{authority}")),
            _ => None,
        };
        let is_place = site.is_some() || at.starts_with('/');
        if path.is_empty() || !is_place || uri.query().is_some() {
            return Err(BuildError::ProblemPages { at });
        }
        Ok(Self { site, path })
    }

    /// The links of a problem in answer to a request with this head.
    fn links(&self, uri: &Uri, headers: &HeaderMap) -> ProblemLinks {
        let path = &self.path;
        if let Some(site) = &self.site {
            return ProblemLinks::below(&format!("{site}{path}"));
        }
        let host = headers.get(http::header::HOST);
        let host = host.and_then(|host| host.to_str().ok());
        let host = host.or_else(|| uri.authority().map(http::uri::Authority::as_str));
        let scheme = uri.scheme_str().unwrap_or("http");
        match host {
            Some(host) => ProblemLinks::below(&format!("{scheme}://{host}{path}")),
            None => ProblemLinks::below(path),
        }
    }

    /// The page at a path, if there is one.
    fn page(&self, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
        let rest = path.strip_prefix(&self.path)?;
        pages::respond(rest, &self.path, headers)
    }
}

fn links(pages: Option<&ProblemPages>, uri: &Uri, headers: &HeaderMap) -> ProblemLinks {
    pages.map_or_else(ProblemLinks::none, |pages| pages.links(uri, headers))
}

/// Why a request within the layer has no grant, for extractors that need one.
#[cfg_attr(not(feature = "axum"), allow(dead_code))]
#[derive(Clone, Debug)]
pub(crate) struct Ungranted {
    reason: UngrantedReason,
    pages: Option<Arc<ProblemPages>>,
}

#[derive(Clone, Copy, Debug)]
enum UngrantedReason {
    KeyMissing,
    StoreUnavailable,
}

impl Ungranted {
    /// The refusal of a request that cannot be served without a grant.
    #[cfg(feature = "axum")]
    pub(crate) fn to_response(&self, parts: &Parts) -> Response<Body> {
        let problem = match self.reason {
            UngrantedReason::KeyMissing => Problem::key_missing(),
            UngrantedReason::StoreUnavailable => Problem::store_unavailable_to_handler(),
        };
        let links = links(self.pages.as_deref(), &parts.uri, &parts.headers);
        problem.to_response(&links, parts.uri.path())
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent {
            guard: self.0.clone(),
            inner,
        }
    }
}

/// A service that is safe to retry.
#[derive(Clone, Debug)]
pub struct Idempotent<S> {
    guard: Arc<Guard>,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone that was made ready serves; the other waits for the next.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let guard = self.guard.clone();
        Box::pin(async move { guard.serve(inner, request).await })
    }
}

/// The layer's decision about a request.
enum Action {
    Pass,
    PassWithoutKey,
    ShowPage(Response<Body>),
    Recover,
    Protect(Key),
    Refuse(Problem),
}

impl Guard {
    async fn serve<S, B, R>(
        self: Arc<Self>,
        inner: S,
        mut request: Request<B>,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let links = links(self.pages.as_deref(), request.uri(), request.headers());
        let path = request.uri().path().to_owned();
        let answer = match self.decide(&request) {
            Action::Pass => return pass(inner, request).await,
            Action::PassWithoutKey => {
                let ungranted = self.ungranted(UngrantedReason::KeyMissing);
                request.extensions_mut().insert(ungranted);
                return pass(inner, request).await;
            }
            Action::ShowPage(page) => Ok(page),
            Action::Refuse(problem) => Err(problem),
            Action::Recover => self.recover(&request.into_parts().0).await,
            Action::Protect(key) => self.protect(inner, request, key).await,
        };
        Ok(answer.unwrap_or_else(|problem| problem.to_response(&links, &path)))
    }

    /// Decides by the head of the request alone.
    fn decide<B>(&self, request: &Request<B>) -> Action {
        let path = request.uri().path();
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            let pages = self.pages.as_deref();
            if let Some(page) = pages.and_then(|pages| pages.page(path, request.headers())) {
                return Action::ShowPage(page);
            }
            return match RecoveryPath::parse(path) {
                Some(_) => Action::Recover,
                None => Action::Pass,
            };
        }
        if !matches!(*request.method(), Method::POST | Method::PATCH) {
            return Action::Pass;
        }
        let lines = request.headers().get_all(IDEMPOTENCY_KEY);
        match Key::from_header(lines.iter().map(http::HeaderValue::as_bytes)) {
            Ok(Some(key)) => Action::Protect(key),
            Ok(None) if self.demand == Demand::Required => Action::Refuse(Problem::key_missing()),
            Ok(None) => Action::PassWithoutKey,
            Err(error) => Action::Refuse(Problem::invalid_key(error)),
        }
    }

    fn ungranted(&self, reason: UngrantedReason) -> Ungranted {
        Ungranted {
            reason,
            pages: self.pages.clone(),
        }
    }

    async fn recover(&self, parts: &Parts) -> Result<Response<Body>, Problem> {
        let mut headers = parts.headers.clone();
        if let Ok(host) = HeaderValue::from_bytes(host(&parts.headers, Some(&parts.uri))) {
            headers.insert(header::HOST, host);
        }
        let caller = (self.caller)(parts);
        let Some(recovery) = RecoveryPath::parse(parts.uri.path()) else {
            return Err(Problem::no_operation());
        };
        let key = recovery.key.and_then(|key| Key::parse(&key));
        let key = key.map_err(Problem::invalid_key)?;
        let endpoints = [Method::POST, Method::PATCH].map(|m| endpoint(&m, recovery.path));
        let context = RecoveryContext {
            caller: &caller,
            class: &self.class,
            rules: &self.rules,
            headers: &headers,
        };
        let place = (&endpoints[..], recovery.path);
        recover(&self.protection, context, place, &key, recovery.target)
            .await
            .response
    }

    async fn protect<S, B, R>(
        &self,
        inner: S,
        request: Request<B>,
        key: Key,
    ) -> Result<Response<Body>, Problem>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let body = read(body, self.body_limit).await?;
        let caller = (self.caller)(&parts);
        let endpoint = endpoint(&parts.method, parts.uri.path());
        let settings = (self.class.clone(), self.rules.clone());
        let request = Request::from_parts(parts, body);
        let call = Call::new((caller, endpoint), key, settings, request);
        let bypassed = self.ungranted(UngrantedReason::StoreUnavailable);
        // Each attempt gets its own clone of the service and makes it ready.
        run(&self.protection, call, move |request, granted| {
            let grant = granted.ok_or_else(|| bypassed.clone());
            serve_inner(inner.clone(), request, grant)
        })
        .await
        .response
    }
}

async fn pass<S, B, R>(mut inner: S, request: Request<B>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let response = inner.call(request).await?;
    Ok(response.map(body::boxed))
}

/// Calls the service under a grant, or without one while the store is unavailable.
/// After an error of the service the outcome is unknown: the service may have done
/// its work before.
async fn serve_inner<S, B, R>(
    inner: S,
    request: Request<Bytes>,
    grant: Result<Granted, Ungranted>,
) -> Result<Response<Body>, Unanswered>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: From<Bytes>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let mut request = request.map(B::from);
    match grant {
        Ok(granted) => drop(request.extensions_mut().insert(granted)),
        Err(ungranted) => drop(request.extensions_mut().insert(ungranted)),
    }
    match inner.oneshot(request).await {
        Ok(response) => Ok(response.map(body::boxed)),
        Err(error) => Err(Unanswered::Lost(error.into())),
    }
}

fn endpoint(method: &Method, path: &str) -> Endpoint {
    Endpoint::new(&format!("{method} {path}"))
}
