//! Promises about work that the gateway delivers itself.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;

use super::trial::{LEASE, Trial, accepted, completed, done, expect, terms, told};
use crate::class::AfterLoss;
use crate::clock::Clock;
use crate::record::{Settled, Settlement, State};
use crate::store::{Ask, Due, Enqueued, Resolution};

const NOW: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(10);

/// Recorded with its request in one step; the request comes back to the byte.
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

/// Known work is told as a claim would tell it, and nothing is recorded.
pub async fn enqueueing_again_is_answered_like_a_claim(trial: &Trial) {
    let states = State::ALL.into_iter();
    for state in states.filter(|state| *state != State::Released) {
        let ask = trial.operation_in(state).await;
        let before = trial.get(&ask).await;
        for again in [trial.retry(&ask), trial.other_request(&ask)] {
            let by_claim = trial.claim(&again).await;
            match trial.enqueue(&again, b"again", NOW).await {
                Enqueued::Known(claim) => assert_eq!(told(&claim), told(&by_claim), "{state:?}"),
                Enqueued::Accepted(_) => panic!("accepted although {state:?}"),
            }
        }
        assert_eq!(trial.get(&ask).await, before, "while {state:?}");
    }
    let free = trial.operation_in(State::Released).await;
    accepted(&trial.enqueue(&trial.retry(&free), b"again", LATER).await);
}

/// One who repeats an enqueueing whose answer was lost is told that it is
/// known, also when the gateway delivers it by now: the run is not its own.
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

/// Not before its time, and to one taker.
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

/// What has been due for longest comes first, and no more than was asked for.
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

/// However many take at once, each piece of work goes to one of them.
pub async fn queued_work_is_given_once_to_many_who_ask(trial: &Trial) {
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

/// A delivery that is to be tried later comes again then, with its request,
/// under a higher fence.
pub async fn requeued_work_is_due_again_later(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Hold).await;
    let word = Settlement::Requeued { after: LATER };
    assert_eq!(trial.settle(&first.grant, word).await, Settled::Done);
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
    assert_eq!(
        trial.settle(&second.grant, completed(200)).await,
        Settled::Done
    );
    assert_eq!(trial.state(&ask).await, Some(State::Completed));
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

/// Otherwise it is unknown, and nobody delivers it again.
pub async fn lost_delivery_is_unknown_otherwise(trial: &Trial) {
    let (ask, _) = delivery(trial, AfterLoss::Hold).await;
    trial.advance(LEASE);
    assert_eq!(trial.state(&ask).await, Some(State::Unknown));
    assert!(trial.due(10).await.is_empty());
}

/// A paused delivery rests until an operator resumes it, then it is due.
pub async fn paused_delivery_is_due_when_resumed(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Hold).await;
    assert_eq!(
        trial.settle(&first.grant, Settlement::Paused).await,
        Settled::Done
    );
    trial.advance(LEASE * 2);
    assert!(trial.due(10).await.is_empty(), "given although paused");
    done(trial.inspect.resume(first.grant.id).await);
    let second = only(trial.due(10).await);
    assert_eq!(
        (second.grant.digest, &second.request),
        (ask.digest, &first.request)
    );
}

/// An unknown delivery that did not run, by somebody's word, is due at once.
pub async fn delivery_that_did_not_run_is_due_again(trial: &Trial) {
    let (ask, first) = delivery(trial, AfterLoss::Hold).await;
    assert_eq!(
        trial.settle(&first.grant, Settlement::Lost).await,
        Settled::Done
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

/// The one who delivers can sleep until then.
pub async fn next_due_tells_the_earliest(trial: &Trial) {
    trial.clear_queue().await;
    let now = trial.clock.now();
    for after in [LATER * 2, LATER, LATER * 3] {
        accepted(&trial.enqueue(&trial.ask(), b"request", after).await);
    }
    let next = trial
        .queue
        .next_due()
        .await
        .expect("the store tells what is next");
    assert_eq!(next, Some(now.plus(LATER)));
    trial.advance(LATER);
    assert_eq!(trial.due(10).await.len(), 1);
    let next = trial
        .queue
        .next_due()
        .await
        .expect("the store tells what is next");
    assert_eq!(next, Some(now.plus(LATER * 2)));
}

/// New work, enqueued and given for its first delivery.
async fn delivery(trial: &Trial, after_loss: AfterLoss) -> (Ask, Due) {
    trial.clear_queue().await;
    let ask = trial.ask_with(terms(after_loss));
    accepted(&trial.enqueue(&ask, b"request", NOW).await);
    let due = only(trial.due(10).await);
    assert_eq!(due.grant.digest, ask.digest);
    (ask, due)
}

#[track_caller]
fn only(mut due: Vec<Due>) -> Due {
    assert_eq!(due.len(), 1, "one piece of work was to be due");
    due.remove(0)
}
