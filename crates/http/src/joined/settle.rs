//! What a gateway does with an answer on a joined route, and without one.
//!
//! The application says what became of an operation by committing it; what it
//! answers says no more. So after each attempt the record is asked. If it is
//! finished under our fence, its reply is the answer. If it still runs under
//! our fence, the application has committed nothing, and what its answer means
//! is settled as everywhere, but never as lost: a release that the record takes
//! is certain, because what was not committed before it never will be.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::classify::Meaning;
use onceward_core::engine::{Engine, Lead, Recorded};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Fence, Record, State};
use tokio::sync::oneshot;

use crate::answer;
use crate::attempt::{
    self, Answered, causes, lost, pump, settlement, streaming, unreachable, word_of,
};
use crate::body::{self, Body, BoxError};
use crate::problem::Problem;
use crate::run::{Outcome, ProtectedResponse};
use crate::status::IdempotencyStatus;

/// How a record stands to a grant of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Finished under our fence: this is what became of it.
    Committed,
    /// Nobody has said anything under our fence: we may.
    Open,
    /// Somebody was granted since, or has resolved, paused or freed it: for us
    /// the operation is as for any duplicate.
    Overtaken,
    /// It was freed, and the key granted for another request: ours came to
    /// nothing, and what comes of the other is not ours to read.
    Replaced,
}

/// A grant of ours, for when its lead is gone.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: OperationId,
    digest: Digest,
    fence: Fence,
    fingerprint: Fingerprint,
}

impl Held {
    fn by(lead: &Lead) -> Self {
        Self {
            id: lead.id(),
            digest: lead.digest(),
            fence: lead.fence(),
            fingerprint: lead.fingerprint(),
        }
    }
}

/// Judges a record as seen now. To readers a joined record is absent as soon as
/// its lease has ended, though its holder is still heard: so what is not there
/// is open, and the store tells whether the holder came too late.
fn judge(record: Option<&Record>, held: &Held) -> Standing {
    let Some(record) = record else {
        return Standing::Open;
    };
    if record.fingerprint != held.fingerprint {
        return Standing::Replaced;
    }
    if record.fence != held.fence {
        return Standing::Overtaken;
    }
    match record.state {
        State::Running | State::Unknown | State::Queued => Standing::Open,
        State::Completed | State::Failed | State::Expired => Standing::Committed,
        State::Released | State::Paused => Standing::Overtaken,
    }
}

/// A record that was asked what became of our grant.
struct Asked {
    record: Option<Arc<Record>>,
    held: Held,
}

impl Asked {
    /// Asks the record. A store that does not answer has said nothing.
    async fn now(engine: &Engine, held: Held) -> Self {
        let record = match engine.look(&held.digest).await {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, "a joined operation's record could not be read");
                None
            }
        };
        Self { record, held }
    }

    /// The answer, if the record has one for us: its own, or that of a
    /// duplicate. `live` is what the application answered, if it did.
    fn answer(&self, live: Option<&Answered>) -> Option<ProtectedResponse> {
        let record = self.record.as_deref()?;
        match judge(Some(record), &self.held) {
            Standing::Open => None,
            Standing::Overtaken => Some(ProtectedResponse::from_record(record)),
            Standing::Replaced => Some(replaced(self.held.id)),
            Standing::Committed => Some(committed(record, live)),
        }
    }

    /// The record, if it is finished under our fence and holds no reply: then
    /// the application's answer is the only one there is.
    fn bare(&self) -> Option<&Arc<Record>> {
        let record = self.record.as_ref()?;
        let bare = matches!(record.answer, Some(Answer::NotKept { .. }));
        (bare && judge(Some(record), &self.held) == Standing::Committed).then_some(record)
    }
}

/// As for any waiter whose operation was freed: it may be sent again.
fn replaced(id: OperationId) -> ProtectedResponse {
    ProtectedResponse::refused(Problem::in_progress(id, IdempotencyStatus::Released))
}

/// The answer to who waits for this very run: the reply that was committed.
fn committed(record: &Record, live: Option<&Answered>) -> ProtectedResponse {
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

/// The application answered, whole.
pub(crate) async fn record_whole(
    engine: &Engine,
    lead: Lead,
    answered: Answered,
) -> ProtectedResponse {
    let held = Held::by(&lead);
    let asked = Asked::now(engine, held).await;
    if let Some(ended) = asked.answer(Some(&answered)) {
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
        // The application may have been faster, or somebody came after us.
        (Recorded::Finished(_) | Recorded::Durably | Recorded::Stale, _) => {
            let asked = Asked::now(engine, held).await;
            if let Some(ended) = asked.answer(Some(&answered)) {
                return ended;
            }
            match recorded {
                Recorded::Finished(_) => (Outcome::Ran(state), word_of(state)),
                // The record is gone, and nobody can say what became of it.
                _ => (Outcome::NotRecorded, IdempotencyStatus::Unknown),
            }
        }
    };
    let body = body::with_trailers(answered.body, answered.trailers);
    let response = answer::first(answered.parts, body, word, id, None);
    ProtectedResponse::answered(outcome, id, response)
}

/// The request was sent, and no whole answer came.
pub(crate) async fn lose(engine: &Engine, lead: Lead, error: &BoxError) -> ProtectedResponse {
    let (id, held) = (lead.id(), Held::by(&lead));
    tracing::warn!(operation_id = %id, error = causes(error), "no answer from the application; its record decides");
    match lead.release(None).await {
        Recorded::Finished(_) | Recorded::Durably => {
            ProtectedResponse::problem(Outcome::Released, Some(id), Problem::not_committed(id))
        }
        Recorded::Stale => {
            let asked = Asked::now(engine, held).await;
            asked.answer(None).unwrap_or_else(|| lost(id))
        }
        Recorded::NotYet => lost(id),
    }
}

/// No byte of the last attempt was sent. `attempts_max` is how many there may
/// have been before it.
pub(crate) async fn not_sent(
    engine: &Engine,
    lead: Lead,
    attempts_max: u32,
    error: &BoxError,
) -> ProtectedResponse {
    let (id, held) = (lead.id(), Held::by(&lead));
    tracing::warn!(operation_id = %id, error = causes(error), "the upstream could not be reached");
    match lead.release(None).await {
        Recorded::Finished(_) | Recorded::Durably => unreachable(id),
        // Nothing was sent at all, so nothing can be committed.
        Recorded::NotYet if attempts_max <= 1 => unreachable(id),
        Recorded::NotYet => lost(id),
        Recorded::Stale => {
            let asked = Asked::now(engine, held).await;
            asked.answer(None).unwrap_or_else(|| unreachable(id))
        }
    }
}

/// The attempts are used up.
pub(crate) async fn pause(engine: &Engine, lead: Lead, status: Option<u16>) -> ProtectedResponse {
    let held = Held::by(&lead);
    let (paused, recorded) = attempt::pause(lead, status).await;
    match recorded {
        Recorded::Finished(_) | Recorded::Durably | Recorded::NotYet => paused,
        Recorded::Stale => {
            let asked = Asked::now(engine, held).await;
            asked.answer(None).unwrap_or(paused)
        }
    }
}

/// The application answers with more than is kept, or with a stream.
///
/// A reply that it has committed is the answer, and the stream is let go. Else
/// the stream goes to the first caller, and how it stands is settled at its
/// end: no mark is needed before, since nothing is done until it is committed,
/// and none is set, so that it still can be.
pub(crate) async fn stream(
    engine: &Engine,
    lead: Lead,
    answered: Answered,
    rest: Body,
    idle: Duration,
    tell: oneshot::Sender<ProtectedResponse>,
) {
    let id = lead.id();
    let asked = Asked::now(engine, Held::by(&lead)).await;
    let (lead, outcome, word) = match (asked.bare(), asked.answer(Some(&answered))) {
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
            let _ = tell.send(ended);
            return;
        }
        (None, None) if answered.meaning == Meaning::Keep => (
            Some(lead),
            Outcome::RanNotKept,
            IdempotencyStatus::Processing,
        ),
        (None, None) => (Some(lead), Outcome::Released, IdempotencyStatus::Released),
    };
    let Answered {
        meaning,
        parts,
        body: read,
        ..
    } = answered;
    let status = parts.status.as_u16();
    let (response, mut client) = streaming(parts, word, id, idle);
    let _ = tell.send(ProtectedResponse::answered(outcome, id, response));
    let pumping = pump(&mut client, read, rest, idle);
    let pumped = match &lead {
        // Its outcome is on record: there is no lease to renew.
        None => pumping.await,
        Some(lead) => lead.holding(pumping).await,
    };
    if let Some(lead) = lead {
        let recorded = match (&pumped, meaning) {
            (Ok(()), Meaning::Keep) => {
                let mark = Answer::NotKept { status };
                let state = State::of_status(status);
                lead.finish(settlement(state, mark), None).await
            }
            _ => lead.release(None).await,
        };
        tracing::debug!(operation_id = %id, ?recorded, "an answer that is not kept has ended");
    }
    if let Err(error) = pumped {
        tracing::warn!(operation_id = %id, error = %error, "an answer broke off");
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
    fn held(what: u8) -> Held {
        let Record { id, digest, .. } = record(State::Running, OURS);
        Held {
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
        }
    }

    #[rstest]
    #[case::running(State::Running, Standing::Open)]
    #[case::unknown(State::Unknown, Standing::Open)]
    #[case::queued(State::Queued, Standing::Open)]
    #[case::completed(State::Completed, Standing::Committed)]
    #[case::failed(State::Failed, Standing::Committed)]
    #[case::expired(State::Expired, Standing::Committed)]
    #[case::released(State::Released, Standing::Overtaken)]
    #[case::paused(State::Paused, Standing::Overtaken)]
    fn what_a_record_says_of_our_grant(#[case] state: State, #[case] want: Standing) {
        let judged = |fence| judge(Some(&record(state, fence)), &held(0));
        assert_eq!(judged(OURS), want);
        assert_eq!(judged(Fence(8)), Standing::Overtaken, "a later grant");
        assert_eq!(judged(Fence(6)), Standing::Overtaken, "a store that forgot");
        let theirs = judge(Some(&record(state, Fence(8))), &held(1));
        assert_eq!(theirs, Standing::Replaced, "granted for another request");
    }

    #[test]
    fn what_another_request_came_to_is_not_told() {
        let reply = Reply {
            status: 200,
            headers: Vec::new(),
            body: bytes::Bytes::from_static(b"of somebody else"),
            trailers: Vec::new(),
        };
        let later = Record {
            answer: Some(Answer::Kept(Arc::new(reply))),
            ..record(State::Completed, Fence(8))
        };
        let answer = |what| {
            let found = Asked {
                record: Some(Arc::new(later.clone())),
                held: held(what),
            };
            found.answer(None).expect("it is decided")
        };
        assert_eq!(answer(0).outcome, Outcome::Replayed(State::Completed));
        let replaced = answer(1);
        assert_eq!(replaced.outcome, Outcome::Refused(Code::InProgress));
        assert!(replaced.response.is_err());
    }

    #[test]
    fn what_is_not_there_is_for_the_store_to_judge() {
        assert_eq!(judge(None, &held(0)), Standing::Open);
    }
}
