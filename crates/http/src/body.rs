//! Bodies: one boxed type for a kept reply, a problem and a stream.

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};

/// Any error of a body or a service.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// An empty body.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body from bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body from bytes, with trailers.
pub fn with_trailers(bytes: Bytes, trailers: HeaderMap) -> Body {
    if trailers.is_empty() {
        return full(bytes);
    }
    Full::new(bytes)
        .with_trailers(std::future::ready(Some(Ok(trailers))))
        // This hides the body's length: with it HTTP/1 would send no chunks,
        // and without chunks no trailers.
        .map_frame(|frame| frame)
        .map_err(|never: std::convert::Infallible| match never {})
        .boxed_unsync()
}

/// Boxes another body.
pub fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
