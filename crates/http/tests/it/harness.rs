//! A service that counts its runs, a layer around it, and requests to both.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use onceward_core::class::Class;
use onceward_core::clock::SystemClock;
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::memory::MemoryStore;
use onceward_core::store::Store;
use onceward_http::layer::IdempotencyLayer;
use tokio::sync::Semaphore;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

type Answering = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

/// The service under protection.
#[derive(Clone)]
pub(crate) struct Origin {
    runs: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    answer: Arc<dyn Fn(usize) -> Response<Full<Bytes>> + Send + Sync>,
}

impl Origin {
    /// Answers every request like this; the number counts its runs from 1.
    pub(crate) fn answering(
        answer: impl Fn(usize) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            runs: Arc::default(),
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            answer: Arc::new(answer),
        }
    }

    /// Answers with this status and the number of the run.
    pub(crate) fn status(status: u16) -> Self {
        Self::answering(move |run| {
            let mut response = Response::new(Full::from(format!("run {run}")));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response
        })
    }

    /// Answers only after [`open`](Self::open).
    pub(crate) fn gated(self) -> Self {
        Self {
            gate: Arc::new(Semaphore::new(0)),
            ..self
        }
    }

    /// Lets one run end.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1);
    }

    /// How often it ran.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Waits until it has been called so often.
    pub(crate) async fn called(&self, times: usize) {
        until(|| self.runs() >= times).await;
    }

    fn call(&self, _request: Request<Full<Bytes>>) -> Answering {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        let this = self.clone();
        Box::pin(async move {
            this.gate.acquire().await.unwrap().forget();
            Ok((this.answer)(run))
        })
    }
}

/// Waits until something holds; the test runner's deadline is the limit.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A protected origin.
#[derive(Clone)]
pub(crate) struct Protected {
    service:
        BoxCloneSyncService<Request<Full<Bytes>>, Response<onceward_http::body::Body>, Infallible>,
    pub(crate) engine: Arc<Engine>,
}

/// A memory store on the system's clock.
pub(crate) fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock::new())))
}

/// Protects an origin with a class, on a store.
pub(crate) fn protect(origin: &Origin, class: Class, store: Arc<dyn Store>) -> Protected {
    let limits =
        Limits::default().with(|limits| limits.store_deadline = Duration::from_millis(200));
    let engine = Engine::new(store, Entropy::seeded(7), limits);
    let layer = IdempotencyLayer::builder(engine.clone())
        .class(class)
        .reply_limit(1000)
        .build()
        .unwrap();
    protect_with(origin, &layer, engine)
}

/// Protects an origin with a layer.
pub(crate) fn protect_with(
    origin: &Origin,
    layer: &IdempotencyLayer,
    engine: Arc<Engine>,
) -> Protected {
    let origin = origin.clone();
    let inner = service_fn(move |request| origin.call(request));
    Protected {
        service: BoxCloneSyncService::new(layer.layer(inner)),
        engine,
    }
}

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        json["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }
}

impl Protected {
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let mut service = self.service.clone();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.into()).unwrap(),
        }
    }

    /// `POST /pay` with a key and a body.
    pub(crate) async fn post(&self, key: &str, body: &str) -> Answer {
        self.send(post(key, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).header("host", "shop.example");
        self.send(request.body(Full::default()).unwrap()).await
    }

    /// `POST /pay` in a task of its own.
    pub(crate) fn spawn_post(&self, key: &str, body: &str) -> tokio::task::JoinHandle<Answer> {
        let (this, request) = (self.clone(), post(key, body));
        tokio::spawn(async move { this.send(request).await })
    }
}

/// `POST /pay` with a key and a body.
pub(crate) fn post(key: &str, body: &str) -> Request<Full<Bytes>> {
    Request::post("/pay")
        .header("host", "shop.example")
        .header("idempotency-key", key)
        .body(Full::from(body.to_owned()))
        .unwrap()
}
