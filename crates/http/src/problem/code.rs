//! The codes of problems, and what each of them always says.

use http::StatusCode;

/// The kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The operation is still running.
    InProgress,
    /// The key belongs to a different request.
    KeyReused,
    /// A key is required, and the request has none.
    KeyMissing,
    /// The key is malformed.
    KeyInvalid,
    /// A key is not allowed here.
    KeyProhibited,
    /// The operation may have run.
    OutcomeUnknown,
    /// The upstream gave no answer, and certainly did nothing.
    UpstreamUnreachable,
    /// All attempts failed.
    Paused,
    /// The reply was too large to keep.
    ReplyNotKept,
    /// The reply has expired; the key is still remembered.
    ReplyExpired,
    /// The store does not answer.
    StoreUnavailable,
    /// No operation has this key or id.
    NoOperation,
    /// The method is not allowed.
    MethodNotAllowed,
    /// The body is too large.
    BodyTooLarge,
    /// The provider's event id was not found in the request.
    TranslationFailed,
    /// The caller is not authenticated.
    Unauthenticated,
    /// The caller is not allowed to do this.
    Forbidden,
    /// No route matches the request.
    NoRoute,
    /// A limit is exceeded.
    TooManyRequests,
    /// An issuer or key service does not answer.
    AuthUnavailable,
    /// The request is malformed.
    BadRequest,
}

/// The members that a code determines.
pub(super) struct Entry {
    pub(super) word: &'static str,
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) retryable: bool,
    pub(super) safe_new_key: bool,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 21] = [
        Self::InProgress,
        Self::KeyReused,
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::KeyProhibited,
        Self::OutcomeUnknown,
        Self::UpstreamUnreachable,
        Self::Paused,
        Self::ReplyNotKept,
        Self::ReplyExpired,
        Self::StoreUnavailable,
        Self::NoOperation,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::TranslationFailed,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NoRoute,
        Self::TooManyRequests,
        Self::AuthUnavailable,
        Self::BadRequest,
    ];

    /// The code as programs read it.
    pub fn as_str(self) -> &'static str {
        self.entry().word
    }

    pub(super) fn entry(self) -> Entry {
        let entry = |word, status, title, retryable, safe_new_key| Entry {
            word,
            status,
            title,
            retryable,
            safe_new_key,
        };
        match self {
            Self::InProgress => entry(
                "in-progress",
                StatusCode::CONFLICT,
                "The operation is still running",
                true,
                false,
            ),
            Self::KeyReused => entry(
                "key-reused",
                StatusCode::UNPROCESSABLE_ENTITY,
                "The key was used for a different request",
                false,
                true,
            ),
            Self::KeyMissing => entry(
                "key-missing",
                StatusCode::BAD_REQUEST,
                "An Idempotency-Key is required",
                false,
                true,
            ),
            Self::KeyInvalid => entry(
                "key-invalid",
                StatusCode::BAD_REQUEST,
                "The Idempotency-Key is not valid",
                false,
                true,
            ),
            Self::KeyProhibited => entry(
                "key-prohibited",
                StatusCode::BAD_REQUEST,
                "An Idempotency-Key is not allowed here",
                false,
                true,
            ),
            Self::OutcomeUnknown => entry(
                "outcome-unknown",
                StatusCode::CONFLICT,
                "The operation may have run; its outcome is unknown",
                false,
                false,
            ),
            Self::UpstreamUnreachable => entry(
                "upstream-unreachable",
                StatusCode::BAD_GATEWAY,
                "The upstream did not answer; nothing was done",
                true,
                true,
            ),
            Self::Paused => entry(
                "paused",
                StatusCode::CONFLICT,
                "The operation is paused after its last attempt",
                false,
                false,
            ),
            Self::ReplyNotKept => entry(
                "reply-not-kept",
                StatusCode::GONE,
                "The operation ran; its reply was not kept",
                false,
                false,
            ),
            Self::ReplyExpired => entry(
                "reply-expired",
                StatusCode::GONE,
                "The operation ran; its reply has expired",
                false,
                false,
            ),
            Self::StoreUnavailable => entry(
                "store-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The store is unavailable; nothing was forwarded",
                true,
                false,
            ),
            Self::NoOperation => entry(
                "no-operation",
                StatusCode::NOT_FOUND,
                "Operation not found",
                false,
                true,
            ),
            Self::MethodNotAllowed => entry(
                "method-not-allowed",
                StatusCode::METHOD_NOT_ALLOWED,
                "The method is not allowed here",
                false,
                true,
            ),
            Self::BodyTooLarge => entry(
                "body-too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "The request body is too large",
                false,
                true,
            ),
            Self::TranslationFailed => entry(
                "translation-failed",
                StatusCode::BAD_REQUEST,
                "The provider's event id was not found",
                false,
                true,
            ),
            Self::Unauthenticated => entry(
                "unauthenticated",
                StatusCode::UNAUTHORIZED,
                "The caller is not authenticated",
                false,
                false,
            ),
            Self::Forbidden => entry(
                "forbidden",
                StatusCode::FORBIDDEN,
                "The caller is not allowed to do this",
                false,
                false,
            ),
            Self::NoRoute => entry(
                "no-route",
                StatusCode::NOT_FOUND,
                "No route matches this request",
                false,
                true,
            ),
            Self::TooManyRequests => entry(
                "too-many-requests",
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests",
                true,
                false,
            ),
            Self::AuthUnavailable => entry(
                "auth-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The caller cannot be verified at the moment; nothing was forwarded",
                true,
                false,
            ),
            Self::BadRequest => entry(
                "bad-request",
                StatusCode::BAD_REQUEST,
                "The request is malformed",
                false,
                true,
            ),
        }
    }
}
