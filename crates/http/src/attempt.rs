//! Running an operation that is ours: forward, as often as the class lets us
//! within one claim, then record, then tell the caller, if there still is one.
//!
//! It is detached from whoever asked: a client that goes cancels neither the
//! call nor its record.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, header};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use onceward_core::class::{Class, InFlight, OnExhausted, OnStoreFailure};
use onceward_core::classify::{Hint, Meaning, is_worth_repeating};
use onceward_core::engine::{Engine, Lead, Recorded, Renewed};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::StoreError;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::answer;
use crate::body::{self, Body, BoxError};
use crate::capture::{Captured, capture};
use crate::duplicate::{preferred_wait, responds_async, status_path};
use crate::fields;
use crate::joined;
use crate::problem::Problem;
use crate::rules::Rules;
use crate::run::{
    Call, Granted, Outcome, ProtectedResponse, Protection, Unanswered, store_unavailable,
};
use crate::status::IdempotencyStatus;

/// How many frames of an answer that streams may wait for a slow client.
const STREAM_FRAMES_MAX: usize = 16;

/// Runs an operation that is ours, detached from the caller, who waits for the
/// answer unless the class lets it ask later.
pub(crate) async fn lead_on<F, Fut>(
    protection: &Arc<Protection>,
    lead: Lead,
    call: Call,
    granted: Granted,
    forward: F,
) -> ProtectedResponse
where
    F: FnMut(Request<Bytes>, Option<Granted>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let lead = match call.rules.joined {
        true => lead.joined(),
        false => lead,
    };
    let (id, digest, fingerprint) = (lead.id(), lead.digest(), lead.fingerprint());
    let later = asks_later(&call).map(|patience| (patience, status_path(&call, id)));
    let (tell, told) = oneshot::channel();
    let work = Work {
        engine: protection.engine.clone(),
        class: call.class,
        rules: call.rules,
        granted,
        _held: call.held,
    };
    let running = work.run(lead, call.request, forward, tell);
    protection.engine.spawn(Box::pin(running));
    // Without a word the work panicked or was given up, and so was its lead.
    let told = async { told.await.unwrap_or_else(|_| lost(id)) };
    match later {
        None => told.await,
        Some((patience, path)) => match timeout(patience, told).await {
            Ok(ended) => ended,
            Err(_) => accepted(&protection.engine, (&digest, &fingerprint), id, &path).await,
        },
    }
}

/// How long a first caller waits before it is told to ask later, if it said
/// that it would and the class lets it.
fn asks_later(call: &Call) -> Option<Duration> {
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
        // Released in the meantime, and perhaps another's by now: there is
        // nothing to ask for later.
        Ok(_) => ProtectedResponse::refused(Problem::in_progress(id, IdempotencyStatus::Released)),
        Err(error) => ProtectedResponse::refused(store_unavailable(&error)),
    }
}

/// One claim and all that is done under it.
pub(crate) struct Work {
    pub(crate) engine: Arc<Engine>,
    pub(crate) class: Arc<Class>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) granted: Granted,
    pub(crate) _held: Option<Box<dyn Any + Send + Sync>>,
}

/// What one attempt came to.
pub(crate) enum Tried {
    /// A whole answer.
    Answered(Answered),
    /// An answer that is too large to keep, or a stream.
    Streaming(Answered, Body),
    /// No byte was sent.
    NotSent(BoxError),
    /// Sent, and no whole answer came.
    Lost(BoxError),
}

/// An upstream's answer, as far as it was read.
pub(crate) struct Answered {
    pub(crate) meaning: Meaning,
    pub(crate) hint: Option<Hint>,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: http::HeaderMap,
}

impl Tried {
    /// Whether the same again may end better, and cannot do harm: what may have
    /// run is never repeated.
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

/// What follows an attempt.
enum Next {
    /// It is the outcome.
    Settle,
    /// Another one, after a rest.
    Again(Duration),
    /// Nothing: an operator has to look.
    Pause,
}

impl Work {
    /// Forwards until there is an outcome, records it, tells the caller.
    async fn run<F, Fut>(
        self,
        lead: Lead,
        request: Request<Bytes>,
        mut forward: F,
        tell: oneshot::Sender<ProtectedResponse>,
    ) where
        F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
        Fut: Future<Output = Result<Response<Body>, Unanswered>>,
    {
        let mut attempts = 1;
        // Only who may need it again keeps a copy.
        while attempts < self.class.max_attempts {
            let tried = self.attempt(&lead, request.clone(), &mut forward).await;
            match self.next(attempts, &tried) {
                Next::Again(rest) => {
                    tracing::info!(operation_id = %lead.id(), attempts, ?rest, "to be tried again");
                    lead.holding(tokio::time::sleep(rest)).await;
                    // An operator may have taken it away meanwhile, or somebody
                    // else runs it: then this was the last attempt.
                    if lead.renew().await != Renewed::Confirmed {
                        return self.settle(lead, tried, tell).await;
                    }
                    attempts += 1;
                }
                Next::Settle | Next::Pause => return self.settle(lead, tried, tell).await,
            }
        }
        let tried = self.attempt(&lead, request, &mut forward).await;
        match self.next(attempts, &tried) {
            Next::Pause => {
                let status = tried.status();
                let ended = match self.rules.joined {
                    true => joined::pause(&self.engine, lead, status).await,
                    false => pause(lead, status).await.0,
                };
                let _ = tell.send(ended);
            }
            Next::Settle | Next::Again(_) => self.settle(lead, tried, tell).await,
        }
    }

    fn next(&self, attempts: u32, tried: &Tried) -> Next {
        let several = self.class.max_attempts > 1;
        if !several || !tried.is_worth_repeating() {
            return Next::Settle;
        }
        match self.class.on_exhausted {
            _ if attempts < self.class.max_attempts => {
                Next::Again(self.class.backoff.after(attempts, self.engine.chance()))
            }
            OnExhausted::Kill => Next::Settle,
            // `pause`, the default.
            _ => Next::Pause,
        }
    }

    /// One attempt: forwards and reads the answer, within the lease.
    pub(crate) async fn attempt<F, Fut>(
        &self,
        lead: &Lead,
        request: Request<Bytes>,
        forward: &mut F,
    ) -> Tried
    where
        F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
        Fut: Future<Output = Result<Response<Body>, Unanswered>>,
    {
        let limit = self.rules.upstream_timeout;
        let forwarded = forward(request, Some(self.granted.clone()));
        match lead.holding(timeout(limit, forwarded)).await {
            Ok(Ok(response)) => self.read(lead, response).await,
            Ok(Err(Unanswered::NotSent(error))) => Tried::NotSent(error),
            Ok(Err(Unanswered::Lost(error))) => Tried::Lost(error),
            Err(_) => Tried::Lost(Box::new(TooSlow(limit))),
        }
    }

    async fn read(&self, lead: &Lead, response: Response<Body>) -> Tried {
        let (mut parts, body) = response.into_parts();
        let hint = parts.headers.get(fields::IDEMPOTENCY_OUTCOME);
        let hint = hint.and_then(|value| Hint::parse(value.as_bytes()));
        let meaning = (self.rules).classify(parts.status.as_u16(), hint, self.class.on_error);
        answer::clean(&mut parts);
        let limit = self.rules.upstream_timeout;
        let reading = timeout(limit, capture(&parts.headers, body, self.rules.reply_limit));
        let captured = lead.holding(reading).await;
        let answered = |parts, body, trailers| Answered {
            meaning,
            hint,
            parts,
            body,
            trailers,
        };
        match captured {
            Ok(Captured::Whole(body, mut trailers)) => {
                answer::clean_trailers(&mut trailers);
                // Framing is made anew from the whole body.
                parts.headers.remove(header::CONTENT_LENGTH);
                Tried::Answered(answered(parts, body, trailers))
            }
            Ok(Captured::TooLarge(read, rest)) => {
                Tried::Streaming(answered(parts, read, http::HeaderMap::new()), rest)
            }
            Ok(Captured::Broken(error)) => Tried::Lost(error),
            Err(_) => Tried::Lost(Box::new(TooSlow(limit))),
        }
    }

    /// Records what an attempt came to and tells the caller.
    async fn settle(&self, lead: Lead, tried: Tried, tell: oneshot::Sender<ProtectedResponse>) {
        onceward_core::crash_point!("before-record");
        let (engine, joined) = (&self.engine, self.rules.joined);
        let idle = self.rules.upstream_timeout;
        let ended = match tried {
            Tried::Answered(answered) if joined => {
                joined::record_whole(engine, lead, answered).await
            }
            Tried::Answered(answered) => record_whole(lead, answered).await,
            Tried::Streaming(answered, rest) if joined => {
                return joined::stream(engine, lead, answered, rest, idle, tell).await;
            }
            Tried::Streaming(answered, rest) => {
                return stream(lead, answered, rest, idle, tell).await;
            }
            Tried::NotSent(error) if joined => {
                joined::not_sent(engine, lead, self.class.max_attempts, &error).await
            }
            Tried::NotSent(error) => not_sent(lead, &error).await,
            Tried::Lost(error) if joined => joined::lose(engine, lead, &error).await,
            Tried::Lost(error) => lose(lead, &error).await,
        };
        onceward_core::crash_point!("before-answer");
        // A caller that has gone needs no answer.
        let _ = tell.send(ended);
    }
}

/// The upstream did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct TooSlow(Duration);

/// The attempts are used up: nobody runs it again before an operator says so.
pub(crate) async fn pause(lead: Lead, status: Option<u16>) -> (ProtectedResponse, Recorded) {
    let id = lead.id();
    tracing::warn!(operation_id = %id, status, "the attempts are used up; paused");
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
    tracing::warn!(operation_id = %id, error = causes(error), "the upstream could not be reached");
    lead.release(None).await;
    unreachable(id)
}

/// What a caller is told whose request was not sent.
pub(crate) fn unreachable(id: OperationId) -> ProtectedResponse {
    ProtectedResponse::problem(Outcome::NotSent, Some(id), Problem::not_sent(id))
}

async fn lose(lead: Lead, error: &BoxError) -> ProtectedResponse {
    let id = lead.id();
    tracing::warn!(operation_id = %id, error = causes(error), "the outcome is unknown");
    lead.lose().await;
    lost(id)
}

/// An error with all that led to it, for the log.
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

/// What the first caller is told of an operation that may have run.
pub(crate) fn lost(id: OperationId) -> ProtectedResponse {
    ProtectedResponse::problem(Outcome::Lost, Some(id), Problem::no_answer(id))
}

async fn record_whole(lead: Lead, answered: Answered) -> ProtectedResponse {
    let Answered {
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
            tracing::warn!(operation_id = %id, status, "upstream answered with an error; outcome unknown");
            lead.lose().await
        }
    };
    onceward_core::crash_point!("after-record");
    let (outcome, word, expires) = match (recorded, meaning) {
        (Recorded::Finished(completion), _) => {
            let expires = completion.expires_at;
            (Outcome::Ran(state), word_of(state), Some(expires))
        }
        (Recorded::Durably, Meaning::Release) => {
            (Outcome::Released, IdempotencyStatus::Released, None)
        }
        (Recorded::Durably, Meaning::Unknown | Meaning::Keep) => {
            (Outcome::Lost, IdempotencyStatus::Unknown, None)
        }
        // The caller gets the real answer, whatever the record says.
        (Recorded::Stale | Recorded::NotYet, _) => {
            (Outcome::NotRecorded, IdempotencyStatus::Unknown, None)
        }
    };
    let body = body::with_trailers(body, trailers);
    ProtectedResponse::answered(outcome, id, answer::first(parts, body, word, id, expires))
}

pub(crate) fn settlement(state: State, answer: Answer) -> Settlement {
    match state {
        State::Failed => Settlement::Failed(answer),
        _ => Settlement::Completed(answer),
    }
}

pub(crate) fn word_of(state: State) -> IdempotencyStatus {
    match state {
        State::Failed => IdempotencyStatus::Failed,
        _ => IdempotencyStatus::Completed,
    }
}

/// Streams an answer that is not kept to the first caller, and records how it
/// ended. The mark is durable before the first byte is answered, so that no
/// crash on the way can lead to a second run.
async fn stream(
    lead: Lead,
    answered: Answered,
    rest: Body,
    idle: Duration,
    tell: oneshot::Sender<ProtectedResponse>,
) {
    let Answered {
        meaning,
        parts,
        body: read,
        ..
    } = answered;
    let id = lead.id();
    let status = parts.status.as_u16();
    let state = State::of_status(status);
    let (outcome, word) = match meaning {
        Meaning::Keep => {
            let mark = settlement(state, Answer::NotKept { status });
            match lead.mark_not_kept(mark).await {
                Recorded::Finished(_) => (Outcome::RanNotKept, word_of(state)),
                Recorded::Durably | Recorded::Stale | Recorded::NotYet => {
                    (Outcome::NotRecorded, IdempotencyStatus::Unknown)
                }
            }
        }
        Meaning::Release => (Outcome::Released, IdempotencyStatus::Released),
        Meaning::Unknown => (Outcome::Lost, IdempotencyStatus::Unknown),
    };
    let (response, mut client) = streaming(parts, word, id, idle);
    let _ = tell.send(ProtectedResponse::answered(outcome, id, response));
    let pumping = pump(&mut client, read, rest, idle);
    let pumped = match outcome {
        // Its outcome is on record: there is no lease to renew.
        Outcome::RanNotKept => pumping.await,
        _ => lead.holding(pumping).await,
    };
    let recorded = match pumped {
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
            tracing::warn!(operation_id = %id, error = %error, "an answer broke off");
            let recorded = lead.lose().await;
            client.abort(error);
            recorded
        }
    };
    tracing::debug!(operation_id = %id, ?recorded, "an answer that is not kept has ended");
}

/// The first caller's answer with a body that is still to come, and who reads it.
pub(crate) fn streaming(
    parts: Parts,
    word: IdempotencyStatus,
    id: OperationId,
    patience: Duration,
) -> (Response<Body>, Client) {
    let (sender, channel) = Channel::<Bytes, BoxError>::new(STREAM_FRAMES_MAX);
    let response = answer::first(parts, body::boxed(channel), word, id, None);
    let sender = Some(sender);
    (response, Client { sender, patience })
}

/// Carries a body over to the client; when the client has gone, reads on to
/// learn whether the answer was whole.
pub(crate) async fn pump(
    client: &mut Client,
    read: Bytes,
    mut rest: Body,
    idle: Duration,
) -> Result<(), BoxError> {
    client.give(Frame::data(read)).await;
    loop {
        let frame = timeout(idle, rest.frame()).await;
        match frame.map_err(|_| TooSlow(idle))? {
            Some(frame) => client.give(frame?).await,
            None => return Ok(()),
        }
    }
}

/// The reader of an answer that streams, as long as it reads.
pub(crate) struct Client {
    sender: Option<Sender<Bytes, BoxError>>,
    patience: Duration,
}

/// The client did not read.
#[derive(Debug, thiserror::Error)]
#[error("the client read nothing for {0:?}")]
struct NotReading(Duration);

impl Client {
    /// Gives a piece to the client. One that does not read is cut off, so that
    /// it holds neither the operation nor the upstream's connection.
    async fn give(&mut self, frame: Frame<Bytes>) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        match timeout(self.patience, sender.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => self.sender = None,
            Err(_) => self.abort(Box::new(NotReading(self.patience))),
        }
    }

    /// Breaks the answer off, so that nobody takes it for whole.
    pub(crate) fn abort(&mut self, error: BoxError) {
        if let Some(sender) = self.sender.take() {
            sender.abort(error);
        }
    }
}

/// The store is away: refuse, or pass the request on and say so.
pub(crate) async fn without_store<Fut>(
    engine: &Engine,
    call: (&Class, &Rules),
    error: &StoreError,
    forward: impl FnOnce() -> Fut,
) -> ProtectedResponse
where
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let (class, rules) = call;
    // A damaged record is a record: its operation may have run.
    let away = matches!(error, StoreError::Unavailable(_));
    // Without a grant there is no record to join, and what an application does
    // without one is not protected by its own commit either.
    let rejects = class.on_store_failure == OnStoreFailure::Reject || rules.joined;
    if rejects || !away {
        return ProtectedResponse::refused(store_unavailable(error));
    }
    tracing::warn!(%error, "the store is away; a request goes unprotected");
    let limit = rules.upstream_timeout;
    // Detached as well: a client that goes must not leave half a run behind.
    let (tell, told) = oneshot::channel();
    let forwarded = forward();
    engine.spawn(async move {
        let answer = timeout(limit, forwarded).await;
        let answer = answer.unwrap_or_else(|_| Err(Unanswered::Lost(Box::new(TooSlow(limit)))));
        let _ = tell.send(answer);
    });
    let answer = told
        .await
        .unwrap_or_else(|_| Err(Unanswered::Lost(Box::new(TooSlow(limit)))));
    let answer = match answer {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            answer::clean(&mut parts);
            let word = IdempotencyStatus::Bypassed.to_header();
            parts.headers.insert(fields::IDEMPOTENCY_STATUS, word);
            Ok(Response::from_parts(parts, body))
        }
        Err(Unanswered::NotSent(_)) => Err(Problem::not_sent_unprotected()),
        Err(Unanswered::Lost(_)) => Err(Problem::no_answer_unprotected()),
    };
    ProtectedResponse {
        outcome: Outcome::Bypassed,
        id: None,
        response: answer
            .map_err(|problem| problem.with_idempotency_status(IdempotencyStatus::Bypassed)),
    }
}
