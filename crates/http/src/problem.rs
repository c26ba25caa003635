//! The one border that chooses a status: problem details (RFC 9457).
//!
//! Every refusal that the product itself makes is one of the [`Code`]s here,
//! and each has a page in `docs/problems/`. The client's text is in this file;
//! the log's text is wherever the cause is known.

use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Method, Response, StatusCode};
use onceward_core::identity::OperationId;
use onceward_core::key::KeyError;
use serde::Serialize;

use crate::body::{self, Body};
use crate::fields;
use crate::status::Word;

/// Where the product publishes what it does.
pub const WELL_KNOWN: &str = "/.well-known/idempotency";

/// The methods that are served at all.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The operation still runs.
    InProgress,
    /// The key belongs to a different request.
    KeyReused,
    /// A key is required and there is none.
    KeyMissing,
    /// The key is malformed.
    KeyInvalid,
    /// A key is not allowed here.
    KeyProhibited,
    /// The operation may have run.
    OutcomeUnknown,
    /// The upstream gave no answer, and nothing was done.
    UpstreamUnreachable,
    /// The attempts are used up.
    Paused,
    /// The reply was too large to keep.
    ReplyNotKept,
    /// The reply is gone, the key is remembered.
    ReplyExpired,
    /// The store is away.
    StoreUnavailable,
    /// Nobody by this key.
    NoOperation,
    /// The method is not allowed.
    MethodNotAllowed,
    /// The body is too large.
    BodyTooLarge,
    /// The provider's id cannot be found.
    TranslationFailed,
    /// Nobody knows the caller.
    Unauthenticated,
    /// The caller may not do this.
    Forbidden,
    /// Nothing is served here.
    NoRoute,
    /// The tenant asks for too much.
    TooManyRequests,
    /// Whoever knows the callers does not answer.
    AuthUnavailable,
    /// The request is malformed.
    BadRequest,
}

/// What a code always says.
struct Entry {
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    retryable: bool,
    safe_new_key: bool,
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

    /// The word for programs.
    pub fn as_str(self) -> &'static str {
        self.entry().word
    }

    fn entry(self) -> Entry {
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
                "There is no such operation",
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
                "The request's body is too large",
                false,
                true,
            ),
            Self::TranslationFailed => entry(
                "translation-failed",
                StatusCode::BAD_REQUEST,
                "The provider's identifier cannot be found",
                false,
                true,
            ),
            Self::Unauthenticated => entry(
                "unauthenticated",
                StatusCode::UNAUTHORIZED,
                "The caller is not known",
                false,
                false,
            ),
            Self::Forbidden => entry(
                "forbidden",
                StatusCode::FORBIDDEN,
                "The caller may not do this",
                false,
                false,
            ),
            Self::NoRoute => entry(
                "no-route",
                StatusCode::NOT_FOUND,
                "Nothing is served here",
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
                "The caller cannot be verified now; nothing was forwarded",
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

/// A problem, before it is written for somebody.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    status: StatusCode,
    detail: String,
    reason: Option<&'static str>,
    operation_id: Option<OperationId>,
    original_status: Option<u16>,
    retry_after_s: Option<u64>,
    standing: Option<Word>,
    allowed: Option<String>,
}

impl Problem {
    /// A problem of this kind; the detail is for the person who reads it.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: code.entry().status,
            detail: detail.into(),
            reason: None,
            operation_id: None,
            original_status: None,
            retry_after_s: None,
            standing: None,
            allowed: None,
        }
    }

    /// A key that is not one.
    pub fn invalid_key(error: KeyError) -> Self {
        Self {
            reason: Some(error.reason()),
            ..Self::new(Code::KeyInvalid, format!("The key is refused: {error}."))
        }
    }

    /// What kind of problem it is.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Which operation it is about, where that may be told.
    pub fn operation_id(&self) -> Option<OperationId> {
        self.operation_id
    }

    /// With another status than the code's own.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// About this operation.
    #[must_use]
    pub fn about(self, id: OperationId) -> Self {
        Self {
            operation_id: Some(id),
            ..self
        }
    }

    /// With the status that the upstream once gave.
    #[must_use]
    pub fn originally(self, status: u16) -> Self {
        Self {
            original_status: Some(status),
            ..self
        }
    }

    /// With the time after which to try again.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after_s: Some(seconds),
            ..self
        }
    }

    /// How the operation stands, if that is said.
    pub fn word(&self) -> Option<Word> {
        self.standing
    }

    /// With the operation's standing in `Idempotency-Status`.
    #[must_use]
    pub fn standing(self, word: Word) -> Self {
        Self {
            standing: Some(word),
            ..self
        }
    }

    /// With the methods that are allowed instead.
    #[must_use]
    pub fn allowing(self, methods: &[Method]) -> Self {
        let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
        Self {
            allowed: Some(methods.join(", ")),
            ..self
        }
    }

    /// The answer. `site` is where problem pages are, such as
    /// `https://api.example.com`; `instance` is the path that was asked for.
    pub fn to_response(&self, site: &str, instance: &str) -> Response<Body> {
        let entry = self.code.entry();
        let wire = Wire {
            r#type: format!("{site}{WELL_KNOWN}/problems/{}", entry.word),
            title: entry.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            instance,
            code: entry.word,
            retryable: entry.retryable,
            safe_new_key: entry.safe_new_key,
            reason: self.reason,
            operation_id: self.operation_id.map(|id| id.to_string()),
            original_status: self.original_status,
        };
        let bytes = serde_json::to_vec(&wire).unwrap_or_default();
        let mut response = Response::new(body::full(bytes));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let link = format!("<{site}{WELL_KNOWN}>; rel=\"describedby\"");
        if let Ok(link) = HeaderValue::from_str(&link) {
            headers.insert(LINK, link);
        }
        if self.code == Code::MethodNotAllowed {
            let methods = self.allowed.as_deref().unwrap_or(METHODS);
            if let Ok(methods) = HeaderValue::from_str(methods) {
                headers.insert(ALLOW, methods);
            }
        }
        if self.code == Code::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(word) = self.standing {
            headers.insert(fields::IDEMPOTENCY_STATUS, word.to_header());
        }
        if let Some(id) = self.operation_id {
            headers.insert(fields::OPERATION_ID, crate::status::id_header(id));
        }
        response
    }
}

/// A problem as it goes over the wire.
#[derive(Serialize)]
struct Wire<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    instance: &'a str,
    code: &'a str,
    retryable: bool,
    safe_new_key: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_status: Option<u16>,
}
