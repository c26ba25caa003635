//! Accepts connections and serves HTTP/1 and HTTP/2 on them, with or without
//! TLS.
//!
//! Every connection is bounded: the number of connections, the time for the
//! handshake and for a request's head, the size of a head, the number of HTTP/2
//! streams, and the time that a response may remain unread. A shutdown lets
//! requests in progress finish and closes idle connections.
//!
//! Anything that a client can delay runs in the task of its connection, never
//! in the accept loop.

pub(crate) mod framing;
pub(crate) mod peer;
mod proxy_protocol;
pub(crate) mod tls;

mod connection;
mod counts;
mod drain;
mod handshake;
mod http2;
mod slow_clients;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use onceward_core::deadline::within;
use onceward_http::body::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::connection::ClientConnection;
use self::counts::ListenerSlot;
use self::drain::Drain;
use self::handshake::{EstablishedConnection, HandshakeError, Handshaker, HttpProtocol};
use self::slow_clients::{ConnectionDeadlines, Deadlines, WatchedBody};
use crate::listen::framing::{CheckedStream, HEAD_BYTES_MAX, HEADERS_MAX};
use crate::listen::peer::{Peer, TrustedProxies};
use crate::listen::tls::ListenerTls;
use crate::runtime::cores::{CoreLoad, Cores};

pub(crate) use self::counts::ConnectionCounts;

/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound socket, and the rules for the connections accepted on it.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    /// `None`: connections are served without TLS.
    pub(crate) tls: Option<Arc<ListenerTls>>,
    /// The proxies whose statements about their clients are accepted.
    pub(crate) trusted: TrustedProxies,
    /// Whether connections from trusted proxies must begin with a PROXY header.
    pub(crate) proxy_protocol: bool,
    /// The time limit for everything before the first request, for a request's
    /// head, and for the pause between two requests.
    pub(crate) head_deadline: Duration,
    /// How long a client may leave a response unread. For a large response the
    /// limit grows with its size while the client reads.
    pub(crate) write_deadline: Duration,
    /// The maximum number of open connections. Further ones are closed at once.
    pub(crate) connections_max: usize,
    /// The maximum number of concurrent requests on one HTTP/2 connection.
    pub(crate) streams_max: u32,
    pub(crate) counts: Arc<ConnectionCounts>,
}

impl Listener {
    /// A listener with default limits, without TLS and without trusted proxies.
    pub(crate) fn new(socket: TcpListener) -> Self {
        Self {
            socket,
            tls: None,
            trusted: TrustedProxies::default(),
            proxy_protocol: false,
            head_deadline: Duration::from_secs(30),
            write_deadline: Duration::from_secs(30),
            connections_max: 10_000,
            streams_max: 256,
            counts: Arc::default(),
        }
    }
}

/// Responds to requests.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Responds to one request of this peer, which forwarding headers of trusted
    /// proxies have already named.
    fn serve(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Accepts connections and serves them on the cores until `stop` is cancelled;
/// returns when the last connection has ended.
pub(crate) async fn serve<S: Serve>(
    listener: Listener,
    (service, cores): (Arc<S>, Arc<Cores>),
    stop: CancellationToken,
) {
    let deadlines = Deadlines::new(listener.write_deadline, listener.head_deadline);
    let counts = Arc::clone(&listener.counts);
    tokio::select! {
        () = accept(listener, (service, cores), stop, &deadlines) => {}
        () = deadlines.enforce(&counts) => {}
    }
}

async fn accept<S: Serve>(
    listener: Listener,
    (service, cores): (Arc<S>, Arc<Cores>),
    stop: CancellationToken,
    deadlines: &Arc<Deadlines>,
) {
    let connections = TaskTracker::new();
    let handler = Arc::new(ConnectionHandler {
        drain: Drain::default(),
        http: HttpBuilders::new(&listener, &cores),
        handshaker: Handshaker {
            tls: listener.tls,
            trusted: listener.trusted,
            proxy_protocol: listener.proxy_protocol,
        },
        head_deadline: listener.head_deadline,
        stop,
        service,
    });
    loop {
        let accepted = tokio::select! {
            biased;
            () = handler.stop.cancelled() => break,
            accepted = listener.socket.accept() => accepted,
        };
        let (stream, direct) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let Some(slot) = listener.counts.admit(listener.connections_max) else {
            tracing::debug!(peer = %direct, "connection refused: too many connections");
            continue;
        };
        // The socket leaves the acceptor's runtime for that of its core.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, peer = %direct, "connection not handed on");
                continue;
            }
        };
        let deadlines = deadlines.register();
        let task = cores.least_loaded().spawn(|load| {
            let accepted = AcceptedConnection {
                direct,
                slot,
                deadlines: Arc::clone(&deadlines),
                open: connections.token(),
                load,
            };
            Arc::clone(&handler).handle(stream, accepted)
        });
        deadlines.set_task(task);
    }
    drop(listener.socket);
    handler.drain.begin();
    connections.close();
    connections.wait().await;
}

/// Pauses unless the error concerns a single connection. A lack of file
/// descriptors persists, and without a pause the accept loop would spin.
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

/// Handles connections; all connections of a listener share it.
struct ConnectionHandler<S> {
    http: HttpBuilders,
    handshaker: Handshaker,
    drain: Drain,
    head_deadline: Duration,
    stop: CancellationToken,
    service: Arc<S>,
}

/// What belongs to one accepted connection, besides its socket.
struct AcceptedConnection {
    /// The address of the socket's other end.
    direct: SocketAddr,
    slot: ListenerSlot,
    deadlines: Arc<ConnectionDeadlines>,
    /// The stopping listener waits until this is dropped.
    open: TaskTrackerToken,
    /// Counts the connection among those of its core.
    load: CoreLoad,
}

impl<S: Serve> ConnectionHandler<S> {
    async fn handle(self: Arc<Self>, stream: std::net::TcpStream, accepted: AcceptedConnection) {
        let direct = accepted.direct;
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, peer = %direct, "connection not served");
                return;
            }
        };
        // With Nagle's algorithm small responses wait for an acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, peer = %direct, "could not set TCP_NODELAY");
        }
        let handshake = self.handshaker.establish(stream, direct);
        let handshake = within(self.head_deadline, handshake);
        // Boxed: the handshake's future is large and short-lived.
        let established = self.stop.run_until_cancelled(Box::pin(handshake)).await;
        match established.map(|result| result.unwrap_or(Err(HandshakeError::TimedOut))) {
            Some(Ok(established)) => self.serve_connection(established, accepted).await,
            Some(Err(error)) => {
                tracing::debug!(%error, peer = %direct, "connection closed before its first request");
            }
            None => {}
        }
    }

    async fn serve_connection(
        self: Arc<Self>,
        established: EstablishedConnection,
        accepted: AcceptedConnection,
    ) {
        let EstablishedConnection {
            transport,
            peer,
            protocol,
        } = established;
        let address = peer.address();
        let context = Arc::new(ConnectionContext {
            handler: Arc::clone(&self),
            peer,
            deadlines: Arc::clone(&accepted.deadlines),
            _open: accepted.open,
        });
        let service = service_fn({
            let context = Arc::clone(&context);
            move |request: Request<Incoming>| serve_request(&context, request)
        });
        let preface_deadline = match protocol {
            HttpProtocol::Http1 => {
                accepted.deadlines.await_head();
                None
            }
            HttpProtocol::Http2 => Some(self.head_deadline),
        };
        let connection = ClientConnection::new(
            transport,
            accepted.deadlines,
            accepted.slot,
            preface_deadline,
        );
        let io = TokioIo::new(CheckedStream::new(connection));
        let served = match protocol {
            HttpProtocol::Http1 => {
                let connection = self.http.http1.serve_connection(io, service);
                let connection = connection.with_upgrades();
                self.drain
                    .serve(connection, |connection| connection.graceful_shutdown())
                    .await
            }
            HttpProtocol::Http2 => {
                let connection = self.http.http2.serve_connection(io, service);
                self.drain
                    .serve(connection, |connection| connection.graceful_shutdown())
                    .await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, peer = %address, "connection failed");
        }
        drop((accepted.load, context));
    }
}

/// What the requests of one connection share, with one reference count for all of it:
/// the counts of what all connections share would move between the cores.
struct ConnectionContext<S> {
    handler: Arc<ConnectionHandler<S>>,
    peer: Peer,
    deadlines: Arc<ConnectionDeadlines>,
    /// The stopping listener waits until this is dropped. A request of HTTP/2 has a task
    /// of its own, perhaps on another core, which may end after its connection.
    _open: TaskTrackerToken,
}

fn serve_request<S: Serve>(
    context: &Arc<ConnectionContext<S>>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<WatchedBody>, Infallible>> + Send + use<S> {
    let is_http2 = request.version() == Version::HTTP_2;
    let is_too_large = is_http2 && http2::is_head_too_large(request.headers());
    let omits_body = is_http2 && request.method() == Method::HEAD;
    let trusted = &context.handler.handshaker.trusted;
    let peer = context.peer.clone().for_request(request.headers(), trusted);
    context.deadlines.head_arrived();
    let context = Arc::clone(context);
    async move {
        let response = if is_too_large {
            http2::head_too_large()
        } else {
            context.handler.service.serve(request, peer).await
        };
        let response = if omits_body {
            http2::without_body(response)
        } else {
            response
        };
        let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let deadlines = &context.deadlines;
        Ok(response.map(|body| match is_http2 {
            true => WatchedBody::http2(body, deadlines),
            false => WatchedBody::http1(body, (!is_tunnel).then(|| Arc::clone(deadlines))),
        }))
    }
}

/// hyper's settings for each [`HttpProtocol`], made once per listener.
struct HttpBuilders {
    http1: conn::http1::Builder,
    http2: conn::http2::Builder<StreamExecutor>,
}

/// Runs the streams of HTTP/2 connections.
#[derive(Clone)]
struct StreamExecutor(Arc<Cores>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let place = self.0.for_stream();
        // Mapped: an async block would hold the stream's future twice.
        place.spawn(|load| stream.map(|()| drop(load)));
    }
}

impl HttpBuilders {
    fn new(listener: &Listener, cores: &Arc<Cores>) -> Self {
        let mut http1 = conn::http1::Builder::new();
        http1
            // `slow_clients` has a deadline for heads that needs no timer per request.
            .header_read_timeout(None)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            // Most responses are small: copying them into one buffer costs less
            // than a vectored write.
            .writev(false);
        let mut http2 = conn::http2::Builder::new(StreamExecutor(Arc::clone(cores)));
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(listener.streams_max)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .keep_alive_interval(listener.head_deadline);
        Self { http1, http2 }
    }
}
