//! Lets connections end when their listener stops.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Whether the connections of a listener are to end.
#[derive(Debug, Default)]
pub(super) struct Drain {
    is_begun: AtomicBool,
    begun: Notify,
}

impl Drain {
    /// Makes every connection end after its requests in progress.
    pub(super) fn begin(&self) {
        self.is_begun.store(true, Ordering::Release);
        self.begun.notify_waiters();
    }

    /// Serves a connection to its end. When draining begins, `close` is called once.
    ///
    /// The task waits for the beginning only once, because its waker stays the same:
    /// afterwards each poll reads a flag, which costs less than to wait again.
    pub(super) fn serve<C: Future, F: FnOnce(Pin<&mut C>)>(
        &self,
        connection: C,
        close: F,
    ) -> Served<'_, C, F> {
        Served {
            drain: self,
            connection,
            begun: self.begun.notified(),
            is_waiting: false,
            close: Some(close),
        }
    }
}

pin_project! {
    /// The future of [`Drain::serve`]. It is no `async fn`, which would hold the
    /// connection twice, as its argument and where it waits.
    #[must_use = "futures do nothing unless they are awaited"]
    pub(super) struct Served<'a, C, F> {
        drain: &'a Drain,
        #[pin]
        connection: C,
        #[pin]
        begun: Notified<'a>,
        is_waiting: bool,
        close: Option<F>,
    }
}

impl<C: Future, F: FnOnce(Pin<&mut C>)> Future for Served<'_, C, F> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let mut this = self.project();
        if !*this.is_waiting {
            *this.is_waiting = true;
            // If it is ready, the flag is set.
            let _ = this.begun.poll(cx);
        }
        if this.drain.is_begun.load(Ordering::Acquire)
            && let Some(close) = this.close.take()
        {
            close(this.connection.as_mut());
        }
        this.connection.poll(cx)
    }
}
