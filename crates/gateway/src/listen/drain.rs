//! Lets connections end when their listener stops.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

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
    pub(super) async fn serve<C: Future>(
        &self,
        connection: C,
        close: impl FnOnce(Pin<&mut C>),
    ) -> C::Output {
        let mut connection = pin!(connection);
        let mut begun = pin!(self.begun.notified());
        let mut close = Some(close);
        let mut is_waiting = false;
        poll_fn(|cx| {
            if !is_waiting {
                is_waiting = true;
                // If it is ready, the flag is set.
                let _ = begun.as_mut().poll(cx);
            }
            if self.is_begun.load(Ordering::Acquire)
                && let Some(close) = close.take()
            {
                close(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        })
        .await
    }
}
