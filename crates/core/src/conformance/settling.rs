//! Promises about settlements: which count, and what they record.

use std::time::Duration;

use bytes::Bytes;

use super::trial::{
    LEASE, RETENTION, Trial, accepted, completed, done, expect, failed, granted, reply, terms,
};
use crate::class::{AfterLoss, Terms, TtlBasis};
use crate::clock::Clock as _;
use crate::record::{Answer, Completion, Settled, Settlement, State};
use crate::store::{Force, Grant};

/// One settlement of each kind.
fn settlements() -> [Settlement; 7] {
    [
        completed(201),
        failed(422),
        Settlement::Released,
        Settlement::Requeued { after: LEASE },
        Settlement::Deferred { after: LEASE },
        Settlement::Lost,
        Settlement::Paused,
    ]
}

/// Once another claim was granted, no settlement of the earlier holder counts.
pub async fn stale_fence_changes_nothing(trial: &Trial) {
    for settlement in settlements() {
        let ask = trial.ask();
        let stale = trial.grant(&ask).await;
        assert!(
            trial
                .settle(&stale, Settlement::Released)
                .await
                .is_recorded()
        );
        trial.grant(&trial.retry(&ask)).await;
        let before = trial.get(&ask).await;
        assert_eq!(
            trial.settle(&stale, settlement.clone()).await,
            Settled::Stale,
            "{settlement:?}"
        );
        assert_eq!(trial.renew(&stale).await, Settled::Stale);
        assert_eq!(trial.get(&ask).await, before, "{settlement:?}");
    }
}

/// The holder of a purged operation is stale, before and after the key is claimed
/// again.
pub async fn purged_holder_is_stale(trial: &Trial) {
    for settlement in settlements() {
        let ask = trial.ask();
        let stale = trial.grant(&ask).await;
        done(trial.inspect.purge(stale.id, Force::Yes).await);
        assert_eq!(
            trial.settle(&stale, settlement.clone()).await,
            Settled::Stale,
            "{settlement:?}"
        );
        assert_eq!(trial.renew(&stale).await, Settled::Stale);
        assert_eq!(trial.get(&ask).await, None, "{settlement:?}");
        trial.grant(&trial.retry(&ask)).await;
        assert_eq!(
            trial.settle(&stale, settlement.clone()).await,
            Settled::Stale,
            "{settlement:?}"
        );
        assert_eq!(
            trial.state(&ask).await,
            Some(State::Running),
            "{settlement:?}"
        );
    }
}

/// A settlement after the end of the lease, or out of `unknown`, counts as long as
/// no other claim was granted since.
pub async fn late_settlement_counts(trial: &Trial) {
    for after_loss in [AfterLoss::Hold, AfterLoss::Free] {
        let ask = trial.ask_with(terms(after_loss));
        let grant = trial.grant(&ask).await;
        trial.advance(LEASE * 2);
        assert!(trial.settle(&grant, completed(201)).await.is_recorded());
        assert_eq!(
            trial.state(&ask).await,
            Some(State::Completed),
            "{after_loss:?}"
        );
    }
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    assert!(trial.settle(&grant, Settlement::Lost).await.is_recorded());
    assert!(trial.settle(&grant, completed(201)).await.is_recorded());
    assert_eq!(trial.state(&ask).await, Some(State::Completed));
}

/// A settlement whose acknowledgement was lost may be repeated.
pub async fn same_settlement_again_is_done(trial: &Trial) {
    for settlement in settlements() {
        let ask = trial.ask();
        let grant = trial.grant(&ask).await;
        assert!(trial.settle(&grant, settlement.clone()).await.is_recorded());
        let before = trial.get(&ask).await;
        trial.advance(Duration::from_secs(1));
        assert!(
            trial.settle(&grant, settlement.clone()).await.is_recorded(),
            "{settlement:?}"
        );
        assert_eq!(trial.get(&ask).await, before, "{settlement:?}");
    }
}

/// The outcomes that a record can have.
fn outcomes() -> [Settlement; 4] {
    [
        completed(201),
        failed(422),
        Settlement::Completed(Answer::NotKept { status: 200 }),
        Settlement::Failed(Answer::NotKept { status: 404 }),
    ]
}

/// Records an outcome, and checks that its times equal those of the record, also
/// when the same outcome is recorded again later.
async fn check_times(trial: &Trial, grant: &Grant, outcome: &Settlement) -> Completion {
    let now = trial.clock.now();
    let completion = trial.finish(grant, outcome.clone()).await;
    assert_eq!(completion.completed_at, now, "{outcome:?}");
    for _ in 0..2 {
        let record = trial.store.get(&grant.digest).await;
        let record = record.expect("the store answers").expect("on record");
        assert_eq!(record.completion(), Some(completion), "{outcome:?}");
        trial.advance(Duration::from_secs(1));
        let again = trial.finish(grant, outcome.clone()).await;
        assert_eq!(again, completion, "{outcome:?} again");
    }
    completion
}

/// The answer contains the expiry for every basis of retention, so that a holder
/// need not read the record.
pub async fn outcome_is_answered_with_its_times(trial: &Trial) {
    let soon = Duration::from_secs(2);
    for outcome in outcomes() {
        for (ttl_basis, after, want) in [
            (TtlBasis::Completion, soon, soon + RETENTION),
            (TtlBasis::Access, soon, soon + RETENTION),
            (TtlBasis::Creation, soon, RETENTION),
            (TtlBasis::Creation, RETENTION, RETENTION * 2),
        ] {
            let ask = trial.ask_with(Terms {
                ttl_basis,
                ..terms(AfterLoss::Hold)
            });
            let created = trial.clock.now();
            let grant = trial.grant(&ask).await;
            trial.advance(after);
            let completion = check_times(trial, &grant, &outcome).await;
            assert_eq!(completion.expires_at, created.plus(want), "{ttl_basis:?}");
        }
    }
}

/// The same for a late settlement, out of `unknown` too.
pub async fn late_outcome_is_answered_with_its_times(trial: &Trial) {
    for outcome in outcomes() {
        for is_lost in [false, true] {
            let ask = trial.ask();
            let grant = trial.grant(&ask).await;
            if is_lost {
                assert_eq!(trial.settle(&grant, Settlement::Lost).await, Settled::Done);
            }
            trial.advance(LEASE * 2);
            let completion = check_times(trial, &grant, &outcome).await;
            let want = completion.completed_at.plus(RETENTION);
            assert_eq!(completion.expires_at, want, "{outcome:?}");
        }
    }
}

/// The same for work that the gateway delivers.
pub async fn outcome_of_a_delivery_is_answered_with_its_times(trial: &Trial) {
    trial.clear_queue().await;
    for outcome in outcomes() {
        let ask = trial.ask();
        accepted(&trial.enqueue(&ask, b"request", Duration::ZERO).await);
        trial.advance(LEASE);
        let due = trial.due(1).await;
        assert_eq!(due[0].grant.digest, ask.digest);
        let completion = check_times(trial, &due[0].grant, &outcome).await;
        let want = completion.completed_at.plus(RETENTION);
        assert_eq!(completion.expires_at, want, "{outcome:?}");
    }
}

/// A later settlement of another kind does not change a finished operation.
pub async fn other_settlement_after_the_end_is_stale(trial: &Trial) {
    for end in [completed(201), failed(422)] {
        let ask = trial.ask();
        let grant = trial.grant(&ask).await;
        assert!(trial.settle(&grant, end.clone()).await.is_recorded());
        let before = trial.get(&ask).await;
        let others = settlements()
            .into_iter()
            .filter(|settlement| *settlement != end);
        for settlement in others {
            assert_eq!(
                trial.settle(&grant, settlement.clone()).await,
                Settled::Stale,
                "{settlement:?}"
            );
        }
        assert_eq!(trial.renew(&grant).await, Settled::Stale);
        assert_eq!(trial.get(&ask).await, before);
    }
}

/// The first outcome of an operation stays. The same holder with another reply, and
/// the holder of an earlier grant, change nothing; the former is answered with the
/// times of the first outcome. `get`, `find` and a claim show the first reply.
pub async fn first_outcome_stays(trial: &Trial) {
    for (first, second) in [
        (completed(201), Answer::Kept(reply(200, "another"))),
        (completed(201), Answer::NotKept { status: 200 }),
        (
            Settlement::Completed(Answer::NotKept { status: 200 }),
            Answer::Kept(reply(201, "done")),
        ),
        (failed(422), Answer::Kept(reply(404, "another"))),
        (failed(422), Answer::NotKept { status: 404 }),
    ] {
        let ask = trial.ask();
        let earlier = trial.grant(&ask).await;
        let released = trial.settle(&earlier, Settlement::Released).await;
        assert_eq!(released, Settled::Done);
        let grant = trial.grant(&trial.retry(&ask)).await;
        assert!(grant.fence > earlier.fence);
        let completion = trial.finish(&grant, first.clone()).await;
        let recorded = trial.get(&ask).await.expect("it is on record");
        let again = match first {
            Settlement::Failed(_) => Settlement::Failed(second),
            _ => Settlement::Completed(second),
        };
        for settlement in [first.clone(), again] {
            trial.advance(Duration::from_secs(1));
            let settled = trial.settle(&grant, settlement.clone()).await;
            assert_eq!(settled, Settled::Finished(completion), "{settlement:?}");
            let stale = trial.settle(&earlier, settlement.clone()).await;
            assert_eq!(stale, Settled::Stale, "{settlement:?}");

            let claim = trial.claim(&trial.retry(&ask)).await;
            for seen in [
                trial.get(&ask).await,
                trial.find(grant.id).await,
                Some(expect(&claim, "finished")),
            ] {
                let seen = seen.expect("it is on record");
                assert_eq!(seen.completion(), Some(completion), "{settlement:?}");
                assert_eq!(seen, recorded, "{settlement:?}");
            }
        }
    }
}

/// The replay has the same status, headers in the same order with repeated names,
/// bytes that are not UTF-8, and trailers.
pub async fn completed_replays_byte_for_byte(trial: &Trial) {
    for body in ["", "{\"paid\":true}", "\u{0}\r\n\r\n\u{0}"] {
        let answer = Answer::Kept(reply(201, body));
        replays(
            trial,
            Settlement::Completed(answer.clone()),
            &answer,
            State::Completed,
        )
        .await;
    }
}

/// A kept failure is replayed like a success.
pub async fn failed_replays_byte_for_byte(trial: &Trial) {
    let answer = Answer::Kept(reply(422, Bytes::from_static(&[0, 159, 146, 150])));
    replays(
        trial,
        Settlement::Failed(answer.clone()),
        &answer,
        State::Failed,
    )
    .await;
}

/// A reply of one mebibyte is kept.
pub async fn large_reply_is_kept_whole(trial: &Trial) {
    let body: Vec<u8> = (0..1_048_576_u32).map(|i| (i % 251) as u8).collect();
    let answer = Answer::Kept(reply(200, body));
    replays(
        trial,
        Settlement::Completed(answer.clone()),
        &answer,
        State::Completed,
    )
    .await;
}

/// Of a reply that was too large, or a stream, the status is kept.
pub async fn reply_not_kept_leaves_its_status(trial: &Trial) {
    let answer = Answer::NotKept { status: 206 };
    replays(
        trial,
        Settlement::Completed(answer.clone()),
        &answer,
        State::Completed,
    )
    .await;
}

async fn replays(trial: &Trial, settlement: Settlement, answer: &Answer, state: State) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    assert!(trial.settle(&grant, settlement).await.is_recorded());
    let finished = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    assert_eq!(finished.state, state);
    assert!(
        finished.answer.as_ref() == Some(answer),
        "the claim returns another answer"
    );
    let seen = trial
        .get(&ask)
        .await
        .expect("a finished operation is on record");
    assert!(
        seen.answer.as_ref() == Some(answer),
        "get returns another answer"
    );
    assert_eq!(seen.completed_at, finished.completed_at);
}

/// A stream whose reply is not kept may break off: the operation is then unknown. A
/// kept reply cannot become unknown.
pub async fn reply_not_kept_and_then_lost_is_unknown(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    let mark = Settlement::Completed(Answer::NotKept { status: 200 });
    assert!(trial.settle(&grant, mark).await.is_recorded());
    assert!(trial.settle(&grant, Settlement::Lost).await.is_recorded());
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "unknown");
    assert_eq!((&seen.answer, seen.completed_at), (&None, None));
}

/// A lost operation stays unknown, because time does not show whether it ran.
pub async fn lost_is_unknown_and_held(trial: &Trial) {
    let ask = trial.operation_in(State::Unknown).await;
    expect(&trial.claim(&trial.retry(&ask)).await, "unknown");
    trial.advance(super::REMEMBER * 10);
    trial
        .inspect
        .sweep(usize::MAX)
        .await
        .expect("the store sweeps");
    expect(&trial.claim(&trial.retry(&ask)).await, "unknown");
}

/// Where running twice was declared safe, the next request runs the same operation,
/// and the lost holder is stale.
pub async fn lost_is_granted_again_where_that_is_safe(trial: &Trial) {
    let ask = trial.ask_with(terms(AfterLoss::Free));
    let lost = trial.grant(&ask).await;
    assert!(trial.settle(&lost, Settlement::Lost).await.is_recorded());
    let again: Grant = granted(trial.claim(&trial.retry(&ask)).await);
    assert_eq!(again.id, lost.id);
    assert!(again.fence > lost.fence);
    assert_eq!(trial.settle(&lost, completed(201)).await, Settled::Stale);
}

/// A claim of a paused operation is answered *paused* until an operator resumes it;
/// then the next request runs it.
pub async fn paused_is_answered_until_resumed(trial: &Trial) {
    let ask = trial.operation_in(State::Paused).await;
    trial.advance(LEASE * 2);
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "paused");
    done(trial.inspect.resume(seen.id).await);
    assert_eq!(granted(trial.claim(&trial.retry(&ask)).await).id, seen.id);
}
