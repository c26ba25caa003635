//! A request's body that is streamed from the client to the upstream, without
//! trailers.
//!
//! Trailers are dropped because they could change what was checked in the headers.
//! A client that sends nothing for too long ends its body with an error. The state
//! of the body records whether the client caused a failure, and the time for which
//! the gateway waits for the client does not count against the upstream's timeout.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onceward_core::deadline::DeadlineExceeded;
use onceward_http::body::BoxError;
use pin_project_lite::pin_project;
use tokio::task::coop::{self, Unconstrained};
use tokio::time::{Instant, Sleep, sleep};

/// The client sent nothing for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client sent nothing for {0:?}")]
struct ClientStalled(Duration);

/// What the body waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyState {
    /// For the client to send more.
    AwaitingClient,
    /// For the upstream to read what has arrived or to answer, since this time after
    /// the start.
    AwaitingUpstream(Duration),
    /// Nothing: the client broke its body off.
    BrokenOff,
}

/// The state of a streamed body, for the task that waits for the answer.
#[derive(Clone, Debug)]
pub(crate) struct BodyProgress(Arc<SharedProgress>);

#[derive(Debug)]
struct SharedProgress {
    start: Instant,
    /// One of the two below, or the microseconds of `AwaitingUpstream`.
    state: AtomicU64,
}

const AWAITING_CLIENT: u64 = u64::MAX;
const BROKEN_OFF: u64 = u64::MAX - 1;

impl BodyProgress {
    fn new() -> Self {
        Self(Arc::new(SharedProgress {
            start: Instant::now(),
            state: AtomicU64::new(0),
        }))
    }

    /// Whether the client broke its body off.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.state() == BodyState::BrokenOff
    }

    /// Waits for the upstream's answer. The limit applies to the upstream only: the
    /// time that the client takes to send is not counted.
    pub(crate) fn wait_for_answer<F: Future>(&self, limit: Duration, answer: F) -> AnswerWait<F> {
        AnswerWait {
            answer,
            limit,
            progress: self.clone(),
            timer: None,
        }
    }

    /// How long the upstream has had something to do without pause.
    fn upstream_took(&self, state: BodyState) -> Duration {
        match state {
            BodyState::AwaitingUpstream(since) => self.0.start.elapsed().saturating_sub(since),
            BodyState::AwaitingClient | BodyState::BrokenOff => Duration::ZERO,
        }
    }

    /// The upstream has something to do from now on.
    fn await_upstream(&self) {
        let since = self.0.start.elapsed().as_micros();
        let since = u64::try_from(since).unwrap_or(BROKEN_OFF - 1);
        self.0.state.store(since, Ordering::Release);
    }

    fn set(&self, state: u64) {
        self.0.state.store(state, Ordering::Release);
    }

    fn state(&self) -> BodyState {
        match self.0.state.load(Ordering::Acquire) {
            AWAITING_CLIENT => BodyState::AwaitingClient,
            BROKEN_OFF => BodyState::BrokenOff,
            since => BodyState::AwaitingUpstream(Duration::from_micros(since)),
        }
    }
}

pin_project! {
    /// The future of [`BodyProgress::wait_for_answer`]. As [`within`], it is no
    /// `async fn`, which would hold the answer's future twice.
    ///
    /// [`within`]: onceward_core::deadline::within
    #[must_use = "futures do nothing unless they are awaited"]
    pub(crate) struct AnswerWait<F> {
        #[pin]
        answer: F,
        limit: Duration,
        progress: BodyProgress,
        // With the state in which it was set.
        #[pin]
        timer: Option<StateTimer>,
    }
}

pin_project! {
    struct StateTimer {
        state: BodyState,
        // Unconstrained, so that an answer which always uses up the task's budget
        // cannot keep the timer from being polled.
        #[pin]
        sleep: Unconstrained<Sleep>,
    }
}

impl<F: Future> Future for AnswerWait<F> {
    type Output = Result<F::Output, DeadlineExceeded>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(answer) = this.answer.poll(cx) {
            return Poll::Ready(Ok(answer));
        }
        loop {
            if this.timer.is_none() {
                let state = this.progress.state();
                let left = this
                    .limit
                    .saturating_sub(this.progress.upstream_took(state));
                let sleep = coop::unconstrained(sleep(left));
                this.timer.set(Some(StateTimer { state, sleep }));
            }
            let timer = this.timer.as_mut().as_pin_mut().expect("it is set above");
            let timer = timer.project();
            ready!(timer.sleep.poll(cx));
            let state = *timer.state;
            if matches!(state, BodyState::AwaitingUpstream(_)) && state == this.progress.state() {
                return Poll::Ready(Err(DeadlineExceeded(*this.limit)));
            }
            // The body has progressed, or waits for the client.
            this.timer.set(None);
        }
    }
}

/// A body that is streamed to the upstream.
#[derive(Debug)]
pub(crate) struct StreamedBody {
    inner: Incoming,
    limit: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    progress: BodyProgress,
    ended: bool,
}

impl StreamedBody {
    /// Streams `inner`, with pauses of at most `limit`.
    pub(crate) fn new(inner: Incoming, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            idle: None,
            progress: BodyProgress::new(),
            ended: false,
        }
    }

    pub(crate) fn progress(&self) -> BodyProgress {
        self.progress.clone()
    }

    fn break_off(&mut self, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.progress.set(BROKEN_OFF);
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }

    /// The timer runs only while nothing arrives.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        self.idle
            .get_or_insert_with(|| Box::pin(sleep(limit)))
            .as_mut()
            .poll(cx)
    }
}

impl Body for StreamedBody {
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
                self.progress.await_upstream();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Ok(_)) | None) => {
                self.ended = true;
                // Otherwise the last bytes came just before.
                if self.progress.state() == BodyState::AwaitingClient {
                    self.progress.await_upstream();
                }
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => self.break_off(error.into()),
            Poll::Pending => {
                self.progress.set(AWAITING_CLIENT);
                ready!(self.poll_idle(cx));
                let limit = self.limit;
                self.break_off(Box::new(ClientStalled(limit)))
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
