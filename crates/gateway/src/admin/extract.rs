//! Extractors: a JSON body, a query and a path parameter, each checked before a
//! handler runs, each refused with a problem that names the mistake.

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use onceward_core::clock::Timestamp;
use onceward_core::deadline::within;
use onceward_core::identity::OperationId;
use serde::de::DeserializeOwned;

use super::AdminState;
use super::audit::Why;
use super::problem::Problem;

/// The largest body of most requests, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// The time limit for a body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// The JSON body of a POST.
pub(crate) trait RequestBody: DeserializeOwned + Send {
    /// The largest body of this type, in bytes.
    fn bytes_max(_admin: &AdminState) -> usize {
        BODY_BYTES_MAX
    }
}

/// Extracts the body of a POST.
pub(crate) struct JsonBody<B>(pub(crate) B);

impl<B: RequestBody> FromRequest<AdminState> for JsonBody<B> {
    type Rejection = Problem;

    async fn from_request(request: Request, admin: &AdminState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        if !is_json(&parts.headers) {
            return Err(Problem::unsupported_media_type());
        }
        let body = read(body, B::bytes_max(admin)).await?;
        let body = serde_json::from_slice(&body)
            .map_err(|error| Problem::bad_request(format!("The body is not valid: {error}.")))?;
        Ok(Self(body))
    }
}

/// JSON is required because a browser sends a preflight request before it posts
/// this type to another site; forms and plain text are posted without one.
fn is_json(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(CONTENT_TYPE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return false;
    };
    let essence = line.as_bytes().split(|byte| *byte == b';').next();
    essence.is_some_and(|essence| {
        essence
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/json")
    })
}

async fn read(body: Body, bytes_max: usize) -> Result<bytes::Bytes, Problem> {
    let reading = Limited::new(body, bytes_max).collect();
    match within(BODY_DEADLINE, reading).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::body_too_large(bytes_max)),
        Ok(Err(_)) => Err(Problem::bad_request(
            "The connection ended before the whole body arrived.",
        )),
        Err(_) => Err(Problem::body_timeout(BODY_DEADLINE)),
    }
}

/// Extracts the query of a GET.
pub(crate) struct QueryParams<Q>(pub(crate) Q);

impl<Q: DeserializeOwned> FromRequestParts<AdminState> for QueryParams<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &AdminState) -> Result<Self, Problem> {
        let query = Query::<Q>::try_from_uri(&parts.uri).map_err(|error| {
            // The outermost error says only that the query is wrong.
            let cause = error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string);
            Problem::bad_request(format!("The query is not valid: {cause}."))
        })?;
        Ok(Self(query.0))
    }
}

/// Extracts the one parameter of a path.
pub(crate) struct PathParam(pub(crate) String);

impl FromRequestParts<AdminState> for PathParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &AdminState) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, admin).await;
        let Path(name) = path.map_err(|_| Problem::bad_request("The path is not valid."))?;
        Ok(Self(name))
    }
}

pub(crate) fn parse_operation_id(text: &str) -> Result<OperationId, Problem> {
    OperationId::parse(text).ok_or_else(|| {
        Problem::bad_request("An operation's id is `op_` and 32 hexadecimal digits.")
    })
}

/// The reason of a change.
pub(crate) fn parse_why(text: &str) -> Result<Why, Problem> {
    Why::parse(text).ok_or_else(|| {
        Problem::bad_request(format!(
            "`why` must be a reason of 1 to {} bytes on one line; the audit log keeps it.",
            Why::BYTES_MAX
        ))
    })
}

/// A time in RFC 3339.
pub(crate) fn parse_time(name: &str, text: &str) -> Result<Timestamp, Problem> {
    let parsed = text.parse::<jiff::Timestamp>().ok();
    let ms = parsed.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    ms.map(Timestamp::from_unix_ms).ok_or_else(|| {
        Problem::bad_request(format!(
            "`{name}` must be an RFC 3339 time such as 2026-11-16T08:00:00Z."
        ))
    })
}
