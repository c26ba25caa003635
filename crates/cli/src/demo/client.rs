//! The demo's client: one connection for each request, so that every request
//! stands alone and any can hang up.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A payment that somebody asks for.
#[derive(Clone, Copy)]
pub(super) struct Payment {
    pub(super) path: &'static str,
    pub(super) key: &'static str,
    pub(super) amount: u32,
}

impl Payment {
    /// The body of the request.
    pub(super) fn body(self) -> String {
        format!(r#"{{"amount":{},"currency":"EUR"}}"#, self.amount)
    }
}

/// What came back.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Answer {
    /// A header's value, or nothing.
    pub(super) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Whether it says that it is a replay.
    pub(super) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }

    /// The code of a problem, or nothing.
    pub(super) fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends a payment and waits for the answer.
pub(super) async fn send(to: SocketAddr, payment: Payment) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(to)
        .await
        .context("the gateway does not listen")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(payment.path)
        .header(HOST, to.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header("idempotency-key", payment.key)
        .body(Full::new(Bytes::from(payment.body())))?;
    let response = sender.send_request(request).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    // The answer is here; how the connection ends does not matter.
    connection.abort();
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Sends a payment and hangs up before the answer can come.
pub(super) async fn send_and_hang_up(to: SocketAddr, payment: Payment) {
    // Running out of time is the point.
    let _ = tokio::time::timeout(Duration::from_millis(300), send(to, payment)).await;
}
