//! The HTTP client for upstreams: it keeps connections, and sends each request
//! over one of them.
//!
//! A ready-made client would not do: whether a key is free again or its outcome
//! is unknown depends on whether a byte of the request was written. Therefore
//! this module keeps its own pool and counts the bytes that are written, and
//! every failure says whether the request was sent. No request is sent twice: it
//! moves to another connection only while hyper still holds all of it unwritten.
//!
//! The caller sets the deadline for the answer. Dropping the future of
//! [`UpstreamClient::send`] cancels the request, which then counts as sent. The
//! caller also chooses the headers; this module changes only the form of the
//! target, as the protocol requires.
//!
//! Over TLS each connection negotiates HTTP/2 or HTTP/1.1. The protocol of the
//! last connection is expected of the next one, until that one has negotiated.

mod address;
mod body;
mod dial;
pub mod fetch;
pub(crate) mod forward;
mod http1;
mod http2;
pub(crate) mod request_body;
mod streams;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use http::{Request, Response};
use onceward_core::deadline::within;
use tokio_util::task::TaskTracker;

use self::address::{Address, Protocol, UrlScheme};
use self::body::ResponseGuard;
pub use self::body::{BoxError, OutgoingBody, ResponseBody};
use self::dial::{DialMode, Dialer};
use crate::listen::tls::TlsError;
use crate::runtime::cores::PerCore;

/// The limits of the connections to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// How long it may take to get a connection: name resolution, connecting, the
    /// TLS handshake, and waiting for one of `connections_max` connections or of
    /// the streams that an HTTP/2 upstream allows.
    pub connect_timeout: Duration,
    /// How long after its last use a connection may be used again. Many servers
    /// close idle connections after five seconds; the default is shorter, so that
    /// no request is lost because the server closes at the same moment.
    pub idle_timeout: Duration,
    /// How many idle connections are kept.
    pub idle_max: usize,
    /// How many HTTP/1.1 connections may be open. At least one.
    pub connections_max: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            idle_max: 2048,
            connections_max: 4096,
        }
    }
}

/// The TLS settings of an upstream. Only for `https://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the trusted authorities, instead of the system's.
    pub ca: Option<PathBuf>,
    /// A PEM file with the client certificate and its chain.
    pub cert: Option<PathBuf>,
    /// A PEM file with that certificate's key.
    pub key: Option<PathBuf>,
    /// The name that the upstream's certificate must have. Default: the URL's
    /// host.
    pub server_name: Option<String>,
}

/// Why an upstream cannot be used as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// It is not a URL.
    #[error("the upstream is not a valid URL")]
    Malformed(#[from] http::uri::InvalidUri),
    /// The scheme is missing or not supported.
    #[error("the URL of an upstream must begin with http://, https:// or h2c://")]
    Scheme,
    /// The host is missing, or there is a user name before it.
    #[error("the URL of an upstream must have a host and may have a port, but no user name")]
    Host,
    /// There is a path or a query after the host.
    #[error("the URL of an upstream must have no path or query: requests keep their own")]
    Path,
    /// There are TLS settings for an upstream without TLS.
    #[error("TLS settings require an upstream that begins with https://")]
    NeedlessTls,
    /// The server name is not valid.
    #[error("the upstream's server name is neither a host name nor an address")]
    ServerName,
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Tls(Box<TlsError>),
}

impl From<TlsError> for UpstreamError {
    fn from(error: TlsError) -> Self {
        Self::Tls(Box::new(error))
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No byte of the request was written, or the upstream said that it did not
    /// process the request. It has not run and may be sent again.
    #[error("the request was not sent")]
    NotSent(#[source] ConnectionError),
    /// The request, or a part of it, was written. It may have run.
    #[error("the request was sent, but no answer was received")]
    Lost(#[source] ConnectionError),
}

/// What failed on a connection to an upstream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The host cannot be resolved or reached, or refuses connections.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// No connection could be opened in time, and none became free.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// The TLS handshake failed, for example because of the name or a certificate.
    #[error("TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// The upstream closed the connection before it accepted a request.
    #[error("the upstream closed the connection before it accepted a request")]
    Closed,
    /// The connection failed, or the response is not valid HTTP.
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
}

/// The client for one upstream, with the connections to it.
#[derive(Debug)]
pub struct UpstreamClient {
    address: Address,
    dialer: Dialer,
    last_protocol: LastProtocol,
    http1: Arc<http1::Pool>,
    http2: PerCore<http2::SharedConnection>,
    idle_timeout: Duration,
}

/// The result of sending a request on one connection.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the usual one, and returned at once"
)]
enum SendResult {
    Answered(Response<ResponseBody>),
    /// No byte was written; the request is returned.
    Returned(Box<Request<OutgoingBody>>, ConnectionError),
    /// The request is used up, sent or not.
    Failed(SendError),
}

/// The right to send one request on a connection.
enum RequestSlot {
    Http1(http1::ConnectionSlot),
    Http2(http2::StreamSlot),
}

impl UpstreamClient {
    /// Parses `http://host:port` (HTTP/1.1), `https://host:port` (HTTP/2 where
    /// the upstream offers it, else HTTP/1.1) or `h2c://host:port` (HTTP/2
    /// without negotiation). Opens no connection yet.
    pub fn parse(url: &str) -> Result<Self, UpstreamError> {
        Self::open(url, UpstreamLimits::default(), &Tls::default())
    }

    /// The same with limits and TLS settings. Reads the certificate files now, and
    /// again when they have changed: new connections use the new files if they
    /// are valid.
    pub fn open(url: &str, limits: UpstreamLimits, tls: &Tls) -> Result<Self, UpstreamError> {
        let address = Address::parse(url)?;
        let mode = DialMode::new(&address, tls)?;
        Ok(Self::new(address, mode, limits))
    }

    /// The same upstream with other limits. Must be called before the first
    /// request: open connections are not kept.
    #[must_use]
    pub fn with_limits(self, limits: UpstreamLimits) -> Self {
        let mode = self.dialer.mode().clone();
        Self::new(self.address, mode, limits)
    }

    fn new(address: Address, mode: DialMode, limits: UpstreamLimits) -> Self {
        let tasks = TaskTracker::new();
        Self {
            last_protocol: LastProtocol::new(address.scheme),
            http1: Arc::new(http1::Pool::new(limits, tasks.clone())),
            http2: PerCore::default(),
            idle_timeout: limits.idle_timeout,
            dialer: Dialer::new(&address, mode, limits.connect_timeout, tasks),
            address,
        }
    }

    /// The URL's `host:port`, for a Host header.
    #[must_use]
    pub fn authority(&self) -> &http::uri::Authority {
        &self.address.authority
    }

    /// Sends a request once and returns the response when its head has arrived.
    ///
    /// The target may have origin form or absolute form. Headers are sent
    /// unchanged, so the caller sets Host and removes hop-by-hop headers. A
    /// connection is used again after the body of its response was read to the
    /// end. A 101 keeps its connection for [`hyper::upgrade::on`].
    ///
    /// # Errors
    ///
    /// [`SendError`] says whether the request may have run. It is never sent
    /// again after a byte of it was written.
    // A request goes to its connection at once and not when the future is polled, so
    // that the future, which every request waits in, has no place for the request.
    pub fn send<B: Into<OutgoingBody>>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> + Send + use<'_, B> {
        let request = request.map(Into::into);
        // Boxed: most requests find a connection.
        let send_later = |unsent| Box::pin(self.send_later(unsent));
        let Some(slot) = self.take() else {
            return Either::Right(send_later(request));
        };
        let sending = self.send_on(slot, request);
        Either::Left(sending.then(move |result| match result {
            SendResult::Answered(response) => Either::Left(ready(Ok(response))),
            SendResult::Failed(error) => Either::Left(ready(Err(error))),
            SendResult::Returned(unsent, _) => Either::Right(send_later(*unsent)),
        }))
    }

    /// Sends a request that found no connection, or one that had closed.
    async fn send_later(
        &self,
        mut request: Request<OutgoingBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        // Each round returns, or discards a connection that closed while it was
        // idle. When none is left, one new connection is opened.
        while let Some(slot) = self.take() {
            match self.send_on(slot, request).await {
                SendResult::Answered(response) => return Ok(response),
                SendResult::Failed(error) => return Err(error),
                SendResult::Returned(unsent, _) => request = *unsent,
            }
        }
        let limit = self.dialer.timeout();
        let connected = within(limit, self.connect()).await;
        let connected = connected.unwrap_or(Err(ConnectionError::ConnectTimeout(limit)));
        let slot = connected.map_err(SendError::NotSent)?;
        match self.send_on(slot, request).await {
            SendResult::Answered(response) => Ok(response),
            SendResult::Failed(error) => Err(error),
            SendResult::Returned(_, cause) => Err(SendError::NotSent(cause)),
        }
    }

    /// Closes the connections that are past their idle timeout. They would not be used
    /// again anyway, but a core that sends no requests keeps its own open.
    pub(crate) fn close_expired(&self) {
        self.http1.close_expired();
        for http2 in self.http2.all() {
            http2.close_expired(self.idle_timeout);
        }
    }

    /// Closes idle connections at once and the others after their responses;
    /// returns when all are closed. Requests that are sent meanwhile are waited
    /// for too.
    pub async fn close(&self) {
        let tasks = self.dialer.tasks();
        tasks.close();
        self.http1.clear();
        for http2 in self.http2.all() {
            http2.clear();
        }
        tasks.wait().await;
    }

    fn send_on(
        &self,
        slot: RequestSlot,
        mut request: Request<OutgoingBody>,
    ) -> impl Future<Output = SendResult> + Send {
        match slot {
            RequestSlot::Http1(slot) => {
                address::set_http1_target(&mut request);
                Either::Left(slot.send(&self.http1, request))
            }
            RequestSlot::Http2(slot) => {
                address::set_http2_target(&mut request, &self.address);
                Either::Right(slot.send(self.http2.here(), request))
            }
        }
    }

    /// A slot on an open connection, if one is free now.
    fn take(&self) -> Option<RequestSlot> {
        match self.last_protocol.get() {
            Some(Protocol::Http1) => self.http1.take().map(RequestSlot::Http1),
            Some(Protocol::Http2) => self
                .http2
                .here()
                .take(self.idle_timeout)
                .map(RequestSlot::Http2),
            None => None,
        }
    }

    /// Waits for a slot, and opens a connection if there is none.
    async fn connect(&self) -> Result<RequestSlot, ConnectionError> {
        loop {
            let slot = match self.last_protocol.get() {
                Some(Protocol::Http1) => Some(self.connect_http1().await?),
                Some(Protocol::Http2) | None => self.connect_http2().await?,
            };
            // `None`: another task has opened a connection, or the connection
            // closed while this task waited for a stream.
            if let Some(slot) = slot {
                return Ok(slot);
            }
        }
    }

    /// Waits for permission to use a connection; then takes an idle one or opens a
    /// new one.
    async fn connect_http1(&self) -> Result<RequestSlot, ConnectionError> {
        let permit = self.http1.acquire().await;
        match self.http1.take_idle() {
            Some(connection) => Ok(RequestSlot::Http1(http1::ConnectionSlot {
                connection,
                permit,
            })),
            None => self.dial(Some((self.http1.reserve(), permit))).await,
        }
    }

    /// Waits for a stream of the shared connection, which one task opens for all.
    /// This is also the way while the upstream's protocol is not known yet.
    async fn connect_http2(&self) -> Result<Option<RequestSlot>, ConnectionError> {
        let http2 = self.http2.here();
        if let Some(connection) = http2.live(self.idle_timeout) {
            return Ok(connection.acquire().await.map(RequestSlot::Http2));
        }
        let _dialing = http2.dialing().await;
        if http2.live(self.idle_timeout).is_some()
            || self.last_protocol.get() == Some(Protocol::Http1)
        {
            return Ok(None);
        }
        self.dial(None).await.map(Some)
    }

    /// Opens one connection and takes a slot on it. With a reservation, where HTTP/1.1
    /// is expected.
    async fn dial(
        &self,
        reserved: Option<(http1::OpenConnection, http1::ConnectionPermit)>,
    ) -> Result<RequestSlot, ConnectionError> {
        let dialed = self.dialer.dial().await?;
        self.last_protocol.set(dialed.protocol);
        match dialed.protocol {
            Protocol::Http1 => {
                let (open, permit) = match reserved {
                    Some(reserved) => reserved,
                    None => {
                        let permit = self.http1.acquire().await;
                        (self.http1.reserve(), permit)
                    }
                };
                let pool = &self.http1;
                let connection = http1::Http1Connection::open(dialed.stream, open, pool).await?;
                Ok(RequestSlot::Http1(http1::ConnectionSlot {
                    connection,
                    permit,
                }))
            }
            Protocol::Http2 => {
                let tasks = self.dialer.tasks();
                let connection = http2::Http2Connection::open(dialed.stream, tasks).await?;
                self.http2.here().put(connection.clone());
                let slot = connection.acquire().await;
                slot.map(RequestSlot::Http2).ok_or(ConnectionError::Closed)
            }
        }
    }
}

/// The protocol of the connection that was opened last.
#[derive(Debug)]
struct LastProtocol(AtomicU8);

impl LastProtocol {
    const NONE: u8 = 0;
    const HTTP1: u8 = 1;
    const HTTP2: u8 = 2;

    fn new(scheme: UrlScheme) -> Self {
        let last = Self(AtomicU8::new(Self::NONE));
        if let UrlScheme::Plain(protocol) = scheme {
            last.set(protocol);
        }
        last
    }

    fn get(&self) -> Option<Protocol> {
        match self.0.load(Ordering::Relaxed) {
            Self::HTTP1 => Some(Protocol::Http1),
            Self::HTTP2 => Some(Protocol::Http2),
            _ => None,
        }
    }

    fn set(&self, protocol: Protocol) {
        let byte = match protocol {
            Protocol::Http1 => Self::HTTP1,
            Protocol::Http2 => Self::HTTP2,
        };
        self.0.store(byte, Ordering::Relaxed);
    }
}
