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
//! wants. TLS is not there yet.

mod address;
mod body;
mod http1;
mod http2;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio_util::task::TaskTracker;

use self::address::{Address, Dialer, Protocol};
pub use self::body::{BoxError, RequestBody, ResponseBody};

/// The bounds of an upstream.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long opening a connection may take, with finding its address.
    pub connect_timeout: Duration,
    /// How long after its last use a connection may be used again. Less than
    /// the five seconds after which many servers close theirs: a request that
    /// crosses such a closing is lost without need.
    pub idle_timeout: Duration,
    /// How many unused connections are kept.
    pub idle_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            idle_max: 512,
        }
    }
}

/// Why a text does not name an upstream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// It is not a URL.
    #[error("the upstream is not a URL")]
    Malformed(#[from] http::uri::InvalidUri),
    /// `https://`.
    #[error("TLS to upstreams is not there yet: use http:// or h2c://")]
    Tls,
    /// Another scheme, or none.
    #[error("an upstream begins with http:// or h2c://")]
    Scheme,
    /// There is no host in it, or a user beside it.
    #[error("an upstream names a host and, if need be, a port")]
    Host,
    /// There is a path or a query after the host.
    #[error("an upstream has no path: requests keep their own")]
    Path,
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
    /// No connection in time.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// The connection broke, or what came back is not an HTTP answer.
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
}

/// One upstream and the connections to it.
#[derive(Debug)]
pub struct Upstream {
    address: Address,
    dialer: Dialer,
    pool: Pool,
}

#[derive(Debug)]
enum Pool {
    Http1(Arc<http1::Pool>),
    Http2(http2::Shared),
}

impl Upstream {
    /// Reads `http://host:port` (HTTP/1.1) or `h2c://host:port` (HTTP/2 without
    /// asking first). Opens no connection yet.
    pub fn parse(url: &str) -> Result<Self, UpstreamError> {
        Ok(Self::new(Address::parse(url)?, Limits::default()))
    }

    /// The same upstream within other bounds. To be called before the first
    /// request: connections are not carried over.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self::new(self.address, limits)
    }

    fn new(address: Address, limits: Limits) -> Self {
        let tasks = TaskTracker::new();
        let pool = match address.protocol {
            Protocol::Http1 => Pool::Http1(Arc::new(http1::Pool::new(limits, tasks.clone()))),
            Protocol::Http2 => Pool::Http2(http2::Shared::default()),
        };
        let dialer = Dialer::new(&address, limits.connect_timeout, tasks);
        Self {
            address,
            dialer,
            pool,
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
        match &self.pool {
            Pool::Http1(pool) => {
                address::target_for_http1(&mut request);
                pool.send(&self.dialer, request).await
            }
            Pool::Http2(shared) => {
                address::target_for_http2(&mut request, &self.address);
                shared.send(&self.dialer, request).await
            }
        }
    }

    /// Closes unused connections, and the others when they are done; returns
    /// when all are closed. Requests may still be sent while it waits, and are
    /// waited for.
    pub async fn close(&self) {
        let tasks = self.dialer.tasks();
        tasks.close();
        match &self.pool {
            Pool::Http1(pool) => pool.clear(),
            Pool::Http2(shared) => shared.clear(),
        }
        tasks.wait().await;
    }
}
