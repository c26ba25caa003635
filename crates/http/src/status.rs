//! The values of `Idempotency-Status`, and the JSON of the status route.

use http::HeaderValue;
use onceward_core::identity::OperationId;
use onceward_core::record::{Answer, Record, State};
use serde::Serialize;

/// A value of `Idempotency-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdempotencyStatus {
    /// Queued or running.
    Processing,
    /// Finished successfully.
    Completed,
    /// Failed for good.
    Failed,
    /// It may have run.
    Unknown,
    /// Its attempts are used up.
    Paused,
    /// The key is free again.
    Released,
    /// Forwarded unprotected, because the store was unavailable.
    Bypassed,
}

impl IdempotencyStatus {
    /// The value as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Paused => "paused",
            Self::Released => "released",
            Self::Bypassed => "bypassed",
        }
    }

    /// The value as a header value.
    pub fn to_header(self) -> HeaderValue {
        HeaderValue::from_static(self.as_str())
    }

    /// The status of a record.
    pub fn of_record(record: &Record) -> Self {
        match record.state {
            State::Queued | State::Running => Self::Processing,
            State::Completed => Self::Completed,
            State::Failed => Self::Failed,
            State::Released => Self::Released,
            State::Unknown => Self::Unknown,
            State::Paused => Self::Paused,
            State::Expired => match record.answer.as_ref().map(Answer::status) {
                Some(400..) => Self::Failed,
                _ => Self::Completed,
            },
        }
    }
}

/// An operation's id as a header value.
pub fn id_header(id: OperationId) -> HeaderValue {
    HeaderValue::try_from(id.to_string()).expect("an operation id is visible ASCII")
}

/// The status document of an operation.
#[derive(Debug, Serialize)]
pub struct StatusDocument<'a> {
    operation_id: String,
    endpoint: &'a str,
    state: &'static str,
    status: &'static str,
    attempts: u32,
    created_at: String,
    completed_at: Option<String>,
    expires_at: Option<String>,
    original_status: Option<u16>,
}

impl<'a> StatusDocument<'a> {
    /// The document of a record.
    pub fn of(record: &'a Record) -> Self {
        Self {
            operation_id: record.id.to_string(),
            endpoint: record.identity.endpoint.as_str(),
            state: record.state.as_str(),
            status: IdempotencyStatus::of_record(record).as_str(),
            attempts: record.attempts,
            created_at: record.created_at.to_string(),
            completed_at: record.completed_at.map(|at| at.to_string()),
            expires_at: record.expires_at().map(|at| at.to_string()),
            original_status: record.answer.as_ref().map(Answer::status),
        }
    }
}
