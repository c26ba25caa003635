//! The service behind the gateway, with a ledger of what it really got.
//!
//! A request counts as run from the moment it has arrived whole: whether the
//! gateway lives to hear the answer changes nothing about that.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::until;

/// One request that the service got.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Which run of the whole service it was, from 1.
    pub(crate) number: usize,
    /// When it arrived, by the service's [`Order`].
    pub(crate) at: u64,
    /// The namespaced key.
    pub(crate) key: String,
    pub(crate) fence: u64,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    /// What it did with it.
    pub(crate) manner: Manner,
    /// What it answers, heard or not.
    pub(crate) reply: String,
}

impl Run {
    /// The headers of its answer that are kept, by name.
    pub(crate) fn fields(&self) -> Vec<(String, Vec<u8>)> {
        [
            ("content-length", self.reply.len().to_string()),
            ("content-type", "application/json".to_owned()),
            ("location", format!("/payments/{}", self.number)),
            ("x-part", "one".to_owned()),
            ("x-part", "two".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value.into_bytes()))
        .into()
    }
}

/// What the service does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Does it, and answers 201 after a while.
    Pay(Duration),
    /// Does nothing, and answers 503: come again.
    Refuse,
    /// Does nothing, and answers 422: do not come again.
    Deny,
    /// Does it, and answers when the gate is opened.
    Hold,
    /// Does it, answers half and no more.
    Half,
}

impl Manner {
    pub(crate) const PAY: Self = Self::Pay(Duration::ZERO);
}

/// Puts what happens in the service and at its clients into one order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order(Arc<AtomicU64>);

impl Order {
    /// Later than all before it.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A running service. Dropping it stops it and breaks its connections.
pub(crate) struct Origin {
    address: SocketAddr,
    desk: Arc<Desk>,
    accepting: JoinHandle<()>,
}

type Choice = dyn Fn(&str, usize) -> Manner + Send + Sync;

struct Desk {
    ledger: Mutex<Ledger>,
    /// From the key and how often it came, counted from 1.
    choice: Box<Choice>,
    gate: Semaphore,
    order: Order,
    answered: AtomicUsize,
    connections: AtomicUsize,
}

#[derive(Default)]
struct Ledger {
    runs: Vec<Run>,
    times: HashMap<String, usize>,
}

/// A service that treats every request alike.
pub(crate) async fn origin(manner: Manner) -> Origin {
    origin_choosing(Order::default(), move |_, _| manner).await
}

/// A service that chooses by the key and by how often it came, counted from 1.
pub(crate) async fn origin_choosing(
    order: Order,
    choice: impl Fn(&str, usize) -> Manner + Send + Sync + 'static,
) -> Origin {
    origin_at(SocketAddr::from(([127, 0, 0, 1], 0)), order, choice).await
}

/// The same on this address.
pub(crate) async fn origin_at(
    address: SocketAddr,
    order: Order,
    choice: impl Fn(&str, usize) -> Manner + Send + Sync + 'static,
) -> Origin {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let desk = Arc::new(Desk {
        ledger: Mutex::default(),
        choice: Box::new(choice),
        gate: Semaphore::new(0),
        order,
        answered: AtomicUsize::new(0),
        connections: AtomicUsize::new(0),
    });
    let accepting = tokio::spawn(accept(listener, desk.clone()));
    Origin {
        address,
        desk,
        accepting,
    }
}

impl Origin {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything that it got, in order.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.desk.ledger.lock().unwrap().runs.clone()
    }

    /// What it got under one raw key.
    pub(crate) fn runs_of(&self, key: &str) -> Vec<Run> {
        let mut runs = self.runs();
        runs.retain(|run| raw(&run.key) == key);
        runs
    }

    /// Waits until it has got so many requests.
    pub(crate) async fn called(&self, times: usize) {
        until(|| async { self.desk.ledger.lock().unwrap().runs.len() >= times }).await;
    }

    /// Waits until so many answers, or halves of one, have left it.
    pub(crate) async fn answered(&self, times: usize) {
        until(|| async { self.desk.answered.load(Ordering::SeqCst) >= times }).await;
    }

    /// Waits until nobody is connected: all that a dead gateway sent has been
    /// read then.
    pub(crate) async fn quiet(&self) {
        until(|| async { self.desk.connections.load(Ordering::SeqCst) == 0 }).await;
    }

    /// Lets one held request be answered.
    pub(crate) fn open(&self) {
        self.open_for(1);
    }

    /// Lets so many held requests be answered.
    pub(crate) fn open_for(&self, requests: usize) {
        self.desk.gate.add_permits(requests);
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The sender's key in a namespaced one.
pub(crate) fn raw(namespaced: &str) -> &str {
    namespaced
        .rsplit_once(':')
        .map_or(namespaced, |(_, raw)| raw)
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        desk.connections.fetch_add(1, Ordering::SeqCst);
        let desk = desk.clone();
        connections.spawn(async move {
            converse(stream, &desk).await;
            desk.connections.fetch_sub(1, Ordering::SeqCst);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: TcpStream, desk: &Arc<Desk>) {
    stream.set_nodelay(true).unwrap();
    let service = service_fn(|request| answer(request, desk));
    // A gateway that dies breaks its connections; that is what is tested.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    desk: &Arc<Desk>,
) -> Result<Response<Sent>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let run = desk.enter(&head, String::from_utf8_lossy(&body).into_owned());
    match run.manner {
        Manner::Pay(after) => tokio::time::sleep(after).await,
        Manner::Hold => desk.gate.acquire().await.unwrap().forget(),
        Manner::Refuse | Manner::Deny | Manner::Half => {}
    }
    Ok(Response::builder()
        .status(match run.manner {
            Manner::Refuse => StatusCode::SERVICE_UNAVAILABLE,
            Manner::Deny => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::CREATED,
        })
        .header("content-type", "application/json")
        .header("location", format!("/payments/{}", run.number))
        .header("x-part", "one")
        .header("x-part", "two")
        .body(Sent {
            half: run.manner == Manner::Half,
            left: Some(Bytes::from(run.reply)),
            desk: desk.clone(),
        })
        .unwrap())
}

impl Desk {
    /// Writes a request into the ledger.
    fn enter(&self, head: &Parts, body: String) -> Run {
        let header = |name: &str| {
            let value = head.headers.get(name);
            value.map_or("", |value| value.to_str().unwrap()).to_owned()
        };
        let key = header("idempotency-key");
        let fence = header("idempotency-fence").parse().unwrap_or(0);
        let mut ledger = self.ledger.lock().unwrap();
        let number = ledger.runs.len() + 1;
        let times = ledger.times.entry(key.clone()).or_default();
        *times += 1;
        let manner = (self.choice)(raw(&key), *times);
        let run = Run {
            number,
            at: self.order.next(),
            manner,
            reply: format!(r#"{{"payment":{number},"key":"{key}","fence":{fence}}}"#),
            key,
            fence,
            path: head.uri.path().to_owned(),
            headers: head.headers.clone(),
            body,
        };
        ledger.runs.push(run.clone());
        run
    }
}

/// An answer's body; told to the desk when it has left.
struct Sent {
    left: Option<Bytes>,
    half: bool,
    desk: Arc<Desk>,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match (self.left.take(), self.half) {
            (Some(whole), false) => {
                self.desk.answered.fetch_add(1, Ordering::SeqCst);
                Poll::Ready(Some(Ok(Frame::data(whole))))
            }
            (Some(whole), true) => {
                let half = whole.slice(..whole.len() / 2);
                Poll::Ready(Some(Ok(Frame::data(half))))
            }
            (None, false) => Poll::Ready(None),
            // Asked for the rest, so the half has left. The rest never comes.
            (None, true) => {
                self.desk.answered.fetch_add(1, Ordering::SeqCst);
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.left.as_ref().map_or(0, |bytes| bytes.len() as u64);
        SizeHint::with_exact(left)
    }
}
