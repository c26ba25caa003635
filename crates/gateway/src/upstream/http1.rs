//! HTTP/1.1: a stack of unused connections, one request at a time on each.
//!
//! The connection that was used last is taken first, so the rest can grow old
//! and go. A task of its own drives each connection; it sees at once when the
//! upstream closes, and a request that it had not begun to write then comes
//! back whole.
//!
//! How many requests may be under way bounds how many connections are open: a
//! new one is opened only when none is unused.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::BoxError;
use super::dial::{Stream, is_turned_away};
use super::{Cause, Hold, Limits, RequestBody, ResponseBody, SendError, Sent};

/// The largest head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long a connection may take to be ready after its answer was read.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The connections of an upstream.
#[derive(Debug)]
pub(super) struct Pool {
    /// The unused ones, in the order of their last use.
    idle: Mutex<VecDeque<Idle>>,
    /// One for each request that may be under way.
    places: Arc<Semaphore>,
    limits: Limits,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// The right to have a request under way.
pub(super) type Place = OwnedSemaphorePermit;

impl Pool {
    pub(super) fn new(limits: Limits, tasks: TaskTracker) -> Self {
        let places = limits.connections_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(places)),
            limits,
            tasks,
        }
    }

    /// An unused connection, if there is one and a place too.
    pub(super) fn take(&self) -> Option<Turn> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let connection = self.take_idle()?;
        Some(Turn { connection, place })
    }

    /// Waits for a place, in order.
    pub(super) async fn place(&self) -> Place {
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.expect("nobody closes the semaphore")
    }

    /// The connection that was used last, if it is neither closed nor too old.
    pub(super) fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.lock();
        while let Some(Idle { connection, since }) = idle.pop_back() {
            if since.elapsed() > self.limits.idle_timeout {
                // All the others are older.
                idle.clear();
                return None;
            }
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection that is ready for the next request.
    fn put(&self, connection: Connection) {
        if self.tasks.is_closed() {
            return;
        }
        let since = Instant::now();
        let mut idle = self.lock();
        while let Some(oldest) = idle.front()
            && (idle.len() >= self.limits.idle_max
                || since - oldest.since > self.limits.idle_timeout)
        {
            idle.pop_front();
        }
        if idle.len() < self.limits.idle_max {
            idle.push_back(Idle { connection, since });
        }
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        let idle = self.lock();
        idle.iter()
            .filter(|idle| idle.connection.sender.is_ready())
            .count()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        // A queue is whole after every step, so a panic elsewhere is no harm.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that nobody else uses.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Outgoing>,
    wire: Arc<Wire>,
    driver: AbortHandle,
}

/// A connection and the right to use it for one request.
pub(super) struct Turn {
    pub(super) connection: Connection,
    pub(super) place: Place,
}

impl Connection {
    pub(super) async fn open(stream: Stream, tasks: &TaskTracker) -> Result<Self, Cause> {
        let wire = Arc::new(Wire::default());
        let io = TokioIo::new(Counted {
            inner: stream,
            wire: Arc::clone(&wire),
        });
        let (sender, connection) = http1::Builder::new()
            // Most requests are small: one copy costs less than two pieces to write.
            .writev(false)
            .max_header_size(HEAD_BYTES_MAX)
            .handshake(io)
            .await
            .map_err(Cause::Http)?;
        let connection = connection.with_upgrades();
        let driver = tasks.spawn(async move {
            // Who waits for an answer has been told by hyper; this is for the
            // log alone.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to upstream failed");
            }
        });
        Ok(Self {
            sender,
            wire,
            driver: driver.abort_handle(),
        })
    }
}

impl Turn {
    pub(super) async fn send(mut self, pool: &Arc<Pool>, request: Request<RequestBody>) -> Sent {
        let before = self.connection.wire.written();
        let request = request.map(|body| Outgoing::new(body, &self.connection.wire));
        let sent = self.connection.sender.try_send_request(request).await;
        let mut error = match sent {
            Ok(response) => return Sent::Answered(self.lend(pool, response)),
            Err(error) => error,
        };
        let unsent = error.take_message();
        let error = error.into_error();
        let written = self.connection.wire.written();
        match unsent {
            Some(request) => {
                let request = request.map(|outgoing| outgoing.body);
                Sent::Returned(Box::new(request), Cause::Http(error))
            }
            None if written == before || before == 0 && is_turned_away(&error) => {
                Sent::Failed(SendError::NotSent(Cause::Http(error)))
            }
            None => Sent::Failed(SendError::Lost(Cause::Http(error))),
        }
    }

    /// The answer, with this connection until its body ends.
    fn lend(
        self,
        pool: &Arc<Pool>,
        response: Response<hyper::body::Incoming>,
    ) -> Response<ResponseBody> {
        let Self { connection, place } = self;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // The connection speaks something else now, and keeps its place
            // until it is closed. Nobody has set it before: there is one 101.
            let _ = connection.wire.tunnel.set(place);
            return response.map(|body| ResponseBody::new(body, None));
        }
        let lease = Lease {
            // The bytes of the request that the upstream did not wait for could
            // be taken for the next one's.
            early: !connection.wire.is_whole(),
            connection,
            place,
            pool: Arc::clone(pool),
        };
        response.map(|body| ResponseBody::new(body, Some(Hold::Http1(lease))))
    }
}

/// A connection whose answer is being read, and where it goes then.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    /// Whether the answer came before the request was written whole.
    early: bool,
    place: Place,
    pool: Arc<Pool>,
}

impl Lease {
    pub(super) fn give_back(self) {
        if self.early {
            if !self.connection.wire.is_whole() {
                // Nobody waits for the rest to arrive.
                self.connection.driver.abort();
            }
        } else if self.connection.sender.is_ready() {
            self.keep();
        } else if !self.connection.sender.is_closed() {
            let tasks = self.pool.tasks.clone();
            tasks.spawn(self.give_back_when_ready());
        }
    }

    async fn give_back_when_ready(mut self) {
        let ready = tokio::time::timeout(READY_WITHIN, self.connection.sender.ready()).await;
        // Otherwise it closes, which is all there is to do about it.
        if let Ok(Ok(())) = ready {
            self.keep();
        }
    }

    /// The place is free only when the connection is there for who gets it.
    fn keep(self) {
        self.pool.put(self.connection);
        drop(self.place);
    }
}

/// What is known of the bytes on a connection.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// The bytes of requests that the operating system, or TLS, has taken.
    /// hyper's errors come from the task that counts, through a channel, so the
    /// count is up to date.
    written: AtomicU64,
    /// Whether hyper has taken all of the present request's body.
    ended: AtomicBool,
    /// Whether all of the present request was written after that.
    whole: AtomicBool,
    /// The place of a connection that has become a tunnel.
    tunnel: OnceLock<Place>,
}

impl Wire {
    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Nothing of what was given is left unwritten.
    fn flushed(&self) {
        if self.ended.load(Ordering::Acquire) {
            self.whole.store(true, Ordering::Release);
        }
    }
}

/// A request's body that tells when hyper has taken all of it, or given it up.
#[derive(Debug)]
struct Outgoing {
    body: RequestBody,
    /// Dropped with the body.
    _end: End,
}

#[derive(Debug)]
struct End(Arc<Wire>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl Outgoing {
    fn new(body: RequestBody, wire: &Arc<Wire>) -> Self {
        wire.ended.store(false, Ordering::Release);
        wire.whole.store(false, Ordering::Release);
        Self {
            body,
            _end: End(Arc::clone(wire)),
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that counts what is written to it.
#[derive(Debug)]
struct Counted {
    inner: Stream,
    wire: Arc<Wire>,
}

impl Counted {
    /// A failed write counts too, if a part of it has left.
    fn count(
        &self,
        sealed_before: u64,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let bytes = match &written {
            Poll::Ready(Ok(written)) => *written as u64,
            Poll::Ready(Err(_)) => self.inner.sealed_bytes() - sealed_before,
            Poll::Pending => return Poll::Pending,
        };
        self.wire.written.fetch_add(bytes, Ordering::Relaxed);
        written
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sealed_before = this.inner.sealed_bytes();
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.count(sealed_before, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sealed_before = this.inner.sealed_bytes();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.count(sealed_before, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.wire.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
