//! Requests, results and errors as records hold them: a request as its hash, the
//! others as a reply, which operators' tools show like any other.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::fingerprint::{Algorithm, Fingerprint, canonical_json};
use crate::identity::OperationId;
use crate::record::{Answer, Record, Reply, State};

use super::error::Error;
use super::failure::StoredError;

/// The largest request, result or error that is kept, in bytes.
pub const CONTENT_BYTES_MAX: usize = 16 * 1024 * 1024;

const CONTENT_TYPE: &[u8] = b"content-type";
const RESULT_TYPE: &[u8] = b"application/json";
/// A media type of its own, because it is read back as the caller's error.
const ERROR_TYPE: &[u8] = b"application/vnd.onceward.error+json; version=1";

const RESULT_STATUS: u16 = 200;
/// The request was understood and failed for good.
const ERROR_STATUS: u16 = 422;

/// The class of an error that the library did not record, but an operator.
const FOREIGN_CLASS: &str = "recorded-elsewhere";
/// How much of its body is quoted.
const FOREIGN_CHARS_MAX: usize = 1_000;

/// A request, ready to be compared and kept.
pub(crate) struct Request {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) json: Bytes,
}

impl Request {
    pub(crate) fn of(value: &Value) -> Result<Self, Error> {
        let json = written("request", value)?;
        let canonical = canonical_json(&json).ok_or(Error::TooDeep)?;
        Ok(Self {
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: Sha256::digest(canonical).into(),
                sender: [0; 16],
            },
            json,
        })
    }
}

fn written(what: &'static str, value: &impl Serialize) -> Result<Bytes, Error> {
    let json = serde_json::to_vec(value).map_err(|source| Error::Encode { what, source })?;
    match json.len() {
        bytes if bytes > CONTENT_BYTES_MAX => Err(Error::TooLarge { what, bytes }),
        _ => Ok(json.into()),
    }
}

/// A result as a reply.
pub(crate) fn result_reply(result: &Value) -> Result<Arc<Reply>, Error> {
    let body = written("result", result)?;
    Ok(reply(RESULT_STATUS, RESULT_TYPE, body))
}

/// An error as a reply.
pub(crate) fn error_reply(error: &StoredError) -> Result<Arc<Reply>, Error> {
    let body = written("error", &ErrorBody::from(error))?;
    Ok(reply(ERROR_STATUS, ERROR_TYPE, body))
}

fn reply(status: u16, content_type: &'static [u8], body: Bytes) -> Arc<Reply> {
    let header = (
        Bytes::from_static(CONTENT_TYPE),
        Bytes::from_static(content_type),
    );
    Arc::new(Reply {
        status,
        headers: vec![header],
        body,
        trailers: Vec::new(),
    })
}

/// The outcome of a finished operation.
#[derive(Debug, PartialEq)]
pub(crate) enum Prior<Res> {
    Result(Res),
    Error(StoredError),
}

/// Reads the outcome of an operation.
pub(crate) fn prior<Res: DeserializeOwned>(record: &Record) -> Result<Prior<Res>, Error> {
    let operation = record.id;
    let Some(Answer::Kept(reply)) = &record.answer else {
        return Err(Error::OutcomeGone { operation });
    };
    if record.state == State::Failed {
        return error_of(reply, operation).map(Prior::Error);
    }
    let result = serde_json::from_slice(&reply.body);
    result
        .map(Prior::Result)
        .map_err(|source| Error::IncompatibleState { operation, source })
}

fn error_of(reply: &Reply, operation: OperationId) -> Result<StoredError, Error> {
    let is_ours = |(name, value): &(Bytes, Bytes)| name == CONTENT_TYPE && value == ERROR_TYPE;
    if !reply.headers.iter().any(is_ours) {
        return Ok(foreign(reply));
    }
    let body: ErrorBody = serde_json::from_slice(&reply.body)
        .map_err(|source| Error::IncompatibleState { operation, source })?;
    Ok(body.into())
}

/// An error that this library did not write: an operator resolved it so.
fn foreign(reply: &Reply) -> StoredError {
    let body = String::from_utf8_lossy(&reply.body);
    let body: String = body.chars().take(FOREIGN_CHARS_MAX).collect();
    let message = format!("recorded elsewhere, with status {}", reply.status);
    StoredError {
        cause: (!body.is_empty()).then_some(body),
        ..StoredError::new(FOREIGN_CLASS, message)
    }
}

/// An error in a record, version 1: see [`ERROR_TYPE`].
#[derive(Deserialize, Serialize)]
struct ErrorBody {
    class: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
}

impl From<&StoredError> for ErrorBody {
    fn from(error: &StoredError) -> Self {
        let StoredError {
            class,
            message,
            cause,
        } = error.clone();
        Self {
            class,
            message,
            cause,
        }
    }
}

impl From<ErrorBody> for StoredError {
    fn from(body: ErrorBody) -> Self {
        let ErrorBody {
            class,
            message,
            cause,
        } = body;
        Self {
            class,
            message,
            cause,
        }
    }
}
