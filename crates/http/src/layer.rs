//! The tower layer: idempotency for any HTTP service in this process.
//!
//! POST and PATCH with an `Idempotency-Key` run at most once per granted claim;
//! everything else passes untouched, and the recovery routes are answered. It
//! calls the same [`run`] as the gateway.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::engine::Engine;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::identity::Endpoint;
use onceward_core::key::Key;
use tower::{Layer, Service, ServiceExt};

use crate::body::{self, Body, BoxError};
use crate::fields::IDEMPOTENCY_KEY;
use crate::problem::{Code, Problem};
use crate::read::read;
use crate::recovery::{Asker, Recovery, recover};
use crate::rules::{Credentials, KeySource, Rules};
use crate::run::{Call, Granted, Protection, Unanswered, run};

/// Whether a POST or PATCH may come without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Accepted,
    Required,
}

type NameCaller = dyn Fn(&Parts) -> Caller + Send + Sync;

/// Makes the service inside it safe to retry.
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<Guard>);

struct Guard {
    protection: Arc<Protection>,
    class: Arc<Class>,
    rules: Arc<Rules>,
    caller: Box<NameCaller>,
    demand: Demand,
    body_limit: usize,
}

/// Chooses how a layer protects.
pub struct IdempotencyBuilder {
    engine: Arc<Engine>,
    fingerprinter: Fingerprinter,
    class: Class,
    caller: Option<Box<NameCaller>>,
    demand: Demand,
    body_limit: usize,
    reply_limit: usize,
    timeout: Duration,
}

impl IdempotencyLayer {
    /// A layer on this engine, as in a gateway without configuration.
    pub fn builder(engine: Arc<Engine>) -> IdempotencyBuilder {
        IdempotencyBuilder {
            engine,
            fingerprinter: Fingerprinter::plain(),
            class: Class::interactive(),
            caller: None,
            demand: Demand::Accepted,
            body_limit: 1 << 20,
            reply_limit: 1 << 20,
            timeout: Duration::from_secs(30),
        }
    }
}

impl IdempotencyBuilder {
    /// The class of all its operations.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// A secret for the fingerprints, so that what was asked cannot be guessed
    /// from the store. All processes on one store need the same.
    #[must_use]
    pub fn secret(self, secret: [u8; 32]) -> Self {
        Self {
            fingerprinter: Fingerprinter::keyed(secret),
            ..self
        }
    }

    /// Who sends a request, as an earlier layer has found out. Callers never
    /// see each other's replies; within one caller, credentials are no longer
    /// compared, so whoever is not authenticated must not get this far.
    #[must_use]
    pub fn caller(self, name: impl Fn(&Parts) -> Caller + Send + Sync + 'static) -> Self {
        Self {
            caller: Some(Box::new(name)),
            ..self
        }
    }

    /// POST and PATCH without a key are refused.
    #[must_use]
    pub fn required(self) -> Self {
        Self {
            demand: Demand::Required,
            ..self
        }
    }

    /// The largest body of a protected request, in bytes.
    #[must_use]
    pub fn body_limit(self, body_limit: usize) -> Self {
        Self { body_limit, ..self }
    }

    /// The largest reply that is kept, in bytes.
    #[must_use]
    pub fn reply_limit(self, reply_limit: usize) -> Self {
        Self {
            reply_limit,
            ..self
        }
    }

    /// How long the service may take before the outcome counts as unknown.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// A class that cannot keep its word is refused.
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
        let credentials = match self.caller {
            Some(_) => Credentials::Trusted,
            None => Credentials::Compared,
        };
        Ok(IdempotencyLayer(Arc::new(Guard {
            protection: Arc::new(Protection {
                engine: self.engine,
                fingerprinter: self.fingerprinter,
                reconciler: None,
            }),
            rules: Arc::new(Rules {
                upstream_timeout: self.timeout,
                reply_limit: self.reply_limit,
                ..Rules::new(credentials)
            }),
            class: Arc::new(self.class),
            caller: self.caller.unwrap_or_else(|| Box::new(|_| Caller::local())),
            demand: self.demand,
            body_limit: self.body_limit,
        })))
    }
}

/// Why a layer was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The lease would end before the service may answer.
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
#[derive(Clone)]
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

/// What is to be done with a request.
enum Turn {
    Pass,
    Recover,
    Protect(Key),
    Refuse(Problem),
}

impl Guard {
    async fn serve<S, B, R>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
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
        let site = site(&request);
        let path = request.uri().path().to_owned();
        let answer = match self.judge(&request) {
            Turn::Pass => return inner.call(request).await.map(|r| r.map(body::boxed)),
            Turn::Refuse(problem) => Err(problem),
            Turn::Recover => self.recover(request.into_parts().0).await,
            Turn::Protect(key) => self.protect(inner, request, key).await,
        };
        Ok(answer.unwrap_or_else(|problem| problem.to_response(&site, &path)))
    }

    fn judge<B>(&self, request: &Request<B>) -> Turn {
        let recovers = matches!(*request.method(), Method::GET | Method::HEAD);
        if recovers && Recovery::parse(request.uri().path()).is_some() {
            return Turn::Recover;
        }
        if !matches!(*request.method(), Method::POST | Method::PATCH) {
            return Turn::Pass;
        }
        let lines = request.headers().get_all(IDEMPOTENCY_KEY);
        match Key::from_header(lines.iter().map(http::HeaderValue::as_bytes)) {
            Ok(Some(key)) => Turn::Protect(key),
            Ok(None) if self.demand == Demand::Required => Turn::Refuse(Problem::new(
                Code::KeyMissing,
                "Send an Idempotency-Key: a value of your own for this intent, the same over its retries.",
            )),
            Ok(None) => Turn::Pass,
            Err(error) => Turn::Refuse(Problem::invalid_key(error)),
        }
    }

    async fn recover(&self, parts: Parts) -> Result<Response<Body>, Problem> {
        let caller = (self.caller)(&parts);
        let Some(recovery) = Recovery::parse(parts.uri.path()) else {
            return Err(Problem::new(
                Code::NoOperation,
                "There is no such operation.",
            ));
        };
        let key = recovery.key.and_then(|key| Key::parse(&key));
        let key = key.map_err(Problem::invalid_key)?;
        let endpoints = [Method::POST, Method::PATCH].map(|m| endpoint(&m, recovery.path));
        let asker = Asker {
            caller: &caller,
            class: &self.class,
            rules: &self.rules,
            headers: &parts.headers,
        };
        let place = (&endpoints[..], recovery.path);
        recover(&self.protection, asker, place, &key, recovery.want)
            .await
            .answer
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
        let call = Call {
            caller: (self.caller)(&parts),
            endpoint: endpoint(&parts.method, parts.uri.path()),
            key,
            source: KeySource::Header,
            class: self.class.clone(),
            rules: self.rules.clone(),
            held: None,
            request: Request::from_parts(parts, body),
        };
        // Each attempt has a clone of its own, which is made ready for it.
        run(&self.protection, call, move |request, granted| {
            serve_inner(inner.clone(), request, granted)
        })
        .await
        .answer
    }
}

/// Calls the service in the name of a grant. An error of a service in this
/// process does not say what it did before.
async fn serve_inner<S, B, R>(
    inner: S,
    request: Request<Bytes>,
    granted: Option<Granted>,
) -> Result<Response<Body>, Unanswered>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: From<Bytes>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let mut request = request.map(B::from);
    if let Some(granted) = granted {
        request.extensions_mut().insert(granted);
    }
    match inner.oneshot(request).await {
        Ok(response) => Ok(response.map(body::boxed)),
        Err(error) => Err(Unanswered::Lost(error.into())),
    }
}

fn endpoint(method: &Method, path: &str) -> Endpoint {
    Endpoint::new(&format!("{method} {path}"))
}

/// Where this service seems to be, for links to problem pages.
fn site<B>(request: &Request<B>) -> String {
    let host = request.headers().get(http::header::HOST);
    match host.and_then(|host| host.to_str().ok()) {
        Some(host) => format!("http://{host}"),
        None => String::new(),
    }
}
