//! CORS: answers preflight requests of browsers, and lists in each answer's headers
//! what a page of another site may read.
//!
//! The upstream's CORS headers are replaced: they do not know the gateway's own
//! headers, and two sets would contradict each other.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION, ORIGIN,
    RETRY_AFTER, VARY,
};
use http::{Method, Response, StatusCode};
use onceward_http::body::{self, Body};
use onceward_http::fields;

use crate::config::{Cors, Origins};

/// The headers that a page may send, beside those that the route lists.
static SENT: [HeaderName; 5] = [
    fields::IDEMPOTENCY_KEY,
    fields::PREFER,
    http::header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    http::header::CONTENT_TYPE,
];

/// The headers that a page may read, beside those that the route lists.
static READ: [HeaderName; 8] = [
    fields::IDEMPOTENCY_STATUS,
    fields::IDEMPOTENCY_EXPIRES,
    fields::IDEMPOTENCY_KEY_SOURCE,
    fields::IDEMPOTENT_REPLAYED,
    fields::OPERATION_ID,
    LINK,
    LOCATION,
    RETRY_AFTER,
];

/// The method that a preflight request asks about; `None` for other requests.
pub(super) fn preflighted_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(method.as_bytes()).ok()
}

/// The answer to a preflight request.
pub(super) fn respond_to_preflight(
    cors: &Cors,
    method: &Method,
    headers: &HeaderMap,
) -> Response<Body> {
    let mut response = Response::new(body::full(Vec::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(VARY, HeaderValue::from_static("Origin"));
    if !allow(cors, headers.get(ORIGIN), answer) {
        return response;
    }
    insert(answer, ACCESS_CONTROL_ALLOW_METHODS, method.to_string());
    let names = SENT.iter().chain(&cors.headers);
    insert(answer, ACCESS_CONTROL_ALLOW_HEADERS, joined(names));
    let max_age = cors.max_age.as_secs().to_string();
    insert(answer, ACCESS_CONTROL_MAX_AGE, max_age);
    response
}

/// Adds the headers that list what the page may read.
pub(super) fn add_headers(cors: &Cors, origin: Option<&HeaderValue>, answer: &mut HeaderMap) {
    let theirs: Vec<_> = answer
        .keys()
        .filter(|name| name.as_str().starts_with("access-control-"))
        .cloned()
        .collect();
    for name in theirs {
        answer.remove(name);
    }
    answer.append(VARY, HeaderValue::from_static("Origin"));
    if allow(cors, origin, answer) {
        let names = READ.iter().chain(&cors.expose);
        insert(answer, ACCESS_CONTROL_EXPOSE_HEADERS, joined(names));
    }
}

/// Names the site in the answer's headers, if the site may call the route.
fn allow(cors: &Cors, origin: Option<&HeaderValue>, answer: &mut HeaderMap) -> bool {
    let Some(origin) = origin else {
        return false;
    };
    let allowed = match &cors.origins {
        Origins::Any => HeaderValue::from_static("*"),
        Origins::These(sites) if sites.iter().any(|site| origin == site.as_str()) => origin.clone(),
        Origins::These(_) => return false,
    };
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    if cors.credentials {
        let yes = HeaderValue::from_static("true");
        answer.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
    }
    true
}

fn joined<'a>(names: impl Iterator<Item = &'a HeaderName>) -> String {
    names.map(HeaderName::as_str).collect::<Vec<_>>().join(", ")
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}
