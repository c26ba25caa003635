//! Work that outlives its caller without a task of its own.
//!
//! Most callers wait until their operation is recorded. Then the work is polled in
//! the caller's own task, which costs neither another task nor a wake from one to
//! the other. If the caller goes earlier, or the answer comes before the end of the
//! work, the rest of the work becomes a task of the engine.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The rest of the work: counted among the engine's tasks, and ended by
/// [`Engine::abandon`](super::Engine::abandon).
pub(super) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for the answer of work that goes on when this is dropped. Returns `None`
/// where the work ended without an answer, because it panicked or was abandoned.
pub struct Detached<T> {
    work: Option<Work>,
    /// The caller's, which goes on with the rest of the work.
    runtime: Option<Handle>,
    /// The work itself sends it.
    answer: oneshot::Receiver<T>,
}

impl<T> fmt::Debug for Detached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached")
            .field("ended", &self.work.is_none())
            .finish_non_exhaustive()
    }
}

impl<T> Detached<T> {
    pub(super) fn new(work: Work, answer: oneshot::Receiver<T>) -> Self {
        Self {
            work: Some(work),
            runtime: Handle::try_current().ok(),
            answer,
        }
    }

    fn poll_work(&mut self, cx: &mut Context<'_>) {
        let Some(work) = &mut self.work else {
            return;
        };
        // A panic ends the work as it would end a task, not the caller. Nothing of
        // the work is used afterwards.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.work = None;
        }
    }
}

impl<T> Future for Detached<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = self.get_mut();
        this.poll_work(cx);
        match this.answer.try_recv() {
            Ok(answer) => Poll::Ready(Some(answer)),
            Err(oneshot::error::TryRecvError::Closed) => Poll::Ready(None),
            // Only the work can send it, and the work wakes this task.
            Err(oneshot::error::TryRecvError::Empty) if this.work.is_some() => Poll::Pending,
            Err(oneshot::error::TryRecvError::Empty) => Poll::Ready(None),
        }
    }
}

/// The runtime for work that follows a drop: the current one, or the one in which the
/// dropped value was made. A library's caller may drop it between two calls of
/// `block_on`, where none is current. If that one has ended, the work is not done, and
/// a claim ends with its lease.
pub(super) fn runtime_after_drop(made_in: Option<&Handle>) -> Option<Handle> {
    let current = Handle::try_current().ok();
    current.or_else(|| made_in.cloned())
}

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        // Without a runtime, or if it has ended, the rest counts as lost.
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
            runtime.spawn(work);
        }
    }
}
