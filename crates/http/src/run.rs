//! The one function that runs a request at most once: identify, claim, forward,
//! record. The gateway and the tower layer both call it.
//!
//! What follows a granted claim runs detached from whoever asked, so a client
//! that goes cancels neither the call nor its record. A claim is durable before
//! anything is forwarded; a kept reply is durable before any of it is answered.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use onceward_core::caller::Caller;
use onceward_core::class::{Class, InFlight, OnMismatch, OnStoreFailure};
use onceward_core::classify::{Hint, Meaning, classify};
use onceward_core::clock::Timestamp;
use onceward_core::engine::{Awaited, Engine, Entry, Follow, Lead, Recorded};
use onceward_core::fingerprint::{Asked, Fingerprint, Fingerprinter};
use onceward_core::identity::{Digest, Endpoint, Identity, OperationId};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Fence, Record, Settlement, State};
use onceward_core::store::StoreError;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::answer;
use crate::body::{self, Body, BoxError};
use crate::capture::{Captured, capture};
use crate::fields;
use crate::problem::{Code, Problem};
use crate::status::Word;

/// How many frames of an answer that streams may wait for a slow client.
const STREAM_FRAMES_MAX: usize = 16;

/// Whether the credentials of a request are part of what is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Yes: nobody has checked them, so one client must not read another's reply.
    Compared,
    /// No: the caller was authenticated, and tokens change between retries.
    Trusted,
}

/// How requests are protected.
pub struct Protection {
    /// Runs them.
    pub engine: Arc<Engine>,
    /// Compares them.
    pub fingerprinter: Fingerprinter,
    /// Whether their credentials are compared.
    pub credentials: Credentials,
    /// How long the upstream may take for its head, then for a body that is
    /// kept; and how long it may pause within one that streams.
    pub upstream_timeout: Duration,
    /// The largest reply that is kept, in bytes.
    pub reply_limit: usize,
}

/// A request that is to be protected, its body read.
pub struct Call {
    /// Who sends it.
    pub caller: Caller,
    /// Where to.
    pub endpoint: Endpoint,
    /// Its key.
    pub key: Key,
    /// What the route chose.
    pub class: Arc<Class>,
    /// The request.
    pub request: Request<Bytes>,
}

/// The grant under which a request is forwarded.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The operation's id.
    pub id: OperationId,
    /// The fence of this run.
    pub fence: Fence,
    /// The namespaced name of the key.
    pub name: String,
    /// Who sends.
    pub caller: Caller,
}

/// Why a forwarded request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// No byte of it was sent: nothing can have happened.
    #[error("nothing was sent: {0}")]
    NotSent(#[source] BoxError),
    /// It was sent, and may have run.
    #[error("sent, but no answer came: {0}")]
    Lost(#[source] BoxError),
}

/// What a protected request came to, for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and the reply is kept; this is its state.
    Ran(State),
    /// It ran and the reply is too large to keep.
    RanNotKept,
    /// It ran and the key is free again.
    Released,
    /// It ran, and the store would not take the outcome.
    NotRecorded,
    /// It may have run.
    Lost,
    /// The upstream could not be reached.
    NotSent,
    /// A kept reply was given again; this is the operation's state.
    Replayed(State),
    /// The answer of the run that was waited for, which is not kept.
    Shared,
    /// The store was away and it was forwarded unprotected.
    Bypassed,
    /// It runs elsewhere; the caller was told where to ask.
    Accepted,
    /// Somebody asked how it stands.
    Told,
    /// Refused.
    Refused(Code),
}

impl Outcome {
    /// The word in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ran(state) => state.as_str(),
            Self::RanNotKept => "not-kept",
            Self::Released => "released",
            Self::NotRecorded => "not-recorded",
            Self::Lost => "unknown",
            Self::NotSent => "not-sent",
            Self::Replayed(_) => "replayed",
            Self::Shared => "shared",
            Self::Bypassed => "bypassed",
            Self::Accepted => "accepted",
            Self::Told => "told",
            Self::Refused(code) => code.as_str(),
        }
    }
}

/// What a protected request came to.
pub struct Ended {
    /// In a word.
    pub outcome: Outcome,
    /// The operation, where there is one to be told.
    pub id: Option<OperationId>,
    /// The answer.
    pub answer: Result<Response<Body>, Problem>,
}

impl Ended {
    fn answered(outcome: Outcome, id: OperationId, response: Response<Body>) -> Self {
        Self {
            outcome,
            id: Some(id),
            answer: Ok(response),
        }
    }

    fn problem(outcome: Outcome, id: Option<OperationId>, problem: Problem) -> Self {
        Self {
            outcome,
            id,
            answer: Err(problem),
        }
    }

    pub(crate) fn refused(problem: Problem) -> Self {
        let id = problem.operation_id();
        Self::problem(Outcome::Refused(problem.code()), id, problem)
    }

    /// From a record that no longer runs.
    pub(crate) fn from_record(record: &Record) -> Self {
        let answer = answer::of_record(record);
        Self {
            outcome: match &answer {
                Ok(_) => Outcome::Replayed(record.state),
                Err(problem) => Outcome::Refused(problem.code()),
            },
            id: Some(record.id),
            answer,
        }
    }
}

/// Runs a request at most once. `forward` is called at most once, with the
/// grant; without one only where the store is away and the class says `bypass`.
pub async fn run<F, Fut>(protection: &Arc<Protection>, call: Call, forward: F) -> Ended
where
    F: FnOnce(Request<Bytes>, Option<Granted>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let (identity, fingerprint) = match identify(protection, &call) {
        Ok(identified) => identified,
        Err(problem) => return Ended::refused(problem),
    };
    fail::fail_point!("before-claim", |_| std::process::abort());
    let entry = protection
        .engine
        .enter(identity.clone(), fingerprint, call.class.terms())
        .await;
    fail::fail_point!("after-claim", |_| std::process::abort());
    match entry {
        Ok(Entry::Lead(lead)) => {
            let granted = Granted {
                id: lead.id(),
                fence: lead.fence(),
                // It was found short enough before the claim.
                name: identity.name().unwrap_or_default(),
                caller: call.caller,
            };
            lead_on(protection, lead, forward(call.request, Some(granted))).await
        }
        Ok(Entry::Follow(follow)) => wait_for(&call.class, &call.request, &call.key, &follow).await,
        Ok(Entry::Finished(record) | Entry::Expired(record)) => Ended::from_record(&record),
        Ok(Entry::Paused(record) | Entry::Unknown(record)) => Ended::from_record(&record),
        Ok(Entry::Mismatch) => mismatched(protection, &call, &identity.digest()).await,
        Err(error) => {
            let limit = protection.upstream_timeout;
            let forward = || forward(call.request, None);
            without_store(&call.class, &error, limit, forward).await
        }
    }
}

/// Who, where, which key; and what is asked for.
fn identify(protection: &Protection, call: &Call) -> Result<(Identity, Fingerprint), Problem> {
    let identity = Identity {
        caller: call.caller.clone(),
        endpoint: call.endpoint.clone(),
        key: call.key.clone(),
    };
    identity.check_name().map_err(Problem::invalid_key)?;
    let request = &call.request;
    let credentials = match protection.credentials {
        Credentials::Compared => credentials(request.headers()),
        Credentials::Trusted => Vec::new(),
    };
    let fingerprint = protection.fingerprinter.fingerprint(&Asked {
        method: &effective_method(request),
        path: request.uri().path(),
        query: request.uri().query(),
        content_type: request
            .headers()
            .get(header::CONTENT_TYPE)
            .map(http::HeaderValue::as_bytes),
        body: request.body(),
        credentials: &credentials,
    });
    Ok((identity, fingerprint))
}

/// The method, and the other one that some upstreams let a header put in its place.
fn effective_method(request: &Request<Bytes>) -> Cow<'_, str> {
    let method = request.method().as_str();
    let overriding = [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
    ]
    .into_iter()
    .find_map(|name| request.headers().get(name));
    match overriding {
        None => method.into(),
        Some(other) => format!("{method} {}", String::from_utf8_lossy(other.as_bytes())).into(),
    }
}

/// The headers by which clients identify themselves to somebody else.
pub(crate) fn credentials(headers: &http::HeaderMap) -> Vec<(&'static str, &[u8])> {
    ["authorization", "x-api-key", "cookie"]
        .into_iter()
        .flat_map(|name| {
            headers
                .get_all(name)
                .iter()
                .map(move |v| (name, v.as_bytes()))
        })
        .collect()
}

/// Runs an operation that is ours, detached from the caller.
async fn lead_on<Fut>(protection: &Arc<Protection>, lead: Lead, forwarded: Fut) -> Ended
where
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let id = lead.id();
    let (tell, told) = oneshot::channel();
    let work = attempt(protection.clone(), lead, forwarded, tell);
    protection.engine.tasks().spawn(Box::pin(work));
    told.await.unwrap_or_else(|_| {
        // The work panicked; its lead counts as lost.
        Ended::problem(Outcome::Lost, Some(id), lost(id))
    })
}

/// One run: forward, then record, then tell the caller, if there still is one.
async fn attempt<Fut>(
    protection: Arc<Protection>,
    lead: Lead,
    forwarded: Fut,
    tell: oneshot::Sender<Ended>,
) where
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let limit = protection.upstream_timeout;
    let answer = lead.holding(timeout(limit, forwarded)).await;
    let answer = answer.unwrap_or_else(|_| Err(Unanswered::Lost(Box::new(TooSlow(limit)))));
    let ended = match answer {
        Ok(response) => return record(&protection, lead, response, tell).await,
        Err(Unanswered::NotSent(error)) => not_sent(lead, &error).await,
        Err(Unanswered::Lost(error)) => lose(lead, &error).await,
    };
    // A caller that has gone needs no answer.
    let _ = tell.send(ended);
}

/// The upstream did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct TooSlow(Duration);

async fn not_sent(lead: Lead, error: &BoxError) -> Ended {
    let id = lead.id();
    tracing::warn!(operation_id = %id, error = causes(error), "the upstream could not be reached");
    lead.release(None).await;
    let problem = Problem::new(
        Code::UpstreamUnreachable,
        "The upstream could not be reached. Nothing was sent, so nothing was done; the key is free.",
    );
    let problem = problem.about(id).standing(Word::Released).retry_after(1);
    Ended::problem(Outcome::NotSent, Some(id), problem)
}

async fn lose(lead: Lead, error: &BoxError) -> Ended {
    let id = lead.id();
    tracing::warn!(operation_id = %id, error = causes(error), "the outcome is unknown");
    lead.lose().await;
    Ended::problem(Outcome::Lost, Some(id), lost(id))
}

/// An error with all that led to it, for the log.
fn causes(error: &BoxError) -> String {
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
fn lost(id: OperationId) -> Problem {
    answer::unknown(id).with_status(StatusCode::GATEWAY_TIMEOUT)
}

/// Records a complete answer, or one that will not be kept.
async fn record(
    protection: &Protection,
    lead: Lead,
    response: Response<Body>,
    tell: oneshot::Sender<Ended>,
) {
    let (mut parts, body) = response.into_parts();
    let hint = parts.headers.get(fields::IDEMPOTENCY_OUTCOME);
    let hint = hint.and_then(|value| Hint::parse(value.as_bytes()));
    let meaning = classify(parts.status.as_u16(), hint);
    answer::clean(&mut parts);
    let limit = protection.upstream_timeout;
    let reading = timeout(limit, capture(&parts.headers, body, protection.reply_limit));
    let captured = lead.holding(reading).await;
    fail::fail_point!("before-record", |_| std::process::abort());
    match captured {
        Ok(Captured::Whole(body, mut trailers)) => {
            answer::clean_trailers(&mut trailers);
            // Framing is made anew from the whole body.
            parts.headers.remove(header::CONTENT_LENGTH);
            let ended =
                record_whole(&protection.engine, lead, meaning, parts, body, trailers).await;
            fail::fail_point!("before-answer", |_| std::process::abort());
            let _ = tell.send(ended);
        }
        Ok(Captured::TooLarge(read, rest)) => {
            stream(lead, meaning, parts, read, rest, limit, tell).await;
        }
        Ok(Captured::Broken(error)) => {
            let _ = tell.send(lose(lead, &error).await);
        }
        Err(_) => {
            let _ = tell.send(lose(lead, &(Box::new(TooSlow(limit)) as BoxError)).await);
        }
    }
}

async fn record_whole(
    engine: &Engine,
    lead: Lead,
    meaning: Meaning,
    parts: Parts,
    body: Bytes,
    trailers: http::HeaderMap,
) -> Ended {
    let (id, digest) = (lead.id(), lead.digest());
    let reply = Arc::new(answer::reply_of(&parts, &body, &trailers));
    let state = State::of_status(reply.status);
    let recorded = match meaning {
        Meaning::Keep => {
            let answer = Answer::Kept(reply.clone());
            lead.finish(settlement(state, answer), Some(reply)).await
        }
        Meaning::Release => lead.release(Some(reply)).await,
        Meaning::Unknown => lead.lose().await,
    };
    fail::fail_point!("after-record", |_| std::process::abort());
    let (outcome, word) = match (recorded, meaning) {
        (Recorded::NotYet, _) => (Outcome::NotRecorded, Word::Unknown),
        // Somebody has decided since; this caller still gets what really happened.
        (Recorded::Stale, _) => (Outcome::NotRecorded, Word::Unknown),
        (Recorded::Durably, Meaning::Keep) => (Outcome::Ran(state), word_of(state)),
        (Recorded::Durably, Meaning::Release) => (Outcome::Released, Word::Released),
        (Recorded::Durably, Meaning::Unknown) => (Outcome::Lost, Word::Unknown),
    };
    let expires = match outcome {
        Outcome::Ran(_) => expiry(engine, &digest).await,
        _ => None,
    };
    let body = body::with_trailers(body, trailers);
    Ended::answered(outcome, id, answer::first(parts, body, word, id, expires))
}

/// When a reply that was just kept expires, by the store's own clock, so that
/// the first caller is told the same as all later ones.
async fn expiry(engine: &Engine, digest: &Digest) -> Option<Timestamp> {
    match engine.look(digest).await {
        Ok(record) => record?.expires_at(),
        // The reply is recorded; only the header is left out.
        Err(_) => None,
    }
}

fn settlement(state: State, answer: Answer) -> Settlement {
    match state {
        State::Failed => Settlement::Failed(answer),
        _ => Settlement::Completed(answer),
    }
}

fn word_of(state: State) -> Word {
    match state {
        State::Failed => Word::Failed,
        _ => Word::Completed,
    }
}

/// Streams an answer that is not kept to the first caller, and records how it
/// ended. The mark is durable before the first byte is answered, so that no
/// crash on the way can lead to a second run.
async fn stream(
    lead: Lead,
    meaning: Meaning,
    parts: Parts,
    read: Bytes,
    rest: Body,
    idle: Duration,
    tell: oneshot::Sender<Ended>,
) {
    let id = lead.id();
    let status = parts.status.as_u16();
    let state = State::of_status(status);
    let (outcome, word) = match meaning {
        Meaning::Keep => {
            let mark = settlement(state, Answer::NotKept { status });
            match lead.mark_not_kept(mark).await {
                Recorded::Durably => (Outcome::RanNotKept, word_of(state)),
                Recorded::Stale | Recorded::NotYet => (Outcome::NotRecorded, Word::Unknown),
            }
        }
        Meaning::Release => (Outcome::Released, Word::Released),
        Meaning::Unknown => (Outcome::Lost, Word::Unknown),
    };
    let (sender, channel) = Channel::<Bytes, BoxError>::new(STREAM_FRAMES_MAX);
    let response = answer::first(parts, body::boxed(channel), word, id, None);
    let _ = tell.send(Ended::answered(outcome, id, response));
    let mut client = Client {
        sender: Some(sender),
        patience: idle,
    };
    let recorded = match lead.holding(pump(&mut client, read, rest, idle)).await {
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

/// Carries a body over to the client; when the client has gone, reads on to
/// learn whether the answer was whole.
async fn pump(
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
struct Client {
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
    fn abort(&mut self, error: BoxError) {
        if let Some(sender) = self.sender.take() {
            sender.abort(error);
        }
    }
}

/// What a duplicate gets while the first still runs.
async fn wait_for(class: &Class, request: &Request<Bytes>, key: &Key, follow: &Follow) -> Ended {
    let id = follow.record().id;
    let limit = match class.in_flight {
        InFlight::Wait => class
            .wait
            .min(preferred_wait(request.headers()).unwrap_or(class.wait)),
        InFlight::Reject => {
            return Ended::refused(answer::in_progress(id, Word::Processing));
        }
        InFlight::Accept => {
            let path = request.uri().path().trim_end_matches('/');
            let path = format!("{path}/by-idempotency-key/{key}/status");
            let response = answer::accepted(follow.record(), &path);
            return Ended::answered(Outcome::Accepted, id, response);
        }
    };
    awaited(follow.settled(limit).await, id)
}

/// What waiting came to, as an answer.
pub(crate) fn awaited(awaited: Result<Awaited, StoreError>, id: OperationId) -> Ended {
    match awaited {
        Ok(Awaited::Settled(record)) => Ended::from_record(&record),
        Ok(Awaited::Answered(reply, recorded)) => {
            let word = match recorded {
                Recorded::NotYet => Word::Unknown,
                Recorded::Durably | Recorded::Stale => Word::Released,
            };
            let response = answer::again(&reply, word, id, None);
            Ended::answered(Outcome::Shared, id, response)
        }
        Ok(Awaited::Lost) => Ended::refused(answer::unknown(id)),
        Ok(Awaited::Freed) => Ended::refused(answer::in_progress(id, Word::Released)),
        Ok(Awaited::StillRunning | Awaited::TooMany) => {
            Ended::refused(answer::in_progress(id, Word::Processing))
        }
        Err(error) => Ended::refused(unavailable(&error)),
    }
}

/// The caller's own limit, from `Prefer: wait=n`.
pub(crate) fn preferred_wait(headers: &http::HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(fields::PREFER).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let seconds = lines
        .flat_map(|line| line.split(','))
        .find_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("wait")
                .then(|| value.trim())
        })?;
    let seconds = seconds.trim_matches('"').parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn mismatched(protection: &Protection, call: &Call, digest: &Digest) -> Ended {
    let problem = Problem::new(
        Code::KeyReused,
        "This key was used for a different request. Use a new key for a new intent, and the same request for a retry.",
    );
    match call.class.mismatch {
        OnMismatch::Unprocessable => Ended::refused(problem),
        OnMismatch::Conflict => Ended::refused(problem.with_status(StatusCode::CONFLICT)),
        OnMismatch::Replay => match protection.engine.look(digest).await {
            Ok(Some(record)) if protection.is_sender(&record, call.request.headers()) => {
                Ended::from_record(&record)
            }
            Ok(_) => Ended::refused(problem),
            Err(error) => Ended::refused(unavailable(&error)),
        },
    }
}

impl Protection {
    /// Whether a request with these headers may read what a record holds. Where
    /// nobody authenticates, only who sent the operation may.
    pub(crate) fn is_sender(&self, record: &Record, headers: &http::HeaderMap) -> bool {
        match self.credentials {
            Credentials::Trusted => true,
            Credentials::Compared => {
                let fingerprint = &record.fingerprint;
                self.fingerprinter
                    .is_from(fingerprint, &credentials(headers))
            }
        }
    }
}

/// The store is away: refuse, or pass the request on and say so.
async fn without_store<Fut>(
    class: &Class,
    error: &StoreError,
    limit: Duration,
    forward: impl FnOnce() -> Fut,
) -> Ended
where
    Fut: Future<Output = Result<Response<Body>, Unanswered>>,
{
    // A damaged record is a record: its operation may have run.
    let away = matches!(error, StoreError::Unavailable(_));
    if class.on_store_failure == OnStoreFailure::Reject || !away {
        return Ended::refused(unavailable(error));
    }
    tracing::warn!(%error, "the store is away; a request goes unprotected");
    let answer = timeout(limit, forward()).await;
    let answer = answer.unwrap_or_else(|_| Err(Unanswered::Lost(Box::new(TooSlow(limit)))));
    let answer = match answer {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            answer::clean(&mut parts);
            let word = Word::Bypassed.to_header();
            parts.headers.insert(fields::IDEMPOTENCY_STATUS, word);
            Ok(Response::from_parts(parts, body))
        }
        Err(Unanswered::NotSent(_)) => Err(Problem::new(
            Code::UpstreamUnreachable,
            "The upstream could not be reached.",
        )),
        Err(Unanswered::Lost(_)) => Err(Problem::new(
            Code::OutcomeUnknown,
            "The request was sent unprotected and no answer came: it may have run.",
        )
        .with_status(StatusCode::GATEWAY_TIMEOUT)),
    };
    Ended {
        outcome: Outcome::Bypassed,
        id: None,
        answer: answer.map_err(|problem| problem.standing(Word::Bypassed)),
    }
}

pub(crate) fn unavailable(error: &StoreError) -> Problem {
    tracing::error!(%error, "the store is unavailable");
    match error {
        StoreError::Damaged(_) => Problem::new(
            Code::StoreUnavailable,
            "What the store holds under this key is damaged. Nothing was forwarded; an operator has to look.",
        ),
        _ => Problem::new(
            Code::StoreUnavailable,
            "The store cannot be reached. Nothing was forwarded; send the same request again.",
        )
        .retry_after(1),
    }
}
