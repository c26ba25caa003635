//! Changes of a record by operators.

use rstest::rstest;

use super::*;
use crate::store::{Changed, Resolution};

#[rstest]
#[case::ran(Resolution::Ran(Arc::new(Reply { status: 201, headers: vec![], body: Bytes::new(), trailers: vec![] })), false, State::Completed)]
#[case::ran_and_failed(Resolution::Ran(Arc::new(Reply { status: 400, headers: vec![], body: Bytes::new(), trailers: vec![] })), false, State::Failed)]
#[case::not_run(Resolution::NotRun, false, State::Released)]
#[case::delivery_not_run(Resolution::NotRun, true, State::Queued)]
fn resolving(#[case] word: Resolution, #[case] delivered: bool, #[case] want: State) {
    let mut record = record(State::Unknown, AfterLoss::Hold);
    record.delivered = delivered;
    record.resolve(Fence(8), &word, START);
    assert_eq!((record.state, record.fence), (want, Fence(8)));
    assert_eq!(
        outcomes(&record, HELD, START),
        "- - - - - - -",
        "the old holder"
    );
}

const NOW: Duration = Duration::ZERO;

/// The result for an operation that was enqueued; one that was not is refused in
/// every state.
#[rstest]
#[case::completed(State::Completed, AfterLoss::Hold, NOW, Changed::Done)]
#[case::failed(State::Failed, AfterLoss::Free, RETENTION - MOMENT, Changed::Done)]
#[case::unknown(State::Unknown, AfterLoss::Hold, REMEMBER * 9, Changed::Done)]
#[case::paused(State::Paused, AfterLoss::Free, REMEMBER * 9, Changed::Done)]
#[case::lost(State::Running, AfterLoss::Hold, LEASE, Changed::Done)]
#[case::running(State::Running, AfterLoss::Hold, NOW, Changed::Refused(State::Running))]
#[case::due_again(
    State::Running,
    AfterLoss::Free,
    LEASE,
    Changed::Refused(State::Queued)
)]
#[case::queued(State::Queued, AfterLoss::Hold, NOW, Changed::Refused(State::Queued))]
#[case::released(
    State::Released,
    AfterLoss::Hold,
    NOW,
    Changed::Refused(State::Released)
)]
#[case::released_and_gone(State::Released, AfterLoss::Hold, LEASE, Changed::Absent)]
#[case::expired(
    State::Completed,
    AfterLoss::Hold,
    RETENTION,
    Changed::Refused(State::Expired)
)]
#[case::trace(
    State::Completed,
    AfterLoss::Hold,
    REMEMBER,
    Changed::Refused(State::Expired)
)]
#[case::over(State::Failed, AfterLoss::Hold, REMEMBER + TRACE, Changed::Absent)]
fn redelivering(
    #[case] state: State,
    #[case] after_loss: AfterLoss,
    #[case] later: Duration,
    #[case] want: Changed,
) {
    let mut before = record(state, after_loss);
    before.terms.keep_expired = TRACE;
    (before.delivered, before.touched_at) = (true, Some(START));
    let now = START.plus(later);
    let mut record = before.clone();
    assert_eq!(record.redeliver(Fence(8), now), want);
    if want == Changed::Done {
        let queued = Record {
            state: State::Queued,
            fence: Fence(8),
            attempts: 0,
            until: now,
            completed_at: None,
            touched_at: None,
            answer: None,
            ..before.clone()
        };
        assert_eq!(record, queued);
        assert_eq!(
            outcomes(&record, HELD, now),
            "- - - - - - -",
            "the old holder"
        );
    } else {
        assert_eq!(record, before);
    }

    before.delivered = false;
    let mut alone = before.clone();
    let refused = alone.redeliver(Fence(8), now);
    let shown = before.shown_state_at(now);
    assert_eq!(refused, shown.map_or(Changed::Absent, Changed::Refused));
    assert_eq!(alone, before);
}
