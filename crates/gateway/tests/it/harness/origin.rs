//! A real HTTP server as the gateway's upstream. It serves HTTP/1 and HTTP/2,
//! records every complete request, and answers as configured.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use onceward_http::body::{Body, BoxError, boxed, full};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, mpsc};

use super::{bulk, until};

/// A complete request as the origin received it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// The body, or its hash if the origin hashes.
    pub(crate) body: Bytes,
}

impl Seen {
    /// A header's value; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A whole answer.
#[derive(Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    trailers: HeaderMap,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: body.into(),
            trailers: HeaderMap::new(),
        }
    }

    /// Adds a header line; names may repeat.
    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.headers.append(name, value);
        self
    }

    fn head(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap();
        *response.headers_mut() = self.headers.clone();
        response
    }

    fn whole(&self) -> Response<Body> {
        if self.trailers.is_empty() {
            return self.head().map(|()| full(self.body.clone()));
        }
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(2);
        for frame in [
            Frame::data(self.body.clone()),
            Frame::trailers(self.trailers.clone()),
        ] {
            sender.try_send(frame).unwrap();
        }
        self.head().map(|()| boxed(body))
    }
}

/// What the origin does with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Read it, record it, answer it.
    Answer,
    /// Read it, record it, close the connection.
    HangUp,
    /// As `HangUp` for the first request, then as `Answer`.
    HangUpOnce,
    /// As `Answer`, but the body comes from [`Origin::emit`].
    Stream,
    /// As `Answer`, with a bulk body.
    Bulk,
    /// Send back each piece as it arrives.
    Echo,
}

type Answers = dyn Fn(&Seen, usize) -> Reply + Send + Sync;

/// Builds an origin.
pub(crate) struct OriginBuilder {
    reply: Reply,
    answers: Option<Arc<Answers>>,
    manner: Manner,
    gated: bool,
    hashing: bool,
}

/// An origin that answers 200 to everything.
pub(crate) fn origin() -> OriginBuilder {
    OriginBuilder {
        reply: Reply::new(200, ""),
        answers: None,
        manner: Manner::Answer,
        gated: false,
        hashing: false,
    }
}

impl OriginBuilder {
    pub(crate) fn reply(self, status: u16, body: impl Into<Bytes>) -> Self {
        let reply = Reply::new(status, body);
        Self { reply, ..self }
    }

    /// Adds a header line to the reply.
    pub(crate) fn header(self, name: &'static str, value: &str) -> Self {
        let reply = self.reply.header(name, value);
        Self { reply, ..self }
    }

    /// Adds a trailer to the reply, announced as HTTP/1 requires.
    pub(crate) fn trailer(self, name: &'static str, value: &'static str) -> Self {
        let mut this = self.header("trailer", name);
        let name = HeaderName::from_static(name);
        this.reply
            .trailers
            .append(name, HeaderValue::from_static(value));
        this
    }

    /// Replies by the request; runs are counted from 1.
    pub(crate) fn replying(
        self,
        answers: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let answers: Option<Arc<Answers>> = Some(Arc::new(answers));
        Self { answers, ..self }
    }

    /// Reads the request and closes the connection without an answer.
    pub(crate) fn hanging_up(self) -> Self {
        Self {
            manner: Manner::HangUp,
            ..self
        }
    }

    /// Closes the connection of the first request without an answer; answers later
    /// ones.
    pub(crate) fn hanging_up_once(self) -> Self {
        Self {
            manner: Manner::HangUpOnce,
            ..self
        }
    }

    /// Sends the head of the reply, then the pieces given to [`Origin::emit`].
    pub(crate) fn streaming(self) -> Self {
        Self {
            manner: Manner::Stream,
            ..self
        }
    }

    /// Answers with the bulk body.
    pub(crate) fn bulky(self) -> Self {
        Self {
            manner: Manner::Bulk,
            ..self
        }
    }

    /// Sends back each piece of a body as it arrives.
    pub(crate) fn echoing(self) -> Self {
        Self {
            manner: Manner::Echo,
            ..self
        }
    }

    /// Does not read a request's body before [`Origin::open`], and records only its
    /// hash.
    pub(crate) fn hashing_when_open(self) -> Self {
        Self {
            hashing: true,
            ..self
        }
    }

    /// Answers only after [`Origin::open`], one request for each.
    pub(crate) fn gated(self) -> Self {
        Self {
            gated: true,
            ..self
        }
    }

    pub(crate) async fn run(self) -> Origin {
        self.run_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// Starts to listen on an unused port.
    pub(crate) fn run_at(self, reserved: Reserved) -> Origin {
        self.run_on(reserved.0.listen(64).unwrap())
    }

    fn run_on(self, listener: TcpListener) -> Origin {
        let permits = if self.gated {
            0
        } else {
            Semaphore::MAX_PERMITS / 2
        };
        let (feed, fed) = mpsc::unbounded_channel();
        let origin = Origin {
            address: listener.local_addr().unwrap(),
            desk: Arc::new(Desk {
                reply: self.reply,
                answers: self.answers,
                manner: self.manner,
                hashing: self.hashing,
                gate: Semaphore::new(permits),
                unlocked: Semaphore::new(0),
                ledger: Mutex::default(),
                begun: AtomicUsize::new(0),
                emitted: Arc::default(),
                fed: AsyncMutex::new(fed),
            }),
            feed,
        };
        tokio::spawn(accept(listener, origin.desk.clone()));
        origin
    }
}

/// A reserved port on which no server listens yet.
pub(crate) struct Reserved(TcpSocket);

impl Reserved {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }
}

/// A running origin. It ends with the test.
pub(crate) struct Origin {
    address: SocketAddr,
    desk: Arc<Desk>,
    feed: mpsc::UnboundedSender<Piece>,
}

/// A part of a streaming body.
enum Piece {
    Data(Bytes),
    End,
    BreakOff,
}

impl Origin {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn h2c_url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The complete requests, in order.
    pub(crate) fn ledger(&self) -> Vec<Seen> {
        self.desk.ledger.lock().unwrap().clone()
    }

    /// The only request.
    pub(crate) fn only(&self) -> Seen {
        let mut ledger = self.ledger();
        assert_eq!(ledger.len(), 1, "{ledger:?}");
        ledger.remove(0)
    }

    /// How many complete requests arrived.
    pub(crate) fn runs(&self) -> usize {
        self.desk.ledger.lock().unwrap().len()
    }

    /// How many requests arrived, complete or not.
    pub(crate) fn begun(&self) -> usize {
        self.desk.begun.load(Ordering::SeqCst)
    }

    /// Waits until this many complete requests have arrived.
    pub(crate) async fn called(&self, times: usize) {
        until(async || self.runs() >= times).await;
    }

    /// Lets one request be answered, or be read.
    pub(crate) fn open(&self) {
        self.desk.gate.add_permits(1);
        self.desk.unlocked.add_permits(1);
    }

    /// How many bytes of the bulk body were sent.
    pub(crate) fn emitted(&self) -> usize {
        self.desk.emitted.load(Ordering::SeqCst)
    }

    /// Sends a piece of a streaming body.
    pub(crate) fn emit(&self, piece: impl Into<Bytes>) {
        self.feed.send(Piece::Data(piece.into())).unwrap();
    }

    /// Ends a streaming body regularly.
    pub(crate) fn end(&self) {
        self.feed.send(Piece::End).unwrap();
    }

    /// Aborts a streaming body.
    pub(crate) fn break_off(&self) {
        self.feed.send(Piece::BreakOff).unwrap();
    }
}

/// The state that all connections of an origin share.
struct Desk {
    reply: Reply,
    answers: Option<Arc<Answers>>,
    manner: Manner,
    hashing: bool,
    gate: Semaphore,
    unlocked: Semaphore,
    ledger: Mutex<Vec<Seen>>,
    begun: AtomicUsize,
    emitted: Arc<AtomicUsize>,
    fed: AsyncMutex<mpsc::UnboundedReceiver<Piece>>,
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(serve(stream, desk.clone()));
    }
}

async fn serve(stream: TcpStream, desk: Arc<Desk>) {
    let service = service_fn(move |request| desk.clone().answer(request));
    let http = auto::Builder::new(TokioExecutor::new());
    // Some tests expect a connection to fail.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Closes the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the origin hangs up")]
struct HangsUp;

impl Desk {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, HangsUp> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        if self.manner == Manner::Echo {
            let (parts, body) = request.into_parts();
            self.note(parts, Bytes::new());
            return Ok(self.reply.head().map(|()| boxed(body)));
        }
        let (parts, body) = request.into_parts();
        let Ok(body) = self.read(body).await else {
            return Err(HangsUp);
        };
        let (seen, run) = self.note(parts, body);
        self.gate.acquire().await.unwrap().forget();
        let reply = match &self.answers {
            Some(answers) => answers(&seen, run),
            None => self.reply.clone(),
        };
        match self.manner {
            Manner::HangUpOnce if run == 1 => Err(HangsUp),
            Manner::Answer | Manner::Echo | Manner::HangUpOnce => Ok(reply.whole()),
            Manner::HangUp => Err(HangsUp),
            Manner::Stream => Ok(reply.head().map(|()| self.clone().stream())),
            Manner::Bulk => Ok(reply.head().map(|()| bulk(self.emitted.clone()))),
        }
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, hyper::Error> {
        if !self.hashing {
            return Ok(body.collect().await?.to_bytes());
        }
        self.unlocked.acquire().await.unwrap().forget();
        let (mut body, mut hash) = (body, Sha256::new());
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                hash.update(data);
            }
        }
        Ok(HEXLOWER.encode(&hash.finalize()).into())
    }

    fn note(&self, parts: http::request::Parts, body: Bytes) -> (Seen, usize) {
        let target = parts.uri.path_and_query();
        let seen = Seen {
            method: parts.method,
            target: target.map_or_else(String::new, ToString::to_string),
            version: parts.version,
            headers: parts.headers,
            body,
        };
        let mut ledger = self.ledger.lock().unwrap();
        ledger.push(seen.clone());
        (seen, ledger.len())
    }

    fn stream(self: Arc<Self>) -> Body {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        tokio::spawn(async move {
            let mut fed = self.fed.lock().await;
            while let Some(piece) = fed.recv().await {
                let sent = match piece {
                    Piece::Data(data) => sender.send_data(data).await,
                    Piece::BreakOff => return sender.abort(Box::new(HangsUp)),
                    Piece::End => return,
                };
                if sent.is_err() {
                    // The client has disconnected.
                    return;
                }
            }
        });
        boxed(body)
    }
}
