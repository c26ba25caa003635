//! Accepting connections and serving HTTP/1 and HTTP/2 on them, with TLS or
//! without.
//!
//! Every connection has bounds: how many there are, how long a greeting and a
//! head may take, how large a head may be, how many streams there may be, how
//! long an answer may lie unread. Draining lets what was begun end and closes
//! what is idle.
//!
//! Whatever a client can draw out happens in a task of its connection, never in
//! the loop that accepts.

pub(crate) mod framing;
pub(crate) mod peer;
mod proxy_protocol;
pub(crate) mod tls;

mod line;
mod patience;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use onceward_http::body::{self, Body};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::line::{Line, Transport};
use self::patience::{Answer, Stream, Watch, Watchman};
use crate::listen::framing::{HEAD_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, Watched};
use crate::listen::peer::{Peer, Scheme, Trusted};
use crate::listen::proxy_protocol::{ProxyError, Said};
use crate::listen::tls::ServerTls;

/// How often to look whether more of a beginning has come.
const PREFACE_PAUSE: Duration = Duration::from_millis(50);
/// How long to rest when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where and how clients come in.
pub(crate) struct Door {
    pub(crate) listener: TcpListener,
    /// With TLS, if there is any.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// The proxies that are believed about their clients.
    pub(crate) trusted: Trusted,
    /// Whether connections from trusted peers begin with a PROXY header.
    pub(crate) proxy_protocol: bool,
    /// How long a client may take for all that comes before a request, for a
    /// request's head, and between two requests.
    pub(crate) head_deadline: Duration,
    /// How long a client may leave an answer unread. Large ones have longer, by
    /// their size, while they are being read.
    pub(crate) write_deadline: Duration,
    /// How many connections may be open. Further ones are closed at once.
    pub(crate) connections_max: usize,
    /// How many requests one HTTP/2 connection may have under way.
    pub(crate) streams_max: u32,
    /// Where connections are counted.
    pub(crate) census: Arc<Census>,
}

impl Door {
    /// A door without TLS that trusts nobody, within the usual bounds.
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            tls: None,
            trusted: Trusted::default(),
            proxy_protocol: false,
            head_deadline: Duration::from_secs(30),
            write_deadline: Duration::from_secs(30),
            connections_max: 10_000,
            streams_max: 256,
            census: Arc::default(),
        }
    }
}

/// The connections of a door, counted.
#[derive(Debug, Default)]
pub(crate) struct Census {
    open: AtomicUsize,
    turned_away: AtomicU64,
    cut_off: AtomicU64,
}

impl Census {
    /// How many are open now, with those that have become tunnels.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many were closed at once, because there were too many.
    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// How many were closed because nobody read the answers.
    pub(crate) fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// A place for one more connection, if there may be more.
    fn admit(self: &Arc<Self>, max: usize) -> Option<Place> {
        // Only the loop that accepts adds, so nobody comes in between.
        if self.open() >= max {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Place(Arc::clone(self)))
    }
}

/// One of the connections that may be open.
#[derive(Debug)]
struct Place(Arc<Census>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers requests.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Answers one.
    fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves on a door until told to stop; returns when the last connection is
/// done.
pub(crate) async fn serve<S: Serve>(door: Door, service: Arc<S>, stop: CancellationToken) {
    let watchman = Watchman::new(door.write_deadline);
    let census = Arc::clone(&door.census);
    tokio::select! {
        () = accept(door, service, stop, &watchman) => {}
        () = watchman.look(&census) => {}
    }
}

async fn accept<S: Serve>(
    door: Door,
    service: Arc<S>,
    stop: CancellationToken,
    watchman: &Arc<Watchman>,
) {
    let connections = GracefulShutdown::new();
    let house = Arc::new(House {
        http: Http::new(&door),
        tls: door.tls,
        trusted: door.trusted,
        proxy_protocol: door.proxy_protocol,
        head_deadline: door.head_deadline,
        stop,
        service,
    });
    loop {
        let accepted = tokio::select! {
            biased;
            () = house.stop.cancelled() => break,
            accepted = door.listener.accept() => accepted,
        };
        let (stream, direct) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let Some(place) = door.census.admit(door.connections_max) else {
            tracing::debug!(peer = %direct, "too many connections");
            continue;
        };
        let guest = Guest {
            direct,
            place,
            watch: watchman.watch(),
            watcher: connections.watcher(),
        };
        let watch = Arc::clone(&guest.watch);
        // `connections` waits for it at the end, once it is watched.
        let task = tokio::spawn(Arc::clone(&house).receive(stream, guest));
        watch.set_task(task.abort_handle());
    }
    drop(door.listener);
    connections.shutdown().await;
}

/// What all connections of a door share.
struct House<S> {
    http: Http,
    tls: Option<Arc<ServerTls>>,
    trusted: Trusted,
    proxy_protocol: bool,
    head_deadline: Duration,
    stop: CancellationToken,
    service: Arc<S>,
}

/// What belongs to one connection.
struct Guest {
    direct: SocketAddr,
    place: Place,
    watch: Arc<Watch>,
    watcher: Watcher,
}

/// A connection on which a request may come.
struct Greeted {
    transport: Transport,
    peer: Peer,
    speech: Speech,
}

/// Which HTTP is spoken.
#[derive(Clone, Copy, Debug)]
enum Speech {
    /// As the first bytes say.
    AsHeard,
    Http1,
    Http2,
}

/// Why there is no request to wait for.
#[derive(Debug, thiserror::Error)]
enum Rude {
    #[error("nothing was said in time")]
    Silent,
    #[error("the client has gone")]
    Gone,
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("no TLS: {0}")]
    Tls(io::Error),
}

impl<S: Serve> House<S> {
    async fn receive(self: Arc<Self>, stream: TcpStream, guest: Guest) {
        let direct = guest.direct;
        // Without it small answers wait for the client's acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, peer = %direct, "could not switch off delays");
        }
        let greeting = tokio::time::timeout(self.head_deadline, self.greet(stream, direct));
        // Boxed: a handshake is large, and soon over.
        let greeted = self.stop.run_until_cancelled(Box::pin(greeting)).await;
        match greeted.map(|greeted| greeted.unwrap_or(Err(Rude::Silent))) {
            Some(Ok(greeted)) => self.serve(greeted, guest).await,
            Some(Err(error)) => tracing::debug!(%error, peer = %direct, "no request came"),
            None => {}
        }
    }

    /// All that comes before HTTP.
    async fn greet(&self, mut stream: TcpStream, direct: SocketAddr) -> Result<Greeted, Rude> {
        let mut address = direct;
        if self.proxy_protocol
            && self.trusted.contains(direct.ip())
            && let Said::Client(client) = proxy_protocol::read(&mut stream).await?
        {
            address = client;
        }
        let Some(tls) = &self.tls else {
            hear(&stream).await?;
            return Ok(Greeted {
                transport: Transport::Plain(stream),
                peer: Peer::connected(address, Scheme::Http, &self.trusted),
                speech: Speech::AsHeard,
            });
        };
        let acceptor = TlsAcceptor::from(tls.current());
        let stream = acceptor.accept(stream).await.map_err(Rude::Tls)?;
        let speech = match stream.get_ref().1.alpn_protocol() {
            Some(protocol) if protocol == tls::HTTP2 => Speech::Http2,
            _ => Speech::Http1,
        };
        Ok(Greeted {
            transport: Transport::Secure(Box::new(stream)),
            peer: Peer::connected(address, Scheme::Https, &self.trusted),
            speech,
        })
    }

    async fn serve(self: Arc<Self>, greeted: Greeted, guest: Guest) {
        let Greeted {
            transport,
            peer,
            speech,
        } = greeted;
        let address = peer.address();
        let watch = Arc::clone(&guest.watch);
        let house = Arc::clone(&self);
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = house.answer(request, &peer, &watch);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        // hyper has such a deadline for HTTP/1, and `hear` has waited already.
        let greeting = matches!(speech, Speech::Http2).then_some(self.head_deadline);
        let line = Line::new(transport, guest.watch, guest.place, greeting);
        let io = TokioIo::new(Watched::new(line));
        let http = self.http.speaking(speech);
        let connection = http.serve_connection_with_upgrades(io, service);
        if let Err(error) = guest.watcher.watch(connection).await {
            tracing::debug!(error, peer = %address, "a connection ended badly");
        }
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        watch: &Arc<Watch>,
    ) -> impl Future<Output = Response<Answer>> + Send + use<S> {
        let streams = request.version() == Version::HTTP_2;
        let refused = streams && is_too_large(request.headers());
        let bodiless = streams && request.method() == Method::HEAD;
        let peer = peer.of_request(request.headers(), &self.trusted);
        let service = Arc::clone(&self.service);
        // A socket shows itself whether an answer is read.
        let watch = streams.then(|| Arc::clone(watch));
        async move {
            let response = if refused {
                too_large()
            } else {
                service.serve(request, peer).await
            };
            // hyper leaves the body out for HTTP/1 alone.
            let response = if bodiless {
                without_body(response)
            } else {
                response
            };
            response.map(|body| match &watch {
                Some(watch) => Answer::Stream(Stream::new(body, watch)),
                None => Answer::Socket(body),
            })
        }
    }
}

/// hyper, set up once for each way to speak.
struct Http {
    as_heard: auto::Builder<TokioExecutor>,
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
}

impl Http {
    fn new(door: &Door) -> Self {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(door.head_deadline)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            // Most answers are small: one copy costs less than two pieces to write.
            .writev(false);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(door.streams_max)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .keep_alive_interval(door.head_deadline);
        Self {
            http1: http.clone().http1_only(),
            http2: http.clone().http2_only(),
            as_heard: http,
        }
    }

    fn speaking(&self, speech: Speech) -> &auto::Builder<TokioExecutor> {
        match speech {
            Speech::AsHeard => &self.as_heard,
            Speech::Http1 => &self.http1,
            Speech::Http2 => &self.http2,
        }
    }
}

/// Waits until a client has said enough to tell HTTP/1 from HTTP/2. hyper would
/// wait for that without end; the caller bounds the time.
async fn hear(stream: &TcpStream) -> Result<(), Rude> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut heard = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut heard).await {
            Ok(0) | Err(_) => return Err(Rude::Gone),
            Ok(count) if count == PREFACE.len() => return Ok(()),
            Ok(count) if heard[..count] != PREFACE[..count] => return Ok(()),
            // What was heard stays readable: waiting for more is a matter of time.
            Ok(_) => tokio::time::sleep(PREFACE_PAUSE).await,
        }
    }
}

/// Whether a head of HTTP/2 is larger than one of HTTP/1 may be. Those of
/// HTTP/1 are measured by `framing`.
fn is_too_large(headers: &HeaderMap) -> bool {
    const AROUND: usize = ": \r\n".len();
    let bytes = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + AROUND
    };
    headers.len() > HEADERS_MAX || headers.iter().map(bytes).sum::<usize>() > HEADERS_BYTES_MAX
}

/// The answer to a HEAD: its length is told, and nothing of it sent.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        let said = parts.headers.entry(header::CONTENT_LENGTH);
        said.or_insert_with(|| length.into());
    }
    Response::from_parts(parts, body::empty())
}

/// What h2 itself answers to heads beyond its own bound.
fn too_large() -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// A connection that failed while it was accepted is nobody's concern; a lack
/// of descriptors is, and must not make a busy loop.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        tracing::error!(%error, "cannot accept connections");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
