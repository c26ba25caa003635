//! Where an upstream is, how to get there, and how a request names its target
//! on the way.

use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri, Version, header};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::{Cause, UpstreamError};

const HTTP_PORT: u16 = 80;

/// What an upstream's URL says.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) protocol: Protocol,
    pub(super) authority: Authority,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, UpstreamError> {
        let parts = url.parse::<Uri>()?.into_parts();
        let protocol = match parts.scheme.as_ref().map(Scheme::as_str) {
            Some("http") => Protocol::Http1,
            Some("h2c") => Protocol::Http2,
            Some("https") => return Err(UpstreamError::Tls),
            _ => return Err(UpstreamError::Scheme),
        };
        let authority = parts.authority.ok_or(UpstreamError::Host)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(UpstreamError::Host);
        }
        match parts.path_and_query {
            Some(path) if path != "/" => Err(UpstreamError::Path),
            _ => Ok(Self {
                protocol,
                authority,
            }),
        }
    }
}

/// Opens connections, and owns the tasks that drive them.
#[derive(Debug)]
pub(super) struct Dialer {
    host: String,
    port: u16,
    timeout: Duration,
    tasks: TaskTracker,
}

impl Dialer {
    pub(super) fn new(address: &Address, timeout: Duration, tasks: TaskTracker) -> Self {
        // A resolver does not know the brackets of `[::1]`.
        let host = address.authority.host().trim_matches(['[', ']']).to_owned();
        Self {
            host,
            port: address.authority.port_u16().unwrap_or(HTTP_PORT),
            timeout,
            tasks,
        }
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// How long opening a connection may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) async fn dial(&self) -> Result<TcpStream, Cause> {
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = tokio::time::timeout(self.timeout, connect)
            .await
            .map_err(|_| Cause::ConnectTimeout(self.timeout))?
            .map_err(Cause::Connect)?;
        // Requests are written whole: to wait for more to send only delays.
        stream.set_nodelay(true).map_err(Cause::Connect)?;
        Ok(stream)
    }
}

/// HTTP/1.1 names the path, and the host in its header.
pub(super) fn target_for_http1<B>(request: &mut Request<B>) {
    *request.version_mut() = Version::HTTP_11;
    if request.uri().authority().is_some() {
        let path = path_of(request.uri());
        *request.uri_mut() = Uri::from(path);
    }
}

/// HTTP/2 names scheme, host and path in one place, and has no Host.
pub(super) fn target_for_http2<B>(request: &mut Request<B>, address: &Address) {
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(header::HOST);
    let authority = host
        .and_then(|host| Authority::try_from(host.as_bytes()).ok())
        .unwrap_or_else(|| address.authority.clone());
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    parts.path_and_query = Some(path_of(request.uri()));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are there");
}

fn path_of(uri: &Uri) -> PathAndQuery {
    uri.path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
}
