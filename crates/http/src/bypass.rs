//! Requests while the store is unavailable: refused, or forwarded without protection
//! where the class says `on_store_failure = "bypass"`.

use std::future::Future;

use http::Response;
use onceward_core::class::{Class, OnStoreFailure};
use onceward_core::deadline::within;
use onceward_core::engine::Engine;
use onceward_core::store::StoreError;
use tokio::sync::oneshot;

use crate::answer;
use crate::body::Body;
use crate::fields;
use crate::problem::Problem;
use crate::rules::Rules;
use crate::run::{Outcome, ProtectedResponse, Unanswered, store_unavailable};
use crate::status::IdempotencyStatus;

/// Refuses the request, or forwards it unprotected and says so.
pub(crate) async fn without_store<Fut>(
    engine: &Engine,
    (class, rules): (&Class, &Rules),
    error: &StoreError,
    forward: impl FnOnce() -> Fut,
) -> ProtectedResponse
where
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    // A damaged record is a record: its operation may have run.
    let away = matches!(error, StoreError::Unavailable(_));
    // A joined application commits its outcome into the record of a grant, so
    // without a grant its own commit does not protect it either.
    let rejects = class.on_store_failure == OnStoreFailure::Reject || rules.joined;
    if rejects || !away {
        return ProtectedResponse::refused(store_unavailable(error));
    }
    tracing::warn!(%error, "store unavailable; request forwarded without protection");
    let limit = rules.upstream_timeout;
    let (reply_to, reply) = oneshot::channel();
    let forwarded = forward();
    // Detached: a client that goes must not cancel a half-finished run.
    engine.spawn(async move {
        let answer = within(limit, forwarded).await;
        let answer = answer.unwrap_or_else(|error| Err(Unanswered::Lost(error.into())));
        let _ = reply_to.send(answer);
    });
    // A sender that is dropped means a panic or a shutdown: it may have run.
    let answer = reply.await;
    let answer = answer.unwrap_or_else(|error| Err(Unanswered::Lost(error.into())));
    let response = match answer {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            answer::clean(&mut parts);
            let status = IdempotencyStatus::Bypassed.to_header();
            parts.headers.insert(fields::IDEMPOTENCY_STATUS, status);
            Ok(Response::from_parts(parts, body))
        }
        Err(Unanswered::NotSent(_)) => Err(Problem::not_sent_unprotected()),
        Err(Unanswered::Lost(_)) => Err(Problem::no_answer_unprotected()),
    };
    let bypassed = |problem: Problem| problem.with_idempotency_status(IdempotencyStatus::Bypassed);
    ProtectedResponse {
        outcome: Outcome::Bypassed,
        id: None,
        response: response.map_err(bypassed),
    }
}
