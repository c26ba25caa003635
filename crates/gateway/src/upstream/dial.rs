//! Opening connections to an upstream, with TLS or without.

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

use super::address::{Address, Protocol, Speech};
use super::{Cause, Tls, UpstreamError};
use crate::listen::tls::{self, ClientTls};

/// Opens connections, and owns the tasks that drive them.
#[derive(Debug)]
pub(super) struct Dialer {
    host: String,
    port: u16,
    manner: Manner,
    timeout: Duration,
    tasks: TaskTracker,
}

#[derive(Clone)]
pub(super) enum Manner {
    Plain(Protocol),
    Secure {
        tls: Arc<ClientTls>,
        name: ServerName<'static>,
    },
}

impl std::fmt::Debug for Manner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(protocol) => f.debug_tuple("Plain").field(protocol).finish(),
            Self::Secure { name, .. } => f.debug_tuple("Secure").field(name).finish(),
        }
    }
}

impl Manner {
    /// Reads the certificates, if any are needed.
    pub(super) fn new(address: &Address, tls: &Tls) -> Result<Self, UpstreamError> {
        match address.speech {
            Speech::Plain(_) if *tls != Tls::default() => Err(UpstreamError::NeedlessTls),
            Speech::Plain(protocol) => Ok(Self::Plain(protocol)),
            Speech::Secure => Self::secure(address, ClientTls::new(tls.clone())?),
        }
    }

    pub(super) fn secure(address: &Address, tls: ClientTls) -> Result<Self, UpstreamError> {
        let name = tls.server_name().unwrap_or(address.host());
        let name = ServerName::try_from(name.to_owned()).map_err(|_| UpstreamError::ServerName)?;
        Ok(Self::Secure {
            tls: Arc::new(tls),
            name,
        })
    }
}

/// A new connection, and what is to be spoken on it.
pub(super) struct Dialed {
    pub(super) stream: Stream,
    pub(super) protocol: Protocol,
}

impl Dialer {
    pub(super) fn new(
        address: &Address,
        manner: Manner,
        timeout: Duration,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            host: address.host().to_owned(),
            port: address.port(),
            manner,
            timeout,
            tasks,
        }
    }

    pub(super) fn manner(&self) -> &Manner {
        &self.manner
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// How long opening a connection may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Opens a connection and greets. Without a bound of its own: who calls it
    /// holds it to [`Dialer::timeout`], with all waiting that comes before.
    pub(super) async fn dial(&self) -> Result<Dialed, Cause> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(Cause::Connect)?;
        // Requests are written whole: to wait for more to send only delays.
        stream.set_nodelay(true).map_err(Cause::Connect)?;
        match &self.manner {
            Manner::Plain(protocol) => Ok(Dialed {
                stream: Stream::Plain(stream),
                protocol: *protocol,
            }),
            Manner::Secure { tls, name } => {
                let connector = TlsConnector::from(tls.fresh().await);
                let socket = Socket {
                    inner: stream,
                    written: 0,
                };
                let greeted = connector.connect(name.clone(), socket).await;
                let stream = greeted.map_err(Cause::Handshake)?;
                let protocol = match stream.get_ref().1.alpn_protocol() {
                    Some(protocol) if protocol == tls::HTTP2 => Protocol::Http2,
                    // Who does not choose speaks what was there first.
                    _ => Protocol::Http1,
                };
                Ok(Dialed {
                    stream: Stream::Secure(Box::new(stream)),
                    protocol,
                })
            }
        }
    }
}

/// Whether an upstream has refused our certificate. With TLS 1.3 it says so
/// only after we have gone on to the request; but it does not look at the
/// request of somebody whom it has not let in.
pub(super) fn is_turned_away(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::AlertDescription as Alert;
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error hides what it was made of from `source`.
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

/// A connection, with TLS or without.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<Socket>>),
}

impl Stream {
    /// How many bytes have left under TLS. A write that fails there may have
    /// sent a part of what it was given, and does not say so.
    pub(super) fn sealed_bytes(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Secure(stream) => stream.get_ref().0.written,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Secure(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Secure(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Secure(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secure(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The socket under TLS, which counts what leaves it.
#[derive(Debug)]
pub(super) struct Socket {
    inner: TcpStream,
    written: u64,
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
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
