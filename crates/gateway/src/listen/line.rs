//! An accepted connection: plain or TLS, with its place among those that may be
//! open, and an eye on writes that have to wait.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::Place;
use super::patience::{Due, Watch};

/// As many bytes as an HTTP/2 client says before anything else.
const PREFACE_BYTES: usize = 24;

#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

#[derive(Debug)]
pub(super) struct Line {
    transport: Transport,
    watch: Arc<Watch>,
    blocked: bool,
    greeting: Option<Greeting>,
    /// Here, since it is open as long as this is, also as a tunnel.
    _place: Place,
}

/// What a client has yet to say, and until when.
#[derive(Debug)]
struct Greeting {
    bytes: usize,
    _due: Due,
}

impl Line {
    /// With `greeting`, the client has to begin to speak HTTP/2 within it.
    pub(super) fn new(
        transport: Transport,
        watch: Arc<Watch>,
        place: Place,
        greeting: Option<Duration>,
    ) -> Self {
        let greeting = greeting.map(|limit| Greeting {
            bytes: PREFACE_BYTES,
            _due: watch.wait(limit),
        });
        Self {
            transport,
            watch,
            blocked: false,
            greeting,
            _place: place,
        }
    }

    fn hear(&mut self, bytes: usize) {
        if let Some(greeting) = &mut self.greeting {
            greeting.bytes = greeting.bytes.saturating_sub(bytes);
            if greeting.bytes == 0 {
                self.greeting = None;
            }
        }
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) if self.blocked => self.watch.moved(*bytes),
            Poll::Pending => self.block(),
            Poll::Ready(_) => {}
        }
    }

    fn block(&mut self) {
        if !self.blocked {
            self.blocked = true;
            self.watch.blocked();
        }
    }
}

impl AsyncRead for Line {
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
        this.hear(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Line {
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
        this.wrote(&written);
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
        this.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Secure(stream) => stream.is_write_vectored(),
        }
    }

    /// Asked for when nothing is left to write: then nothing waits any more.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Secure(stream) => Pin::new(stream).poll_flush(cx),
        };
        match flushed {
            Poll::Pending => this.block(),
            Poll::Ready(_) if this.blocked => {
                this.blocked = false;
                this.watch.cleared();
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
