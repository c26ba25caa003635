//! Everything on a connection before HTTP: the PROXY header, TLS, and the bytes
//! that distinguish HTTP/1 from HTTP/2. The caller bounds the time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::connection::Transport;
use super::framing::HTTP2_PREFACE;
use super::peer::{Peer, Scheme, TrustedProxies};
use super::proxy_protocol::{self, ProxyError, ProxyHeader};
use super::tls::{self, ListenerTls};

/// The pause before looking for further bytes of an incomplete preface.
const PREFACE_PAUSE: Duration = Duration::from_millis(50);

/// What a listener expects of a connection before HTTP.
pub(super) struct Handshaker {
    pub(super) tls: Option<Arc<ListenerTls>>,
    pub(super) trusted: TrustedProxies,
    pub(super) proxy_protocol: bool,
}

/// A connection on which HTTP can begin.
pub(super) struct EstablishedConnection {
    pub(super) transport: Transport,
    pub(super) peer: Peer,
    pub(super) protocol: HttpProtocol,
}

/// The version of HTTP to serve on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum HttpProtocol {
    Http1,
    Http2,
}

/// Why a connection ended before its first request.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("handshake timed out")]
    TimedOut,
    #[error("connection closed by the client")]
    Closed,
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
}

impl Handshaker {
    pub(super) async fn establish(
        &self,
        mut stream: TcpStream,
        direct: SocketAddr,
    ) -> Result<EstablishedConnection, HandshakeError> {
        let mut address = direct;
        if self.proxy_protocol
            && self.trusted.contains(direct.ip())
            && let ProxyHeader::Client(client) = proxy_protocol::read(&mut stream).await?
        {
            address = client;
        }
        let Some(tls) = &self.tls else {
            let protocol = detect_protocol(&stream).await?;
            return Ok(EstablishedConnection {
                transport: Transport::Plain(stream),
                peer: Peer::connected(address, Scheme::Http, &self.trusted),
                protocol,
            });
        };
        let acceptor = TlsAcceptor::from(tls.current());
        let stream = acceptor.accept(stream).await.map_err(HandshakeError::Tls)?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(protocol) if protocol == tls::HTTP2 => HttpProtocol::Http2,
            _ => HttpProtocol::Http1,
        };
        Ok(EstablishedConnection {
            transport: Transport::Secure(Box::new(stream)),
            peer: Peer::connected(address, Scheme::Https, &self.trusted),
            protocol,
        })
    }
}

/// Waits until the client has sent enough to distinguish HTTP/1 from HTTP/2.
async fn detect_protocol(stream: &TcpStream) -> Result<HttpProtocol, HandshakeError> {
    let mut peeked = [0; HTTP2_PREFACE.len()];
    loop {
        match stream.peek(&mut peeked).await {
            Ok(0) | Err(_) => return Err(HandshakeError::Closed),
            Ok(count) if peeked[..count] != HTTP2_PREFACE[..count] => {
                return Ok(HttpProtocol::Http1);
            }
            Ok(count) if count == HTTP2_PREFACE.len() => return Ok(HttpProtocol::Http2),
            // Peeked bytes keep the socket readable, so readiness cannot
            // announce further bytes: only a pause can.
            Ok(_) => tokio::time::sleep(PREFACE_PAUSE).await,
        }
    }
}
