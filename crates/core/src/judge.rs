//! The decision behind every claim, as a pure function.

use crate::class::{AfterLoss, Terms};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::record::{Attempt, Record, State};

/// The decision on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The key is free: grant the claim under a new fence.
    Free,
    /// This same attempt holds it: grant the claim again under the same fence.
    Ours,
    /// The key belongs to a different request.
    Mismatch,
    /// Another attempt runs, or the operation is queued.
    Busy,
    /// It completed or failed; its answer is kept, or was marked as not kept.
    Finished,
    /// It finished and its reply is gone.
    Expired,
    /// It may have run.
    Unknown,
    /// Its attempts are used up.
    Paused,
}

/// Decides a claim. The fingerprint is compared before the state, so that a
/// mismatch beats *busy* while the operation runs; a free key is free for any
/// request.
pub fn judge(
    record: Option<&Record>,
    fingerprint: &Fingerprint,
    attempt: Attempt,
    terms: &Terms,
    now: Timestamp,
) -> Judgement {
    let Some(record) = record else {
        return Judgement::Free;
    };
    let Some(state) = record.state_at(now) else {
        return Judgement::Free;
    };
    if state == State::Released {
        return Judgement::Free;
    }
    // A delivery is the gateway's own run, though the record names the attempt
    // that enqueued it.
    let ours = record.attempt == attempt && !record.delivered;
    if record.state == State::Running && ours {
        return Judgement::Ours;
    }
    if record.fingerprint != *fingerprint {
        return Judgement::Mismatch;
    }
    match state {
        State::Queued | State::Running => Judgement::Busy,
        State::Completed | State::Failed => Judgement::Finished,
        State::Expired => Judgement::Expired,
        State::Unknown if terms.after_loss == AfterLoss::Free => Judgement::Free,
        State::Unknown => Judgement::Unknown,
        State::Paused => Judgement::Paused,
        State::Released => Judgement::Free,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;
    use crate::class::AfterLoss::{Free, Hold};
    use crate::record::tests::{LEASE, REMEMBER, RETENTION, START, fingerprint, record};

    /// A record as it was written at [`START`], and how much later it is judged.
    struct Found {
        state: State,
        frozen: AfterLoss,
        delivered: bool,
        later: Duration,
    }

    const NOW: Duration = Duration::ZERO;

    fn found(state: State, frozen: AfterLoss, later: Duration) -> Found {
        Found {
            state,
            frozen,
            delivered: false,
            later,
        }
    }

    fn delivery(state: State, frozen: AfterLoss, later: Duration) -> Found {
        Found {
            delivered: true,
            ..found(state, frozen, later)
        }
    }

    /// The answers to: the same request, a different one, the same attempt
    /// again, the same attempt with a different request.
    #[rstest]
    #[case::runs(found(State::Running, Hold, NOW), Hold, "Busy Mismatch Ours Ours")]
    #[case::runs_freely(found(State::Running, Free, NOW), Free, "Busy Mismatch Ours Ours")]
    #[case::is_delivered(
        delivery(State::Running, Hold, NOW),
        Hold,
        "Busy Mismatch Busy Mismatch"
    )]
    #[case::lease_over(found(State::Running, Hold, LEASE), Hold, "Unknown Mismatch Ours Ours")]
    #[case::lease_over_asked_freely(
        found(State::Running, Hold, LEASE),
        Free,
        "Free Mismatch Ours Ours"
    )]
    #[case::lease_over_freely(found(State::Running, Free, LEASE), Free, "Free Free Free Free")]
    #[case::lease_over_freely_asked_to_hold(
        found(State::Running, Free, LEASE),
        Hold,
        "Free Free Free Free"
    )]
    #[case::delivery_over(
        delivery(State::Running, Hold, LEASE),
        Hold,
        "Unknown Mismatch Unknown Mismatch"
    )]
    #[case::delivery_over_freely(
        delivery(State::Running, Free, LEASE),
        Free,
        "Busy Mismatch Busy Mismatch"
    )]
    #[case::queued(
        delivery(State::Queued, Hold, NOW),
        Hold,
        "Busy Mismatch Busy Mismatch"
    )]
    #[case::overdue(
        delivery(State::Queued, Free, REMEMBER),
        Free,
        "Busy Mismatch Busy Mismatch"
    )]
    #[case::completed(
        found(State::Completed, Hold, NOW),
        Hold,
        "Finished Mismatch Finished Mismatch"
    )]
    #[case::completed_freely(
        found(State::Completed, Free, NOW),
        Free,
        "Finished Mismatch Finished Mismatch"
    )]
    #[case::failed(
        found(State::Failed, Hold, NOW),
        Hold,
        "Finished Mismatch Finished Mismatch"
    )]
    #[case::expired(
        found(State::Completed, Hold, RETENTION),
        Hold,
        "Expired Mismatch Expired Mismatch"
    )]
    #[case::expired_freely(
        found(State::Failed, Free, RETENTION),
        Free,
        "Expired Mismatch Expired Mismatch"
    )]
    #[case::forgotten(found(State::Completed, Hold, REMEMBER), Hold, "Free Free Free Free")]
    #[case::released(found(State::Released, Hold, NOW), Hold, "Free Free Free Free")]
    #[case::released_and_gone(found(State::Released, Hold, LEASE), Hold, "Free Free Free Free")]
    #[case::unknown(
        found(State::Unknown, Hold, REMEMBER),
        Hold,
        "Unknown Mismatch Unknown Mismatch"
    )]
    #[case::unknown_asked_freely(
        found(State::Unknown, Hold, NOW),
        Free,
        "Free Mismatch Free Mismatch"
    )]
    #[case::unknown_asked_to_hold(
        found(State::Unknown, Free, NOW),
        Hold,
        "Unknown Mismatch Unknown Mismatch"
    )]
    #[case::paused(
        found(State::Paused, Hold, REMEMBER),
        Hold,
        "Paused Mismatch Paused Mismatch"
    )]
    #[case::paused_freely(
        found(State::Paused, Free, NOW),
        Free,
        "Paused Mismatch Paused Mismatch"
    )]
    fn claims(#[case] found: Found, #[case] asked: AfterLoss, #[case] want: &str) {
        let mut record = record(found.state, found.frozen);
        record.delivered = found.delivered;
        let terms = Terms {
            after_loss: asked,
            ..record.terms.clone()
        };
        let now = START.plus(found.later);
        let [own, other] = [record.attempt, Attempt(99)];
        let asks = [(1, other), (2, other), (1, own), (2, own)];
        let got = asks.map(|(request, attempt)| {
            let standing = judge(Some(&record), &fingerprint(request), attempt, &terms, now);
            format!("{standing:?}")
        });
        assert_eq!(got.join(" "), want);
    }

    #[test]
    fn an_absent_record_is_a_free_key() {
        let terms = record(State::Running, Hold).terms;
        let standing = judge(None, &fingerprint(1), Attempt(1), &terms, START);
        assert_eq!(standing, Judgement::Free);
    }
}
