//! Problem details (RFC 9457) of the admin API.
//!
//! The problems of protected traffic are in `onceward_http::problem`: they state
//! whether a retry is safe. These state what an operator can do instead, and have no
//! pages: `type` is `about:blank`, `code` is for programs,
//! `detail` is for people. Each problem has a named constructor; only this file
//! chooses a status.

use axum::http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use onceward_core::record::State;
use onceward_core::store::StoreError;
use schemars::JsonSchema;
use serde::Serialize;

/// The kind of a problem: its status, code and title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    BadRequest,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Conflict,
    BodyTooLarge,
    UnsupportedMediaType,
    BodyTimeout,
    StoreUnavailable,
}

impl ProblemKind {
    /// The code for programs.
    #[cfg(test)]
    pub(crate) fn as_str(self) -> &'static str {
        self.describe().1
    }

    /// Status, code and title.
    fn describe(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad-request", "Invalid request"),
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "A token is required",
            ),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "Not allowed"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "Not found"),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "Method not allowed",
            ),
            Self::Conflict => (
                StatusCode::CONFLICT,
                "conflict",
                "Not possible in the current state",
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body-too-large",
                "The body is too large",
            ),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The body must be JSON",
            ),
            Self::BodyTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                "too-slow",
                "The body took too long",
            ),
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "The store is unavailable",
            ),
        }
    }
}

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    kind: ProblemKind,
    detail: String,
    state: Option<State>,
}

impl Problem {
    fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            state: None,
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::BadRequest, detail)
    }

    /// No token, or one that is not configured. The answer is the same for both.
    pub(crate) fn unauthenticated() -> Self {
        Self::new(
            ProblemKind::Unauthenticated,
            "Send a token as `Authorization: Bearer …`.",
        )
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Forbidden, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::NotFound, detail)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            ProblemKind::MethodNotAllowed,
            "Reads are GET requests, changes are POST requests; see /admin/v1/openapi.json.",
        )
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Conflict, detail)
    }

    /// The operation's state does not allow the change.
    pub(crate) fn wrong_state(state: State, detail: impl Into<String>) -> Self {
        Self {
            state: Some(state),
            ..Self::conflict(detail)
        }
    }

    pub(crate) fn body_too_large(bytes_max: usize) -> Self {
        Self::new(
            ProblemKind::BodyTooLarge,
            format!("The body is larger than {bytes_max} bytes."),
        )
    }

    pub(crate) fn unsupported_media_type() -> Self {
        Self::new(
            ProblemKind::UnsupportedMediaType,
            "Send the body with `Content-Type: application/json`.",
        )
    }

    pub(crate) fn body_timeout(limit: std::time::Duration) -> Self {
        Self::new(
            ProblemKind::BodyTimeout,
            format!("The body did not arrive within {limit:?}."),
        )
    }

    /// A read of the store failed. The cause goes to the log only.
    pub(crate) fn store_read(error: &StoreError) -> Self {
        tracing::warn!(%error, "store did not answer an operator's read");
        Self::store_unavailable("The store does not answer. Try again later.")
    }

    /// A write to the store failed: the change may have been made or not.
    pub(crate) fn store_write(error: &StoreError) -> Self {
        tracing::error!(%error, "store did not confirm an operator's change");
        Self::store_unavailable(
            "The store did not confirm the change. Check whether it was made before you try again.",
        )
    }

    pub(crate) fn store_unavailable(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::StoreUnavailable, detail)
    }

    pub(crate) fn kind(&self) -> ProblemKind {
        self.kind
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

/// A problem as it is sent.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemBody {
    /// Always `about:blank`; `code` names the kind of problem.
    r#type: &'static str,
    /// The kind of problem.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// The mistake in this request, and its correction.
    detail: String,
    /// The kind of problem, for programs.
    code: &'static str,
    /// The operation's state, where it does not allow the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, code, title) = self.kind.describe();
        let body = ProblemBody {
            r#type: "about:blank",
            title,
            status: status.as_u16(),
            detail: self.detail,
            code,
            state: self.state.map(State::as_str),
        };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (status, body).into_response();
        let mut set = |name: HeaderName, value| {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        };
        set(CONTENT_TYPE, "application/problem+json");
        if self.kind == ProblemKind::Unauthenticated {
            set(WWW_AUTHENTICATE, "Bearer");
        }
        response
    }
}
