//! Changes of a record by holders.

use rstest::rstest;

use super::*;

#[rstest]
#[case::running(
    State::Running,
    "Completed Failed Released Released Released Unknown Paused"
)]
#[case::unknown(
    State::Unknown,
    "Completed Failed Released Released Released Unknown Paused"
)]
#[case::completed(State::Completed, "Completed - - - - - -")]
#[case::failed(State::Failed, "- Failed - - - - -")]
#[case::released(State::Released, "- - Released Released Released - -")]
#[case::paused(State::Paused, "- - - - - - Paused")]
fn settling(#[case] state: State, #[case] want: &str) {
    let record = record(state, AfterLoss::Hold);
    assert_eq!(outcomes(&record, HELD, START), want);
    assert_eq!(
        outcomes(&record, Fence(6), START),
        "- - - - - - -",
        "a lower fence"
    );
    assert_eq!(
        outcomes(&record, Fence(8), START),
        "- - - - - - -",
        "a higher fence"
    );
}

/// Where running twice was declared safe, a lost delivery is queued; all else
/// is the same.
#[rstest]
#[case::running(
    State::Running,
    "Completed Failed Released Queued Queued Unknown Paused",
    5
)]
#[case::unknown(
    State::Unknown,
    "Completed Failed Released Queued Queued Unknown Paused",
    5
)]
#[case::queued(State::Queued, "- - - Queued Queued - -", 5)]
#[case::completed(State::Completed, "Completed - - - - - -", 7)]
#[case::released(State::Released, "- - Released - - - -", 7)]
#[case::paused(State::Paused, "- - - - - - Paused", 7)]
fn settling_a_delivery(#[case] state: State, #[case] held: &str, #[case] lost: usize) {
    for after_loss in [AfterLoss::Hold, AfterLoss::Free] {
        let mut record = record(state, after_loss);
        record.delivered = true;
        let mut want: Vec<_> = held.split(' ').collect();
        if let (AfterLoss::Free, Some(word)) = (after_loss, want.get_mut(lost)) {
            *word = "Queued";
        }
        assert_eq!(outcomes(&record, HELD, START), want.join(" "));
        assert_eq!(outcomes(&record, Fence(6), START), "- - - - - - -");
    }
}

/// When it is due again, and how often it was tried, after one grant.
#[rstest]
#[case::requeued(Settlement::Requeued { after: RETENTION }, RETENTION, 1)]
#[case::deferred(Settlement::Deferred { after: RETENTION }, RETENTION, 0)]
#[case::lost(Settlement::Lost, Duration::ZERO, 1)]
fn requeued_deferred_and_lost_deliveries_are_due_again(
    #[case] word: Settlement,
    #[case] after: Duration,
    #[case] attempts: u32,
) {
    let mut record = record(State::Running, AfterLoss::Free);
    record.delivered = true;
    let now = START.plus(MOMENT);
    assert!(record.settle(HELD, &word, now).is_recorded());
    let put_back = record.clone();
    assert_eq!(record.due_at(), Some(now.plus(after)));
    assert_eq!((record.attempts, record.fence), (attempts, HELD));
    let again = record.settle(HELD, &word, now.plus(MOMENT));
    assert_eq!(
        (again, &record),
        (Settled::Done, &put_back),
        "the same settlement again"
    );
    assert_eq!(record.renew(HELD, now), Settled::Stale);
    assert_eq!(record, put_back);
}

#[test]
fn a_grant_that_never_was_an_attempt_is_not_counted_below_none() {
    let mut record = record(State::Running, AfterLoss::Hold);
    (record.delivered, record.attempts) = (true, 0);
    let word = Settlement::Deferred { after: LEASE };
    assert!(record.settle(HELD, &word, START).is_recorded());
    assert_eq!(record.attempts, 0);
}

#[rstest]
#[case::late(
    State::Running,
    LEASE,
    "Completed Failed Released Released Released Unknown Paused"
)]
#[case::released_and_gone(State::Released, LEASE, "- - - - - - -")]
#[case::expired(State::Completed, RETENTION, "Completed - - - - - -")]
#[case::forgotten(State::Completed, REMEMBER, "- - - - - - -")]
fn settling_later(#[case] state: State, #[case] later: Duration, #[case] want: &str) {
    for after_loss in [AfterLoss::Hold, AfterLoss::Free] {
        let record = record(state, after_loss);
        assert_eq!(outcomes(&record, HELD, START.plus(later)), want);
    }
}

#[rstest]
#[case::held(AfterLoss::Hold, false, State::Unknown)]
#[case::freely(AfterLoss::Free, false, State::Unknown)]
#[case::delivery_held(AfterLoss::Hold, true, State::Unknown)]
#[case::delivery_freely(AfterLoss::Free, true, State::Queued)]
fn a_reply_not_kept_can_be_lost(
    #[case] after_loss: AfterLoss,
    #[case] delivered: bool,
    #[case] want: State,
) {
    for state in [State::Completed, State::Failed] {
        let mut record = record(state, after_loss);
        record.delivered = delivered;
        record.answer = Some(Answer::NotKept { status: 200 });
        assert!(record.settle(HELD, &Settlement::Lost, START).is_recorded());
        assert_eq!(
            (record.state, record.answer, record.completed_at),
            (want, None, None)
        );
    }
}

#[test]
fn settling_keeps_the_time_and_the_answer() {
    let mut record = record(State::Running, AfterLoss::Hold);
    let now = START.plus(MOMENT);
    record.settle(HELD, &Settlement::Failed(kept(404)), now);
    assert_eq!(
        (record.completed_at, &record.answer),
        (Some(now), &Some(kept(404)))
    );
    assert_eq!(record.expires_at(), Some(now.plus(RETENTION)));
    assert_eq!(record.forgotten_at(), Some(now.plus(REMEMBER)));
    record.settle(HELD, &Settlement::Failed(kept(400)), now.plus(LEASE));
    assert_eq!(
        (record.completed_at, record.answer),
        (Some(now), Some(kept(404)))
    );
}

#[rstest]
#[case::running(State::Running, Settled::Done)]
#[case::thought_lost(State::Unknown, Settled::Done)]
#[case::completed(State::Completed, Settled::Stale)]
#[case::released(State::Released, Settled::Stale)]
#[case::paused(State::Paused, Settled::Stale)]
#[case::queued(State::Queued, Settled::Stale)]
fn renewing(#[case] state: State, #[case] want: Settled) {
    let mut renewed = record(state, AfterLoss::Hold);
    let now = START.plus(LEASE * 3);
    assert_eq!(renewed.renew(Fence(6), now), Settled::Stale);
    assert_eq!(renewed, record(state, AfterLoss::Hold));
    assert_eq!(renewed.renew(HELD, now), want);
    if want == Settled::Done {
        assert_eq!(
            (renewed.state, renewed.until),
            (State::Running, now.plus(LEASE))
        );
    }
}
