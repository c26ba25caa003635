//! A request's body on its way through: without trailers, and not for ever.
//!
//! Trailers are dropped because nothing that was checked in the headers may
//! change afterwards. A client that stops sending is given up after a while; and
//! if the body breaks, whose fault it was is remembered, so that the answer can
//! say so.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onceward_http::body::BoxError;
use tokio::time::{Sleep, sleep};

/// The client sent nothing for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client sent nothing for {0:?}")]
struct Idle(Duration);

/// Tells afterwards whether the client broke its body off.
#[derive(Clone, Default)]
pub(crate) struct Fault(Arc<AtomicBool>);

impl Fault {
    pub(crate) fn is_the_clients(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A body that passes through.
pub(crate) struct Passing {
    inner: Incoming,
    limit: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    fault: Fault,
    ended: bool,
}

impl Passing {
    /// Passes `inner` on, allowing pauses of at most `limit`.
    pub(crate) fn new(inner: Incoming, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            idle: None,
            fault: Fault::default(),
            ended: false,
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault.clone()
    }

    fn broken(&mut self, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.fault.0.store(true, Ordering::Relaxed);
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
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Ok(_)) | None) => {
                self.ended = true;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => self.broken(error.into()),
            Poll::Pending => {
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
