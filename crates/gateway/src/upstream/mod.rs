//! The service behind the gateway: connections to it, and one request over one
//! of them.
//!
//! Why not a ready-made client: whether a key is free again or its outcome
//! unknown hangs on whether a byte of the request was written. So the pool is
//! kept by hand, the bytes are counted where they leave, and every failure says
//! which of the two it is. Nothing here sends a request twice: it goes to
//! another connection only while hyper still holds all of it unwritten.
//!
//! A deadline for the answer is the caller's: who drops [`Upstream::send`]
//! cancels the request and must take it for sent. Which headers go upstream is
//! the caller's too; here only the target takes the form that the protocol
//! wants.
//!
//! Over TLS the two sides agree on HTTP/2 or HTTP/1.1 with each connection. What
//! was agreed last is expected of the next, and believed only when it is there.

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

use http::{Request, Response};
use tokio_util::task::TaskTracker;

use self::address::{Address, Protocol, Speech};
use self::body::Hold;
pub use self::body::{BoxError, RequestBody, ResponseBody};
use self::dial::{Dialer, Manner};
use crate::listen::tls::TlsError;

/// The bounds of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long opening a connection may take, with finding its address, the
    /// TLS handshake, and waiting for a place among `connections_max` or among
    /// the streams that an HTTP/2 upstream allows.
    pub connect_timeout: Duration,
    /// How long after its last use a connection may be used again. Less than
    /// the five seconds after which many servers close theirs: a request that
    /// crosses such a closing is lost without need.
    pub idle_timeout: Duration,
    /// How many unused connections are kept.
    pub idle_max: usize,
    /// How many HTTP/1.1 connections may be open. At least one.
    pub connections_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            idle_max: 512,
            connections_max: 4096,
        }
    }
}

/// How TLS is spoken to an upstream. Only for `https://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the authorities to trust, in place of the system's.
    pub ca: Option<PathBuf>,
    /// A PEM file with the certificate to show, and those that vouch for it.
    pub cert: Option<PathBuf>,
    /// A PEM file with that certificate's key.
    pub key: Option<PathBuf>,
    /// The name that the upstream's certificate must have, if not the URL's.
    pub server_name: Option<String>,
}

/// Why a text does not name an upstream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// It is not a URL.
    #[error("the upstream is not a URL")]
    Malformed(#[from] http::uri::InvalidUri),
    /// Another scheme, or none.
    #[error("an upstream begins with http://, https:// or h2c://")]
    Scheme,
    /// There is no host in it, or a user beside it.
    #[error("an upstream names a host and, if need be, a port")]
    Host,
    /// There is a path or a query after the host.
    #[error("an upstream has no path: requests keep their own")]
    Path,
    /// There are settings for TLS and there is no TLS.
    #[error("only an upstream that begins with https:// has settings for TLS")]
    NeedlessTls,
    /// What the certificate should be called is no name.
    #[error("the upstream's server name is neither a host name nor an address")]
    ServerName,
    /// Certificates or keys cannot be used.
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
    /// No byte of the request was written, or the upstream has promised that it
    /// did not look at it. It has not run and may be sent again.
    #[error("the request was not sent")]
    NotSent(#[source] Cause),
    /// The request, or a part of it, was written. It may have run.
    #[error("the request was sent, and the answer lost")]
    Lost(#[source] Cause),
}

/// What happened on the way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// No connection: no such host, nobody listens, no way there.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// No connection in time, or none was free.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// A connection, but no TLS on it: a name or a certificate does not fit.
    #[error("no TLS on the connection")]
    Handshake(#[source] io::Error),
    /// A connection that closed before it took a request.
    #[error("the upstream closed the connection before it took a request")]
    Closed,
    /// The connection broke, or what came back is not an HTTP answer.
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
}

/// One upstream and the connections to it.
#[derive(Debug)]
pub struct Upstream {
    address: Address,
    dialer: Dialer,
    spoken: Spoken,
    http1: Arc<http1::Pool>,
    http2: http2::Shared,
}

/// What became of a request on a connection.
enum Sent {
    Answered(Response<ResponseBody>),
    /// Never begun: here it is again.
    Returned(Box<Request<RequestBody>>, Cause),
    /// Begun and gone.
    Failed(SendError),
}

/// A connection to send one request on.
enum Turn {
    Http1(http1::Turn),
    Http2(http2::Turn),
}

impl Upstream {
    /// Reads `http://host:port` (HTTP/1.1), `https://host:port` (HTTP/2 where
    /// the upstream offers it, else HTTP/1.1) or `h2c://host:port` (HTTP/2
    /// without asking first). Opens no connection yet.
    pub fn parse(url: &str) -> Result<Self, UpstreamError> {
        Self::open(url, Limits::default(), &Tls::default())
    }

    /// The same within bounds and with certificates of one's own. Reads the
    /// files now, and again when they have changed: new connections get what
    /// they say then, if it can be used.
    pub fn open(url: &str, limits: Limits, tls: &Tls) -> Result<Self, UpstreamError> {
        let address = Address::parse(url)?;
        let manner = Manner::new(&address, tls)?;
        Ok(Self::new(address, manner, limits))
    }

    /// The same upstream within other bounds. To be called before the first
    /// request: connections are not carried over.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        let manner = self.dialer.manner().clone();
        Self::new(self.address, manner, limits)
    }

    fn new(address: Address, manner: Manner, limits: Limits) -> Self {
        let tasks = TaskTracker::new();
        Self {
            spoken: Spoken::new(address.speech),
            http1: Arc::new(http1::Pool::new(limits, tasks.clone())),
            http2: http2::Shared::default(),
            dialer: Dialer::new(&address, manner, limits.connect_timeout, tasks),
            address,
        }
    }

    /// The `host:port` to name in a Host header.
    #[must_use]
    pub fn authority(&self) -> &http::uri::Authority {
        &self.address.authority
    }

    /// Sends a request once and gives the answer as soon as its head is there.
    ///
    /// The target is taken in origin form or absolute form; headers go as they
    /// are, so the caller has set Host and taken out what is hop-by-hop. A
    /// connection serves the next request when the answer's body was read to
    /// its end. A 101 keeps its connection for [`hyper::upgrade::on`].
    ///
    /// # Errors
    ///
    /// [`SendError`] says whether the request may have run. It is never sent
    /// again after a byte of it was written.
    pub async fn send<B: Into<RequestBody>>(
        &self,
        request: Request<B>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let mut request = request.map(Into::into);
        // Each round ends or uses up a connection that died unused; then a new
        // one is opened, once.
        while let Some(turn) = self.take() {
            match self.send_on(turn, request).await {
                Sent::Answered(response) => return Ok(response),
                Sent::Failed(error) => return Err(error),
                Sent::Returned(unsent, _) => request = *unsent,
            }
        }
        let limit = self.dialer.timeout();
        // Boxed: it is large, and most requests find a connection.
        let connected = tokio::time::timeout(limit, Box::pin(self.connect())).await;
        let connected = connected.unwrap_or(Err(Cause::ConnectTimeout(limit)));
        let turn = connected.map_err(SendError::NotSent)?;
        match self.send_on(turn, request).await {
            Sent::Answered(response) => Ok(response),
            Sent::Failed(error) => Err(error),
            Sent::Returned(_, cause) => Err(SendError::NotSent(cause)),
        }
    }

    /// Closes unused connections, and the others when they are done; returns
    /// when all are closed. Requests may still be sent while it waits, and are
    /// waited for.
    pub async fn close(&self) {
        let tasks = self.dialer.tasks();
        tasks.close();
        self.http1.clear();
        self.http2.clear();
        tasks.wait().await;
    }

    async fn send_on(&self, turn: Turn, mut request: Request<RequestBody>) -> Sent {
        match turn {
            Turn::Http1(turn) => {
                address::target_for_http1(&mut request);
                turn.send(&self.http1, request).await
            }
            Turn::Http2(turn) => {
                address::target_for_http2(&mut request, &self.address);
                turn.send(&self.http2, request).await
            }
        }
    }

    /// What can be used at once.
    fn take(&self) -> Option<Turn> {
        match self.spoken.get() {
            Some(Protocol::Http1) => self.http1.take().map(Turn::Http1),
            Some(Protocol::Http2) => self.http2.take().map(Turn::Http2),
            None => None,
        }
    }

    /// Waits for what can be used, and opens a connection where there is none.
    async fn connect(&self) -> Result<Turn, Cause> {
        loop {
            let turn = match self.spoken.get() {
                Some(Protocol::Http1) => Some(self.connect_http1().await?),
                Some(Protocol::Http2) | None => self.connect_http2().await?,
            };
            // Otherwise somebody else has opened a connection, or the one that
            // was waited for has closed.
            if let Some(turn) = turn {
                return Ok(turn);
            }
        }
    }

    /// Each request has a connection of its own.
    async fn connect_http1(&self) -> Result<Turn, Cause> {
        let place = self.http1.place().await;
        match self.http1.take_idle() {
            Some(connection) => Ok(Turn::Http1(http1::Turn { connection, place })),
            None => self.dial(Some(place)).await,
        }
    }

    /// One opens the connection for all. So do the first ones where it is not
    /// known yet what will be spoken.
    async fn connect_http2(&self) -> Result<Option<Turn>, Cause> {
        if let Some(connection) = self.http2.live() {
            return Ok(connection.turn().await.map(Turn::Http2));
        }
        let _dialing = self.http2.dialing().await;
        if self.http2.live().is_some() || self.spoken.get() == Some(Protocol::Http1) {
            return Ok(None);
        }
        self.dial(None).await.map(Some)
    }

    /// Opens a connection, once.
    async fn dial(&self, place: Option<http1::Place>) -> Result<Turn, Cause> {
        let dialed = self.dialer.dial().await?;
        self.spoken.set(dialed.protocol);
        let tasks = self.dialer.tasks();
        match dialed.protocol {
            Protocol::Http1 => {
                let connection = http1::Connection::open(dialed.stream, tasks).await?;
                let place = match place {
                    Some(place) => place,
                    None => self.http1.place().await,
                };
                Ok(Turn::Http1(http1::Turn { connection, place }))
            }
            Protocol::Http2 => {
                let connection = http2::Connection::open(dialed.stream, tasks).await?;
                self.http2.put(connection.clone());
                let turn = connection.turn().await.ok_or(Cause::Closed)?;
                Ok(Turn::Http2(turn))
            }
        }
    }
}

/// The protocol that was agreed on last.
#[derive(Debug)]
struct Spoken(AtomicU8);

impl Spoken {
    const NOTHING: u8 = 0;
    const HTTP1: u8 = 1;
    const HTTP2: u8 = 2;

    fn new(speech: Speech) -> Self {
        let spoken = Self(AtomicU8::new(Self::NOTHING));
        if let Speech::Plain(protocol) = speech {
            spoken.set(protocol);
        }
        spoken
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
