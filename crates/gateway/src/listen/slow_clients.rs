//! Closes connections whose clients do not read their responses, or send no request.
//!
//! A client that does not read keeps its response in the gateway's memory. It shows in two
//! places. On the socket, a write blocks. On HTTP/2, the socket is writable, but
//! the client grants a stream no window, so the stream's bytes wait in memory.
//! Each wait has a deadline, and one task per listener checks periodically
//! whether a deadline has passed. If so, the whole connection is closed, with
//! all its streams.
//!
//! A single wait lasts at most the write deadline. All waits for one response
//! together may exceed it only by the time that the bytes read so far take at
//! the minimum rate. A client that reads one byte now and then is therefore
//! closed too.
//!
//! On HTTP/1 a response that is read at once costs nothing here: the clock is
//! not read before a write blocks. The wait for a request's head costs no timer
//! either: the connection counts its waits, and the periodic check notes when it
//! first sees a wait.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use onceward_http::body::{Body, BoxError};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::counts::ConnectionCounts;

/// The slowest rate, in bytes per second, that extends a deadline.
const RATE_MIN: u64 = 4096;
/// The most bytes of a response given to a stream at once: the size of a frame.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// How often the deadlines are checked: a quarter of the shorter deadline, within
/// these limits.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// The deadlines of all connections of a listener.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// How long a client may leave a response unread.
    limit: Duration,
    /// How long a client may take for a request's head, or pause before it.
    head_limit: Duration,
    started: Instant,
    connections: Mutex<Vec<WatchedConnection>>,
}

/// A connection, and what the check has seen of it.
#[derive(Debug)]
struct WatchedConnection {
    connection: Weak<ConnectionDeadlines>,
    /// The last wait for a head that was seen, and when it was first seen.
    head_wait: u64,
    head_wait_seen_ms: u64,
}

/// Which deadline a connection has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missed {
    Write,
    Head,
}

impl Deadlines {
    pub(super) fn new(limit: Duration, head_limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            limit,
            head_limit,
            started: Instant::now(),
            connections: Mutex::default(),
        })
    }

    /// Adds a connection. It is removed when its last reference is dropped.
    pub(super) fn register(self: &Arc<Self>) -> Arc<ConnectionDeadlines> {
        let connection = Arc::new(ConnectionDeadlines {
            listener: Arc::clone(self),
            socket_deadline_ms: AtomicU64::new(NEVER),
            pending: Mutex::default(),
            head_waits: AtomicU64::new(0),
            task: OnceLock::new(),
        });
        lock(&self.connections).push(WatchedConnection {
            connection: Arc::downgrade(&connection),
            head_wait: 0,
            head_wait_seen_ms: 0,
        });
        connection
    }

    /// Closes connections whose deadline has passed. Never returns.
    pub(super) async fn enforce(&self, counts: &ConnectionCounts) {
        let interval = self.limit.min(self.head_limit) / 4;
        let interval = interval.clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX);
        let head_limit_ms = milliseconds(self.head_limit);
        loop {
            tokio::time::sleep(interval).await;
            let now_ms = self.now_ms();
            lock(&self.connections).retain_mut(|watched| {
                let Some(connection) = watched.connection.upgrade() else {
                    return false;
                };
                let Some(missed) = watched.missed(&connection, now_ms, head_limit_ms) else {
                    return true;
                };
                if let Some(task) = connection.task.get() {
                    close(task, missed, counts);
                }
                false
            });
        }
    }

    /// Milliseconds since the listener started.
    fn now_ms(&self) -> u64 {
        milliseconds(self.started.elapsed())
    }

    fn deadline_ms(&self, limit: Duration) -> u64 {
        self.now_ms().saturating_add(milliseconds(limit))
    }
}

impl WatchedConnection {
    fn missed(
        &mut self,
        connection: &ConnectionDeadlines,
        now_ms: u64,
        head_limit_ms: u64,
    ) -> Option<Missed> {
        if connection.is_overdue(now_ms) {
            return Some(Missed::Write);
        }
        let wait = connection.head_waits.load(Ordering::Relaxed);
        // hyper drops a body as soon as it has copied it, so a wait for the next head
        // may have begun although the client still reads the response.
        if wait != self.head_wait || connection.is_blocked() {
            (self.head_wait, self.head_wait_seen_ms) = (wait, now_ms);
        }
        let waited_ms = now_ms - self.head_wait_seen_ms;
        (is_head_wait(wait) && waited_ms > head_limit_ms).then_some(Missed::Head)
    }
}

fn close(task: &AbortHandle, missed: Missed, counts: &ConnectionCounts) {
    match missed {
        Missed::Write => {
            counts.add_cut_off();
            tracing::debug!("connection closed: the client does not read its responses");
        }
        Missed::Head => tracing::debug!("connection closed: the client sends no request"),
    }
    task.abort();
}

const NEVER: u64 = u64::MAX;

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER)
}

/// How long this many bytes take at the minimum rate.
fn time_for(bytes: usize) -> Duration {
    Duration::from_millis((bytes as u64).saturating_mul(1000) / RATE_MIN)
}

/// The deadlines of one connection.
#[derive(Debug)]
pub(super) struct ConnectionDeadlines {
    listener: Arc<Deadlines>,
    /// How often a wait for a head of HTTP/1 has begun or ended: odd during a wait.
    /// Only the connection's own task writes it.
    head_waits: AtomicU64,
    /// The deadline of the write that blocks on the socket.
    socket_deadline_ms: AtomicU64,
    /// The deadlines of bytes that streams hold, and of the HTTP/2 preface.
    pending: Mutex<PendingDeadlines>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct PendingDeadlines {
    last_id: u64,
    /// Ids and deadlines, in milliseconds since the listener started.
    entries: Vec<(u64, u64)>,
}

impl ConnectionDeadlines {
    /// Sets the connection's task, which is aborted after a missed deadline.
    pub(super) fn set_task(&self, task: AbortHandle) {
        // The accept loop calls this once per connection, so it cannot fail.
        let _ = self.task.set(task);
    }

    /// The connection waits for the head of a request.
    pub(super) fn await_head(&self) {
        self.set_head_wait(true);
    }

    /// The head of a request has arrived.
    pub(super) fn head_arrived(&self) {
        self.set_head_wait(false);
    }

    fn set_head_wait(&self, is_waiting: bool) {
        let waits = self.head_waits.load(Ordering::Relaxed);
        if is_head_wait(waits) != is_waiting {
            self.head_waits.store(waits + 1, Ordering::Relaxed);
        }
    }

    /// A write on the socket has blocked.
    pub(super) fn socket_blocked(&self) {
        let deadline = self.listener.deadline_ms(self.listener.limit);
        self.socket_deadline_ms.store(deadline, Ordering::Relaxed);
    }

    /// The blocked socket has accepted this many bytes.
    pub(super) fn socket_progressed(&self, bytes: usize) {
        let deadline = self.socket_deadline_ms.load(Ordering::Relaxed);
        let deadline = deadline.saturating_add(milliseconds(time_for(bytes)));
        let latest = self.listener.deadline_ms(self.listener.limit);
        self.socket_deadline_ms
            .store(deadline.min(latest), Ordering::Relaxed);
    }

    /// The socket has accepted all bytes.
    pub(super) fn socket_flushed(&self) {
        self.socket_deadline_ms.store(NEVER, Ordering::Relaxed);
    }

    /// Starts a deadline, which is met when the returned value is dropped.
    pub(super) fn start(self: &Arc<Self>, limit: Duration) -> PendingDeadline {
        let deadline = self.listener.deadline_ms(limit);
        let mut pending = lock(&self.pending);
        pending.last_id += 1;
        let id = pending.last_id;
        pending.entries.push((id, deadline));
        PendingDeadline {
            id,
            connection: Arc::clone(self),
        }
    }

    /// Whether a write on the socket blocks.
    fn is_blocked(&self) -> bool {
        self.socket_deadline_ms.load(Ordering::Relaxed) != NEVER
    }

    fn is_overdue(&self, now_ms: u64) -> bool {
        let is_past = |deadline: u64| now_ms > deadline;
        is_past(self.socket_deadline_ms.load(Ordering::Relaxed))
            || lock(&self.pending)
                .entries
                .iter()
                .any(|(_, deadline)| is_past(*deadline))
    }
}

fn is_head_wait(waits: u64) -> bool {
    waits % 2 == 1
}

/// A deadline that is not yet met. Dropping it meets it.
#[derive(Debug)]
pub(super) struct PendingDeadline {
    id: u64,
    connection: Arc<ConnectionDeadlines>,
}

impl Drop for PendingDeadline {
    fn drop(&mut self) {
        let entries = &mut lock(&self.connection.pending).entries;
        if let Some(at) = entries.iter().position(|(id, _)| *id == self.id) {
            entries.swap_remove(at);
        }
    }
}

/// Ignores poisoning: the guarded values are consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of a response to a client.
pub(super) enum WatchedBody {
    /// The socket shows whether the client reads it. After it the connection waits
    /// for the next request.
    Http1(
        Body,
        #[expect(dead_code, reason = "acts when dropped")] Option<NextHead>,
    ),
    /// The socket is shared with other streams, so the body has its own
    /// deadlines.
    Http2(Http2Body),
}

/// Begins the wait for the next head when it is dropped. The wait counts from the
/// moment at which the response is written.
pub(super) struct NextHead(Arc<ConnectionDeadlines>);

impl Drop for NextHead {
    fn drop(&mut self) {
        self.0.await_head();
    }
}

impl WatchedBody {
    /// With `deadlines`, unless the connection becomes a tunnel.
    pub(super) fn http1(body: Body, deadlines: Option<Arc<ConnectionDeadlines>>) -> Self {
        Self::Http1(body, deadlines.map(NextHead))
    }

    pub(super) fn http2(body: Body, deadlines: &Arc<ConnectionDeadlines>) -> Self {
        Self::Http2(Http2Body::new(body, deadlines))
    }
}

/// The body of a response on an HTTP/2 stream.
pub(super) struct Http2Body {
    inner: Body,
    deadlines: Arc<ConnectionDeadlines>,
    /// The bytes of the last frame beyond [`PIECE_BYTES_MAX`].
    rest: Bytes,
    /// How much longer the client may delay this response in total.
    time_left: Duration,
    /// Present while the body waits for the client: hyper polls for the next
    /// piece only after the client has granted the stream a window.
    window_wait: Option<WindowWait>,
}

struct WindowWait {
    since: Instant,
    _deadline: PendingDeadline,
}

impl Http2Body {
    fn new(inner: Body, deadlines: &Arc<ConnectionDeadlines>) -> Self {
        let mut body = Self {
            inner,
            deadlines: Arc::clone(deadlines),
            rest: Bytes::new(),
            time_left: deadlines.listener.limit,
            window_wait: None,
        };
        body.start_window_wait();
        body
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // A poll means that the client has granted a window. From here on the
        // body waits for the upstream, not for the client.
        self.end_window_wait();
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES_MAX));
        let piece = self.with_deadline(piece);
        self.start_window_wait();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    /// Does nothing at the end of the body: no further window is needed.
    fn start_window_wait(&mut self) {
        if !self.is_end_stream() {
            let limit = self.time_left.min(self.deadlines.listener.limit);
            self.window_wait = Some(WindowWait {
                since: Instant::now(),
                _deadline: self.deadlines.start(limit),
            });
        }
    }

    fn end_window_wait(&mut self) {
        if let Some(wait) = self.window_wait.take() {
            self.time_left = self.time_left.saturating_sub(wait.since.elapsed());
        }
    }

    /// Ties a deadline to the piece. It is met when the last of the piece's
    /// bytes has been written and the piece is dropped.
    fn with_deadline(&mut self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        let time = time_for(bytes.len());
        self.time_left += time;
        let deadline = self.deadlines.start(self.deadlines.listener.limit + time);
        Bytes::from_owner(BytesWithDeadline {
            bytes,
            _deadline: deadline,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(inner.lower().saturating_add(rest));
        hint
    }
}

struct BytesWithDeadline {
    bytes: Bytes,
    _deadline: PendingDeadline,
}

impl AsRef<[u8]> for BytesWithDeadline {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http1(body, _) => Pin::new(body).poll_frame(cx),
            Self::Http2(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body, _) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body, _) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}
