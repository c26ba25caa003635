//! Delivering work that was queued with its request: one attempt for each grant.
//!
//! Nobody waits for the answer. What is worth trying again goes back into the
//! queue with the time of its next attempt, so a delivery holds nothing while it
//! rests, and survives whoever carries it. What [`run`](crate::run::run) never
//! repeats by itself, a request that may have run, is repeated here if its class
//! says `retry`: that is what the sender of an event expects, and the upstream
//! is told the same key and a higher fence.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use onceward_core::class::{AfterLoss, Class, OnExhausted};
use onceward_core::classify::Meaning;
use onceward_core::engine::{Lead, Recorded, Renewed};
use onceward_core::record::{Answer, Record, State};
use onceward_core::store::Due;
use tokio::time::Instant;

use crate::answer;
use crate::attempt::{Tried, Work, causes, settlement};
use crate::body::Body;
use crate::rules::Rules;
use crate::run::{Granted, Protection, Unanswered};

/// What a delivery came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The upstream took it, or refused it for good; this is its state.
    Settled(State),
    /// It is queued again.
    Requeued,
    /// It may have run, and stays so until somebody says more.
    Unknown,
    /// Its attempts are used up.
    Paused,
    /// Its attempts are used up, and it is forgotten.
    Killed,
    /// The store did not take the outcome, or somebody else has decided.
    NotRecorded,
}

impl Delivered {
    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settled(state) => state.as_str(),
            Self::Requeued => "requeued",
            Self::Unknown => "unknown",
            Self::Paused => "paused",
            Self::Killed => "killed",
            Self::NotRecorded => "not-recorded",
        }
    }
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The answer is final.
    Keep,
    /// Another attempt, after a rest.
    Again(Duration),
    /// Nobody knows, and the class does not guess.
    Doubt,
    /// No further attempt before an operator says so.
    Pause,
    /// No further attempt, and the key is free.
    Kill,
}

/// Delivers queued work whose turn has come, once, and records what it came to.
/// It was taken out of the queue at a moment that is `taken`, or after it.
pub async fn deliver<F, Fut>(
    protection: &Arc<Protection>,
    (due, taken): (Due, Instant),
    chosen: (Arc<Class>, Arc<Rules>),
    request: Request<Bytes>,
    mut forward: F,
) -> Delivered
where
    F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
    Fut: Future<Output = Result<Response<Body>, Unanswered>>,
{
    let engine = protection.engine.clone();
    let lead = engine.take(&due);
    let Due { record, .. } = due;
    let (class, rules) = chosen;
    let identity = &record.identity;
    let work = Work {
        granted: Granted {
            id: lead.id(),
            fence: lead.fence(),
            // It was found short enough when it was recorded.
            name: identity.name().unwrap_or_default(),
            key: identity.key.clone(),
            caller: identity.caller.clone(),
        },
        engine,
        class,
        rules,
        _held: None,
    };
    let pauses = work.class.on_exhausted == OnExhausted::Pause;
    if pauses && record.attempts > work.class.max_attempts {
        // Its last attempts had no end: whoever carried it died each time.
        tracing::error!(operation_id = %record.id, attempts = record.attempts, "a delivery never ends; paused");
        return told(lead.pause().await, Delivered::Paused);
    }
    if taken.elapsed() > record.terms.lease / 2 && lead.renew().await != Renewed::Confirmed {
        // It may be another's by now, and nothing was sent.
        return told(lead.defer(Duration::ZERO).await, Delivered::Requeued);
    }
    onceward_core::crash_point!("before-delivery");
    let tried = work.attempt(&lead, request, &mut forward).await;
    let verdict = judge(Came::of(&tried), &record, &work.class, work.engine.chance());
    tell(&record, &tried, verdict);
    onceward_core::crash_point!("before-delivered");
    let delivered = settle(lead, tried, verdict).await;
    onceward_core::crash_point!("after-delivered");
    if delivered == Delivered::Unknown {
        reconcile(protection, &record, &work.class).await;
    }
    delivered
}

/// How an attempt ended, as far as the verdict goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Final,
    ToNothing,
    ToDoubt,
}

impl Came {
    fn of(tried: &Tried) -> Self {
        match tried {
            Tried::NotSent(_) => Self::ToNothing,
            Tried::Lost(_) => Self::ToDoubt,
            Tried::Answered(answered) | Tried::Streaming(answered, _) => match answered.meaning {
                Meaning::Keep => Self::Final,
                Meaning::Release => Self::ToNothing,
                Meaning::Unknown => Self::ToDoubt,
            },
        }
    }
}

/// What was declared safe to send twice is on record: the class may have been
/// changed since.
fn judge(came: Came, record: &Record, class: &Class, chance: u64) -> Verdict {
    let (attempts, after_loss) = (record.attempts, record.terms.after_loss);
    match (came, class.on_exhausted) {
        (Came::Final, _) => Verdict::Keep,
        (Came::ToDoubt, _) if after_loss == AfterLoss::Hold => Verdict::Doubt,
        _ if attempts < class.max_attempts => Verdict::Again(class.backoff.after(attempts, chance)),
        (Came::ToNothing, OnExhausted::Kill) => Verdict::Kill,
        // What may have run is not forgotten: its key would be free.
        (Came::ToDoubt, OnExhausted::Kill) => Verdict::Pause,
        // `pause`, the default.
        _ => Verdict::Pause,
    }
}

async fn settle(lead: Lead, tried: Tried, verdict: Verdict) -> Delivered {
    let (recorded, delivered) = match verdict {
        Verdict::Keep => {
            let (state, answer, reply) = match tried {
                Tried::Answered(answered) => {
                    let reply =
                        answer::reply_of(&answered.parts, &answered.body, &answered.trailers);
                    let reply = Arc::new(reply);
                    let state = State::of_status(reply.status);
                    (state, Answer::Kept(reply.clone()), Some(reply))
                }
                // Nobody waits for the rest of a large answer.
                tried => {
                    let status = tried.status().unwrap_or_default();
                    (State::of_status(status), Answer::NotKept { status }, None)
                }
            };
            let recorded = lead.finish(settlement(state, answer), reply).await;
            (recorded, Delivered::Settled(state))
        }
        Verdict::Again(rest) => (lead.requeue(rest).await, Delivered::Requeued),
        Verdict::Doubt => (lead.lose().await, Delivered::Unknown),
        Verdict::Pause => (lead.pause().await, Delivered::Paused),
        Verdict::Kill => (lead.release(None).await, Delivered::Killed),
    };
    told(recorded, delivered)
}

fn told(recorded: Recorded, delivered: Delivered) -> Delivered {
    match recorded {
        Recorded::Finished(_) | Recorded::Durably => delivered,
        Recorded::Stale | Recorded::NotYet => Delivered::NotRecorded,
    }
}

/// Asks what became of a delivery, where its class says whom.
async fn reconcile(protection: &Protection, record: &Record, class: &Class) {
    match protection.engine.look(&record.digest).await {
        Ok(Some(record)) if record.state == State::Unknown => {
            protection.reconcile(&record, class).await;
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "a lost delivery could not be asked about"),
    }
}

fn tell(record: &Record, tried: &Tried, verdict: Verdict) {
    let (id, attempts) = (record.id, record.attempts);
    let error = match tried {
        Tried::NotSent(error) | Tried::Lost(error) => Some(causes(error)),
        Tried::Answered(_) | Tried::Streaming(..) => None,
    };
    let status = tried.status();
    match verdict {
        Verdict::Keep => tracing::debug!(operation_id = %id, attempts, status, "delivered"),
        Verdict::Again(rest) => {
            tracing::info!(operation_id = %id, attempts, status, error, ?rest, "a delivery is to be tried again");
        }
        Verdict::Doubt | Verdict::Pause | Verdict::Kill => {
            tracing::warn!(operation_id = %id, attempts, status, error, ?verdict, "a delivery is given up");
        }
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::caller::Caller;
    use onceward_core::class::OnUnknown;
    use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
    use onceward_core::key::Key;
    use onceward_core::record::{Attempt, Fence};
    use rstest::rstest;

    use super::*;
    use crate::run::key_only_fingerprint;

    fn record(attempts: u32, after_loss: AfterLoss) -> Record {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("webhooks.stripe"),
            key: Key::parse("stripe-evt_1").expect("a good key"),
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        let mut terms = Class::webhook().terms();
        terms.after_loss = after_loss;
        Record {
            id: OperationId::new(&digest, 1),
            digest,
            identity,
            fingerprint: key_only_fingerprint(),
            terms,
            state: State::Running,
            fence: Fence(1),
            attempt: Attempt(1),
            attempts,
            delivered: true,
            created_at: Default::default(),
            until: Default::default(),
            completed_at: None,
            touched_at: None,
            answer: None,
        }
    }

    #[rstest]
    #[case::taken(Came::Final, 1, AfterLoss::Free, OnExhausted::Pause, "keep")]
    #[case::taken_at_last(Came::Final, 3, AfterLoss::Free, OnExhausted::Pause, "keep")]
    #[case::refused_for_now(Came::ToNothing, 2, AfterLoss::Free, OnExhausted::Pause, "again")]
    #[case::refused_and_held(Came::ToNothing, 2, AfterLoss::Hold, OnExhausted::Pause, "again")]
    #[case::used_up(Came::ToNothing, 3, AfterLoss::Free, OnExhausted::Pause, "pause")]
    #[case::killed(Came::ToNothing, 3, AfterLoss::Free, OnExhausted::Kill, "kill")]
    #[case::lost(Came::ToDoubt, 2, AfterLoss::Free, OnExhausted::Pause, "again")]
    #[case::lost_and_held(Came::ToDoubt, 1, AfterLoss::Hold, OnExhausted::Pause, "doubt")]
    #[case::lost_and_asked(Came::ToDoubt, 3, AfterLoss::Hold, OnExhausted::Kill, "doubt")]
    #[case::lost_at_last(Came::ToDoubt, 3, AfterLoss::Free, OnExhausted::Pause, "pause")]
    #[case::lost_is_not_killed(Came::ToDoubt, 3, AfterLoss::Free, OnExhausted::Kill, "pause")]
    fn what_follows_an_attempt(
        #[case] came: Came,
        #[case] attempts: u32,
        #[case] after_loss: AfterLoss,
        #[case] on_exhausted: OnExhausted,
        #[case] want: &str,
    ) {
        // Whatever the class says of it by now.
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::Reconcile] {
            let class = Class::webhook().with(|class| {
                class.on_unknown = on_unknown;
                class.on_exhausted = on_exhausted;
                class.max_attempts = 3;
            });
            let word = match judge(came, &record(attempts, after_loss), &class, 7) {
                Verdict::Keep => "keep",
                Verdict::Again(_) => "again",
                Verdict::Doubt => "doubt",
                Verdict::Pause => "pause",
                Verdict::Kill => "kill",
            };
            assert_eq!(word, want, "{on_unknown:?}");
        }
    }
}
