//! Running an operation under a granted claim: forward, as often as the class
//! allows within one claim, then record, then answer.
//!
//! The run is detached from its caller: a client that goes cancels neither the
//! upstream call nor its record.

use std::any::Any;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, header};
use onceward_core::class::{Class, InFlight, OnExhausted};
use onceward_core::classify::{Hint, Meaning, is_worth_repeating};
use onceward_core::deadline::within;
use onceward_core::engine::{Engine, Lead, NewLead, Renewed};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::identity::{Digest, OperationId};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::answer;
use crate::body::{Body, BoxError};
use crate::capture::{Captured, capture};
use crate::duplicate::{preferred_wait, responds_async, status_path};
use crate::fields;
use crate::joined;
use crate::problem::Problem;
use crate::recording::{self, no_answer_response};
use crate::rules::Rules;
use crate::run::{
    Call, Granted, Outcome, ProtectedResponse, Protection, Unanswered, store_unavailable,
};
use crate::span::operation_span;
use crate::status::IdempotencyStatus;

/// Runs a granted operation. The caller waits for its answer, unless it prefers to
/// ask later and the class allows that; the run goes on without it.
// The work is begun here and not in the future that is returned, which then has no
// place for it.
pub(crate) fn run_detached<'a, F, Fut>(
    protection: &'a Protection,
    lead: NewLead,
    call: Call,
    granted: Granted,
    forward: F,
) -> impl Future<Output = ProtectedResponse> + Send + use<'a, F, Fut>
where
    F: FnMut(Request<Bytes>, Option<Granted>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let (id, digest, fingerprint) = (lead.id(), lead.digest(), lead.fingerprint());
    let later = wait_before_accepting(&call).map(|wait| (wait, status_path(&call, id)));
    let (reply_to, reply) = oneshot::channel();
    let span = operation_span(id, granted.fence, &call.identity());
    let run = OperationRun {
        engine: protection.engine.clone(),
        class: call.class,
        rules: call.rules,
        granted,
        _held: call.held,
    };
    let running = run.run(lead, call.request, forward, reply_to);
    let reply = protection
        .engine
        .run_detached(id, running.instrument(span), reply);
    // Without a reply the run panicked or was abandoned, and its lead with it. If that was
    // before anything was sent, the key is free; the answer is the cautious one all the
    // same, because it is not known here.
    async move {
        let reply = async { reply.await.unwrap_or_else(|| no_answer_response(id)) };
        let Some((wait, path)) = later else {
            return reply.await;
        };
        match within(wait, reply).await {
            Ok(ended) => ended,
            Err(_) => {
                let asked = (&digest, &fingerprint);
                Box::pin(accepted(&protection.engine, asked, id, &path)).await
            }
        }
    }
}

/// How long a first caller waits before it gets 202, if it prefers that and the
/// class allows it.
fn wait_before_accepting(call: &Call) -> Option<Duration> {
    let headers = call.request.headers();
    let later = call.class.in_flight == InFlight::Accept && responds_async(headers);
    later.then(|| preferred_wait(headers).unwrap_or_default())
}

async fn accepted(
    engine: &Engine,
    (digest, fingerprint): (&Digest, &Fingerprint),
    id: OperationId,
    path: &str,
) -> ProtectedResponse {
    match engine.look(digest).await {
        Ok(Some(record)) if record.fingerprint == *fingerprint => {
            ProtectedResponse::answered(Outcome::Accepted, id, answer::accepted(&record, path))
        }
        // It was released meanwhile, and the key may belong to another request
        // by now: there is nothing to ask for later.
        Ok(_) => ProtectedResponse::refused(Problem::in_progress(id, IdempotencyStatus::Released)),
        Err(error) => ProtectedResponse::refused(store_unavailable(&error)),
    }
}

/// One granted claim, and what its attempts need.
pub(crate) struct OperationRun {
    pub(crate) engine: Arc<Engine>,
    pub(crate) class: Arc<Class>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) granted: Granted,
    pub(crate) _held: Option<Box<dyn Any + Send + Sync>>,
}

/// The result of one attempt.
pub(crate) enum AttemptResult {
    /// A whole answer.
    Answered(UpstreamAnswer),
    /// An answer that is too large to keep, or a stream.
    Streaming(UpstreamAnswer, Body),
    /// No byte was sent.
    NotSent(BoxError),
    /// Sent, and no whole answer came.
    Lost(BoxError),
}

/// An upstream's answer, as far as it was read.
pub(crate) struct UpstreamAnswer {
    pub(crate) meaning: Meaning,
    pub(crate) hint: Option<Hint>,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: http::HeaderMap,
}

impl AttemptResult {
    /// Whether another attempt may succeed and cannot do harm. A request that may
    /// have run is never repeated.
    fn is_worth_repeating(&self) -> bool {
        match self {
            Self::NotSent(_) => true,
            Self::Lost(_) => false,
            Self::Answered(answered) | Self::Streaming(answered, _) => {
                answered.meaning == Meaning::Release
                    && is_worth_repeating(answered.parts.status.as_u16(), answered.hint)
            }
        }
    }

    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::NotSent(_) | Self::Lost(_) => None,
            Self::Answered(answered) | Self::Streaming(answered, _) => {
                Some(answered.parts.status.as_u16())
            }
        }
    }

    /// Why there is no whole answer.
    pub(crate) fn error(&self) -> Option<&BoxError> {
        match self {
            Self::NotSent(error) | Self::Lost(error) => Some(error),
            Self::Answered(_) | Self::Streaming(..) => None,
        }
    }
}

/// The decision after an attempt.
enum AfterAttempt {
    /// Another attempt, after a pause.
    Retry(Duration),
    /// The result is final.
    End(Ending),
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The result of the last attempt is the outcome.
    Settle,
    /// All attempts failed, and an operator has to decide.
    Pause,
}

impl OperationRun {
    /// Forwards until there is an outcome, then records it and answers. A run that is
    /// abandoned before it is polled has sent nothing: its lead is still a new one.
    async fn run<F, Fut>(
        self,
        lead: NewLead,
        request: Request<Bytes>,
        mut forward: F,
        reply_to: oneshot::Sender<ProtectedResponse>,
    ) where
        F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
        Fut: Future<Output = Result<Response<Body>, Unanswered>>,
    {
        let lead = match self.rules.joined {
            true => lead.begin().joined(),
            false => lead.begin(),
        };
        let end = self.attempts(&lead, request, &mut forward).await;
        onceward_core::crash_point!("before-record");
        // On joined routes the application's commit decides, elsewhere its answer.
        match self.rules.joined {
            true => Box::pin(joined::record(&self, lead, end, reply_to)).await,
            false => recording::record(&self, lead, end, reply_to).await,
        }
    }

    async fn attempts<F, Fut>(
        &self,
        lead: &Lead,
        request: Request<Bytes>,
        forward: &mut F,
    ) -> (AttemptResult, Ending)
    where
        F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
        Fut: Future<Output = Result<Response<Body>, Unanswered>>,
    {
        let mut attempts = 1;
        // The last attempt takes the request itself; only earlier ones copy it.
        while attempts < self.class.max_attempts {
            // Boxed: most classes have one attempt, and the future of every run would
            // have room for two.
            let result = Box::pin(self.attempt(lead, request.clone(), forward)).await;
            match self.next(attempts, &result) {
                AfterAttempt::Retry(pause) => {
                    tracing::info!(attempts, ?pause, "attempt failed; retrying");
                    lead.holding(tokio::time::sleep(pause)).await;
                    // An operator may have taken it away meanwhile, or another
                    // process may run it: then this was the last attempt.
                    if lead.renew().await != Renewed::Confirmed {
                        return (result, Ending::Settle);
                    }
                    attempts += 1;
                }
                AfterAttempt::End(_) => return (result, Ending::Settle),
            }
        }
        let result = self.attempt(lead, request, forward).await;
        match self.next(attempts, &result) {
            AfterAttempt::End(ending) => (result, ending),
            AfterAttempt::Retry(_) => (result, Ending::Settle),
        }
    }

    fn next(&self, attempts: u32, result: &AttemptResult) -> AfterAttempt {
        let several = self.class.max_attempts > 1;
        if !several || !result.is_worth_repeating() {
            return AfterAttempt::End(Ending::Settle);
        }
        match self.class.on_exhausted {
            _ if attempts < self.class.max_attempts => {
                AfterAttempt::Retry(self.class.backoff.after(attempts, self.engine.chance()))
            }
            OnExhausted::Kill => AfterAttempt::End(Ending::Settle),
            // `pause`, the default.
            _ => AfterAttempt::End(Ending::Pause),
        }
    }

    /// One attempt: forwards and reads the answer, within the lease.
    pub(crate) async fn attempt<F, Fut>(
        &self,
        lead: &Lead,
        request: Request<Bytes>,
        forward: &mut F,
    ) -> AttemptResult
    where
        F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
        Fut: Future<Output = Result<Response<Body>, Unanswered>>,
    {
        let limit = self.rules.upstream_timeout;
        let forwarded = {
            // Pinned here: a future is held twice where it is moved into another, and
            // this one is large.
            let forwarding = pin!(forward(request, Some(self.granted.clone())));
            lead.holding_within(limit, forwarding).await
        };
        match forwarded {
            Ok(Ok(response)) => self.read(lead, response).await,
            Ok(Err(Unanswered::NotSent(error))) => AttemptResult::NotSent(error),
            Ok(Err(Unanswered::Lost(error))) => AttemptResult::Lost(error),
            Err(error) => AttemptResult::Lost(error.into()),
        }
    }

    async fn read(&self, lead: &Lead, response: Response<Body>) -> AttemptResult {
        let (mut parts, body) = response.into_parts();
        let hint = parts.headers.get(fields::IDEMPOTENCY_OUTCOME);
        let hint = hint.and_then(|value| Hint::parse(value.as_bytes()));
        let meaning = (self.rules).classify(parts.status.as_u16(), hint, self.class.on_error);
        answer::clean(&mut parts);
        let limit = self.rules.upstream_timeout;
        let reading = capture(&parts.headers, body, self.rules.reply_limit);
        let captured = lead.holding_within(limit, reading).await;
        let answered = |parts, body, trailers| UpstreamAnswer {
            meaning,
            hint,
            parts,
            body,
            trailers,
        };
        match captured {
            Ok(Captured::Whole(body, mut trailers)) => {
                answer::clean_trailers(&mut trailers);
                // The length is set again from the whole body.
                parts.headers.remove(header::CONTENT_LENGTH);
                AttemptResult::Answered(answered(parts, body, trailers))
            }
            Ok(Captured::TooLarge(read, rest)) => {
                AttemptResult::Streaming(answered(parts, read, http::HeaderMap::new()), rest)
            }
            Ok(Captured::Broken(error)) => AttemptResult::Lost(error),
            Err(error) => AttemptResult::Lost(error.into()),
        }
    }
}

/// An error with its causes, for the log.
pub(crate) fn causes(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
