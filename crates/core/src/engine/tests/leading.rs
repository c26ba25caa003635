//! What a lead records, and the replays that follow.

use super::*;
use crate::clock::Clock as _;
use crate::deadline::DeadlineExceeded;
use crate::engine::{Drained, Recorded};
use crate::record::tests::RETENTION;

#[tokio::test]
async fn a_finished_lead_returns_the_times_of_its_record() {
    let fixture = Fixture::new();
    let lead = fixture.lead(&fixture.here, 1).await;
    let recorded = lead.finish(completed(), None).await;
    let completion = fixture.record().await.completion();
    let completion = completion.expect("it is finished");
    assert_eq!(recorded, Recorded::Finished(completion));
}

#[tokio::test]
async fn replays_are_noted_where_retention_counts_from_them() {
    for (basis, want) in [
        (TtlBasis::Access, RETENTION),
        (TtlBasis::Completion, RETENTION / 2),
        (TtlBasis::Creation, RETENTION / 2),
    ] {
        let fixture = Fixture::counting_from(basis);
        let lead = fixture.lead(&fixture.here, 1).await;
        let recorded = lead.finish(completed(), None).await;
        assert!(matches!(recorded, Recorded::Finished(_)));
        fixture.clock.advance(RETENTION / 2);
        assert!(matches!(fixture.enter().await, Entered::Finished(_)));
        fixture.rest().await;
        let expires = fixture.record().await.expires_at().expect("an outcome");
        assert_eq!(expires.since(fixture.clock.now()), want, "{basis:?}");
    }
}

#[tokio::test]
async fn a_lead_that_does_not_know_its_outcome_is_unknown_or_released() {
    for joined in [false, true] {
        for dropped in [false, true] {
            let fixture = Fixture::new();
            let lead = fixture.lead(&fixture.here, 1).await;
            let lead = if joined { lead.joined() } else { lead };
            match dropped {
                true => drop(lead),
                false => assert_eq!(lead.lose().await, Recorded::Durably),
            }
            fixture.rest().await;
            let want = match joined {
                true => State::Released,
                false => State::Unknown,
            };
            let state = fixture.record().await.state;
            assert_eq!(state, want, "joined {joined}, dropped {dropped}");
        }
    }
}

/// One timer serves the renewals and the limit.
#[tokio::test(start_paused = true)]
async fn work_that_exceeds_its_limit_is_given_up_then_and_its_lease_renewed_meanwhile() {
    let fixture = Fixture::new();
    let lead = fixture.lead(&fixture.here, 1).await;
    let pause = fixture.operation.terms.lease / 3;
    for (limit, renewals) in [
        (Duration::ZERO, 0),
        (pause / 2, 0),
        (pause, 0),
        (pause * 5 / 2, 2),
        (pause * 3, 2),
    ] {
        fixture.store.renewals.store(0, Ordering::Relaxed);
        let begun = Instant::now();
        let ended = (lead.holding_within(limit, std::future::pending::<()>())).await;
        assert_eq!(ended, Err(DeadlineExceeded(limit)));
        let late = begun.elapsed() - limit;
        assert!(late < Duration::from_millis(10), "{limit:?} and {late:?}");
        let renewed = fixture.store.renewals.load(Ordering::Relaxed);
        assert_eq!(renewed, renewals, "{limit:?}");
    }
    let done = lead.holding_within(pause * 2, sleep(pause * 3 / 2)).await;
    assert_eq!(done, Ok(()));
}

#[test]
fn a_lead_that_is_dropped_outside_of_the_runtime_is_recorded() {
    for (begun, want) in [(false, State::Released), (true, State::Unknown)] {
        let runtime = runtime();
        let fixture = Fixture::new();
        let lead = runtime.block_on(fixture.new_lead(&fixture.here, 1));
        match begun {
            true => drop(lead.begin()),
            false => drop(lead),
        }
        runtime.block_on(fixture.rest());
        assert_eq!(runtime.block_on(fixture.record()).state, want);
    }
}

#[tokio::test(start_paused = true)]
async fn draining_waits_for_work_and_abandons_what_does_not_end() {
    for (takes, drained, state) in [
        (Duration::from_secs(1), Drained::Whole, State::Completed),
        (Duration::MAX, Drained::Cut { running: 1 }, State::Unknown),
    ] {
        let fixture = Fixture::new();
        let lead = fixture.lead(&fixture.here, 1).await;
        fixture.here.spawn(async move {
            lead.holding(sleep(takes)).await;
            lead.finish(completed(), None).await;
        });
        let ending = fixture.here.tasks().wait();
        let ended = fixture.here.drain(Duration::from_secs(2), ending).await;
        assert_eq!(ended, drained);
        assert_eq!(fixture.record().await.state, state);
    }
}
