//! What goes upstream and what comes back.
//!
//! Both are types of their own, and polled by hand: a body that is all there
//! needs no box on the way that most requests take, and a connection is free
//! again at the very frame that ends its answer.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::{http1, http2};

/// Any error of somebody else's body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request to an upstream.
#[derive(Debug, Default)]
pub enum RequestBody {
    /// Nothing, or nothing more.
    #[default]
    Empty,
    /// All of it.
    Full(Bytes),
    /// As it comes.
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Full(bytes)
    }
}

impl From<UnsyncBoxBody<Bytes, BoxError>> for RequestBody {
    fn from(body: UnsyncBoxBody<Bytes, BoxError>) -> Self {
        Self::Stream(body)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match this {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = mem::take(bytes);
                *this = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

/// What an answer holds until its end.
#[derive(Debug)]
pub(super) enum Hold {
    /// A connection of its own.
    Http1(http1::Lease),
    /// A stream of a connection that others use too.
    Http2(#[expect(dead_code, reason = "it is held to be dropped")] http2::Place),
}

/// The body of an upstream's answer. Read to its end, it gives its connection
/// back; dropped before, it closes it.
#[derive(Debug)]
#[must_use = "a body that is not read closes its connection"]
pub struct ResponseBody {
    inner: Incoming,
    hold: Option<Hold>,
}

impl ResponseBody {
    pub(super) fn new(inner: Incoming, hold: Option<Hold>) -> Self {
        let mut body = Self { inner, hold };
        if body.inner.is_end_stream() {
            body.end();
        }
        body
    }

    fn end(&mut self) {
        if let Some(Hold::Http1(lease)) = self.hold.take() {
            lease.give_back();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &frame {
            // Who knows the length does not ask again after the last frame.
            Some(Ok(_)) if this.inner.is_end_stream() => this.end(),
            Some(Ok(_)) => {}
            Some(Err(_)) => this.hold = None,
            None => this.end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
