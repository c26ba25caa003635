//! Bodies: one type for a kept reply, a problem and a stream.
//!
//! Most answers are bytes in memory. They need no box, and no call through one.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Any error of a body or a service.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every answer.
#[derive(Default)]
pub struct Body(Content);

#[derive(Default)]
enum Content {
    /// No bytes, or no more.
    #[default]
    Ended,
    /// Never empty.
    Bytes(Bytes),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

/// An empty body.
pub fn empty() -> Body {
    Body::default()
}

/// A body from bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    let bytes = bytes.into();
    Body(match bytes.is_empty() {
        true => Content::Ended,
        false => Content::Bytes(bytes),
    })
}

/// A body from bytes, with trailers.
pub fn with_trailers(bytes: Bytes, trailers: HeaderMap) -> Body {
    if trailers.is_empty() {
        return full(bytes);
    }
    let body = Full::new(bytes)
        .with_trailers(std::future::ready(Some(Ok(trailers))))
        // This hides the body's length: with it HTTP/1 would send no chunks,
        // and without chunks no trailers.
        .map_frame(|frame| frame)
        .map_err(|never: std::convert::Infallible| match never {});
    Body(Content::Stream(body.boxed_unsync()))
}

/// Boxes another body.
pub fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Body(Content::Stream(body.map_err(Into::into).boxed_unsync()))
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            Content::Stream(body) => Pin::new(body).poll_frame(cx),
            content => Poll::Ready(match mem::take(content) {
                Content::Bytes(bytes) => Some(Ok(Frame::data(bytes))),
                _ => None,
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Ended => true,
            Content::Bytes(_) => false,
            Content::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Ended => SizeHint::with_exact(0),
            Content::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Content::Ended => "Body(ended)",
            Content::Bytes(_) => "Body(bytes)",
            Content::Stream(_) => "Body(stream)",
        })
    }
}
