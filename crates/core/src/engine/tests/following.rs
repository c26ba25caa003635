//! Which outcome a waiter gets, and how often it asks the store.

use super::*;
use crate::engine::Recorded;

const LIMIT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn limits_change_while_others_wait() {
    let fixture = Fixture::new();
    let engine = &fixture.here;
    let lead = fixture.lead(engine, 1).await;
    let second = fixture.follow(engine, 1).await;
    let waiting = fixture.waiter(Duration::MAX).await;
    engine.set_limits(Limits {
        waiters_per_tenant: 1,
        ..engine.limits()
    });
    let refused = second.settled(Duration::ZERO).await;
    assert!(matches!(refused, Ok(Awaited::TooMany)));
    engine.set_limits(Limits::default());
    let waited = second.settled(Duration::ZERO).await;
    assert!(matches!(waited, Ok(Awaited::StillRunning)));
    lead.release(None).await;
    let first = waiting.await.expect("the first still waits");
    assert!(matches!(first, Ok(Awaited::Freed)));
}

/// A waiter learns only that the key was freed, in every state of the other request.
#[tokio::test(start_paused = true)]
async fn a_waiter_learns_nothing_of_another_request_under_its_key() {
    for by_record in [false, true] {
        for done in [false, true] {
            let fixture = Fixture::new();
            let first = fixture.lead(&fixture.there, 1).await;
            let follow = fixture.follow(&fixture.here, 1).await;
            let follow = match by_record {
                true => fixture.here.follow(follow.record().clone()),
                false => follow,
            };
            first.release(None).await;
            let second = fixture.lead(&fixture.there, 2).await;
            let second = match done {
                true => {
                    let recorded = second.finish(completed(), None).await;
                    assert!(matches!(recorded, Recorded::Finished(_)));
                    None
                }
                false => Some(second),
            };
            let waited = follow.settled(LIMIT).await;
            assert!(
                matches!(waited, Ok(Awaited::Freed)),
                "by record {by_record}, done {done}"
            );
            drop(second);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_still_gets_the_outcome_of_the_same_request_run_anew() {
    let fixture = Fixture::new();
    let first = fixture.lead(&fixture.there, 1).await;
    let follow = fixture.follow(&fixture.here, 1).await;
    first.release(None).await;
    let again = fixture.lead(&fixture.there, 1).await;
    again.finish(completed(), None).await;
    let waited = follow.settled(LIMIT).await;
    assert!(matches!(waited, Ok(Awaited::Settled(_))));
}

/// A different request takes the lead of the flight in which the waiter has its seat.
/// Its answer is announced in that flight, and is not for the waiter.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_get_the_answer_of_another_leader_in_its_flight() {
    for announced_first in [false, true] {
        let fixture = Fixture::new();
        let first = fixture.lead(&fixture.there, 1).await;
        let follow = fixture.follow(&fixture.here, 1).await;
        first.release(None).await;
        let other = fixture.lead(&fixture.here, 2).await;
        let listener = fixture.follow(&fixture.here, 2).await;
        let waited = if announced_first {
            other.release(Some(reply())).await;
            follow.settled(LIMIT).await
        } else {
            let waited = follow.settled(LIMIT).await;
            other.release(Some(reply())).await;
            waited
        };
        assert!(matches!(waited, Ok(Awaited::Freed)), "{announced_first}");
        let shared = listener.settled(LIMIT).await;
        assert!(
            matches!(shared, Ok(Awaited::Answered(_, Recorded::Durably))),
            "a waiter of the same request gets that answer"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_leader_beside_it_leaves_the_store_alone() {
    for dropped in [false, true] {
        let fixture = Fixture::new();
        let lead = fixture.lead(&fixture.here, 1).await;
        let follow = fixture.follow(&fixture.here, 1).await;
        let early = follow.settled(Duration::from_secs(30)).await;
        assert!(matches!(early, Ok(Awaited::StillRunning)), "it is bounded");
        let waiting = tokio::spawn(async move { follow.settled(Duration::MAX).await });
        until(|| fixture.here.waiters() > 0).await;
        match dropped {
            true => drop(lead),
            false => {
                lead.release(Some(reply())).await;
            }
        }
        match waiting.await.expect("the waiter goes on") {
            Ok(Awaited::Lost) => assert!(dropped),
            Ok(Awaited::Answered(..)) => assert!(!dropped),
            other => panic!("dropped {dropped}: {other:?}"),
        }
        assert_eq!(fixture.store.waits.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_leader_elsewhere_asks_the_store() {
    let fixture = Fixture::new();
    let lead = fixture.lead(&fixture.there, 1).await;
    let follow = fixture.follow(&fixture.here, 1).await;
    let early = follow.settled(Duration::from_secs(30)).await;
    assert!(matches!(early, Ok(Awaited::StillRunning)));
    assert!(fixture.store.waits.load(Ordering::Relaxed) > 0);
    lead.finish(completed(), None).await;
    let waited = follow.settled(LIMIT).await;
    assert!(matches!(waited, Ok(Awaited::Settled(_))));
}

/// A crowd asks the store as often as a single waiter would, also after the
/// waiters that looked for the others have gone.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_waits_for_a_leader_elsewhere_asks_the_store_as_one() {
    let fixture = Fixture::new();
    let lead = fixture.lead(&fixture.there, 1).await;
    let poll = fixture.here.limits().poll;
    let mut crowd = Vec::new();
    for number in 0..300 {
        let follow = fixture.follow(&fixture.here, 1).await;
        // Every third gives up before a look has ended.
        let limit = if number % 3 == 0 {
            poll / 2
        } else {
            poll * 100
        };
        crowd.push((
            limit,
            tokio::spawn(async move { follow.settled(limit).await }),
        ));
    }
    sleep(poll * 10).await;
    let asked = fixture.store.waits.load(Ordering::Relaxed);
    // The early leavers pass their turn on once, all at the same moment.
    assert!(
        asked <= 20,
        "the store was asked {asked} times in ten polls"
    );
    lead.finish(completed(), None).await;
    for (limit, waiter) in crowd {
        match waiter.await.expect("no waiter panics") {
            Ok(Awaited::StillRunning) => assert!(limit < poll),
            Ok(Awaited::Settled(_)) => assert!(limit > poll),
            other => panic!("neither settled nor out of time: {other:?}"),
        }
    }
}
