//! Builds answers from records and replies.

use std::sync::Arc;

use bytes::BytesMut;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER,
};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use onceward_core::record::{Answer, Record, Reply, State};

use crate::body::{self, Body};
use crate::fields;
use crate::problem::Problem;
use crate::status::{IdempotencyStatus, StatusDocument, id_header};

/// The answer to a caller, before a problem is written in the caller's format.
pub(crate) type Answered = Result<Response<Body>, Problem>;

/// Removes hop-by-hop headers from an upstream's answer, and those that only
/// Onceward may send.
pub(crate) fn clean(parts: &mut Parts) {
    fields::strip_hop_by_hop(&mut parts.headers);
    fields::strip_ours(&mut parts.headers);
}

/// The same for its trailers, so that they cannot carry removed headers.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    fields::strip_hop_by_hop(trailers);
    fields::strip_ours(trailers);
    trailers.remove(CONTENT_LENGTH);
}

/// A reply to keep, from an answer that was read whole. It is a copy, because the
/// bytes that were read would keep the connection's whole buffer alive, and all of
/// it is one allocation.
pub(crate) fn reply_of(parts: &Parts, body: &[u8], trailers: &HeaderMap) -> Reply {
    let headers = &parts.headers;
    let lines = fields::kept(headers).chain(fields::kept(trailers));
    let bytes: usize = lines.map(|(name, value)| name.len() + value.len()).sum();
    let mut buffer = BytesMut::with_capacity(bytes + body.len());
    let mut copy = |from: &[u8]| {
        buffer.extend_from_slice(from);
        buffer.split().freeze()
    };
    Reply {
        status: parts.status.as_u16(),
        headers: fields::kept(headers)
            .map(|(name, value)| (copy(name), copy(value)))
            .collect(),
        trailers: fields::kept(trailers)
            .map(|(name, value)| (copy(name), copy(value)))
            .collect(),
        body: copy(body),
    }
}

/// The first caller's answer: the upstream's, with Onceward's headers.
pub(crate) fn first(
    mut parts: Parts,
    body: Body,
    word: IdempotencyStatus,
    id: OperationId,
    expires: Option<Timestamp>,
) -> Response<Body> {
    mark(&mut parts.headers, word, id, expires);
    Response::from_parts(parts, body)
}

fn mark(
    headers: &mut HeaderMap,
    word: IdempotencyStatus,
    id: OperationId,
    expires: Option<Timestamp>,
) {
    headers.insert(fields::IDEMPOTENCY_STATUS, word.to_header());
    headers.insert(fields::OPERATION_ID, id_header(id));
    if let Some(at) = expires {
        let at = HeaderValue::try_from(at.to_string()).expect("a timestamp is visible ASCII");
        headers.insert(fields::IDEMPOTENCY_EXPIRES, at);
    }
}

/// The first caller's answer where the upstream itself committed the reply. A
/// reply has no headers that describe one exchange only, such as cookies and
/// dates: they come from the headers of the `exchange`, if there was one.
pub(crate) fn of_reply(
    reply: &Arc<Reply>,
    exchange: Option<&HeaderMap>,
    word: IdempotencyStatus,
    id: OperationId,
    expires: Option<Timestamp>,
) -> Response<Body> {
    let mut response = from_reply(reply);
    let headers = response.headers_mut();
    if let Some(exchange) = exchange {
        fields::add_not_replayed(headers, exchange);
    }
    mark(headers, word, id, expires);
    response
}

fn reply_body(reply: &Reply) -> Body {
    let trailers = fields::to_headers(&reply.trailers);
    body::with_trailers(reply.body.clone(), trailers)
}

fn from_reply(reply: &Arc<Reply>) -> Response<Body> {
    let mut response = Response::new(reply_body(reply));
    // It was valid when the reply was kept, and the record has a checksum.
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or_default();
    *response.headers_mut() = fields::to_headers(&reply.headers);
    response
}

/// The head of a record's replays, made once per record in memory: a record that is
/// asked for again and again is the common case of a retry storm.
struct ReplayHead {
    status: StatusCode,
    headers: HeaderMap,
}

fn replay_of(record: &Record, reply: &Arc<Reply>) -> Response<Body> {
    let head = record.rendered.get_or_make(|| {
        let word = IdempotencyStatus::of_record(record);
        let (parts, _) = again(reply, word, record.id, record.expires_at()).into_parts();
        ReplayHead {
            status: parts.status,
            headers: parts.headers,
        }
    });
    let mut response = Response::new(reply_body(reply));
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers.clone();
    response
}

/// A replay of a reply.
pub(crate) fn again(
    reply: &Arc<Reply>,
    word: IdempotencyStatus,
    id: OperationId,
    expires: Option<Timestamp>,
) -> Response<Body> {
    let mut response = from_reply(reply);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        fields::IDEMPOTENT_REPLAYED,
        HeaderValue::from_static("true"),
    );
    mark(headers, word, id, expires);
    response
}

/// A later caller's answer, from a record that no longer runs.
pub(crate) fn of_record(record: &Record) -> Answered {
    let word = IdempotencyStatus::of_record(record);
    match (&record.state, &record.answer) {
        (State::Completed | State::Failed, Some(Answer::Kept(reply))) => {
            Ok(replay_of(record, reply))
        }
        (_, Some(Answer::NotKept { status })) => {
            let problem = Problem::reply_not_kept(record.id, *status);
            Err(problem.with_idempotency_status(word))
        }
        (_, Some(answer)) => {
            let problem = Problem::reply_expired(record.id, answer.status());
            Err(problem.with_idempotency_status(word))
        }
        (State::Paused, None) => Err(Problem::paused(record.id)),
        (State::Unknown, None) => Err(Problem::outcome_unknown(record.id)),
        (_, None) => Err(Problem::in_progress(record.id, word)),
    }
}

/// 202 with the URL of the status of an operation that runs.
pub(crate) fn accepted(record: &Record, status_path: &str) -> Response<Body> {
    let mut response = document(record, StatusCode::ACCEPTED);
    if let Ok(place) = HeaderValue::from_str(status_path) {
        response.headers_mut().insert(LOCATION, place);
    }
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The status document of a record.
pub(crate) fn document(record: &Record, status: StatusCode) -> Response<Body> {
    let bytes = serde_json::to_vec(&StatusDocument::of(record)).unwrap_or_default();
    let mut response = Response::new(body::full(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    mark(
        headers,
        IdempotencyStatus::of_record(record),
        record.id,
        record.expires_at(),
    );
    response
}
