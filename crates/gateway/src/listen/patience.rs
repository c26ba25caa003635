//! How long a client may leave its answers unread.
//!
//! A client that asks and does not read holds what it asked for. It shows in two
//! places. On the socket: a write waits. In HTTP/2: the socket is free, but the
//! client gives a stream no window, so its bytes wait in memory. Each wait has a
//! time by which it must be over, and one task per listener looks now and then
//! whether any has passed. A connection where that is so is cut off, with all
//! that is on it.
//!
//! No wait may be longer than the deadline, and all waits for one answer
//! together may be longer only by what its bytes take at the slowest rate: who
//! reads a byte now and then does not read.
//!
//! An answer that nobody waits for costs nothing here on HTTP/1: no clock is
//! read before a write has to wait.

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

use super::Census;

/// The slowest reading that is waited for beyond the deadline, in bytes per
/// second.
const RATE_MIN: u64 = 4096;
/// The most bytes of an answer that are given to a stream at once. As many as
/// one frame holds.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// How often the clock is looked at.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);

/// The connections of a listener, as far as their patience goes.
#[derive(Debug)]
pub(super) struct Watchman {
    deadline: Duration,
    begin: Instant,
    connections: Mutex<Vec<Weak<Watch>>>,
}

impl Watchman {
    pub(super) fn new(deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            deadline,
            begin: Instant::now(),
            connections: Mutex::default(),
        })
    }

    pub(super) fn watch(self: &Arc<Self>) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            watchman: Arc::clone(self),
            socket_due: AtomicU64::new(NEVER),
            dues: Mutex::default(),
            task: OnceLock::new(),
        });
        lock(&self.connections).push(Arc::downgrade(&watch));
        watch
    }

    /// Cuts off whoever is overdue, for ever.
    pub(super) async fn look(&self, census: &Census) {
        let interval = (self.deadline / 4).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
        loop {
            tokio::time::sleep(interval).await;
            let now = self.now();
            lock(&self.connections).retain(|connection| {
                let Some(watch) = connection.upgrade() else {
                    return false;
                };
                let overdue = watch.is_overdue(now);
                if overdue && let Some(task) = watch.task.get() {
                    census.cut_off.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!("a client that does not read is cut off");
                    task.abort();
                }
                !overdue
            });
        }
    }

    /// Milliseconds since the listener began.
    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(NEVER)
    }

    fn after(&self, time: Duration) -> u64 {
        self.now().saturating_add(milliseconds(time))
    }
}

const NEVER: u64 = u64::MAX;

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER)
}

/// How long so many bytes take at the slowest rate.
fn time_for(bytes: usize) -> Duration {
    Duration::from_millis((bytes as u64).saturating_mul(1000) / RATE_MIN)
}

/// What one connection waits for.
#[derive(Debug)]
pub(super) struct Watch {
    watchman: Arc<Watchman>,
    /// When the write that waits on the socket must be over.
    socket_due: AtomicU64,
    /// When the bytes of its streams must be gone.
    dues: Mutex<Dues>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct Dues {
    next: u64,
    waiting: Vec<(u64, u64)>,
}

impl Watch {
    /// Says what is to be ended when it is overdue.
    pub(super) fn set_task(&self, task: AbortHandle) {
        // It is said once, by whoever spawned the task.
        let _ = self.task.set(task);
    }

    /// The socket takes no more.
    pub(super) fn blocked(&self) {
        let due = self.watchman.after(self.watchman.deadline);
        self.socket_due.store(due, Ordering::Relaxed);
    }

    /// It has taken so many bytes after all.
    pub(super) fn moved(&self, bytes: usize) {
        let due = self.socket_due.load(Ordering::Relaxed);
        let due = due.saturating_add(milliseconds(time_for(bytes)));
        let latest = self.watchman.after(self.watchman.deadline);
        self.socket_due.store(due.min(latest), Ordering::Relaxed);
    }

    /// It has taken everything.
    pub(super) fn cleared(&self) {
        self.socket_due.store(NEVER, Ordering::Relaxed);
    }

    /// Begins to wait for something, at most so long.
    pub(super) fn wait(self: &Arc<Self>, limit: Duration) -> Due {
        self.wait_until(self.watchman.after(limit))
    }

    fn wait_until(self: &Arc<Self>, due: u64) -> Due {
        let mut dues = lock(&self.dues);
        dues.next += 1;
        let id = dues.next;
        dues.waiting.push((id, due));
        Due {
            id,
            watch: Arc::clone(self),
        }
    }

    fn is_overdue(&self, now: u64) -> bool {
        now > self.socket_due.load(Ordering::Relaxed)
            || lock(&self.dues).waiting.iter().any(|(_, due)| now > *due)
    }
}

/// A wait. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct Due {
    id: u64,
    watch: Arc<Watch>,
}

impl Drop for Due {
    fn drop(&mut self) {
        let waiting = &mut lock(&self.watch.dues).waiting;
        if let Some(at) = waiting.iter().position(|(id, _)| *id == self.id) {
            waiting.swap_remove(at);
        }
    }
}

/// Lists and numbers are whole after every step, so a panic elsewhere is no
/// harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer on its way to a client.
pub(super) enum Answer {
    /// The socket shows whether it is read.
    Socket(Body),
    /// A stream shares the socket with others.
    Stream(Stream),
}

/// An answer on a stream of HTTP/2.
pub(super) struct Stream {
    inner: Body,
    watch: Arc<Watch>,
    /// What of a piece was too much at once.
    rest: Bytes,
    /// How long the client may yet keep this answer waiting.
    patience: Duration,
    /// There while it is the client's turn: nobody asks for the next piece
    /// before the client gives it a window.
    turn: Option<Turn>,
}

struct Turn {
    since: Instant,
    _due: Due,
}

impl Stream {
    pub(super) fn new(inner: Body, watch: &Arc<Watch>) -> Self {
        let mut stream = Self {
            inner,
            watch: Arc::clone(watch),
            rest: Bytes::new(),
            patience: watch.watchman.deadline,
            turn: None,
        };
        stream.begin_turn();
        stream
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Being asked is the client's sign; from here it is the upstream's turn.
        self.end_turn();
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
        let piece = self.hold(piece);
        self.begin_turn();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    /// Without more of a body there is nothing to give a window for.
    fn begin_turn(&mut self) {
        if !self.is_end_stream() {
            let limit = self.patience.min(self.watch.watchman.deadline);
            self.turn = Some(Turn {
                since: Instant::now(),
                _due: self.watch.wait(limit),
            });
        }
    }

    fn end_turn(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.patience = self.patience.saturating_sub(turn.since.elapsed());
        }
    }

    /// The piece is on record until the last of its bytes has been written.
    fn hold(&mut self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        let time = time_for(bytes.len());
        self.patience += time;
        let due = self.watch.wait(self.watch.watchman.deadline + time);
        Bytes::from_owner(Held { bytes, _due: due })
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

struct Held {
    bytes: Bytes,
    _due: Due,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Socket(body) => Pin::new(body).poll_frame(cx),
            Self::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Socket(body) => body.is_end_stream(),
            Self::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Socket(body) => body.size_hint(),
            Self::Stream(stream) => stream.size_hint(),
        }
    }
}
