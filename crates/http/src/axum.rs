//! The axum door: what a handler behind the layer may know of its operation.
//!
//! [`IdempotencyLayer`](crate::layer::IdempotencyLayer) goes on a router as any
//! layer does; a handler that takes an [`Operation`] learns under which
//! operation and fence it runs. A handler behind a gateway takes a [`Joined`].

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;

use crate::joined::Joined;
use crate::run::Granted;

/// The operation in whose name a handler runs. As an `Option` it is `None` for
/// requests without a key.
#[derive(Clone, Debug)]
pub struct Operation(pub Granted);

impl<S: Send + Sync> FromRequestParts<S> for Operation {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        match parts.extensions.get::<Granted>() {
            Some(granted) => Ok(Self(granted.clone())),
            None => Err((
                StatusCode::INTERNAL_SERVER_ERROR,
                "this handler needs IdempotencyLayer around it, and a request with a key",
            )),
        }
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Operation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Granted>().cloned().map(Self))
    }
}

/// For handlers of joined routes. As an `Option` it is `None` for requests
/// without a key; either way headers that no gateway sends are refused.
impl<S: Send + Sync> FromRequestParts<S> for Joined {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        joined(parts)?.ok_or_else(|| {
            refusal("this needs an Idempotency-Key, and to come by a joined route of the gateway")
        })
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Joined {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        joined(parts)
    }
}

fn joined(parts: &Parts) -> Result<Option<Joined>, (StatusCode, String)> {
    Joined::from_headers(&parts.headers).map_err(|error| refusal(&error.to_string()))
}

fn refusal(why: &str) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, why.to_owned())
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
        (400, "this needs an Idempotency-Key, and to come by a joined route of the gateway"),
        (200, "none")
    )]
    #[case::forged(
        &[ID, "-1", "k"],
        (400, "idempotency-fence is not what a gateway sends"),
        (400, "idempotency-fence is not what a gateway sends")
    )]
    #[tokio::test]
    async fn handlers_of_joined_routes(
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
            assert_eq!((status, body.as_str()), want, "{path}");
        }
    }
}
