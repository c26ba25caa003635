//! A small HTTP service that answers as it is told and remembers what it was
//! asked. Stands in for issuers, Unkey and OpenBao.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    status: StatusCode,
    body: Bytes,
    after: Duration,
    location: Option<String>,
}

/// An answer at once.
pub(crate) fn told(status: u16, body: impl Into<Bytes>) -> Told {
    Told {
        status: StatusCode::from_u16(status).expect("a status"),
        body: body.into(),
        after: Duration::ZERO,
        location: None,
    }
}

/// An answer in JSON.
pub(crate) fn json(status: u16, body: &Value) -> Told {
    told(status, body.to_string())
}

impl Told {
    pub(crate) fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    pub(crate) fn location(self, location: &str) -> Self {
        Self {
            location: Some(location.to_owned()),
            ..self
        }
    }
}

type Manner = Arc<dyn Fn(&Seen) -> Told + Send + Sync>;

/// A service on a free port.
pub(crate) struct StandIn {
    url: String,
    state: Arc<State>,
    _serving: AbortOnDropHandle<()>,
}

struct State {
    manner: Mutex<Manner>,
    seen: Mutex<Vec<Seen>>,
}

impl StandIn {
    pub(crate) async fn new(manner: impl Fn(&Seen) -> Told + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(State {
            manner: Mutex::new(Arc::new(manner)),
            seen: Mutex::default(),
        });
        let serving = state.clone();
        let router = Router::new().fallback(move |request: Request| answer(serving, request));
        let server = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("served");
        });
        Self {
            url,
            state,
            _serving: AbortOnDropHandle::new(server),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// From now on it answers in this way.
    pub(crate) fn turn(&self, manner: impl Fn(&Seen) -> Told + Send + Sync + 'static) {
        let mut held = self
            .state
            .manner
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(manner);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        let seen = self
            .state
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen().len()
    }
}

async fn answer(state: Arc<State>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let seen = Seen {
        method: parts.method,
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: body.collect().await.expect("a body").to_bytes(),
    };
    let manner = {
        let held = state.manner.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    };
    let told = manner(&seen);
    state
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(seen);
    tokio::time::sleep(told.after).await;
    let mut response = Response::new(Body::from(told.body));
    *response.status_mut() = told.status;
    if let Some(location) = told.location {
        let value = location.parse().expect("a header's value");
        response.headers_mut().insert(http::header::LOCATION, value);
    }
    response
}
