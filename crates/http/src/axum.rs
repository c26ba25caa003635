//! Extractors for axum.
//!
//! [`IdempotencyLayer`](crate::layer::IdempotencyLayer) goes on a router like any
//! other layer. A handler that takes an [`Operation`] learns the operation and
//! fence under which it runs; a handler behind a gateway takes a [`Joined`].

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use crate::joined::Joined;
use crate::layer::Ungranted;
use crate::problem::{Code, Problem, ProblemLinks};
use crate::run::Granted;

/// The operation under which a handler runs. Without a key there is none, and
/// the request is refused with 400 `key-missing`; as an `Option` it is `None`.
#[derive(Clone, Debug)]
pub struct Operation(pub Granted);

impl<S: Send + Sync> FromRequestParts<S> for Operation {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        if let Some(granted) = parts.extensions.get::<Granted>() {
            return Ok(Self(granted.clone()));
        }
        match parts.extensions.get::<Ungranted>() {
            Some(ungranted) => Err(ungranted.to_response(parts).map(axum::body::Body::new)),
            // A mistake of the application, which no client can mend.
            None => {
                tracing::error!(path = parts.uri.path(), "{NOT_PROTECTED}");
                Err((StatusCode::INTERNAL_SERVER_ERROR, NOT_PROTECTED).into_response())
            }
        }
    }
}

const NOT_PROTECTED: &str =
    "this handler takes an Operation, but no IdempotencyLayer protects its route and method";

impl<S: Send + Sync> OptionalFromRequestParts<S> for Operation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Granted>().cloned().map(Self))
    }
}

/// For handlers of joined routes. A request without a key is refused; as an
/// `Option` it is `None`. Headers that no gateway sends are refused either way.
impl<S: Send + Sync> FromRequestParts<S> for Joined {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let joined = Joined::from_headers(&parts.headers);
        let joined = joined.map_err(|error| malformed(&error, parts))?;
        joined.ok_or_else(|| {
            let detail = "This route needs an Idempotency-Key and a gateway in front of it.";
            refusal(&Problem::new(Code::KeyMissing, detail), parts)
        })
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Joined {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Response> {
        Joined::from_headers(&parts.headers).map_err(|error| malformed(&error, parts))
    }
}

fn malformed(error: &impl std::fmt::Display, parts: &Parts) -> Response {
    let detail = format!("The request is malformed: {error}.");
    refusal(&Problem::new(Code::BadRequest, detail), parts)
}

fn refusal(problem: &Problem, parts: &Parts) -> Response {
    let response = problem.to_response(&ProblemLinks::none(), parts.uri.path());
    response.map(axum::body::Body::new)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::post;
    use axum::{Router, http};
    use rstest::rstest;
    use tower::ServiceExt;

    use super::*;

    async fn needs(joined: Joined) -> String {
        format!("{} {}", joined.id, joined.fence.0)
    }

    async fn may(joined: Option<Joined>) -> String {
        joined.map_or("none".to_owned(), |joined| joined.key)
    }

    const ID: &str = "op_0f8b4c1d2e3a59687f60718293a4b5c6";

    #[rstest]
    #[case::forwarded(&[ID, "7", "k"], (200, "op_0f8b4c1d2e3a59687f60718293a4b5c6 7"), (200, "k"))]
    #[case::without_a_key(
        &["", "", ""],
        (400, "key-missing: This route needs an Idempotency-Key and a gateway in front of it."),
        (200, "none")
    )]
    #[case::forged(
        &[ID, "-1", "k"],
        (400, "bad-request: The request is malformed: idempotency-fence is not what a gateway sends."),
        (400, "bad-request: The request is malformed: idempotency-fence is not what a gateway sends.")
    )]
    #[tokio::test]
    async fn handlers_of_joined_routes_get_the_forwarded_operation(
        #[case] lines: &[&str; 3],
        #[case] needed: (u16, &str),
        #[case] taken: (u16, &str),
    ) {
        let app = Router::new()
            .route("/needs", post(needs))
            .route("/may", post(may));
        for (path, want) in [("/needs", needed), ("/may", taken)] {
            let mut request = Request::post(path);
            let names = ["x-operation-id", "idempotency-fence", "idempotency-key"];
            for (name, line) in names.into_iter().zip(lines) {
                if !line.is_empty() {
                    request = request.header(name, *line);
                }
            }
            let request = request.body(Body::empty()).expect("a request");
            let response = app.clone().oneshot(request).await.expect("infallible");
            let status = http::StatusCode::as_u16(&response.status());
            let body = axum::body::to_bytes(response.into_body(), 1024).await;
            let body = String::from_utf8(body.expect("a body").into()).expect("text");
            let body = match serde_json::from_str::<serde_json::Value>(&body) {
                Ok(problem) if status == 400 => format!(
                    "{}: {}",
                    problem["code"].as_str().expect("a code"),
                    problem["detail"].as_str().expect("a detail"),
                ),
                _ => body,
            };
            assert_eq!((status, body.as_str()), want, "{path}");
        }
    }
}
