//! The address of an upstream, and the form of a request's target in HTTP/1.1 and
//! HTTP/2.

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version, header};

use super::UpstreamError;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// The parsed URL of an upstream.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) scheme: UrlScheme,
    pub(super) authority: Authority,
}

/// TLS and protocol, by the scheme of an upstream's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UrlScheme {
    /// Without TLS, with this protocol.
    Plain(Protocol),
    /// With TLS, which negotiates the protocol.
    Tls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, UpstreamError> {
        let parts = url.parse::<Uri>()?.into_parts();
        let scheme = match parts.scheme.as_ref().map(Scheme::as_str) {
            Some("http") => UrlScheme::Plain(Protocol::Http1),
            Some("h2c") => UrlScheme::Plain(Protocol::Http2),
            Some("https") => UrlScheme::Tls,
            _ => return Err(UpstreamError::Scheme),
        };
        let authority = parts.authority.ok_or(UpstreamError::Host)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(UpstreamError::Host);
        }
        match parts.path_and_query {
            Some(path) if path != "/" => Err(UpstreamError::Path),
            _ => Ok(Self { scheme, authority }),
        }
    }

    /// The host in the form for name resolution and certificates: without the
    /// brackets of `[::1]`.
    pub(super) fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    pub(super) fn port(&self) -> u16 {
        let default = match self.scheme {
            UrlScheme::Plain(_) => HTTP_PORT,
            UrlScheme::Tls => HTTPS_PORT,
        };
        self.authority.port_u16().unwrap_or(default)
    }
}

/// Gives a request the form of HTTP/1.1: the path as target, the host in a header.
pub(super) fn set_http1_target<B>(request: &mut Request<B>) {
    *request.version_mut() = Version::HTTP_11;
    let Some(authority) = request.uri().authority() else {
        return;
    };
    // A request without a Host header was prepared for HTTP/2 and returned unsent.
    if !request.headers().contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let path = path_of(request.uri());
    *request.uri_mut() = Uri::from(path);
}

/// Gives a request the form of HTTP/2: scheme, host and path in the target, no Host
/// header.
pub(super) fn set_http2_target<B>(request: &mut Request<B>, address: &Address) {
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(header::HOST);
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let scheme = match address.scheme {
        UrlScheme::Plain(_) => Scheme::HTTP,
        UrlScheme::Tls => Scheme::HTTPS,
    };
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(scheme);
    parts.authority = Some(host.unwrap_or_else(|| address.authority.clone()));
    parts.path_and_query = Some(path_of(request.uri()));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are set");
}

fn path_of(uri: &Uri) -> PathAndQuery {
    uri.path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
}
