//! Recording what an attempt came to on a joined route: the application's commit
//! decides, not its answer.
//!
//! After each attempt the record is read. If it finished under our fence, its
//! reply is the answer. If it still runs under our fence, the application has
//! committed nothing, and its answer is recorded as on any route, but never as
//! unknown: once the record takes a release, the application can no longer
//! commit.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::classify::Meaning;
use onceward_core::engine::{Engine, Lead, Recorded};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Fence, Record, State};
use tokio::sync::oneshot;

use crate::answer;
use crate::attempt::{AttemptResult, Ending, OperationRun, UpstreamAnswer, causes};
use crate::body::{self, Body, BoxError};
use crate::problem::Problem;
use crate::recording::{self, no_answer_response, not_sent_response, settlement, status_of};
use crate::run::{Outcome, ProtectedResponse};
use crate::status::IdempotencyStatus;
use crate::streaming::{StreamClient, copy_stream};

/// The state of our grant by the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantStatus {
    /// It finished under our fence: the application has committed.
    Committed,
    /// It has no outcome under our fence yet.
    Open,
    /// It was granted again, resolved, paused or released since: we are a
    /// duplicate like any other.
    Overtaken,
    /// It was released, and the key granted for another request: our run had no
    /// effect, and the other request's reply is not ours to read.
    Replaced,
}

/// Identifies our grant when its lead has ended.
#[derive(Clone, Copy, Debug)]
struct GrantRef {
    id: OperationId,
    digest: Digest,
    fence: Fence,
    fingerprint: Fingerprint,
}

impl GrantRef {
    fn by(lead: &Lead) -> Self {
        Self {
            id: lead.id(),
            digest: lead.digest(),
            fence: lead.fence(),
            fingerprint: lead.fingerprint(),
        }
    }
}

/// Judges a record as it is now. To readers a joined record is absent as soon as
/// its lease has ended, although its holder may still settle it. So an absent
/// record is open, and the store decides whether the holder is too late.
fn judge(record: Option<&Record>, grant: &GrantRef) -> GrantStatus {
    let Some(record) = record else {
        return GrantStatus::Open;
    };
    if record.fingerprint != grant.fingerprint {
        return GrantStatus::Replaced;
    }
    if record.fence != grant.fence {
        return GrantStatus::Overtaken;
    }
    match record.state {
        State::Running | State::Unknown | State::Queued => GrantStatus::Open,
        State::Completed | State::Failed | State::Expired => GrantStatus::Committed,
        State::Released | State::Paused => GrantStatus::Overtaken,
    }
}

/// The record, read after an attempt.
struct RecordLookup {
    record: Option<Arc<Record>>,
    grant: GrantRef,
}

impl RecordLookup {
    /// Reads the record. A store that does not answer counts as no record.
    async fn now(engine: &Engine, grant: GrantRef) -> Self {
        let record = match engine.look(&grant.digest).await {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, "the record of a joined operation could not be read");
                None
            }
        };
        Self { record, grant }
    }

    /// The response, if the record determines it. `live` is the application's
    /// own answer, if there is one.
    fn answer(&self, live: Option<&UpstreamAnswer>) -> Option<ProtectedResponse> {
        let record = self.record.as_deref()?;
        match judge(Some(record), &self.grant) {
            GrantStatus::Open => None,
            GrantStatus::Overtaken => Some(ProtectedResponse::from_record(record)),
            GrantStatus::Replaced => Some(replaced(self.grant.id)),
            GrantStatus::Committed => Some(committed(record, live)),
        }
    }

    /// The record, if it finished under our fence without a reply: then the
    /// application's answer is the only one.
    fn bare(&self) -> Option<&Arc<Record>> {
        let record = self.record.as_ref()?;
        let bare = matches!(record.answer, Some(Answer::NotKept { .. }));
        (bare && judge(Some(record), &self.grant) == GrantStatus::Committed).then_some(record)
    }
}

/// Like any waiter whose operation was released: the client may retry.
fn replaced(id: OperationId) -> ProtectedResponse {
    ProtectedResponse::refused(Problem::in_progress(id, IdempotencyStatus::Released))
}

/// The response to the caller of this very run: the reply that was committed.
fn committed(record: &Record, live: Option<&UpstreamAnswer>) -> ProtectedResponse {
    let outcome = Outcome::Ran(record.state);
    let (word, expires) = (IdempotencyStatus::of_record(record), record.expires_at());
    match (&record.answer, live) {
        (Some(Answer::Kept(reply)), live) => {
            let exchange = live
                .filter(|live| live.parts.status.as_u16() == reply.status)
                .map(|live| &live.parts.headers);
            let response = answer::of_reply(reply, exchange, word, record.id, expires);
            ProtectedResponse::answered(outcome, record.id, response)
        }
        (Some(Answer::NotKept { .. }), Some(live)) => {
            let response = answer::first(
                live.parts.clone(),
                body::with_trailers(live.body.clone(), live.trailers.clone()),
                word,
                record.id,
                expires,
            );
            ProtectedResponse::answered(Outcome::RanNotKept, record.id, response)
        }
        _ => ProtectedResponse::from_record(record),
    }
}

/// Records the result of the last attempt and answers the caller. A caller that
/// has gone needs no answer.
pub(crate) async fn record(
    run: &OperationRun,
    lead: Lead,
    (result, ending): (AttemptResult, Ending),
    reply_to: oneshot::Sender<ProtectedResponse>,
) {
    let engine = &run.engine;
    let ended = match (ending, result) {
        (Ending::Pause, result) => pause(engine, lead, result.status()).await,
        (Ending::Settle, AttemptResult::Answered(answer)) => {
            record_whole(engine, lead, answer).await
        }
        (Ending::Settle, AttemptResult::Streaming(answer, rest)) => {
            let idle = run.rules.upstream_timeout;
            return stream(engine, lead, answer, rest, idle, reply_to).await;
        }
        (Ending::Settle, AttemptResult::NotSent(error)) => {
            not_sent(engine, lead, run.class.max_attempts, &error).await
        }
        (Ending::Settle, AttemptResult::Lost(error)) => lose(engine, lead, &error).await,
    };
    onceward_core::crash_point!("before-answer");
    let _ = reply_to.send(ended);
}

/// The application answered, whole.
async fn record_whole(engine: &Engine, lead: Lead, answered: UpstreamAnswer) -> ProtectedResponse {
    let grant = GrantRef::by(&lead);
    let lookup = RecordLookup::now(engine, grant).await;
    if let Some(ended) = lookup.answer(Some(&answered)) {
        lead.landed();
        return ended;
    }
    let id = lead.id();
    let reply = answer::reply_of(&answered.parts, &answered.body, &answered.trailers);
    let (reply, state) = (
        Arc::new(reply),
        State::of_status(answered.parts.status.as_u16()),
    );
    let recorded = match answered.meaning {
        Meaning::Keep => {
            let answer = Answer::Kept(reply.clone());
            lead.finish(settlement(state, answer), Some(reply)).await
        }
        Meaning::Release | Meaning::Unknown => lead.release(Some(reply)).await,
    };
    onceward_core::crash_point!("after-record");
    let (outcome, word) = match (recorded, answered.meaning) {
        (Recorded::NotYet, _) => (Outcome::NotRecorded, IdempotencyStatus::Unknown),
        (Recorded::Durably, Meaning::Release | Meaning::Unknown) => {
            (Outcome::Released, IdempotencyStatus::Released)
        }
        // The application may have committed meanwhile, or the key was granted
        // again.
        (Recorded::Finished(_) | Recorded::Durably | Recorded::Stale, _) => {
            let lookup = RecordLookup::now(engine, grant).await;
            if let Some(ended) = lookup.answer(Some(&answered)) {
                return ended;
            }
            match recorded {
                Recorded::Finished(_) => (Outcome::Ran(state), status_of(state)),
                // The record is gone, and with it the outcome.
                _ => (Outcome::NotRecorded, IdempotencyStatus::Unknown),
            }
        }
    };
    let body = body::with_trailers(answered.body, answered.trailers);
    let response = answer::first(answered.parts, body, word, id, None);
    ProtectedResponse::answered(outcome, id, response)
}

/// The request was sent, and no whole answer came.
async fn lose(engine: &Engine, lead: Lead, error: &BoxError) -> ProtectedResponse {
    let (id, grant) = (lead.id(), GrantRef::by(&lead));
    tracing::warn!(
        error = causes(error),
        "no answer from the application; the record decides"
    );
    match lead.release(None).await {
        Recorded::Finished(_) | Recorded::Durably => {
            ProtectedResponse::problem(Outcome::Released, Some(id), Problem::not_committed(id))
        }
        Recorded::Stale => {
            let lookup = RecordLookup::now(engine, grant).await;
            lookup
                .answer(None)
                .unwrap_or_else(|| no_answer_response(id))
        }
        Recorded::NotYet => no_answer_response(id),
    }
}

/// No byte of the last attempt was sent. `attempts_max` is how many there may
/// have been before it.
async fn not_sent(
    engine: &Engine,
    lead: Lead,
    attempts_max: u32,
    error: &BoxError,
) -> ProtectedResponse {
    let (id, grant) = (lead.id(), GrantRef::by(&lead));
    tracing::warn!(error = causes(error), "upstream unreachable; key released");
    match lead.release(None).await {
        Recorded::Finished(_) | Recorded::Durably => not_sent_response(id),
        // Nothing was sent at all, so nothing can be committed.
        Recorded::NotYet if attempts_max <= 1 => not_sent_response(id),
        Recorded::NotYet => no_answer_response(id),
        Recorded::Stale => {
            let lookup = RecordLookup::now(engine, grant).await;
            lookup.answer(None).unwrap_or_else(|| not_sent_response(id))
        }
    }
}

/// All attempts failed.
async fn pause(engine: &Engine, lead: Lead, status: Option<u16>) -> ProtectedResponse {
    let grant = GrantRef::by(&lead);
    let (paused, recorded) = recording::pause(lead, status).await;
    match recorded {
        Recorded::Finished(_) | Recorded::Durably | Recorded::NotYet => paused,
        Recorded::Stale => {
            let lookup = RecordLookup::now(engine, grant).await;
            lookup.answer(None).unwrap_or(paused)
        }
    }
}

/// The application answers with more than is kept, or with a stream.
///
/// A reply that it has committed is the answer, and the stream is dropped.
/// Otherwise the stream goes to the first caller, and the operation is settled
/// at its end. It needs no mark before, because nothing is done until the
/// application commits; a mark would prevent that commit.
async fn stream(
    engine: &Engine,
    lead: Lead,
    answered: UpstreamAnswer,
    rest: Body,
    idle: Duration,
    reply_to: oneshot::Sender<ProtectedResponse>,
) {
    let id = lead.id();
    let lookup = RecordLookup::now(engine, GrantRef::by(&lead)).await;
    let (lead, outcome, word) = match (lookup.bare(), lookup.answer(Some(&answered))) {
        (Some(record), _) => {
            lead.landed();
            (
                None,
                Outcome::RanNotKept,
                IdempotencyStatus::of_record(record),
            )
        }
        (None, Some(ended)) => {
            lead.landed();
            let _ = reply_to.send(ended);
            return;
        }
        (None, None) if answered.meaning == Meaning::Keep => (
            Some(lead),
            Outcome::RanNotKept,
            IdempotencyStatus::Processing,
        ),
        (None, None) => (Some(lead), Outcome::Released, IdempotencyStatus::Released),
    };
    let UpstreamAnswer {
        meaning,
        parts,
        body: read,
        ..
    } = answered;
    let status = parts.status.as_u16();
    let (body, mut client) = StreamClient::new(idle);
    let response = answer::first(parts, body, word, id, None);
    let _ = reply_to.send(ProtectedResponse::answered(outcome, id, response));
    let copying = copy_stream(&mut client, read, rest, idle);
    let copied = match &lead {
        // The outcome is on record, so there is no lease to renew.
        None => copying.await,
        Some(lead) => lead.holding(copying).await,
    };
    if let Some(lead) = lead {
        let recorded = match (&copied, meaning) {
            (Ok(()), Meaning::Keep) => {
                let mark = Answer::NotKept { status };
                let state = State::of_status(status);
                lead.finish(settlement(state, mark), None).await
            }
            _ => lead.release(None).await,
        };
        tracing::debug!(?recorded, "an answer that is not kept ended");
    }
    if let Err(error) = copied {
        tracing::warn!(error = %error, "answer broke off");
        client.abort(error);
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::caller::Caller;
    use onceward_core::class::Class;
    use onceward_core::clock::Timestamp;
    use onceward_core::fingerprint::Algorithm;
    use onceward_core::identity::{Endpoint, Identity, KeySpace};
    use onceward_core::key::Key;
    use onceward_core::record::{Attempt, Reply};
    use rstest::rstest;

    use super::*;
    use crate::problem::Code;

    const OURS: Fence = Fence(7);

    fn asked(what: u8) -> Fingerprint {
        Fingerprint {
            algorithm: Algorithm::Json1,
            digest: [what; 32],
            sender: [0; 16],
        }
    }

    /// A grant for this, under our fence.
    fn grant(what: u8) -> GrantRef {
        let Record { id, digest, .. } = record(State::Running, OURS);
        GrantRef {
            id,
            digest,
            fence: OURS,
            fingerprint: asked(what),
        }
    }

    fn record(state: State, fence: Fence) -> Record {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse("k").expect("a good key"),
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        let now = Timestamp::from_unix_ms(0);
        Record {
            id: OperationId::new(&digest, 1),
            digest,
            identity,
            fingerprint: asked(0),
            terms: Class::interactive().terms(),
            state,
            fence,
            attempt: Attempt(1),
            attempts: 1,
            delivered: false,
            created_at: now,
            until: now,
            completed_at: None,
            touched_at: None,
            answer: None,
            rendered: Default::default(),
        }
    }

    #[rstest]
    #[case::running(State::Running, GrantStatus::Open)]
    #[case::unknown(State::Unknown, GrantStatus::Open)]
    #[case::queued(State::Queued, GrantStatus::Open)]
    #[case::completed(State::Completed, GrantStatus::Committed)]
    #[case::failed(State::Failed, GrantStatus::Committed)]
    #[case::expired(State::Expired, GrantStatus::Committed)]
    #[case::released(State::Released, GrantStatus::Overtaken)]
    #[case::paused(State::Paused, GrantStatus::Overtaken)]
    fn what_a_record_says_of_our_grant(#[case] state: State, #[case] want: GrantStatus) {
        let judged = |fence| judge(Some(&record(state, fence)), &grant(0));
        assert_eq!(judged(OURS), want);
        assert_eq!(judged(Fence(8)), GrantStatus::Overtaken, "a later grant");
        assert_eq!(
            judged(Fence(6)),
            GrantStatus::Overtaken,
            "a store that forgot"
        );
        let theirs = judge(Some(&record(state, Fence(8))), &grant(1));
        assert_eq!(theirs, GrantStatus::Replaced, "granted for another request");
    }

    #[test]
    fn the_outcome_of_another_request_is_not_disclosed() {
        let reply = Reply {
            status: 200,
            headers: Vec::new(),
            body: bytes::Bytes::from_static(b"another request's"),
            trailers: Vec::new(),
        };
        let later = Record {
            answer: Some(Answer::Kept(Arc::new(reply))),
            ..record(State::Completed, Fence(8))
        };
        let answer = |what| {
            let found = RecordLookup {
                record: Some(Arc::new(later.clone())),
                grant: grant(what),
            };
            found.answer(None).expect("it is decided")
        };
        assert_eq!(answer(0).outcome, Outcome::Replayed(State::Completed));
        let replaced = answer(1);
        assert_eq!(replaced.outcome, Outcome::Refused(Code::InProgress));
        assert!(replaced.response.is_err());
    }

    #[test]
    fn the_store_decides_about_an_absent_record() {
        assert_eq!(judge(None, &grant(0)), GrantStatus::Open);
    }
}
