//! The problems of protected requests, one constructor each: what happened, and
//! what the client can do.

use http::StatusCode;
use onceward_core::identity::OperationId;
use onceward_core::key::KeyError;
use onceward_core::store::StoreError;

use super::{Code, Problem};
use crate::status::IdempotencyStatus;

impl Problem {
    /// The key does not follow the grammar.
    pub fn invalid_key(error: KeyError) -> Self {
        Self {
            reason: Some(error.reason()),
            ..Self::new(
                Code::KeyInvalid,
                format!("The Idempotency-Key is not valid: {error}."),
            )
        }
    }

    /// A key is required, and the request has none.
    pub fn key_missing() -> Self {
        Self::new(
            Code::KeyMissing,
            "Send an Idempotency-Key header: one value per intent, the same for all its retries.",
        )
    }

    /// The key belongs to a different request.
    pub(crate) fn key_reused() -> Self {
        Self::new(
            Code::KeyReused,
            "This key was used for a different request. Use a new key for a new intent; to retry, send exactly the first request.",
        )
    }

    /// The same, as 409, for classes that say `mismatch = "409"`.
    pub(crate) fn key_reused_conflict() -> Self {
        Self::key_reused().with_status(StatusCode::CONFLICT)
    }

    /// No operation of this caller has the key or id. Another caller's
    /// operation gets the same bytes.
    pub fn no_operation() -> Self {
        Self::new(
            Code::NoOperation,
            "No operation with this key or id was found for this caller.",
        )
    }

    /// The operation is still running, or has just been released.
    pub(crate) fn in_progress(id: OperationId, status: IdempotencyStatus) -> Self {
        Self::new(
            Code::InProgress,
            "A request with this key is in progress. Send the same request again in a moment.",
        )
        .with_retry_after(1)
        .with_operation(id)
        .with_idempotency_status(status)
    }

    /// All attempts failed.
    pub(crate) fn paused(id: OperationId) -> Self {
        Self::new(
            Code::Paused,
            "All attempts failed and the operation is paused. An operator can resume or purge it.",
        )
        .with_operation(id)
        .with_idempotency_status(IdempotencyStatus::Paused)
    }

    /// The operation may have run: the answer to later callers.
    pub(crate) fn outcome_unknown(id: OperationId) -> Self {
        Self::new(
            Code::OutcomeUnknown,
            "The request was sent to the upstream and may have run. It is not run again until its outcome is resolved.",
        )
        .with_operation(id)
        .with_idempotency_status(IdempotencyStatus::Unknown)
    }

    /// The same as 504, for the caller whose request was sent.
    pub(crate) fn no_answer(id: OperationId) -> Self {
        Self::outcome_unknown(id).with_status(StatusCode::GATEWAY_TIMEOUT)
    }

    /// A request without protection was sent and no answer came: 504.
    pub fn no_answer_unprotected() -> Self {
        Self::no_answer_to(
            "The request was sent without protection and no answer came, so it may have run.",
        )
    }

    /// No answer came to something that is not recorded as an operation of its
    /// own: 504.
    pub fn no_answer_to(detail: impl Into<String>) -> Self {
        Self::new(Code::OutcomeUnknown, detail).with_status(StatusCode::GATEWAY_TIMEOUT)
    }

    /// No byte of the request was sent.
    pub(crate) fn not_sent(id: OperationId) -> Self {
        Self::new(
            Code::UpstreamUnreachable,
            "The upstream could not be reached. Nothing was sent and nothing was done; the key is free.",
        )
        .with_operation(id)
        .with_idempotency_status(IdempotencyStatus::Released)
        .with_retry_after(1)
    }

    /// A joined application did not answer, and its commit can no longer happen.
    pub(crate) fn not_committed(id: OperationId) -> Self {
        Self::new(
            Code::UpstreamUnreachable,
            "The request was sent and no answer came. The application had committed nothing and can no longer do so; the key is free.",
        )
        .with_operation(id)
        .with_idempotency_status(IdempotencyStatus::Released)
        .with_retry_after(1)
    }

    /// The upstream could not be reached for a request without protection.
    pub fn not_sent_unprotected() -> Self {
        Self::new(
            Code::UpstreamUnreachable,
            "The upstream could not be reached. Nothing was sent.",
        )
        .with_retry_after(1)
    }

    /// The operation ran, and its reply was not kept.
    pub(crate) fn reply_not_kept(id: OperationId, original_status: u16) -> Self {
        Self::new(
            Code::ReplyNotKept,
            "The operation ran. Its reply was too large to keep or a stream, and went only to the first caller.",
        )
        .with_original_status(original_status)
        .with_operation(id)
    }

    /// The operation ran, and its reply has expired.
    pub(crate) fn reply_expired(id: OperationId, original_status: u16) -> Self {
        Self::new(
            Code::ReplyExpired,
            "The operation ran. Its reply has expired; its key is still remembered, so it does not run again.",
        )
        .with_original_status(original_status)
        .with_operation(id)
    }

    /// The store does not answer, or what it holds is damaged.
    pub fn store_unavailable(error: &StoreError) -> Self {
        match error {
            StoreError::Damaged(_) => Self::new(
                Code::StoreUnavailable,
                "The record under this key is damaged, and an operator has to repair it. Nothing was forwarded.",
            )
            .with_retry_after(60),
            _ => Self::new(
                Code::StoreUnavailable,
                "The store does not answer. Nothing was forwarded; send the same request again.",
            )
            .with_retry_after(1),
        }
    }

    /// The store does not answer, and the handler needs an operation.
    #[cfg(feature = "axum")]
    pub(crate) fn store_unavailable_to_handler() -> Self {
        Self::new(
            Code::StoreUnavailable,
            "The store does not answer, and this request cannot run without protection. Send the same request again.",
        )
        .with_retry_after(1)
    }

    /// The body of a protected request exceeds the limit.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::new(
            Code::BodyTooLarge,
            format!("The body of a protected request may have at most {limit} bytes."),
        )
    }

    /// The same problem as 503, for a provider of webhooks: providers send again
    /// after a 503, but not always after a 409.
    #[must_use]
    pub fn for_provider(self) -> Self {
        self.with_status(StatusCode::SERVICE_UNAVAILABLE)
    }
}
