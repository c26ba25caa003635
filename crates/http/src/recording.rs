//! Recording what an attempt came to, on routes that are not joined: the
//! upstream's answer decides.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::classify::Meaning;
use onceward_core::engine::{Lead, Recorded};
use onceward_core::identity::OperationId;
use onceward_core::record::{Answer, Settlement, State};
use tokio::sync::oneshot;

use crate::answer;
use crate::attempt::{AttemptResult, Ending, OperationRun, UpstreamAnswer, causes};
use crate::body::{self, Body, BoxError};
use crate::problem::Problem;
use crate::run::{Outcome, ProtectedResponse};
use crate::status::IdempotencyStatus;
use crate::streaming::{StreamClient, copy_stream};

/// Records the result of the last attempt and answers the caller. A caller that
/// has gone needs no answer.
pub(crate) async fn record(
    run: &OperationRun,
    lead: Lead,
    (result, ending): (AttemptResult, Ending),
    reply_to: oneshot::Sender<ProtectedResponse>,
) {
    let ended = match (ending, result) {
        (Ending::Pause, result) => pause(lead, result.status()).await.0,
        (Ending::Settle, AttemptResult::Answered(answer)) => record_whole(lead, answer).await,
        (Ending::Settle, AttemptResult::Streaming(answer, rest)) => {
            let idle = run.rules.upstream_timeout;
            // Boxed: rare, and larger than the others.
            return Box::pin(stream(lead, answer, rest, idle, reply_to)).await;
        }
        (Ending::Settle, AttemptResult::NotSent(error)) => not_sent(lead, &error).await,
        (Ending::Settle, AttemptResult::Lost(error)) => lose(lead, &error).await,
    };
    onceward_core::crash_point!("before-answer");
    let _ = reply_to.send(ended);
}

async fn record_whole(lead: Lead, answered: UpstreamAnswer) -> ProtectedResponse {
    let UpstreamAnswer {
        meaning,
        parts,
        body,
        trailers,
        ..
    } = answered;
    let id = lead.id();
    let reply = Arc::new(answer::reply_of(&parts, &body, &trailers));
    let state = State::of_status(reply.status);
    let recorded = match meaning {
        Meaning::Keep => {
            let answer = Answer::Kept(reply.clone());
            lead.finish(settlement(state, answer), Some(reply)).await
        }
        Meaning::Release => lead.release(Some(reply)).await,
        Meaning::Unknown => {
            let status = reply.status;
            tracing::warn!(status, "upstream answered with an error; outcome unknown");
            lead.lose().await
        }
    };
    onceward_core::crash_point!("after-record");
    let (outcome, idempotency_status, expires) = match (recorded, meaning) {
        (Recorded::Finished(completion), _) => {
            let expires = completion.expires_at;
            (Outcome::Ran(state), status_of(state), Some(expires))
        }
        (Recorded::Durably, Meaning::Release) => {
            (Outcome::Released, IdempotencyStatus::Released, None)
        }
        (Recorded::Durably, Meaning::Unknown | Meaning::Keep) => {
            (Outcome::Lost, IdempotencyStatus::Unknown, None)
        }
        // The caller gets the real answer, even if it could not be recorded.
        (Recorded::Stale | Recorded::NotYet, _) => {
            (Outcome::NotRecorded, IdempotencyStatus::Unknown, None)
        }
    };
    let body = body::with_trailers(body, trailers);
    ProtectedResponse::answered(
        outcome,
        id,
        answer::first(parts, body, idempotency_status, id, expires),
    )
}

/// All attempts failed: only an operator lets it run again.
pub(crate) async fn pause(lead: Lead, status: Option<u16>) -> (ProtectedResponse, Recorded) {
    let id = lead.id();
    tracing::warn!(status, "all attempts failed; operation paused");
    let recorded = lead.pause().await;
    let problem = Problem::paused(id);
    let problem = match status {
        Some(status) => problem.with_original_status(status),
        None => problem,
    };
    (
        ProtectedResponse::problem(Outcome::Paused, Some(id), problem),
        recorded,
    )
}

async fn not_sent(lead: Lead, error: &BoxError) -> ProtectedResponse {
    let id = lead.id();
    tracing::warn!(error = causes(error), "upstream unreachable; key released");
    lead.release(None).await;
    not_sent_response(id)
}

/// The response where no byte of the request was sent.
pub(crate) fn not_sent_response(id: OperationId) -> ProtectedResponse {
    ProtectedResponse::problem(Outcome::NotSent, Some(id), Problem::not_sent(id))
}

async fn lose(lead: Lead, error: &BoxError) -> ProtectedResponse {
    let id = lead.id();
    tracing::warn!(
        error = causes(error),
        "no answer from the upstream; outcome unknown"
    );
    lead.lose().await;
    no_answer_response(id)
}

/// The response to the caller whose request was sent and may have run.
pub(crate) fn no_answer_response(id: OperationId) -> ProtectedResponse {
    ProtectedResponse::problem(Outcome::Lost, Some(id), Problem::no_answer(id))
}

pub(crate) fn settlement(state: State, answer: Answer) -> Settlement {
    match state {
        State::Failed => Settlement::Failed(answer),
        _ => Settlement::Completed(answer),
    }
}

pub(crate) fn status_of(state: State) -> IdempotencyStatus {
    match state {
        State::Failed => IdempotencyStatus::Failed,
        _ => IdempotencyStatus::Completed,
    }
}

/// Streams an answer that is not kept to the first caller, and records how it
/// ended. The mark is durable before the first byte is answered, so that a crash
/// during the stream cannot lead to a second run.
async fn stream(
    lead: Lead,
    answered: UpstreamAnswer,
    rest: Body,
    idle: Duration,
    reply_to: oneshot::Sender<ProtectedResponse>,
) {
    let UpstreamAnswer {
        meaning,
        parts,
        body: read,
        ..
    } = answered;
    let id = lead.id();
    let status = parts.status.as_u16();
    let state = State::of_status(status);
    let (outcome, idempotency_status) = match meaning {
        Meaning::Keep => {
            let mark = settlement(state, Answer::NotKept { status });
            match lead.mark_not_kept(mark).await {
                Recorded::Finished(_) => (Outcome::RanNotKept, status_of(state)),
                Recorded::Durably | Recorded::Stale | Recorded::NotYet => {
                    (Outcome::NotRecorded, IdempotencyStatus::Unknown)
                }
            }
        }
        Meaning::Release => (Outcome::Released, IdempotencyStatus::Released),
        Meaning::Unknown => (Outcome::Lost, IdempotencyStatus::Unknown),
    };
    let (body, mut client) = StreamClient::new(idle);
    let response = answer::first(parts, body, idempotency_status, id, None);
    let _ = reply_to.send(ProtectedResponse::answered(outcome, id, response));
    let copying = copy_stream(&mut client, read, rest, idle);
    let copied = match outcome {
        // The outcome is on record, so there is no lease to renew.
        Outcome::RanNotKept => copying.await,
        _ => lead.holding(copying).await,
    };
    let recorded = match copied {
        Ok(()) => match (meaning, outcome) {
            (Meaning::Keep, Outcome::RanNotKept) => return lead.landed(),
            (Meaning::Keep, _) => {
                let answer = Answer::NotKept { status };
                lead.finish(settlement(state, answer), None).await
            }
            (Meaning::Release, _) => lead.release(None).await,
            (Meaning::Unknown, _) => lead.lose().await,
        },
        Err(error) => {
            tracing::warn!(error = %error, "answer broke off; outcome unknown");
            let recorded = lead.lose().await;
            client.abort(error);
            recorded
        }
    };
    tracing::debug!(?recorded, "an answer that is not kept ended");
}
