//! What the admin API refuses, as problem details (RFC 9457).
//!
//! The problems of protected traffic live in `onceward_http::problem`: they tell
//! a client whether it may retry. These tell an operator what to do instead, and
//! need no pages of their own: `type` is `about:blank`, the sentence is `detail`.

use axum::http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use onceward_core::record::State;
use onceward_core::store::StoreError;
use schemars::JsonSchema;
use serde::Serialize;

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request says nothing that could be done.
    BadRequest,
    /// Nobody knows the token.
    Unauthenticated,
    /// The token may not do this.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// Not by this method.
    MethodNotAllowed,
    /// As things stand it cannot be done.
    Conflict,
    /// The body is too large.
    TooLarge,
    /// The body is not JSON.
    MediaType,
    /// The body took too long.
    TooSlow,
    /// The store does not answer, or refuses.
    StoreUnavailable,
}

impl Kind {
    /// The word for programs.
    #[cfg(test)]
    pub(crate) fn as_str(self) -> &'static str {
        self.entry().1
    }

    fn entry(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (
                StatusCode::BAD_REQUEST,
                "bad-request",
                "The request is not valid",
            ),
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "A token is required",
            ),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "This is not allowed"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is no such thing"),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "Not by this method",
            ),
            Self::Conflict => (
                StatusCode::CONFLICT,
                "conflict",
                "As things stand it cannot be done",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body-too-large",
                "The body is too large",
            ),
            Self::MediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The body must be JSON",
            ),
            Self::TooSlow => (
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

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    state: Option<State>,
}

impl Problem {
    /// A problem of this kind, in a sentence.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            state: None,
        }
    }

    /// The request says nothing that could be done.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(Kind::BadRequest, detail)
    }

    /// There is no such thing.
    pub(crate) fn absent(detail: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, detail)
    }

    /// As things stand it cannot be done.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, detail)
    }

    /// The operation's state does not allow it.
    pub(crate) fn in_state(state: State, detail: impl Into<String>) -> Self {
        Self {
            state: Some(state),
            ..Self::conflict(detail)
        }
    }

    /// A look at the store failed. What it says goes to the log only.
    pub(crate) fn unread(error: &StoreError) -> Self {
        tracing::warn!(%error, "the store did not answer an operator");
        Self::new(
            Kind::StoreUnavailable,
            "The store does not answer. Try again later.",
        )
    }

    /// A change failed in the store, and nobody knows how far it came.
    pub(crate) fn unwritten(error: &StoreError) -> Self {
        tracing::error!(%error, "the store did not take an operator's change");
        Self::new(
            Kind::StoreUnavailable,
            "The store did not confirm the change. Look whether it was made, then try again.",
        )
    }

    /// What kind it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The sentence.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

/// A problem as it goes over the wire.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct Document {
    /// Always `about:blank`: `code` tells them apart.
    r#type: &'static str,
    /// What happened, in short.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What happened, and what would be right.
    detail: String,
    /// A word for programs.
    code: &'static str,
    /// The operation's state, where that is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, code, title) = self.kind.entry();
        let document = Document {
            r#type: "about:blank",
            title,
            status: status.as_u16(),
            detail: self.detail,
            code,
            state: self.state.map(State::as_str),
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = (status, body).into_response();
        let mut set = |name: HeaderName, value| {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        };
        set(CONTENT_TYPE, "application/problem+json");
        if self.kind == Kind::Unauthenticated {
            set(WWW_AUTHENTICATE, "Bearer");
        }
        response
    }
}
