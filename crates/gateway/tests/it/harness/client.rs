//! A client of the gateway: HTTP/1 or HTTP/2, one connection per request.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use onceward_http::body::{Body, empty, full};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A request to be sent.
pub(crate) struct ClientRequest {
    to: SocketAddr,
    version: Version,
    request: Request<Body>,
}

impl ClientRequest {
    /// A request without a body; `what` is a method and a target.
    pub(crate) fn new(to: SocketAddr, what: &str) -> Self {
        let (method, target) = what.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(target);
        Self {
            to,
            version: Version::HTTP_11,
            request: request.body(empty()).unwrap(),
        }
        .header("host", "shop.example")
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Adds a header line; names may repeat.
    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        self.request.headers_mut().append(name, value);
        self
    }

    pub(crate) fn json(self, body: &'static str) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    pub(crate) fn body(self, body: impl Into<Bytes>) -> Self {
        self.stream(full(body))
    }

    /// Sets a streamed body.
    pub(crate) fn stream(mut self, body: Body) -> Self {
        *self.request.body_mut() = body;
        self
    }

    /// Sets the host.
    pub(crate) fn host(mut self, host: &str) -> Self {
        let host = HeaderValue::from_str(host).unwrap();
        self.request.headers_mut().insert("host", host);
        self
    }

    /// Uses HTTP/2 with prior knowledge.
    pub(crate) fn h2c(self) -> Self {
        let version = Version::HTTP_2;
        Self { version, ..self }
    }

    /// Sends the request and reads the whole answer.
    pub(crate) async fn send(self) -> Answer {
        self.begin().await.whole().await
    }

    /// Sends the request in a task, which can be aborted.
    pub(crate) fn spawn(self) -> JoinHandle<Answer> {
        tokio::spawn(self.send())
    }

    /// Sends the request and waits for the answer's head.
    pub(crate) async fn begin(self) -> Answering {
        self.try_begin().await.unwrap()
    }

    /// Like [`begin`](Self::begin), if there may be no answer.
    pub(crate) async fn try_begin(self) -> Result<Answering, hyper::Error> {
        let stream = TcpStream::connect(self.to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let io = TokioIo::new(stream);
        // Dropping the answer closes the connection.
        let mut tasks = tokio::task::JoinSet::new();
        let response = if self.version == Version::HTTP_2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tasks.spawn(connection);
            sender.send_request(absolute(self.request)).await?
        } else {
            let (mut sender, connection) = http1::handshake(io).await?;
            tasks.spawn(connection);
            sender.send_request(self.request).await?
        };
        Ok(Answering {
            response,
            _tasks: tasks,
        })
    }
}

/// HTTP/2 carries the host in its target.
fn absolute(mut request: Request<Body>) -> Request<Body> {
    let host = request.headers_mut().remove("host").unwrap();
    let url = format!("http://{}{}", host.to_str().unwrap(), request.uri());
    *request.uri_mut() = url.parse().unwrap();
    request
}

/// An answer whose head has arrived.
pub(crate) struct Answering {
    response: Response<Incoming>,
    _tasks: tokio::task::JoinSet<Result<(), hyper::Error>>,
}

impl Answering {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        header(self.response.headers(), name)
    }

    /// The next piece of the body; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        let frame = self.response.body_mut().frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    /// Whether the body ends here, complete. HTTP/2 may end it with an empty piece.
    pub(crate) async fn ends(&mut self) -> bool {
        loop {
            match self.next().await {
                Some(Ok(piece)) if piece.is_empty() => {}
                other => return other.is_none(),
            }
        }
    }

    /// The next piece of the body, as text.
    pub(crate) async fn piece(&mut self) -> String {
        let piece = self.next().await.unwrap().unwrap();
        String::from_utf8(piece.into()).unwrap()
    }

    /// Reads the rest.
    pub(crate) async fn whole(mut self) -> Answer {
        let body = self.response.body_mut().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        Answer {
            status: self.status(),
            version: self.response.version(),
            headers: self.response.headers().clone(),
            body: body.to_bytes(),
            trailers,
        }
    }
}

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Answer {
    /// A header's value; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        header(&self.headers, name)
    }

    /// All values of a header.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|value| value.to_str().unwrap()).collect()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The status and the problem's code; the code is empty for other answers.
    pub(crate) fn problem(&self) -> (u16, String) {
        if self.header("content-type") != "application/problem+json" {
            return (self.status, String::new());
        }
        let code = self.json()["code"].as_str().unwrap().to_owned();
        (self.status, code)
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.map_or("", |value| value.to_str().unwrap())
}
