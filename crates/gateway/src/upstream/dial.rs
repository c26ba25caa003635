//! Opens connections to an upstream, with or without TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::TaskTracker;

use super::address::{Address, Protocol, UrlScheme};
use super::{ConnectionError, Tls, UpstreamError};
use crate::listen::tls::{self, ClientTls};

/// Opens connections, and owns the tasks that drive them.
#[derive(Debug)]
pub(super) struct Dialer {
    host: String,
    port: u16,
    mode: DialMode,
    timeout: Duration,
    tasks: TaskTracker,
}

/// What to do with a new TCP connection.
#[derive(Clone)]
pub(super) enum DialMode {
    Plain(Protocol),
    Tls {
        tls: Arc<ClientTls>,
        name: ServerName<'static>,
    },
}

impl std::fmt::Debug for DialMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(protocol) => f.debug_tuple("Plain").field(protocol).finish(),
            Self::Tls { name, .. } => f.debug_tuple("Tls").field(name).finish(),
        }
    }
}

impl DialMode {
    /// Reads the certificates where TLS needs them.
    pub(super) fn new(address: &Address, tls: &Tls) -> Result<Self, UpstreamError> {
        match address.scheme {
            UrlScheme::Plain(_) if *tls != Tls::default() => Err(UpstreamError::NeedlessTls),
            UrlScheme::Plain(protocol) => Ok(Self::Plain(protocol)),
            UrlScheme::Tls => Self::tls(address, ClientTls::new(tls.clone())?),
        }
    }

    pub(super) fn tls(address: &Address, tls: ClientTls) -> Result<Self, UpstreamError> {
        let name = tls.server_name().unwrap_or(address.host());
        let name = ServerName::try_from(name.to_owned()).map_err(|_| UpstreamError::ServerName)?;
        Ok(Self::Tls {
            tls: Arc::new(tls),
            name,
        })
    }
}

/// A new connection and its protocol.
pub(super) struct Dialed {
    pub(super) stream: DialedStream,
    pub(super) protocol: Protocol,
}

impl Dialer {
    pub(super) fn new(
        address: &Address,
        mode: DialMode,
        timeout: Duration,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            host: address.host().to_owned(),
            port: address.port(),
            mode,
            timeout,
            tasks,
        }
    }

    pub(super) fn mode(&self) -> &DialMode {
        &self.mode
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// How long opening a connection may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Opens a connection, with the TLS handshake where the URL asks for it. The
    /// caller applies [`Dialer::timeout`] to this and to the waiting before it.
    pub(super) async fn dial(&self) -> Result<Dialed, ConnectionError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(ConnectionError::Connect)?;
        // Requests are written in one piece, so Nagle's algorithm would only delay
        // them.
        stream.set_nodelay(true).map_err(ConnectionError::Connect)?;
        match &self.mode {
            DialMode::Plain(protocol) => Ok(Dialed {
                stream: DialedStream::Plain(stream),
                protocol: *protocol,
            }),
            DialMode::Tls { tls, name } => {
                let connector = TlsConnector::from(tls.current_config().await);
                let socket = CountingSocket {
                    inner: stream,
                    written: 0,
                };
                let handshake = connector.connect(name.clone(), socket).await;
                let stream = handshake.map_err(ConnectionError::Handshake)?;
                let protocol = match stream.get_ref().1.alpn_protocol() {
                    Some(protocol) if protocol == tls::HTTP2 => Protocol::Http2,
                    // A server that negotiates nothing uses HTTP/1.1.
                    _ => Protocol::Http1,
                };
                Ok(Dialed {
                    stream: DialedStream::Tls(Box::new(stream)),
                    protocol,
                })
            }
        }
    }
}

/// Whether an upstream has refused the gateway's certificate. With TLS 1.3 its
/// alert arrives only after the client has begun to send the request; but a server
/// does not process the request of a client that it has refused.
pub(super) fn is_certificate_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::AlertDescription as Alert;
    let mut next = Some(error);
    while let Some(error) = next {
        // `source` of an I/O error skips the error that it wraps.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let tls = match inner {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => error.downcast_ref::<rustls::Error>(),
        };
        if let Some(rustls::Error::AlertReceived(alert)) = tls {
            return matches!(
                alert,
                Alert::CertificateRequired
                    | Alert::BadCertificate
                    | Alert::UnsupportedCertificate
                    | Alert::CertificateRevoked
                    | Alert::CertificateExpired
                    | Alert::CertificateUnknown
                    | Alert::UnknownCA
            );
        }
        next = error.source();
    }
    false
}

/// A connection with or without TLS.
#[derive(Debug)]
pub(super) enum DialedStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<CountingSocket>>),
}

impl DialedStream {
    /// How many bytes were written to the socket below TLS. A failed TLS write may
    /// have sent a part of its data without reporting it.
    pub(super) fn tls_bytes_written(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(stream) => stream.get_ref().0.written,
        }
    }
}

impl AsyncRead for DialedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for DialedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The socket below TLS, which counts the bytes that are written.
#[derive(Debug)]
pub(super) struct CountingSocket {
    inner: TcpStream,
    written: u64,
}

impl AsyncRead for CountingSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountingSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.written += written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        this.written += written as u64;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
