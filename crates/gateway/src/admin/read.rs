//! What comes in: a body, a query, a part of the path, each checked before a
//! handler sees it, each refused in a sentence.

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use serde::de::DeserializeOwned;

use super::Desk;
use super::audit::Why;
use super::problem::{Kind, Problem};

/// The largest body of most requests, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// How long a body may take.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// What a POST may say.
pub(crate) trait Ask: DeserializeOwned + Send {
    /// The largest body that says it.
    fn bytes_max(_desk: &Desk) -> usize {
        BODY_BYTES_MAX
    }
}

/// The body of a POST.
pub(crate) struct Asked<A>(pub(crate) A);

impl<A: Ask> FromRequest<Desk> for Asked<A> {
    type Rejection = Problem;

    async fn from_request(request: Request, desk: &Desk) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        if !is_json(&parts.headers) {
            return Err(Problem::new(
                Kind::MediaType,
                "Send the body with `Content-Type: application/json`.",
            ));
        }
        let body = read(body, A::bytes_max(desk)).await?;
        let asked = serde_json::from_slice(&body)
            .map_err(|error| Problem::bad(format!("The body is not as it should be: {error}.")))?;
        Ok(Self(asked))
    }
}

/// Only this type makes a browser ask before it sends.
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
    match tokio::time::timeout(BODY_DEADLINE, reading).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::new(
            Kind::TooLarge,
            format!("The body is larger than {bytes_max} bytes."),
        )),
        Ok(Err(_)) => Err(Problem::bad("The body broke off.")),
        Err(_) => Err(Problem::new(
            Kind::TooSlow,
            format!("The body did not come within {BODY_DEADLINE:?}."),
        )),
    }
}

/// The query of a GET.
pub(crate) struct Queried<Q>(pub(crate) Q);

impl<Q: DeserializeOwned> FromRequestParts<Desk> for Queried<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Desk) -> Result<Self, Problem> {
        let query = Query::<Q>::try_from_uri(&parts.uri).map_err(|error| {
            // The outermost only says that it is about a query.
            let cause = error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string);
            Problem::bad(format!("The query is not as it should be: {cause}."))
        })?;
        Ok(Self(query.0))
    }
}

/// The one variable part of a path.
pub(crate) struct Named(pub(crate) String);

impl FromRequestParts<Desk> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, desk: &Desk) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, desk).await;
        let Path(name) = path.map_err(|_| Problem::bad("The path is not as it should be."))?;
        Ok(Self(name))
    }
}

/// An operation's id.
pub(crate) fn operation_id(text: &str) -> Result<OperationId, Problem> {
    OperationId::parse(text)
        .ok_or_else(|| Problem::bad("An operation's id is `op_` and 32 hexadecimal digits."))
}

/// A reason.
pub(crate) fn why(text: &str) -> Result<Why, Problem> {
    Why::parse(text).ok_or_else(|| {
        Problem::bad(format!(
            "Say why, in 1 to {} bytes on one line: the audit keeps it.",
            Why::BYTES_MAX
        ))
    })
}

/// A moment in RFC 3339.
pub(crate) fn moment(name: &str, text: &str) -> Result<Timestamp, Problem> {
    let parsed = text.parse::<jiff::Timestamp>().ok();
    let ms = parsed.and_then(|moment| u64::try_from(moment.as_millisecond()).ok());
    ms.map(Timestamp::from_unix_ms).ok_or_else(|| {
        Problem::bad(format!(
            "`{name}` is a moment such as 2026-11-16T08:00:00Z."
        ))
    })
}
