//! Effects of time on a record.

use rstest::rstest;

use super::*;

#[rstest]
#[case::running(State::Running, AfterLoss::Hold, LEASE - MOMENT, Some(State::Running))]
#[case::lost(State::Running, AfterLoss::Hold, LEASE, Some(State::Unknown))]
#[case::running_freely(State::Running, AfterLoss::Free, LEASE - MOMENT, Some(State::Running))]
#[case::freed(State::Running, AfterLoss::Free, LEASE, None)]
#[case::released(State::Released, AfterLoss::Hold, LEASE - MOMENT, Some(State::Released))]
#[case::released_and_gone(State::Released, AfterLoss::Hold, LEASE, None)]
#[case::completed(State::Completed, AfterLoss::Hold, RETENTION - MOMENT, Some(State::Completed))]
#[case::expired(State::Completed, AfterLoss::Hold, RETENTION, Some(State::Expired))]
#[case::failed(State::Failed, AfterLoss::Hold, RETENTION - MOMENT, Some(State::Failed))]
#[case::failed_and_expired(State::Failed, AfterLoss::Hold, REMEMBER - MOMENT, Some(State::Expired))]
#[case::forgotten(State::Failed, AfterLoss::Hold, REMEMBER, None)]
#[case::unknown_for_ever(State::Unknown, AfterLoss::Hold, REMEMBER * 1_000, Some(State::Unknown))]
#[case::paused_for_ever(State::Paused, AfterLoss::Free, REMEMBER * 1_000, Some(State::Paused))]
#[case::queued_for_ever(State::Queued, AfterLoss::Hold, REMEMBER * 1_000, Some(State::Queued))]
fn states_over_time(
    #[case] state: State,
    #[case] after_loss: AfterLoss,
    #[case] later: Duration,
    #[case] want: Option<State>,
) {
    let record = Arc::new(record(state, after_loss));
    let now = START.plus(later);
    assert_eq!(record.state_at(now), want);
    assert_eq!(record.seen_at(now).map(|seen| seen.state), want);
    let reclaimed = want.is_none() && state != State::Running;
    assert_eq!(record.is_over(now), reclaimed, "its holder may still come");
}

#[rstest]
#[case::held(AfterLoss::Hold, Some(State::Unknown), None)]
#[case::freed(AfterLoss::Free, Some(State::Queued), Some(LEASE))]
fn delivery_after_its_lease(
    #[case] after_loss: AfterLoss,
    #[case] want: Option<State>,
    #[case] due: Option<Duration>,
) {
    let mut record = record(State::Running, after_loss);
    record.delivered = true;
    assert_eq!(record.state_at(START.plus(LEASE)), want);
    assert_eq!(record.due_at(), due.map(|span| START.plus(span)));
    assert_eq!(record.is_due(START.plus(LEASE)), due.is_some());
    assert!(!record.is_due(START.plus(LEASE - MOMENT)));
    let alone = record.without_holder(START).map(|record| record.state);
    assert_eq!(alone, want, "as at the end of the lease");
}

/// As a caller sees it, as an operator sees it, and whether it may be swept.
fn states_at(record: &Record, later: Duration) -> String {
    let now = START.plus(later);
    let word = |state: Option<State>| state.map_or("-", State::as_str);
    let seen = word(record.state_at(now));
    let shown = word(record.shown_state_at(now));
    let over = if record.is_over(now) { "over" } else { "" };
    let record = Arc::new(record.clone());
    let states = [record.seen_at(now), record.shown_at(now)].map(|r| r.map(|r| r.state));
    assert_eq!(states.map(word), [seen, shown]);
    format!("{seen} {shown} {over}").trim_end().to_owned()
}

/// An operation created at [`START`], completed half an hour later, whose
/// replay was noted after another half.
#[rstest]
#[case::completion(TtlBasis::Completion, RETENTION / 2)]
#[case::creation(TtlBasis::Creation, Duration::ZERO)]
#[case::access(TtlBasis::Access, RETENTION)]
fn retention_counts_from_its_basis(#[case] ttl_basis: TtlBasis, #[case] basis: Duration) {
    let mut record = record(State::Completed, AfterLoss::Hold);
    record.completed_at = Some(START.plus(RETENTION / 2));
    record.touched_at = Some(START.plus(RETENTION));
    record.terms.ttl_basis = ttl_basis;
    record.terms.keep_expired = TRACE;
    let at = |span: Duration| Some(START.plus(basis + span));
    assert_eq!(record.expires_at(), at(RETENTION));
    assert_eq!(record.forgotten_at(), at(REMEMBER));
    assert_eq!(record.over_at(), at(REMEMBER + TRACE));
    let steps = [
        (RETENTION - MOMENT, "completed completed"),
        (RETENTION, "expired expired"),
        (REMEMBER - MOMENT, "expired expired"),
        (REMEMBER, "- expired"),
        (REMEMBER + TRACE - MOMENT, "- expired"),
        (REMEMBER + TRACE, "- - over"),
    ];
    for (span, want) in steps {
        assert_eq!(states_at(&record, basis + span), want, "{span:?}");
    }
}

#[rstest]
#[case::soon(MOMENT, Duration::ZERO)]
#[case::half_way(RETENTION / 2, Duration::ZERO)]
#[case::later(RETENTION / 2 + MOMENT, RETENTION / 2 + MOMENT)]
#[case::too_late_to_be_replayed(RETENTION, RETENTION)]
#[case::too_late_to_be_remembered(REMEMBER * 2, REMEMBER * 2)]
fn retention_of_a_late_completion_counts_from_completion(
    #[case] completed: Duration,
    #[case] basis: Duration,
) {
    let mut record = record(State::Running, AfterLoss::Hold);
    record.terms.ttl_basis = TtlBasis::Creation;
    let now = START.plus(completed);
    record.settle(HELD, &Settlement::Completed(kept(201)), now);
    assert_eq!(record.expires_at(), Some(START.plus(basis + RETENTION)));
    assert_eq!(record.forgotten_at(), Some(START.plus(basis + REMEMBER)));
    assert_eq!(record.state_at(now), Some(State::Completed));
}

#[rstest]
#[case::fresh(RETENTION - MOMENT, "completed completed")]
#[case::expired(RETENTION, "completed completed")]
#[case::forgotten(REMEMBER, "completed completed over")]
#[case::long_ago(REMEMBER * 1_000, "completed completed over")]
fn lazy_expiry_waits_for_the_sweep(#[case] later: Duration, #[case] want: &str) {
    let mut record = record(State::Completed, AfterLoss::Hold);
    record.terms.expiry = Expiry::Lazy;
    assert_eq!(states_at(&record, later), want);
    assert_eq!(record.is_overdue(START.plus(later)), later >= RETENTION);
    record.expire();
    assert_eq!(
        states_at(&record, later),
        want.replace("completed", "expired"),
        "swept"
    );
    record.terms.keep_expired = TRACE;
    assert!(!record.is_overdue(START.plus(later)), "a trace is strict");
}

#[rstest]
#[case::soon(TtlBasis::Access, RETENTION / 10 - MOMENT, false)]
#[case::in_time(TtlBasis::Access, RETENTION / 10, true)]
#[case::just_before_its_end(TtlBasis::Access, RETENTION - MOMENT, true)]
#[case::expired(TtlBasis::Access, RETENTION, false)]
#[case::other_basis(TtlBasis::Completion, RETENTION / 2, false)]
#[case::creation(TtlBasis::Creation, RETENTION / 2, false)]
fn replays_are_noted_now_and_then(
    #[case] ttl_basis: TtlBasis,
    #[case] later: Duration,
    #[case] want: bool,
) {
    for state in [State::Completed, State::Failed] {
        let mut record = record(state, AfterLoss::Hold);
        record.terms.ttl_basis = ttl_basis;
        let now = START.plus(later);
        assert_eq!(record.wants_touch(now), want);
        record.touch(now);
        assert!(!record.wants_touch(now));
    }
    let mut open = record(State::Running, AfterLoss::Hold);
    open.terms.ttl_basis = ttl_basis;
    assert!(!open.wants_touch(START.plus(later)));
}

#[test]
fn expired_reply_is_not_shown() {
    let record = Arc::new(record(State::Completed, AfterLoss::Hold));
    let seen = record
        .seen_at(START.plus(RETENTION))
        .expect("still remembered");
    assert_eq!(seen.answer, Some(Answer::Gone { status: 200 }));
}
