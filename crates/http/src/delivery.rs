//! Delivering work that was queued with its request: one attempt per grant.
//!
//! No client waits for the answer. A delivery ends with a 2xx, or with
//! `Idempotency-Outcome: permanent`, which fails it for good. After every other
//! answer the operation returns to the queue with the time of its next attempt:
//! a 404 may be a mistyped path, and an acknowledged event must not be lost to
//! one. Between attempts a delivery holds no lease, and it survives the process.
//!
//! Unlike [`run`](crate::run::run), a delivery repeats a request that may have
//! run, if its class says `retry`: senders of events expect it, and the upstream
//! gets the same key with a higher fence.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use onceward_core::class::{AfterLoss, Class, OnExhausted};
use onceward_core::classify::{Meaning, classify_event};
use onceward_core::engine::{Lead, Recorded, Renewed};
use onceward_core::record::{Answer, Record, Settlement, State};
use onceward_core::store::Due;
use tokio::time::Instant;

use crate::answer;
use crate::attempt::{AttemptResult, OperationRun, UpstreamAnswer, causes};
use crate::body::Body;
use crate::rules::Rules;
use crate::run::{Granted, Protection, Unanswered};

/// One call of [`deliver`]: the attempt, and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The result for the operation.
    pub outcome: DeliveryOutcome,
    /// How many attempts were made, with this one.
    pub attempts: u32,
    /// The upstream's status, if it answered.
    pub status: Option<u16>,
    /// Why there is no answer. Without a status and an error, nothing was sent.
    pub error: Option<String>,
    /// The time until the next attempt, if there is one.
    pub retry_after: Option<Duration>,
}

/// The state of an operation after an attempt to deliver it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryOutcome {
    /// The upstream answered 2xx.
    Completed,
    /// The upstream refused it for good.
    Failed,
    /// It is queued for another attempt.
    Requeued,
    /// It may have run, and stays unknown until it is reconciled or resolved.
    Unknown,
    /// Its attempts are used up; an operator can resume it.
    Paused,
    /// Its attempts are used up, and it is forgotten.
    Killed,
    /// The store did not record the outcome, or a later grant has replaced it.
    NotRecorded,
}

impl DeliveryOutcome {
    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Requeued => "requeued",
            Self::Unknown => "unknown",
            Self::Paused => "paused",
            Self::Killed => "killed",
            Self::NotRecorded => "not-recorded",
        }
    }
}

/// Delivers queued work that is due, once, and records the outcome. `taken` is
/// a moment not later than when the work left the queue.
pub async fn deliver<F, Fut>(
    protection: &Arc<Protection>,
    (due, taken): (Due, Instant),
    (class, rules): (Arc<Class>, Arc<Rules>),
    request: Request<Bytes>,
    mut forward: F,
) -> DeliveryReport
where
    F: FnMut(Request<Bytes>, Option<Granted>) -> Fut,
    Fut: Future<Output = Result<Response<Body>, Unanswered>>,
{
    let engine = protection.engine.clone();
    let lead = engine.take(&due);
    let Due { record, .. } = due;
    let identity = &record.identity;
    let work = OperationRun {
        granted: Granted {
            id: lead.id(),
            fence: lead.fence(),
            // Its length was checked when it was recorded.
            name: identity.name().unwrap_or_default(),
            key: identity.key.clone(),
            caller: identity.caller.clone(),
        },
        engine,
        class,
        rules,
        _held: None,
    };
    let attempts = record.attempts;
    let unsent = |outcome, error| DeliveryReport {
        outcome,
        attempts,
        status: None,
        error,
        retry_after: None,
    };
    let pauses = work.class.on_exhausted == OnExhausted::Pause;
    if pauses && attempts > work.class.max_attempts {
        // The gateway ended during each of its last attempts.
        let error = "no attempt came to an end".to_owned();
        let outcome = recorded_as(lead.pause().await, DeliveryOutcome::Paused);
        return unsent(outcome, Some(error));
    }
    if taken.elapsed() > record.terms.lease / 2 && lead.renew().await != Renewed::Confirmed {
        // Another gateway may hold it by now, and nothing was sent.
        let deferred = lead.defer(Duration::ZERO).await;
        return unsent(recorded_as(deferred, DeliveryOutcome::Requeued), None);
    }
    onceward_core::crash_point!("before-delivery");
    let lead = lead.begin();
    let tried = work.attempt(&lead, request, &mut forward).await;
    let next = decide(
        AttemptEnd::of(&tried),
        &record,
        &work.class,
        work.engine.chance(),
    );
    let (status, error) = (tried.status(), tried.error().map(causes));
    onceward_core::crash_point!("before-delivered");
    let outcome = settle(lead, tried, next).await;
    onceward_core::crash_point!("after-delivered");
    if outcome == DeliveryOutcome::Unknown {
        reconcile(protection, &record, &work.class).await;
    }
    DeliveryReport {
        outcome,
        attempts,
        status,
        error,
        retry_after: match next {
            AfterDelivery::Retry(after) => Some(after),
            _ => None,
        },
    }
}

/// How an attempt ended, as far as the next step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptEnd {
    /// The upstream answered 2xx.
    Accepted,
    /// The upstream said that it will never accept it.
    Rejected,
    /// Another answer, or nothing was sent.
    NotAccepted,
    /// It was sent and not answered: it may have run.
    Uncertain,
}

impl AttemptEnd {
    fn of(tried: &AttemptResult) -> Self {
        match tried {
            AttemptResult::NotSent(_) => Self::NotAccepted,
            AttemptResult::Lost(_) => Self::Uncertain,
            AttemptResult::Answered(answered) | AttemptResult::Streaming(answered, _) => {
                Self::of_answer(answered)
            }
        }
    }

    fn of_answer(answered: &UpstreamAnswer) -> Self {
        let status = answered.parts.status;
        match classify_event(status.as_u16(), answered.hint) {
            Meaning::Keep if status.is_success() => Self::Accepted,
            Meaning::Keep => Self::Rejected,
            Meaning::Release | Meaning::Unknown => Self::NotAccepted,
        }
    }
}

/// The decision after an attempt to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterDelivery {
    /// Record that it was delivered.
    Complete,
    /// Record that it failed for good.
    Fail,
    /// Queue it for another attempt.
    Retry(Duration),
    /// Record that it may have run.
    Hold,
    /// Pause it until an operator resumes it.
    Pause,
    /// Forget it.
    Kill,
}

/// Whether a lost attempt may be repeated is on record: the class may have been
/// changed since.
fn decide(end: AttemptEnd, record: &Record, class: &Class, chance: u64) -> AfterDelivery {
    let (attempts, after_loss) = (record.attempts, record.terms.after_loss);
    match (end, class.on_exhausted) {
        (AttemptEnd::Accepted, _) => AfterDelivery::Complete,
        (AttemptEnd::Rejected, _) => AfterDelivery::Fail,
        (AttemptEnd::Uncertain, _) if after_loss == AfterLoss::Hold => AfterDelivery::Hold,
        _ if attempts < class.max_attempts => {
            AfterDelivery::Retry(class.backoff.after(attempts, chance))
        }
        (AttemptEnd::NotAccepted, OnExhausted::Kill) => AfterDelivery::Kill,
        // Also with `kill`: forgetting what may have run would free its key.
        _ => AfterDelivery::Pause,
    }
}

async fn settle(lead: Lead, tried: AttemptResult, next: AfterDelivery) -> DeliveryOutcome {
    let (recorded, outcome) = match next {
        AfterDelivery::Complete => {
            let recorded = finish(lead, tried, Settlement::Completed).await;
            (recorded, DeliveryOutcome::Completed)
        }
        AfterDelivery::Fail => {
            let recorded = finish(lead, tried, Settlement::Failed).await;
            (recorded, DeliveryOutcome::Failed)
        }
        AfterDelivery::Retry(after) => (lead.requeue(after).await, DeliveryOutcome::Requeued),
        AfterDelivery::Hold => (lead.lose().await, DeliveryOutcome::Unknown),
        AfterDelivery::Pause => (lead.pause().await, DeliveryOutcome::Paused),
        AfterDelivery::Kill => (lead.release(None).await, DeliveryOutcome::Killed),
    };
    recorded_as(recorded, outcome)
}

async fn finish(lead: Lead, tried: AttemptResult, settled: fn(Answer) -> Settlement) -> Recorded {
    match tried {
        AttemptResult::Answered(answered) => {
            let reply = answer::reply_of(&answered.parts, &answered.body, &answered.trailers);
            let reply = Arc::new(reply);
            lead.finish(settled(Answer::Kept(reply.clone())), Some(reply))
                .await
        }
        // No client waits for the rest of a large answer.
        tried => {
            let status = tried.status().unwrap_or_default();
            lead.finish(settled(Answer::NotKept { status }), None).await
        }
    }
}

fn recorded_as(recorded: Recorded, outcome: DeliveryOutcome) -> DeliveryOutcome {
    match recorded {
        Recorded::Finished(_) | Recorded::Durably => outcome,
        Recorded::Stale | Recorded::NotYet => DeliveryOutcome::NotRecorded,
    }
}

/// Asks the class's `reconcile_url` what became of a lost delivery.
async fn reconcile(protection: &Protection, record: &Record, class: &Class) {
    match protection.engine.look(&record.digest).await {
        Ok(Some(record)) if record.state == State::Unknown => {
            protection.reconcile(&record, class).await;
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "lost delivery not reconciled: store unavailable"),
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
            rendered: Default::default(),
        }
    }

    #[rstest]
    #[case::accepted(
        AttemptEnd::Accepted,
        1,
        AfterLoss::Free,
        OnExhausted::Pause,
        "complete"
    )]
    #[case::accepted_at_last(
        AttemptEnd::Accepted,
        3,
        AfterLoss::Free,
        OnExhausted::Pause,
        "complete"
    )]
    #[case::rejected(AttemptEnd::Rejected, 1, AfterLoss::Free, OnExhausted::Pause, "fail")]
    #[case::rejected_at_last(AttemptEnd::Rejected, 3, AfterLoss::Hold, OnExhausted::Kill, "fail")]
    #[case::refused_for_now(
        AttemptEnd::NotAccepted,
        2,
        AfterLoss::Free,
        OnExhausted::Pause,
        "retry"
    )]
    #[case::refused_and_held(
        AttemptEnd::NotAccepted,
        2,
        AfterLoss::Hold,
        OnExhausted::Pause,
        "retry"
    )]
    #[case::used_up(
        AttemptEnd::NotAccepted,
        3,
        AfterLoss::Free,
        OnExhausted::Pause,
        "pause"
    )]
    #[case::killed(AttemptEnd::NotAccepted, 3, AfterLoss::Free, OnExhausted::Kill, "kill")]
    #[case::lost(AttemptEnd::Uncertain, 2, AfterLoss::Free, OnExhausted::Pause, "retry")]
    #[case::lost_and_held(AttemptEnd::Uncertain, 1, AfterLoss::Hold, OnExhausted::Pause, "hold")]
    #[case::lost_and_asked(AttemptEnd::Uncertain, 3, AfterLoss::Hold, OnExhausted::Kill, "hold")]
    #[case::lost_at_last(AttemptEnd::Uncertain, 3, AfterLoss::Free, OnExhausted::Pause, "pause")]
    #[case::lost_is_not_killed(
        AttemptEnd::Uncertain,
        3,
        AfterLoss::Free,
        OnExhausted::Kill,
        "pause"
    )]
    fn what_follows_an_attempt(
        #[case] end: AttemptEnd,
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
            let next = match decide(end, &record(attempts, after_loss), &class, 7) {
                AfterDelivery::Complete => "complete",
                AfterDelivery::Fail => "fail",
                AfterDelivery::Retry(_) => "retry",
                AfterDelivery::Hold => "hold",
                AfterDelivery::Pause => "pause",
                AfterDelivery::Kill => "kill",
            };
            assert_eq!(next, want, "{on_unknown:?}");
        }
    }
}
