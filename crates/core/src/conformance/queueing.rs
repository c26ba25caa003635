//! Promises about work that the gateway delivers itself.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;

use super::trial::{
    LEASE, REMEMBER, RETENTION, Trial, accepted, completed, describe, done, expect, failed, terms,
};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::clock::Clock;
use crate::identity::OperationId;
use crate::record::{Answer, Settled, Settlement, State};
use crate::store::{Changed, ClaimRequest, Due, Enqueued, Resolution};

const NOW: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(10);

/// An operation is recorded with its request in one step; the request comes back
/// byte for byte.
pub async fn enqueued_request_comes_back_as_it_was(trial: &Trial) {
    trial.clear_queue().await;
    let ask = trial.ask();
    let id = accepted(&trial.enqueue(&ask, b"POST / \x00\xff", NOW).await);
    assert_eq!(id, ask.id);
    let seen = trial.get(&ask).await.expect("queued work is on record");
    assert_eq!(
        (seen.state, seen.attempts, seen.delivered),
        (State::Queued, 0, true)
    );

    let due = only(trial.due(10).await);
    assert_eq!(due.request, Bytes::from_static(b"POST / \x00\xff"));
    assert_eq!((due.grant.id, due.grant.digest), (id, ask.digest));
    assert_eq!((due.record.state, due.record.attempts), (State::Running, 1));
    assert_eq!(due.record.fence, due.grant.fence);
    assert_eq!(trial.state(&ask).await, Some(State::Running));
}

/// Enqueueing a known operation is answered like a claim, and records nothing.
pub async fn enqueueing_again_is_answered_like_a_claim(trial: &Trial) {
    let states = State::ALL.into_iter();
    for state in states.filter(|state| *state != State::Released) {
        let ask = trial.operation_in(state).await;
        let before = trial.get(&ask).await;
        for again in [trial.retry(&ask), trial.other_request(&ask)] {
            let by_claim = trial.claim(&again).await;
            match trial.enqueue(&again, b"again", NOW).await {
                Enqueued::Known(claim) => {
                    assert_eq!(describe(&claim), describe(&by_claim), "{state:?}");
                }
                Enqueued::Accepted(_) => panic!("accepted although {state:?}"),
            }
        }
        assert_eq!(trial.get(&ask).await, before, "while {state:?}");
    }
    let free = trial.operation_in(State::Released).await;
    accepted(&trial.enqueue(&trial.retry(&free), b"again", LATER).await);
}

/// A repeated enqueueing after a lost answer never grants, also when the gateway
/// already delivers the event: the delivery belongs to the courier.
pub async fn enqueueing_again_never_grants(trial: &Trial) {
    trial.clear_queue().await;
    let ask = trial.ask();
    accepted(&trial.enqueue(&ask, b"request", NOW).await);
    for state in [State::Queued, State::Running] {
        assert_eq!(trial.state(&ask).await, Some(state));
        match trial.enqueue(&ask, b"request", NOW).await {
            Enqueued::Known(claim) => expect(&claim, "busy"),
            Enqueued::Accepted(_) => panic!("accepted twice, while {state:?}"),
        };
        expect(&trial.claim(&ask).await, "busy");
        trial.due(10).await;
    }
}

/// Queued work is granted once, and not before it is due.
pub async fn queued_work_is_given_when_due_and_once(trial: &Trial) {
    trial.clear_queue().await;
    let ask = trial.ask();
    accepted(&trial.enqueue(&ask, b"request", LATER).await);
    assert!(trial.due(10).await.is_empty(), "given before it was due");
    trial.advance(LATER);
    let due = only(trial.due(10).await);
    assert_eq!(due.grant.digest, ask.digest);
    assert!(trial.due(10).await.is_empty(), "given twice");
}

/// Work that has been due for longest comes first, up to the limit.
pub async fn queued_work_is_given_oldest_first(trial: &Trial) {
    trial.clear_queue().await;
    let mut wanted = Vec::new();
    for seconds in [3, 1, 4, 2, 5] {
        let ask = trial.ask();
        accepted(
            &trial
                .enqueue(&ask, b"request", Duration::from_secs(seconds))
                .await,
        );
        wanted.push((seconds, ask.digest));
    }
    wanted.sort_unstable();
    trial.advance(LATER);
    let mut given = Vec::new();
    for _ in 0..3 {
        let due = trial.due(2).await;
        assert!(due.len() <= 2);
        given.extend(due.into_iter().map(|due| due.grant.digest));
    }
    let wanted: Vec<_> = wanted.into_iter().map(|(_, digest)| digest).collect();
    assert_eq!(given, wanted);
}

/// Concurrent takers never get the same work.
pub async fn queued_work_is_given_once_to_concurrent_takers(trial: &Trial) {
    trial.clear_queue().await;
    for _ in 0..32 {
        accepted(&trial.enqueue(&trial.ask(), b"request", NOW).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let trial = trial.clone();
        tasks.spawn(async move { trial.due(5).await });
    }
    let mut given: Vec<Due> = tasks.join_all().await.into_iter().flatten().collect();
    given.extend(trial.due(100).await);
    let distinct: HashSet<_> = given.iter().map(|due| due.grant.digest).collect();
    assert_eq!((given.len(), distinct.len()), (32, 32));
}

/// A requeued delivery is due again after its delay, with its request and a higher
/// fence.
pub async fn requeued_work_is_due_again_later(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Hold).await;
    let settlement = Settlement::Requeued { after: LATER };
    assert!(trial.settle(&first.grant, settlement).await.is_recorded());
    assert_eq!(trial.state(&ask).await, Some(State::Queued));
    assert!(
        trial.due(10).await.is_empty(),
        "given before it was due again"
    );
    trial.advance(LATER);
    let second = only(trial.due(10).await);
    assert_eq!(
        (second.grant.id, &second.request),
        (first.grant.id, &first.request)
    );
    assert!(second.grant.fence > first.grant.fence);
    assert_eq!(second.record.attempts, 2);
    assert_eq!(
        trial.settle(&first.grant, completed(200)).await,
        Settled::Stale
    );
    assert!(
        trial
            .settle(&second.grant, completed(200))
            .await
            .is_recorded()
    );
    assert_eq!(trial.state(&ask).await, Some(State::Completed));
}

/// A deferred delivery is requeued, and does not count as an attempt.
pub async fn deferred_work_does_not_count_as_tried(trial: &Trial) {
    let (ask, mut given) = delivery(trial, AfterLoss::Free).await;
    for _ in 0..3 {
        assert_eq!(given.record.attempts, 1);
        let settlement = Settlement::Deferred { after: LATER };
        for _ in 0..2 {
            assert!(
                trial
                    .settle(&given.grant, settlement.clone())
                    .await
                    .is_recorded()
            );
            let seen = trial.get(&ask).await.expect("queued work is on record");
            assert_eq!((seen.state, seen.attempts), (State::Queued, 0));
        }
        assert!(
            trial.due(10).await.is_empty(),
            "given before it was due again"
        );
        trial.advance(LATER);
        let next = only(trial.due(10).await);
        assert!(next.grant.fence > given.grant.fence);
        assert_eq!(
            (next.grant.id, &next.request),
            (given.grant.id, &given.request)
        );
        given = next;
    }
    let settlement = Settlement::Requeued { after: NOW };
    assert!(trial.settle(&given.grant, settlement).await.is_recorded());
    assert_eq!(only(trial.due(10).await).record.attempts, 2);
}

/// Where running twice was declared safe, a delivery whose lease ran out is
/// queued again.
pub async fn lost_delivery_is_due_again_where_that_is_safe(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Free).await;
    trial.advance(LEASE);
    assert_eq!(trial.state(&ask).await, Some(State::Queued));
    expect(&trial.claim(&trial.retry(&ask)).await, "busy");
    let second = only(trial.due(10).await);
    assert_eq!(second.grant.id, first.grant.id);
    assert!(second.grant.fence > first.grant.fence);
    assert_eq!(
        trial.settle(&first.grant, completed(200)).await,
        Settled::Stale
    );
}

/// Where running twice was declared safe, a delivery that its holder reports as lost
/// is queued again, also after a broken stream: only the gateway runs it, so it would
/// stay unknown for ever.
pub async fn delivery_that_its_holder_lost_is_due_again_where_that_is_safe(trial: &Trial) {
    let (ask, mut given) = delivery(trial, AfterLoss::Free).await;
    let streams = Settlement::Completed(Answer::NotKept { status: 200 });
    for first in [None, Some(streams)] {
        if let Some(first) = first {
            assert!(trial.settle(&given.grant, first).await.is_recorded());
        }
        for _ in 0..2 {
            let lost = trial.settle(&given.grant, Settlement::Lost).await;
            assert_eq!(lost, Settled::Done);
            assert_eq!(trial.state(&ask).await, Some(State::Queued));
        }
        assert_eq!(trial.renew(&given.grant).await, Settled::Stale);
        expect(&trial.claim(&trial.retry(&ask)).await, "busy");
        let next = only(trial.due(10).await);
        assert!(next.grant.fence > given.grant.fence);
        assert_eq!(
            (next.grant.id, &next.request),
            (given.grant.id, &given.request)
        );
        assert_eq!(next.record.attempts, given.record.attempts + 1);
        let late = trial.settle(&given.grant, completed(200)).await;
        assert_eq!(late, Settled::Stale);
        given = next;
    }
}

/// Where running twice was not declared safe, a lost delivery is unknown, and is not
/// delivered again.
pub async fn lost_delivery_is_unknown_otherwise(trial: &Trial) {
    let (ask, _) = delivery(trial, AfterLoss::Hold).await;
    trial.advance(LEASE);
    assert_eq!(trial.state(&ask).await, Some(State::Unknown));
    assert!(trial.due(10).await.is_empty());
}

/// A paused delivery is not due until an operator resumes it.
pub async fn paused_delivery_is_due_when_resumed(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Hold).await;
    assert!(
        trial
            .settle(&first.grant, Settlement::Paused)
            .await
            .is_recorded()
    );
    trial.advance(LEASE * 2);
    assert!(trial.due(10).await.is_empty(), "given although paused");
    done(trial.inspect.resume(first.grant.id).await);
    let second = only(trial.due(10).await);
    assert_eq!(
        (second.grant.digest, &second.request),
        (ask.digest, &first.request)
    );
    assert_eq!(second.record.attempts, 1, "it has all its attempts again");
}

/// An unknown delivery that is resolved as not run is due at once.
pub async fn delivery_that_did_not_run_is_due_again(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Hold).await;
    assert!(
        trial
            .settle(&first.grant, Settlement::Lost)
            .await
            .is_recorded()
    );
    done(
        trial
            .inspect
            .resolve(first.grant.id, None, Resolution::NotRun)
            .await,
    );
    let second = only(trial.due(10).await);
    assert_eq!(second.grant.digest, ask.digest);
    assert!(second.grant.fence > first.grant.fence);
}

/// An operator can redeliver an event after every outcome: it is due at once, under a
/// higher fence, with all its attempts. The earlier holder is stale.
pub async fn redelivered_work_is_due_at_once(trial: &Trial) {
    let not_kept = |status| Answer::NotKept { status };
    let settlements = [
        Some(completed(201)),
        Some(Settlement::Completed(not_kept(200))),
        Some(failed(422)),
        Some(Settlement::Failed(not_kept(410))),
        Some(Settlement::Lost),
        Some(Settlement::Paused),
        None,
    ];
    for settlement in settlements {
        let (ask, first) = delivery(trial, AfterLoss::Hold).await;
        match settlement.clone() {
            Some(settlement) => assert!(trial.settle(&first.grant, settlement).await.is_recorded()),
            None => trial.advance(LEASE),
        }
        done(trial.inspect.redeliver(first.grant.id).await);
        let seen = trial.get(&ask).await.expect("queued work is on record");
        assert_eq!((seen.id, seen.state), (first.grant.id, State::Queued));
        assert_eq!((seen.attempts, &seen.answer), (0, &None), "{settlement:?}");
        assert_eq!((seen.completed_at, seen.touched_at), (None, None));
        expect(&trial.claim(&trial.retry(&ask)).await, "busy");
        assert_eq!(
            trial.renew(&first.grant).await,
            Settled::Stale,
            "{settlement:?}"
        );
        let late = trial.settle(&first.grant, completed(200)).await;
        assert_eq!(late, Settled::Stale, "{settlement:?}");

        let second = only(trial.due(10).await);
        assert_eq!(
            (second.grant.id, &second.request),
            (first.grant.id, &first.request)
        );
        assert!(second.grant.fence > first.grant.fence, "{settlement:?}");
        assert_eq!(second.record.attempts, 1, "{settlement:?}");
        let late = trial.settle(&first.grant, completed(200)).await;
        assert_eq!(late, Settled::Stale, "{settlement:?}");
    }
}

/// After a redelivery the new outcome is replayed, retention counts from it, and the
/// event can be redelivered again.
pub async fn redelivered_work_begins_anew(trial: &Trial) {
    let (ask, mut given) = delivery(trial, AfterLoss::Free).await;
    for status in [422, 423, 424] {
        assert!(
            trial
                .settle(&given.grant, failed(status))
                .await
                .is_recorded()
        );
        let seen = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
        assert_eq!(seen.answer.as_ref().map(Answer::status), Some(status));
        trial.advance(RETENTION - LATER);
        done(trial.inspect.redeliver(given.grant.id).await);
        given = only(trial.due(10).await);
    }
    assert!(
        trial
            .settle(&given.grant, completed(201))
            .await
            .is_recorded()
    );
    trial.advance(RETENTION - LATER);
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    assert_eq!(seen.answer.as_ref().map(Answer::status), Some(201));
}

/// Redelivery is refused while the work runs or is queued, where it was never
/// enqueued, and where its request has expired.
pub async fn redelivery_is_refused_otherwise(trial: &Trial) {
    let redeliver = async |id: OperationId| {
        let changed = trial.inspect.redeliver(id).await;
        changed.expect("the store answers an operator")
    };
    for state in State::ALL {
        let ask = trial.operation_in(state).await;
        let before = trial.get(&ask).await;
        let id = trial.id(&ask).await;
        assert_eq!(redeliver(id).await, Changed::Refused(state));
        assert_eq!(trial.get(&ask).await, before, "{state:?}");
    }
    let (ask, given) = delivery(trial, AfterLoss::Free).await;
    let id = given.grant.id;
    assert_eq!(redeliver(id).await, Changed::Refused(State::Running));
    trial.advance(LEASE);
    assert_eq!(redeliver(id).await, Changed::Refused(State::Queued));
    assert!(
        trial
            .settle(&given.grant, completed(200))
            .await
            .is_recorded()
    );
    trial.advance(RETENTION);
    assert_eq!(redeliver(id).await, Changed::Refused(State::Expired));
    assert_eq!(trial.state(&ask).await, Some(State::Expired));
    trial.advance(REMEMBER - RETENTION);
    assert_eq!(redeliver(id).await, Changed::Absent);

    let (ask, given) = delivery(trial, AfterLoss::Hold).await;
    let released = trial.settle(&given.grant, Settlement::Released).await;
    assert_eq!(released, Settled::Done);
    let refused = redeliver(given.grant.id).await;
    assert_eq!(refused, Changed::Refused(State::Released));
    assert_eq!(trial.state(&ask).await, Some(State::Released));
    assert_eq!(redeliver(trial.ask().id).await, Changed::Absent);
}

/// Neither a noted replay nor a sweep removes the request before the reply expires,
/// for every basis of retention.
pub async fn request_is_kept_as_long_as_the_reply(trial: &Trial) {
    let plain = terms(AfterLoss::Free);
    let remembered_no_longer = Terms {
        remember: RETENTION,
        ..plain.clone()
    };
    let touched = Terms {
        ttl_basis: TtlBasis::Access,
        ..plain.clone()
    };
    let lazy = Terms {
        expiry: Expiry::Lazy,
        ..plain.clone()
    };
    let not_kept = Settlement::Completed(Answer::NotKept { status: 200 });
    for terms in [plain, remembered_no_longer, touched, lazy] {
        for settlement in [completed(200), not_kept.clone()] {
            let (ask, first) = delivery_with(trial, terms.clone()).await;
            assert!(trial.settle(&first.grant, settlement).await.is_recorded());
            trial.advance(RETENTION - LATER);
            trial.touch(&ask).await;
            if terms.ttl_basis == TtlBasis::Access {
                trial.advance(RETENTION - LATER);
            }
            trial.sweep().await;
            done(trial.inspect.redeliver(first.grant.id).await);
            let second = only(trial.due(10).await);
            assert_eq!(second.request, first.request, "{terms:?}");
        }
    }
}

/// `next_due` returns the earliest time at which work is due, so that the courier can
/// sleep until then.
pub async fn next_due_is_the_earliest(trial: &Trial) {
    trial.clear_queue().await;
    let now = trial.clock.now();
    for after in [LATER * 2, LATER, LATER * 3] {
        accepted(&trial.enqueue(&trial.ask(), b"request", after).await);
    }
    let next = trial
        .queue
        .next_due()
        .await
        .expect("the store answers when work is due");
    assert_eq!(next, Some(now.plus(LATER)));
    trial.advance(LATER);
    assert_eq!(trial.due(10).await.len(), 1);
    let next = trial
        .queue
        .next_due()
        .await
        .expect("the store answers when work is due");
    assert_eq!(next, Some(now.plus(LATER * 2)));
}

/// Enqueues new work and takes it for its first delivery.
async fn delivery(trial: &Trial, after_loss: AfterLoss) -> (ClaimRequest, Due) {
    delivery_with(trial, terms(after_loss)).await
}

async fn delivery_with(trial: &Trial, terms: Terms) -> (ClaimRequest, Due) {
    trial.clear_queue().await;
    let ask = trial.ask_with(terms);
    accepted(&trial.enqueue(&ask, b"request", NOW).await);
    let due = only(trial.due(10).await);
    assert_eq!(due.grant.digest, ask.digest);
    (ask, due)
}

#[track_caller]
fn only(mut due: Vec<Due>) -> Due {
    assert_eq!(due.len(), 1, "one operation was to be due");
    due.remove(0)
}
