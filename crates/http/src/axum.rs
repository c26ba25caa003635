//! The axum door: what a handler behind the layer may know of its operation.
//!
//! [`IdempotencyLayer`](crate::layer::IdempotencyLayer) goes on a router as any
//! layer does; a handler that takes an [`Operation`] learns under which
//! operation and fence it runs.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;

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
