//! An HTTP server for tests that sends given replies and records its requests. It
//! stands for an issuer, Unkey or OpenBao.

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

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// A reply of the server.
#[derive(Clone, Debug)]
pub(crate) struct StubReply {
    status: StatusCode,
    body: Bytes,
    after: Duration,
    location: Option<String>,
}

/// A reply without a delay.
pub(crate) fn reply(status: u16, body: impl Into<Bytes>) -> StubReply {
    StubReply {
        status: StatusCode::from_u16(status).expect("a status"),
        body: body.into(),
        after: Duration::ZERO,
        location: None,
    }
}

/// A reply in JSON.
pub(crate) fn json(status: u16, body: &Value) -> StubReply {
    reply(status, body.to_string())
}

impl StubReply {
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

type Responder = Arc<dyn Fn(&ReceivedRequest) -> StubReply + Send + Sync>;

/// A server on a free port.
pub(crate) struct StubServer {
    url: String,
    state: Arc<StubState>,
    _serving: AbortOnDropHandle<()>,
}

struct StubState {
    responder: Mutex<Responder>,
    seen: Mutex<Vec<ReceivedRequest>>,
}

impl StubServer {
    pub(crate) async fn new(
        responder: impl Fn(&ReceivedRequest) -> StubReply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(StubState {
            responder: Mutex::new(Arc::new(responder)),
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

    /// Sets the reply of later requests.
    pub(crate) fn respond_with(
        &self,
        responder: impl Fn(&ReceivedRequest) -> StubReply + Send + Sync + 'static,
    ) {
        let mut held = self
            .state
            .responder
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(responder);
    }

    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
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

async fn answer(state: Arc<StubState>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let seen = ReceivedRequest {
        method: parts.method,
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: body.collect().await.expect("a body").to_bytes(),
    };
    let responder = {
        let held = state
            .responder
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        held.clone()
    };
    let reply = responder(&seen);
    state
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(seen);
    tokio::time::sleep(reply.after).await;
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() = reply.status;
    if let Some(location) = reply.location {
        let value = location.parse().expect("a header's value");
        response.headers_mut().insert(http::header::LOCATION, value);
    }
    response
}
