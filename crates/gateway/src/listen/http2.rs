//! Rules that hyper applies on HTTP/1 only, applied here on HTTP/2: the limits
//! of a head, and a response to HEAD without a body.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use hyper::body::Body as _;
use onceward_http::body::{self, Body};

use super::framing::{HEADERS_BYTES_MAX, HEADERS_MAX};

/// Whether an HTTP/2 head is larger than an HTTP/1 head may be. `framing`
/// measures HTTP/1 heads.
pub(super) fn is_head_too_large(headers: &HeaderMap) -> bool {
    const SEPARATORS: usize = ": \r\n".len();
    let bytes =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + SEPARATORS;
    headers.len() > HEADERS_MAX || headers.iter().map(bytes).sum::<usize>() > HEADERS_BYTES_MAX
}

/// The same response that h2 gives to a head beyond its own limit.
pub(super) fn head_too_large() -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// The response to a HEAD request: it states the body's length and omits the
/// body.
pub(super) fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        let content_length = parts.headers.entry(header::CONTENT_LENGTH);
        content_length.or_insert_with(|| length.into());
    }
    Response::from_parts(parts, body::empty())
}
