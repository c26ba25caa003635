//! HTTP/1.1: a stack of unused connections, one request at a time on each.
//!
//! The connection that was used last is taken first, so the rest can grow old
//! and go. A task of its own drives each connection; it sees at once when the
//! upstream closes, and a request that it had not begun to write then comes
//! back whole.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::address::Dialer;
use super::{Cause, Limits, RequestBody, ResponseBody, SendError};

/// The largest head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long a connection may take to be ready after its answer was read. It is
/// not when the upstream answered before it had the whole request.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The unused connections of an upstream.
#[derive(Debug)]
pub(super) struct Pool {
    /// In the order of their last use.
    idle: Mutex<VecDeque<Idle>>,
    limits: Limits,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

impl Pool {
    pub(super) fn new(limits: Limits, tasks: TaskTracker) -> Self {
        Self {
            idle: Mutex::default(),
            limits,
            tasks,
        }
    }

    pub(super) async fn send(
        self: &Arc<Self>,
        dialer: &Dialer,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        // Each round ends or uses up a connection that died unused; then a new
        // one is opened, once.
        while let Some(connection) = self.take() {
            match connection.send(self, request).await {
                Sent::Answered(response) => return Ok(response),
                Sent::Failed(error) => return Err(error),
                Sent::Returned(unsent, _) => request = *unsent,
            }
        }
        let stream = dialer.dial().await.map_err(SendError::NotSent)?;
        let connection = Connection::open(stream, dialer.tasks())
            .await
            .map_err(SendError::NotSent)?;
        match connection.send(self, request).await {
            Sent::Answered(response) => Ok(response),
            Sent::Failed(error) => Err(error),
            Sent::Returned(_, cause) => Err(SendError::NotSent(cause)),
        }
    }

    /// The connection that was used last, if it is neither closed nor too old.
    fn take(&self) -> Option<Connection> {
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
        idle.push_back(Idle { connection, since });
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
    sender: SendRequest<RequestBody>,
    written: Arc<AtomicU64>,
}

/// What became of a request on a connection.
pub(super) enum Sent {
    Answered(Response<ResponseBody>),
    /// Never begun: here it is again.
    Returned(Box<Request<RequestBody>>, Cause),
    /// Begun and gone.
    Failed(SendError),
}

impl Connection {
    pub(super) async fn open(stream: TcpStream, tasks: &TaskTracker) -> Result<Self, Cause> {
        let written = Arc::new(AtomicU64::new(0));
        let io = TokioIo::new(Counted {
            inner: stream,
            written: Arc::clone(&written),
        });
        let (sender, connection) = http1::Builder::new()
            // Most requests are small: one copy costs less than two pieces to write.
            .writev(false)
            .max_header_size(HEAD_BYTES_MAX)
            .handshake(io)
            .await
            .map_err(Cause::Http)?;
        let connection = connection.with_upgrades();
        tasks.spawn(async move {
            // Who waits for an answer has been told by hyper; this is for the
            // log alone.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to upstream failed");
            }
        });
        Ok(Self { sender, written })
    }

    pub(super) async fn send(mut self, pool: &Arc<Pool>, request: Request<RequestBody>) -> Sent {
        let before = self.written();
        let mut error = match self.sender.try_send_request(request).await {
            Ok(response) => return Sent::Answered(self.lend(pool, response)),
            Err(error) => error,
        };
        let unsent = error.take_message();
        let cause = Cause::Http(error.into_error());
        match unsent {
            Some(request) => Sent::Returned(Box::new(request), cause),
            None if self.written() == before => Sent::Failed(SendError::NotSent(cause)),
            None => Sent::Failed(SendError::Lost(cause)),
        }
    }

    /// The bytes that the operating system has taken. hyper's error comes from
    /// the task that counts, through a channel, so the count is up to date.
    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// The answer, with this connection until its body ends.
    fn lend(
        self,
        pool: &Arc<Pool>,
        response: Response<hyper::body::Incoming>,
    ) -> Response<ResponseBody> {
        // After a 101 the connection speaks something else.
        let lease = (response.status() != StatusCode::SWITCHING_PROTOCOLS).then(|| Lease {
            connection: self,
            pool: Arc::clone(pool),
        });
        response.map(|body| ResponseBody::new(body, lease))
    }
}

/// A connection whose answer is being read, and where it goes then.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    pool: Arc<Pool>,
}

impl Lease {
    pub(super) fn give_back(self) {
        if self.connection.sender.is_ready() {
            self.pool.put(self.connection);
        } else if !self.connection.sender.is_closed() {
            let tasks = self.pool.tasks.clone();
            tasks.spawn(self.give_back_when_ready());
        }
    }

    async fn give_back_when_ready(mut self) {
        let ready = tokio::time::timeout(READY_WITHIN, self.connection.sender.ready()).await;
        // Otherwise it closes, which is all there is to do about it.
        if let Ok(Ok(())) = ready {
            self.pool.put(self.connection);
        }
    }
}

/// A connection that counts what is written to it.
#[derive(Debug)]
struct Counted {
    inner: TcpStream,
    written: Arc<AtomicU64>,
}

impl Counted {
    fn count(&self, written: usize) -> Poll<io::Result<usize>> {
        self.written.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
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
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.count(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        this.count(written)
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
