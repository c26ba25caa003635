//! What the gateway publishes of itself: which routes are protected and how, as
//! the IETF draft demands, and the page behind each problem's `type`, so that
//! the links in an answer lead somewhere. The pages are the files in
//! `docs/problems/`.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use onceward_core::class::Class;
use onceward_http::body::{self, Body};
use onceward_http::problem::{Code, WELL_KNOWN};
use serde::Serialize;

/// A page of our own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page {
    /// The policy of every route.
    Policy,
    /// What a problem means.
    Problem(Code),
}

/// The page that belongs to a path, if it is one of ours.
pub(crate) fn find(path: &str) -> Option<Page> {
    let rest = path.strip_prefix(WELL_KNOWN)?;
    if rest.is_empty() {
        return Some(Page::Policy);
    }
    let word = rest.strip_prefix("/problems/")?;
    let code = Code::ALL.into_iter().find(|code| code.as_str() == word)?;
    Some(Page::Problem(code))
}

/// A page as an answer. Without configuration every route has the same class.
pub(crate) fn answer(page: Page, class: &Class) -> Response<Body> {
    match page {
        Page::Policy => {
            let document = serde_json::to_vec(&Policy::unconfigured(class)).unwrap_or_default();
            typed("application/json", body::full(document))
        }
        Page::Problem(code) => typed("text/markdown; charset=utf-8", body::full(text(code))),
    }
}

fn typed(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The policy of every route, as it goes over the wire.
#[derive(Serialize)]
struct Policy<'a> {
    header: &'static str,
    key_pattern: &'static str,
    routes: [RoutePolicy<'a>; 1],
    recovery: &'static str,
    problems: String,
}

#[derive(Serialize)]
struct RoutePolicy<'a> {
    methods: [&'static str; 2],
    path: &'static str,
    policy: &'static str,
    class: &'a str,
    retention_seconds: u64,
    remember_seconds: u64,
}

impl<'a> Policy<'a> {
    fn unconfigured(class: &'a Class) -> Self {
        Self {
            header: "Idempotency-Key",
            key_pattern: "^(?!t-)[A-Za-z0-9._~-]{1,255}$",
            routes: [RoutePolicy {
                methods: ["POST", "PATCH"],
                path: "/{*rest}",
                policy: "ACCEPTED",
                class: &class.name,
                retention_seconds: class.retention.as_secs(),
                remember_seconds: class.remember.as_secs(),
            }],
            recovery: "{path}/by-idempotency-key/{key}",
            problems: format!("{WELL_KNOWN}/problems/{{code}}"),
        }
    }
}

fn text(code: Code) -> &'static str {
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
