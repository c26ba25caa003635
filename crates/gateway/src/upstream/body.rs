//! The bodies of requests to upstreams and of their responses.
//!
//! Both types implement `poll_frame` by hand: a body that is already in memory
//! needs no allocation, and a connection returns to the pool with the last frame
//! of its response.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::request_body::StreamedBody;
use super::{http1, http2};

/// Any error of a streamed body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request to an upstream.
#[derive(Debug, Default)]
pub enum OutgoingBody {
    /// No body, or its end.
    #[default]
    Empty,
    /// A body in memory.
    Full(Bytes),
    /// A body that is sent as it is received.
    Stream(UnsyncBoxBody<Bytes, BoxError>),
    /// A client's body that is sent as it is received.
    Client(ClientBody),
}

/// A client's body. Not boxed: most requests that are not protected have one.
#[derive(Debug)]
pub struct ClientBody(StreamedBody);

impl From<Bytes> for OutgoingBody {
    fn from(bytes: Bytes) -> Self {
        Self::Full(bytes)
    }
}

impl From<StreamedBody> for OutgoingBody {
    fn from(body: StreamedBody) -> Self {
        Self::Client(ClientBody(body))
    }
}

impl From<UnsyncBoxBody<Bytes, BoxError>> for OutgoingBody {
    fn from(body: UnsyncBoxBody<Bytes, BoxError>) -> Self {
        Self::Stream(body)
    }
}

impl Body for OutgoingBody {
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
            Self::Client(ClientBody(body)) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Stream(body) => body.is_end_stream(),
            Self::Client(ClientBody(body)) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(body) => body.size_hint(),
            Self::Client(ClientBody(body)) => body.size_hint(),
        }
    }
}

/// What a response occupies until its body ends.
#[derive(Debug)]
pub(super) enum ResponseGuard {
    /// A whole connection.
    Http1(http1::BorrowedConnection),
    /// A stream of the shared connection.
    Http2(#[expect(dead_code, reason = "released on drop")] http2::StreamPermit),
}

/// The body of an upstream's response. Read to its end, it returns its connection
/// to the pool; dropped earlier, it closes the connection.
#[derive(Debug)]
#[must_use = "dropping a body that was not read closes its connection"]
pub struct ResponseBody {
    inner: Incoming,
    guard: Option<ResponseGuard>,
}

impl ResponseBody {
    pub(super) fn new(inner: Incoming, guard: Option<ResponseGuard>) -> Self {
        let mut body = Self { inner, guard };
        if body.inner.is_end_stream() {
            body.end();
        }
        body
    }

    fn end(&mut self) {
        if let Some(ResponseGuard::Http1(connection)) = self.guard.take() {
            connection.return_to_pool();
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
            // A reader that knows the length does not poll after the last frame.
            Some(Ok(_)) if this.inner.is_end_stream() => this.end(),
            Some(Ok(_)) => {}
            Some(Err(_)) => this.guard = None,
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
