//! An accepted connection: its transport (plain or TLS), its slot among the open
//! connections, and the deadlines of its blocked writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::counts::ListenerSlot;
use super::framing::HTTP2_PREFACE;
use super::slow_clients::{ConnectionDeadlines, PendingDeadline};

#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

#[derive(Debug)]
pub(super) struct ClientConnection {
    transport: Transport,
    deadlines: Arc<ConnectionDeadlines>,
    /// Whether a write or flush was pending and none has completed since.
    is_blocked: bool,
    preface: Option<AwaitedPreface>,
    /// Held here because this object lives as long as the connection is open,
    /// also as a tunnel.
    _slot: ListenerSlot,
}

/// The part of the HTTP/2 preface that the client still has to send.
#[derive(Debug)]
struct AwaitedPreface {
    bytes_left: usize,
    _deadline: PendingDeadline,
}

impl ClientConnection {
    /// With `preface_deadline`, the client must send the HTTP/2 preface within
    /// that time.
    pub(super) fn new(
        transport: Transport,
        deadlines: Arc<ConnectionDeadlines>,
        slot: ListenerSlot,
        preface_deadline: Option<Duration>,
    ) -> Self {
        let preface = preface_deadline.map(|limit| AwaitedPreface {
            bytes_left: HTTP2_PREFACE.len(),
            _deadline: deadlines.start(limit),
        });
        Self {
            transport,
            deadlines,
            is_blocked: false,
            preface,
            _slot: slot,
        }
    }

    fn count_preface(&mut self, bytes: usize) {
        if let Some(preface) = &mut self.preface {
            preface.bytes_left = preface.bytes_left.saturating_sub(bytes);
            if preface.bytes_left == 0 {
                self.preface = None;
            }
        }
    }

    fn track_write(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) if self.is_blocked => self.deadlines.socket_progressed(*bytes),
            Poll::Pending => self.block(),
            Poll::Ready(_) => {}
        }
    }

    fn block(&mut self) {
        if !self.is_blocked {
            self.is_blocked = true;
            self.deadlines.socket_blocked();
        }
    }
}

impl AsyncRead for ClientConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Secure(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        this.count_preface(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Secure(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        this.track_write(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Transport::Secure(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        this.track_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Secure(stream) => stream.is_write_vectored(),
        }
    }

    /// hyper flushes when it has nothing left to write, so a completed flush
    /// ends the wait.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Secure(stream) => Pin::new(stream).poll_flush(cx),
        };
        match flushed {
            Poll::Pending => this.block(),
            Poll::Ready(_) if this.is_blocked => {
                this.is_blocked = false;
                this.deadlines.socket_flushed();
            }
            Poll::Ready(_) => {}
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
