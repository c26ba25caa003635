//! Reads the body of an answer, up to a limit.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::body::{Body, BoxError};

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// The result of reading a body.
pub(crate) enum Captured {
    /// The whole body, with its trailers.
    Whole(Bytes, HeaderMap),
    /// The body exceeds the limit or is a stream: the part that was read, and the rest.
    TooLarge(Bytes, Body),
    /// The body ended with an error.
    Broken(BoxError),
}

/// Reads a body up to `limit` bytes.
pub(crate) async fn capture(headers: &HeaderMap, mut body: Body, limit: usize) -> Captured {
    if is_stream(headers) || body.size_hint().lower() > limit as u64 {
        return Captured::TooLarge(Bytes::new(), body);
    }
    let mut read = Pieces::default();
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => {
                read.push(data);
                if read.len() > limit {
                    return Captured::TooLarge(read.joined(), body);
                }
            }
            // Trailers end a body.
            Ok(Err(frame)) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                return Captured::Whole(read.joined(), trailers);
            }
            Err(error) => return Captured::Broken(error),
        }
    }
    Captured::Whole(read.joined(), HeaderMap::new())
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().get(..EVENT_STREAM.len()))
        .is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
}

/// The pieces of a body. A single piece is kept without a copy; several are joined.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    more: BytesMut,
}

impl Pieces {
    fn push(&mut self, data: Bytes) {
        if self.more.is_empty() && self.first.is_empty() {
            self.first = data;
            return;
        }
        if self.more.is_empty() {
            self.more.extend_from_slice(&self.first);
        }
        self.more.extend_from_slice(&data);
    }

    fn len(&self) -> usize {
        self.first.len().max(self.more.len())
    }

    fn joined(self) -> Bytes {
        if self.more.is_empty() {
            self.first
        } else {
            self.more.freeze()
        }
    }
}
