//! The answers to providers about their events.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use onceward_core::record::{Record, State};
use onceward_core::store::{Claim, Enqueued};
use onceward_http::body::{self, Body};
use onceward_http::fields;
use onceward_http::problem::{Code, Problem};
use onceward_http::run::{Outcome, ProtectedResponse};
use onceward_http::status::{IdempotencyStatus, id_header};
use onceward_webhooks::Acknowledgement;

/// Marks an event whose bytes came before under another id.
pub(super) const SAME_BYTES: HeaderName = HeaderName::from_static("idempotency-same-bytes");

/// The result of one event.
pub(super) struct EventResult {
    pub(super) outcome: Outcome,
    status: IdempotencyStatus,
    pub(super) id: Option<OperationId>,
    /// When its outcome expires.
    expires: Option<Timestamp>,
    /// The same bytes came before under another id.
    pub(super) same_bytes: bool,
}

impl EventResult {
    pub(super) fn of(enqueued: &Enqueued) -> Self {
        let known = |outcome, record: &Record| Self {
            outcome,
            status: IdempotencyStatus::of_record(record),
            id: Some(record.id),
            expires: record.expires_at(),
            same_bytes: false,
        };
        let open = |outcome, id| Self {
            outcome,
            status: IdempotencyStatus::Processing,
            id,
            expires: None,
            same_bytes: false,
        };
        match enqueued {
            Enqueued::Accepted(id) => open(Outcome::Queued, Some(*id)),
            Enqueued::Known(claim) => match claim {
                Claim::Finished(record) | Claim::Expired(record) => {
                    known(Outcome::Replayed(record.state), record)
                }
                // Only an operator can change it; the provider need not resend.
                Claim::Paused(record) => known(Outcome::Paused, record),
                Claim::Unknown(record) => known(Outcome::Lost, record),
                Claim::Busy(record) => known(Outcome::Accepted, record),
                // Enqueueing never grants, and compares no fingerprint.
                Claim::Granted(_) | Claim::Mismatch => open(Outcome::Accepted, None),
            },
        }
    }

    /// The same bytes came before under another id, and are refused.
    pub(super) fn same_bytes() -> Self {
        Self {
            outcome: Outcome::Replayed(State::Completed),
            status: IdempotencyStatus::Completed,
            id: None,
            expires: None,
            same_bytes: true,
        }
    }

    fn is_replayed(&self) -> bool {
        matches!(self.outcome, Outcome::Replayed(_))
    }
}

/// The acknowledgement of recorded events.
pub(super) fn acknowledged(ack: &Acknowledgement, results: &[EventResult]) -> Response<Body> {
    let mut response = response(ack.content_type, ack.body);
    let headers = response.headers_mut();
    if let Some(first) = results.first() {
        // A batch is `processing` while any of its events is.
        let open = results
            .iter()
            .find(|result| result.status == IdempotencyStatus::Processing);
        let status = open.unwrap_or(first).status;
        headers.insert(fields::IDEMPOTENCY_STATUS, status.to_header());
        if results.iter().all(EventResult::is_replayed) {
            let replayed = HeaderValue::from_static("true");
            headers.insert(fields::IDEMPOTENT_REPLAYED, replayed);
        }
        if results.iter().any(|result| result.same_bytes) {
            headers.insert(SAME_BYTES, HeaderValue::from_static("true"));
        }
    }
    if let [result] = results {
        if let Some(id) = result.id {
            headers.insert(fields::OPERATION_ID, id_header(id));
        }
        if let Some(at) = result.expires {
            let at = HeaderValue::try_from(at.to_string()).expect("a timestamp is visible ASCII");
            headers.insert(fields::IDEMPOTENCY_EXPIRES, at);
        }
    }
    response
}

pub(super) fn response(
    content_type: Option<&'static str>,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(body::full(body));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(content_type) = content_type {
        let content_type = HeaderValue::from_static(content_type);
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    response
}

/// The answer to a `sync` event: the upstream's, with two exceptions. A duplicate
/// of a finished event gets a 2xx whatever the upstream answered then, so that
/// the provider does not resend it. A 2xx that the upstream calls `transient` is
/// a 503, so that the provider does.
pub(super) fn answer_of_sync(
    ended: ProtectedResponse,
    ack: &Acknowledgement,
) -> Result<Response<Body>, Problem> {
    let finished = |status| {
        let result = EventResult {
            outcome: Outcome::Replayed(State::Completed),
            status,
            id: ended.id,
            expires: None,
            same_bytes: false,
        };
        Ok(acknowledged(ack, &[result]))
    };
    match (ended.outcome, ended.response) {
        (Outcome::Replayed(State::Failed), Ok(_)) => finished(IdempotencyStatus::Failed),
        (Outcome::Replayed(_), Ok(response)) if !response.status().is_success() => {
            finished(IdempotencyStatus::Completed)
        }
        (Outcome::Refused(Code::ReplyNotKept | Code::ReplyExpired), Err(problem)) => finished(
            problem
                .idempotency_status()
                .unwrap_or(IdempotencyStatus::Completed),
        ),
        (Outcome::Refused(Code::InProgress), Err(problem)) => Err(problem.for_provider()),
        (Outcome::Released, Ok(mut response)) if response.status().is_success() => {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(response)
        }
        (_, answer) => answer,
    }
}
