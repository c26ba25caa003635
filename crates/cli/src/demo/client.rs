//! The demo's HTTP client. Each request has its own connection, so that a client can disconnect
//! without affecting the others.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A payment request.
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

/// A response, read in full.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PaymentResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl PaymentResponse {
    /// The value of a header, or an empty string.
    pub(super) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Whether it is marked as a replay.
    pub(super) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }

    /// The code of a problem, or an empty string.
    pub(super) fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends a payment and waits for the response.
pub(super) async fn send(to: SocketAddr, payment: Payment) -> anyhow::Result<PaymentResponse> {
    let stream = TcpStream::connect(to)
        .await
        .context("cannot connect to the gateway")?;
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
    // The response is complete; how the connection ends does not matter.
    connection.abort();
    Ok(PaymentResponse {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Sends a payment and disconnects before the response can arrive.
pub(super) async fn send_and_disconnect(to: SocketAddr, payment: Payment) {
    // The timeout is intended.
    let _ = tokio::time::timeout(Duration::from_millis(300), send(to, payment)).await;
}
