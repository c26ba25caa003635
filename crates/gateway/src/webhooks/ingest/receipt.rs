//! What a provider is told of its events.

use bytes::Bytes;
use http::Response;
use http::header::{self, HeaderName, HeaderValue};
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

/// Tells that the same bytes came before under another id.
pub(super) const SAME_BYTES: HeaderName = HeaderName::from_static("idempotency-same-bytes");

/// What became of one event.
pub(super) struct Receipt {
    pub(super) outcome: Outcome,
    word: IdempotencyStatus,
    pub(super) id: Option<OperationId>,
    /// Until when it is known what became of it.
    expires: Option<Timestamp>,
    /// The same bytes came before under another id.
    pub(super) same_bytes: bool,
}

impl Receipt {
    pub(super) fn of(enqueued: &Enqueued) -> Self {
        let known = |outcome, record: &Record| Self {
            outcome,
            word: IdempotencyStatus::of_record(record),
            id: Some(record.id),
            expires: record.expires_at(),
            same_bytes: false,
        };
        let open = |outcome, id| Self {
            outcome,
            word: IdempotencyStatus::Processing,
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
                // An operator has to act, and knows of it.
                Claim::Paused(record) => known(Outcome::Paused, record),
                Claim::Unknown(record) => known(Outcome::Lost, record),
                Claim::Busy(record) => known(Outcome::Accepted, record),
                // Nobody is granted what is to be queued, and nothing is compared.
                Claim::Granted(_) | Claim::Mismatch => open(Outcome::Accepted, None),
            },
        }
    }

    /// The same bytes came before under another id, and are not wanted again.
    pub(super) fn same_bytes() -> Self {
        Self {
            outcome: Outcome::Replayed(State::Completed),
            word: IdempotencyStatus::Completed,
            id: None,
            expires: None,
            same_bytes: true,
        }
    }

    fn is_replayed(&self) -> bool {
        matches!(self.outcome, Outcome::Replayed(_))
    }
}

/// What a provider is told whose events are recorded.
pub(super) fn acknowledged(ack: &Acknowledgement, receipts: &[Receipt]) -> Response<Body> {
    let mut response = answered(ack.content_type, ack.body);
    let headers = response.headers_mut();
    let is_over = |receipt: &&Receipt| receipt.word != IdempotencyStatus::Processing;
    if let Some(first) = receipts.first() {
        // Of several, one that is not over yet speaks for all.
        let open = receipts.iter().find(|receipt| !is_over(receipt));
        let word = open.unwrap_or(first).word;
        headers.insert(fields::IDEMPOTENCY_STATUS, word.to_header());
        if receipts.iter().all(Receipt::is_replayed) {
            let replayed = HeaderValue::from_static("true");
            headers.insert(fields::IDEMPOTENT_REPLAYED, replayed);
        }
        if receipts.iter().any(|receipt| receipt.same_bytes) {
            headers.insert(SAME_BYTES, HeaderValue::from_static("true"));
        }
    }
    if let [receipt] = receipts {
        if let Some(id) = receipt.id {
            headers.insert(fields::OPERATION_ID, id_header(id));
        }
        if let Some(at) = receipt.expires {
            let at = HeaderValue::try_from(at.to_string()).expect("a timestamp is visible ASCII");
            headers.insert(fields::IDEMPOTENCY_EXPIRES, at);
        }
    }
    response
}

pub(super) fn answered(
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

/// What a provider is told that waits for the upstream: what the upstream says.
/// But a duplicate of what was settled is not to come again, whatever the
/// upstream thought of it then.
pub(super) fn told_at_once(
    ended: ProtectedResponse,
    ack: &Acknowledgement,
) -> Result<Response<Body>, Problem> {
    let settled = |word| {
        let receipt = Receipt {
            outcome: Outcome::Replayed(State::Completed),
            word,
            id: ended.id,
            expires: None,
            same_bytes: false,
        };
        Ok(acknowledged(ack, &[receipt]))
    };
    match (ended.outcome, ended.response) {
        (Outcome::Replayed(State::Failed), Ok(_)) => settled(IdempotencyStatus::Failed),
        (Outcome::Replayed(_), Ok(response)) if !response.status().is_success() => {
            settled(IdempotencyStatus::Completed)
        }
        (Outcome::Refused(Code::ReplyNotKept | Code::ReplyExpired), Err(problem)) => settled(
            problem
                .idempotency_status()
                .unwrap_or(IdempotencyStatus::Completed),
        ),
        (Outcome::Refused(Code::InProgress), Err(problem)) => Err(problem.for_provider()),
        (_, answer) => answer,
    }
}
