//! HTTP/1.1: a pool of connections, each with one request at a time.
//!
//! The connection that was used last is taken first, so that surplus connections
//! reach their idle timeout. Each connection is driven by its own task, which
//! notices at once when the upstream closes; a request that it had not begun to
//! write is then returned whole.
//!
//! Idle connections are kept per core, where their tasks run. The limit on
//! concurrent requests also limits the open connections: a new one is opened only
//! when this core has none idle. It is counted before it is opened, and beyond the
//! limit one that is idle on another core is closed for it.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use onceward_core::deadline::within;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::BoxError;
use super::dial::{DialedStream, is_certificate_refused};
use super::{
    ConnectionError, OutgoingBody, ResponseBody, ResponseGuard, SendError, SendResult,
    UpstreamLimits,
};
use crate::runtime::cores::PerCore;

/// The largest response head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The deadline for a connection to become ready again after its response was read.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The connections to an upstream.
#[derive(Debug)]
pub(super) struct Pool {
    idle: PerCore<IdleConnections>,
    /// How many connections are idle on all cores.
    idle_count: AtomicUsize,
    /// How many connections are open.
    open_count: Arc<AtomicUsize>,
    /// One for each concurrent request.
    permits: Arc<Semaphore>,
    limits: UpstreamLimits,
    tasks: TaskTracker,
}

/// The idle connections of one core, in the order of their last use.
#[derive(Debug, Default)]
struct IdleConnections(Mutex<VecDeque<IdleConnection>>);

#[derive(Debug)]
struct IdleConnection {
    connection: Http1Connection,
    since: Instant,
}

/// Permission for one request, and so for one connection.
pub(super) type ConnectionPermit = OwnedSemaphorePermit;

impl Pool {
    pub(super) fn new(limits: UpstreamLimits, tasks: TaskTracker) -> Self {
        let permits = limits.connections_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            idle: PerCore::default(),
            idle_count: AtomicUsize::new(0),
            open_count: Arc::default(),
            permits: Arc::new(Semaphore::new(permits)),
            limits,
            tasks,
        }
    }

    /// An idle connection and a permit, if both are available now.
    pub(super) fn take(&self) -> Option<ConnectionSlot> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let connection = self.take_idle()?;
        Some(ConnectionSlot { connection, permit })
    }

    /// Waits for a permit. Waiters are served in order.
    pub(super) async fn acquire(&self) -> ConnectionPermit {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// The connection of this core that was used last, unless it is closed or past
    /// its idle timeout.
    pub(super) fn take_idle(&self) -> Option<Http1Connection> {
        let mut idle = self.idle.here().lock();
        while let Some(IdleConnection { connection, since }) = idle.pop_back() {
            self.idle_count.fetch_sub(1, Ordering::Relaxed);
            if since.elapsed() > self.limits.idle_timeout {
                // The others have been idle for longer.
                self.idle_count.fetch_sub(idle.len(), Ordering::Relaxed);
                idle.clear();
                return None;
            }
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Counts a connection that is about to be opened, until it is dropped. The caller
    /// holds a permit for it. Beyond the limit idle connections of other cores are
    /// closed: without them there are as many connections as permits.
    pub(super) fn reserve(&self) -> OpenConnection {
        self.open_count.fetch_add(1, Ordering::Relaxed);
        let reserved = OpenConnection(Arc::clone(&self.open_count));
        while self.open_count.load(Ordering::Relaxed) > self.limits.connections_max
            && self.close_longest_idle()
        {}
        reserved
    }

    /// Closes the connection that has been idle for the longest time, on any core, so
    /// that no core with traffic loses those that it needs. False if none is idle.
    fn close_longest_idle(&self) -> bool {
        let since = |idle: &IdleConnections| Some(idle.lock().front()?.since);
        let longest = self
            .idle
            .all()
            .filter_map(|idle| Some((since(idle)?, idle)));
        let Some((_, idle)) = longest.min_by_key(|(since, _)| *since) else {
            return false;
        };
        // Its core may have taken it meanwhile, and the next one is as good.
        if idle.lock().pop_front().is_some() {
            self.idle_count.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    /// Keeps a connection for the next request of this core.
    fn put(&self, connection: Http1Connection) {
        if self.idle_count.load(Ordering::Relaxed) >= self.limits.idle_max {
            // A core without traffic must not keep the others from keeping any.
            self.close_longest_idle();
        }
        let since = Instant::now();
        let mut idle = self.idle.here().lock();
        // Under the lock: the pool is cleared after the tracker was closed.
        if self.tasks.is_closed() {
            return;
        }
        while let Some(oldest) = idle.front()
            && since - oldest.since > self.limits.idle_timeout
        {
            self.idle_count.fetch_sub(1, Ordering::Relaxed);
            idle.pop_front();
        }
        if self.idle_count.load(Ordering::Relaxed) < self.limits.idle_max {
            self.idle_count.fetch_add(1, Ordering::Relaxed);
            idle.push_back(IdleConnection { connection, since });
        }
    }

    /// Closes the connections that are past their idle timeout, on all cores. A core
    /// looks at its own only when it sends a request.
    pub(super) fn close_expired(&self) {
        for idle in self.idle.all() {
            let expired = idle.take_expired(self.limits.idle_timeout);
            self.idle_count.fetch_sub(expired.len(), Ordering::Relaxed);
            // Without the lock, which requests of that core wait for.
            drop(expired);
        }
    }

    /// Closes all idle connections. None is kept afterwards if the tracker of tasks is
    /// closed.
    pub(super) fn clear(&self) {
        for idle in self.idle.all() {
            let mut idle = idle.lock();
            self.idle_count.fetch_sub(idle.len(), Ordering::Relaxed);
            idle.clear();
        }
    }

    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        let is_ready = |idle: &&IdleConnection| idle.connection.sender.is_ready();
        let of_core = |idle: &IdleConnections| idle.lock().iter().filter(is_ready).count();
        self.idle.all().map(of_core).sum()
    }
}

impl IdleConnections {
    fn lock(&self) -> MutexGuard<'_, VecDeque<IdleConnection>> {
        // The queue is consistent after every step, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the connections that were not used for longer than this.
    fn take_expired(&self, idle_timeout: Duration) -> Vec<IdleConnection> {
        let mut idle = self.lock();
        let expired = idle.partition_point(|oldest| oldest.since.elapsed() > idle_timeout);
        idle.drain(..expired).collect()
    }
}

/// Counts as an open connection until it is dropped, open or about to be opened.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection with one user at a time.
#[derive(Debug)]
pub(super) struct Http1Connection {
    sender: SendRequest<TrackedBody>,
    write_state: Arc<WriteState>,
    driver: Driver,
    open: OpenConnection,
}

/// The task of a connection, which is ended if this is dropped during an exchange.
/// hyper would first shut the connection down in good order: with TLS that takes until
/// the upstream has read what is written, so perhaps forever. Between two exchanges
/// there is nothing left to write, and hyper closes the connection.
#[derive(Debug)]
struct Driver {
    task: AbortHandle,
    is_exchanging: bool,
}

impl Driver {
    fn begin_exchange(&mut self) {
        self.is_exchanging = true;
    }

    /// The request is written and its response was read, or the connection is a tunnel.
    fn end_exchange(&mut self) {
        self.is_exchanging = false;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_exchanging {
            self.task.abort();
        }
    }
}

/// A connection and the permission to use it for one request.
pub(super) struct ConnectionSlot {
    pub(super) connection: Http1Connection,
    pub(super) permit: ConnectionPermit,
}

impl Http1Connection {
    pub(super) async fn open(
        stream: DialedStream,
        open: OpenConnection,
        pool: &Pool,
    ) -> Result<Self, ConnectionError> {
        let write_state = Arc::new(WriteState::default());
        let io = TokioIo::new(CountingStream {
            inner: stream,
            write_state: Arc::clone(&write_state),
        });
        let (sender, connection) = http1::Builder::new()
            // Most requests are small: one copy costs less than a vectored write.
            .writev(false)
            .max_header_size(HEAD_BYTES_MAX)
            .handshake(io)
            .await
            .map_err(ConnectionError::Http)?;
        let connection = connection.with_upgrades();
        let driver = pool.tasks.spawn(connection.map(|ended| {
            // hyper reports the error to the request that waits; here it is only
            // logged.
            if let Err(error) = ended {
                tracing::debug!(%error, "connection to upstream failed");
            }
        }));
        Ok(Self {
            sender,
            write_state,
            driver: Driver {
                task: driver.abort_handle(),
                is_exchanging: false,
            },
            open,
        })
    }
}

impl ConnectionSlot {
    /// Hands the request to the connection, and returns a future of its answer.
    // Mapped, here and in what is built on it: an async block would hold the future twice,
    // as its capture and where it waits, and each block around it would double that again.
    pub(super) fn send(
        mut self,
        pool: &Arc<Pool>,
        request: Request<OutgoingBody>,
    ) -> impl Future<Output = SendResult> + Send + use<> {
        let before = self.connection.write_state.written();
        let request = request.map(|body| TrackedBody::new(body, &self.connection.write_state));
        self.connection.driver.begin_exchange();
        let sending = self.connection.sender.try_send_request(request);
        let pool = Arc::clone(pool);
        sending.map(move |sent| match sent {
            Ok(response) => SendResult::Answered(self.into_response(pool, response)),
            Err(error) => self.failed(before, error),
        })
    }

    fn failed(self, before: u64, mut error: TrySendError<Request<TrackedBody>>) -> SendResult {
        let unsent = error.take_message();
        let error = error.into_error();
        let written = self.connection.write_state.written();
        match unsent {
            Some(request) => {
                let request = request.map(|outgoing| outgoing.body);
                SendResult::Returned(Box::new(request), ConnectionError::Http(error))
            }
            None if written == before || before == 0 && is_certificate_refused(&error) => {
                SendResult::Failed(SendError::NotSent(ConnectionError::Http(error)))
            }
            None => SendResult::Failed(SendError::Lost(ConnectionError::Http(error))),
        }
    }

    /// The response, which holds this connection until its body ends.
    fn into_response(
        self,
        pool: Arc<Pool>,
        response: Response<hyper::body::Incoming>,
    ) -> Response<ResponseBody> {
        let Self {
            mut connection,
            permit,
        } = self;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            connection.driver.end_exchange();
            // The connection is a tunnel now and keeps its permit until it is
            // closed. A connection has at most one 101, so the cell is empty.
            let held = (connection.open, permit);
            let _ = connection.write_state.tunnel.set(held);
            return response.map(|body| ResponseBody::new(body, None));
        }
        let borrowed = BorrowedConnection {
            // The upstream could take the rest of this request for the next one.
            early: !connection.write_state.is_whole(),
            connection,
            permit,
            pool,
        };
        response.map(|body| ResponseBody::new(body, Some(ResponseGuard::Http1(borrowed))))
    }
}

/// A connection whose response is being read, and the pool it returns to.
#[derive(Debug)]
pub(super) struct BorrowedConnection {
    connection: Http1Connection,
    /// Whether the response began before the request was written completely.
    early: bool,
    permit: ConnectionPermit,
    pool: Arc<Pool>,
}

impl BorrowedConnection {
    /// Keeps the connection for another request, or closes it. Called when the response
    /// was read.
    pub(super) fn return_to_pool(mut self) {
        if self.early {
            // The rest of the request is not needed any more, and the upstream may not
            // read what was written of it, so the exchange is cut off.
            return;
        }
        self.connection.driver.end_exchange();
        if self.connection.sender.is_ready() {
            self.keep();
        } else if !self.connection.sender.is_closed() {
            let tasks = self.pool.tasks.clone();
            tasks.spawn(self.return_when_ready());
        }
    }

    async fn return_when_ready(mut self) {
        let ready = within(READY_WITHIN, self.connection.sender.ready()).await;
        // Otherwise the connection is dropped and closes.
        if let Ok(Ok(())) = ready {
            self.keep();
        }
    }

    /// Returns the connection before the permit, so that the next holder of the
    /// permit finds it.
    fn keep(self) {
        self.pool.put(self.connection);
        drop(self.permit);
    }
}

/// How much of the requests on a connection was written.
#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// The bytes of requests that the operating system, or TLS, has accepted.
    /// hyper's errors are sent through a channel by the task that counts, so the
    /// count is up to date when an error arrives.
    written: AtomicU64,
    /// Whether hyper has read all of the current request's body.
    ended: AtomicBool,
    /// Whether all of the current request was written after that.
    whole: AtomicBool,
    /// The count of a connection that is now a tunnel, and its permit.
    tunnel: OnceLock<(OpenConnection, ConnectionPermit)>,
}

impl WriteState {
    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Called when all accepted bytes were written.
    fn flushed(&self) {
        if self.ended.load(Ordering::Acquire) {
            self.whole.store(true, Ordering::Release);
        }
    }
}

/// A request's body that records when hyper has read all of it or dropped it.
#[derive(Debug)]
struct TrackedBody {
    body: OutgoingBody,
    /// Marks the end when it is dropped with the body.
    _end_marker: EndMarker,
}

#[derive(Debug)]
struct EndMarker(Arc<WriteState>);

impl Drop for EndMarker {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl TrackedBody {
    fn new(body: OutgoingBody, write_state: &Arc<WriteState>) -> Self {
        write_state.ended.store(false, Ordering::Release);
        write_state.whole.store(false, Ordering::Release);
        Self {
            body,
            _end_marker: EndMarker(Arc::clone(write_state)),
        }
    }
}

impl Body for TrackedBody {
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

/// A connection that counts the bytes that are written.
#[derive(Debug)]
struct CountingStream {
    inner: DialedStream,
    write_state: Arc<WriteState>,
}

impl CountingStream {
    /// Counts a failed write too, if a part of it was sent.
    fn count(&self, tls_before: u64, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let bytes = match &written {
            Poll::Ready(Ok(written)) => *written as u64,
            Poll::Ready(Err(_)) => self.inner.tls_bytes_written() - tls_before,
            Poll::Pending => return Poll::Pending,
        };
        self.write_state.written.fetch_add(bytes, Ordering::Relaxed);
        written
    }
}

impl AsyncRead for CountingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tls_before = this.inner.tls_bytes_written();
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.count(tls_before, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tls_before = this.inner.tls_bytes_written();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.count(tls_before, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.write_state.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::UpstreamClient;

    #[tokio::test]
    async fn a_connection_that_comes_back_while_the_pool_closes_is_not_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let upstream = UpstreamClient::parse(&format!("http://{address}")).expect("a URL");
        let pool = Arc::clone(&upstream.http1);
        let dialed = upstream.dialer.dial().await.expect("a connection");
        let connection = Http1Connection::open(dialed.stream, pool.reserve(), &pool).await;
        let connection = connection.expect("a connection");
        let returning = {
            let _idle = pool.idle.here().lock();
            let there = Arc::clone(&pool);
            let returning = thread::spawn(move || there.put(connection));
            // It waits for the lock, which cannot be observed; it may also come later.
            thread::sleep(Duration::from_millis(50));
            pool.tasks.close();
            returning
        };
        returning.join().expect("no panic");
        assert!(pool.idle.here().lock().is_empty());
    }
}
