//! The sender's side: requests with a key, and what came back.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Where all requests of these tests go.
pub(crate) const PATH: &str = "/payments";

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// No answer came: the connection was refused or broke.
#[derive(Debug)]
pub(crate) struct Gone;

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The code of a problem, or nothing.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }

    /// What a replay must give again: the status, what the service said in its
    /// headers, each value of each, and the body.
    pub(crate) fn kept(&self) -> Kept {
        let mut headers = self.headers.clone();
        for ours in [
            "date",
            "connection",
            "cache-control",
            "idempotent-replayed",
            "idempotency-status",
            "idempotency-expires",
        ] {
            headers.remove(ours);
        }
        let mut fields: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect();
        fields.sort();
        Kept {
            status: self.status,
            fields,
            body: self.body.clone(),
        }
    }
}

/// What two answers of one operation have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

/// A sender that keeps its connection as long as it lasts.
pub(crate) struct Client {
    to: SocketAddr,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(to: SocketAddr) -> Self {
        Self {
            to,
            connection: None,
        }
    }

    pub(crate) async fn post(&mut self, key: &str, body: &str) -> Result<Answer, Gone> {
        self.send(post_request(key, body)).await
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Gone> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(self.to).await?,
        };
        connection.ready().await.map_err(|_| Gone)?;
        let response = connection.send_request(request).await.map_err(|_| Gone)?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|_| Gone)?.to_bytes();
        self.connection = Some(connection);
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }
}

async fn connect(to: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Gone> {
    let stream = TcpStream::connect(to).await.map_err(|_| Gone)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Gone)?;
    // It ends with its sender; what went wrong on it the sender is told.
    tokio::spawn(connection);
    Ok(sender)
}

/// `POST /payments` with a key and a body.
pub(crate) fn post_request(key: &str, body: &str) -> Request<Full<Bytes>> {
    Request::post(PATH)
        .header("host", "shop.example")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Full::from(body.to_owned()))
        .unwrap()
}

/// `GET` of a path.
pub(crate) fn get_request(path: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::GET)
        .uri(path)
        .header("host", "shop.example")
        .body(Full::default())
        .unwrap()
}
