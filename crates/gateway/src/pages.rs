//! The page behind each problem's `type`, so that the link in an answer leads
//! somewhere. The pages are the files in `docs/problems/`.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::Response;
use onceward_http::body::{self, Body};
use onceward_http::problem::{Code, WELL_KNOWN};

/// The page that belongs to a path, if it is one of ours.
pub(crate) fn find(path: &str) -> Option<&'static str> {
    let word = path.strip_prefix(WELL_KNOWN)?.strip_prefix("/problems/")?;
    Code::ALL
        .into_iter()
        .find(|code| code.as_str() == word)
        .map(page)
}

/// A page as an answer.
pub(crate) fn answer(page: &'static str) -> Response<Body> {
    let mut response = Response::new(body::full(page));
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/markdown; charset=utf-8"),
    );
    response
}

fn page(code: Code) -> &'static str {
    macro_rules! page {
        ($name:literal) => {
            include_str!(concat!("../../../docs/problems/", $name, ".md"))
        };
    }
    match code {
        Code::InProgress => page!("in-progress"),
        Code::KeyReused => page!("key-reused"),
        Code::KeyMissing => page!("key-missing"),
        Code::KeyInvalid => page!("key-invalid"),
        Code::KeyProhibited => page!("key-prohibited"),
        Code::OutcomeUnknown => page!("outcome-unknown"),
        Code::UpstreamUnreachable => page!("upstream-unreachable"),
        Code::Paused => page!("paused"),
        Code::ReplyNotKept => page!("reply-not-kept"),
        Code::ReplyExpired => page!("reply-expired"),
        Code::StoreUnavailable => page!("store-unavailable"),
        Code::NoOperation => page!("no-operation"),
        Code::MethodNotAllowed => page!("method-not-allowed"),
        Code::BodyTooLarge => page!("body-too-large"),
        // `Code` grows in another crate; an unknown one is a malformed request at worst.
        _ => page!("bad-request"),
    }
}
