//! Where an upstream is, and how a request names its target on the way.

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version, header};

use super::UpstreamError;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// What an upstream's URL says.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) speech: Speech,
    pub(super) authority: Authority,
}

/// How an upstream is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    /// Without TLS, in this protocol.
    Plain(Protocol),
    /// Over TLS, in the protocol that the upstream prefers.
    Secure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, UpstreamError> {
        let parts = url.parse::<Uri>()?.into_parts();
        let speech = match parts.scheme.as_ref().map(Scheme::as_str) {
            Some("http") => Speech::Plain(Protocol::Http1),
            Some("h2c") => Speech::Plain(Protocol::Http2),
            Some("https") => Speech::Secure,
            _ => return Err(UpstreamError::Scheme),
        };
        let authority = parts.authority.ok_or(UpstreamError::Host)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(UpstreamError::Host);
        }
        match parts.path_and_query {
            Some(path) if path != "/" => Err(UpstreamError::Path),
            _ => Ok(Self { speech, authority }),
        }
    }

    /// The host as a resolver and a certificate know it: without the brackets
    /// of `[::1]`.
    pub(super) fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    pub(super) fn port(&self) -> u16 {
        let usual = match self.speech {
            Speech::Plain(_) => HTTP_PORT,
            Speech::Secure => HTTPS_PORT,
        };
        self.authority.port_u16().unwrap_or(usual)
    }
}

/// HTTP/1.1 names the path, and the host in its header.
pub(super) fn target_for_http1<B>(request: &mut Request<B>) {
    *request.version_mut() = Version::HTTP_11;
    let Some(authority) = request.uri().authority() else {
        return;
    };
    // Without a Host it has been on its way by HTTP/2, and came back.
    if !request.headers().contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let path = path_of(request.uri());
    *request.uri_mut() = Uri::from(path);
}

/// HTTP/2 names scheme, host and path in one place, and has no Host.
pub(super) fn target_for_http2<B>(request: &mut Request<B>, address: &Address) {
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(header::HOST);
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let scheme = match address.speech {
        Speech::Plain(_) => Scheme::HTTP,
        Speech::Secure => Scheme::HTTPS,
    };
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(scheme);
    parts.authority = Some(host.unwrap_or_else(|| address.authority.clone()));
    parts.path_and_query = Some(path_of(request.uri()));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are there");
}

fn path_of(uri: &Uri) -> PathAndQuery {
    uri.path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
}
