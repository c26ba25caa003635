//! A request's body on its way through: without trailers, and not for ever.
//!
//! Trailers are dropped because nothing that was checked in the headers may
//! change afterwards. A client that stops sending is given up after a while; if
//! the body breaks, whose fault it was is remembered, so that the answer can say
//! so; and while the client sends, the upstream is not taken to be slow.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onceward_http::body::BoxError;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, Sleep, sleep, timeout_at};

/// The client sent nothing for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client sent nothing for {0:?}")]
struct Idle(Duration);

/// Who has to act next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The client: more of the body has to come.
    Client,
    /// The upstream, since then: it has to take what is there, or to answer.
    Upstream(Instant),
    /// Nobody: the client broke its body off.
    BrokenOff,
}

/// How far a body is, seen from outside.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Turn>>);

impl Progress {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Turn::Upstream(Instant::now()))))
    }

    /// Whether the client broke its body off.
    pub(crate) fn is_broken_off(&self) -> bool {
        *self.turn() == Turn::BrokenOff
    }

    /// Waits for an answer of the upstream. The limit is for the upstream alone:
    /// the client's time to send is not counted.
    pub(crate) async fn answered<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let mut answer = pin!(answer);
        loop {
            let turn = *self.turn();
            let since = match turn {
                Turn::Upstream(since) => since,
                Turn::Client | Turn::BrokenOff => Instant::now(),
            };
            match timeout_at(since + limit, &mut answer).await {
                Err(elapsed) if turn == Turn::Upstream(since) && turn == *self.turn() => {
                    return Err(elapsed);
                }
                // Something has moved, or it is not the upstream's turn.
                Err(_) => {}
                Ok(answer) => return Ok(answer),
            }
        }
    }

    fn set(&self, turn: Turn) {
        *self.turn() = turn;
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // It is whole at any time, so a panic elsewhere is no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that passes through.
pub(crate) struct Passing {
    inner: Incoming,
    limit: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    progress: Progress,
    ended: bool,
}

impl Passing {
    /// Passes `inner` on, allowing pauses of at most `limit`.
    pub(crate) fn new(inner: Incoming, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            idle: None,
            progress: Progress::new(),
            ended: false,
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    fn broken(&mut self, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.progress.set(Turn::BrokenOff);
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }

    /// The clock runs only while nothing comes.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        self.idle
            .get_or_insert_with(|| Box::pin(sleep(limit)))
            .as_mut()
            .poll(cx)
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                self.idle = None;
                self.progress.set(Turn::Upstream(Instant::now()));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Ok(_)) | None) => {
                self.ended = true;
                self.progress.set(Turn::Upstream(Instant::now()));
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => self.broken(error.into()),
            Poll::Pending => {
                self.progress.set(Turn::Client);
                ready!(self.poll_idle(cx));
                let limit = self.limit;
                self.broken(Box::new(Idle(limit)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
