//! Puts [`Framing`] between a connection and hyper.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Framing;

/// The bytes that hyper gets in place of a violation. The NUL is an error
/// wherever it lands in a head or a chunk's size line. The empty line is for
/// heads that arrive in pieces: hyper parses those again only after one.
const INVALID_BYTES: &[u8] = b"\0\n\n";

/// How many bytes are read and discarded when a connection ends. Closing a
/// socket with unread bytes resets the connection, and the response may be lost.
const DRAIN_BYTES_MAX: usize = 256 * 1024;
const DRAIN_STEP_BYTES: usize = 4096;

/// A connection whose incoming bytes are checked by [`Framing`]. hyper reads from
/// this.
#[derive(Debug)]
pub(crate) struct CheckedStream<S> {
    inner: S,
    framing: Framing,
    state: ReadState,
}

#[derive(Debug)]
enum ReadState {
    Open,
    /// The bytes that hyper has still to read. After them the stream is at its
    /// end, whatever the peer sends.
    Refused(&'static [u8]),
}

impl<S> CheckedStream<S> {
    /// Checks a connection from its first byte.
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            framing: Framing::default(),
            state: ReadState::Open,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CheckedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let ReadState::Open = this.state {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            if let Err(violation) = this.framing.feed(&buf.filled()[before..]) {
                tracing::debug!(fault = %violation.fault, "request refused: invalid framing");
                buf.set_filled(before + violation.at);
                this.state = ReadState::Refused(INVALID_BYTES);
            }
        }
        if let ReadState::Refused(bytes) = &mut this.state {
            let (now, later) = bytes.split_at(bytes.len().min(buf.remaining()));
            buf.put_slice(now);
            *bytes = later;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CheckedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
        // In a tunnel one direction may end before the other. In HTTP/1 nothing is
        // read after this.
        if !this.framing.is_unchecked() {
            drain(&mut this.inner, cx);
        }
        Poll::Ready(Ok(()))
    }
}

/// Discards the bytes that have already arrived. Does not wait for more: the
/// peer has been asked to stop sending.
fn drain<S: AsyncRead + Unpin>(stream: &mut S, cx: &mut Context<'_>) {
    let mut bytes = [0; DRAIN_STEP_BYTES];
    for _ in 0..DRAIN_BYTES_MAX / DRAIN_STEP_BYTES {
        let mut buf = ReadBuf::new(&mut bytes);
        match Pin::new(&mut *stream).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
            // The end, no more bytes for now, or an error, which no longer
            // matters because the connection closes next.
            _ => return,
        }
    }
}
