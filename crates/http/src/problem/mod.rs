//! Problem details (RFC 9457): the only place that chooses the status of a
//! refusal.
//!
//! Every refusal of the product itself has one of the [`Code`]s, and each code
//! has a page in `docs/problems/`. The texts for clients are in this folder; the
//! texts for the log are where the cause is known.

mod code;
mod details;
mod links;
pub mod pages;

use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Method, Response, StatusCode};
use onceward_core::identity::OperationId;
use serde::Serialize;

use crate::body::{self, Body};
use crate::fields;
use crate::status::IdempotencyStatus;

pub use self::code::Code;
pub use self::links::ProblemLinks;

/// Where a gateway publishes the policy of its routes; its problem pages are
/// below.
pub const WELL_KNOWN: &str = "/.well-known/idempotency";

/// The methods that are served at all.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// A refusal, before it becomes a response.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    status: StatusCode,
    detail: String,
    reason: Option<&'static str>,
    operation_id: Option<OperationId>,
    original_status: Option<u16>,
    retry_after_s: Option<u64>,
    idempotency_status: Option<IdempotencyStatus>,
    allowed: Option<String>,
}

impl Problem {
    /// A problem of this kind, with the status of its code. `detail` is for the
    /// person who reads it: what happened, and what to do.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: code.entry().status,
            detail: detail.into(),
            reason: None,
            operation_id: None,
            original_status: None,
            retry_after_s: None,
            idempotency_status: None,
            allowed: None,
        }
    }

    /// The kind of this problem.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The operation that it is about, where the client may know it.
    pub fn operation_id(&self) -> Option<OperationId> {
        self.operation_id
    }

    /// The value of `Idempotency-Status`, where there is one.
    pub fn idempotency_status(&self) -> Option<IdempotencyStatus> {
        self.idempotency_status
    }

    /// Adds the operation that it is about.
    #[must_use]
    pub fn with_operation(self, id: OperationId) -> Self {
        Self {
            operation_id: Some(id),
            ..self
        }
    }

    /// Adds the status that the upstream answered with.
    #[must_use]
    pub fn with_original_status(self, status: u16) -> Self {
        Self {
            original_status: Some(status),
            ..self
        }
    }

    /// Adds `Retry-After`, in seconds.
    #[must_use]
    pub fn with_retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after_s: Some(seconds),
            ..self
        }
    }

    /// Adds `Idempotency-Status`.
    #[must_use]
    pub fn with_idempotency_status(self, status: IdempotencyStatus) -> Self {
        Self {
            idempotency_status: Some(status),
            ..self
        }
    }

    /// Adds `Allow`, for `method-not-allowed`.
    #[must_use]
    pub fn with_allowed_methods(self, methods: &[Method]) -> Self {
        let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
        Self {
            allowed: Some(methods.join(", ")),
            ..self
        }
    }

    /// Another status than the code's own; each use has a constructor with a
    /// name in `details`.
    fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The response. `instance` is the path of the request.
    pub fn to_response(&self, links: &ProblemLinks, instance: &str) -> Response<Body> {
        let entry = self.code.entry();
        let wire = Wire {
            r#type: links.to_page(self.code),
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
        if let Some(link) = links.described_by() {
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
        if let Some(status) = self.idempotency_status {
            headers.insert(fields::IDEMPOTENCY_STATUS, status.to_header());
        }
        if let Some(id) = self.operation_id {
            headers.insert(fields::OPERATION_ID, crate::status::id_header(id));
        }
        response
    }
}

/// A problem as JSON.
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
