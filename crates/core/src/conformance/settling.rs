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

/// Every settlement.
fn words() -> [Settlement; 7] {
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
    for word in words() {
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
            trial.settle(&stale, word.clone()).await,
            Settled::Stale,
            "{word:?}"
        );
        assert_eq!(trial.renew(&stale).await, Settled::Stale);
        assert_eq!(trial.get(&ask).await, before, "{word:?}");
    }
}

/// The holder of a purged operation is stale, whether it runs again or not.
pub async fn purged_holder_is_stale(trial: &Trial) {
    for word in words() {
        let ask = trial.ask();
        let stale = trial.grant(&ask).await;
        done(trial.inspect.purge(stale.id, Force::Yes).await);
        assert_eq!(
            trial.settle(&stale, word.clone()).await,
            Settled::Stale,
            "{word:?}"
        );
        assert_eq!(trial.renew(&stale).await, Settled::Stale);
        assert_eq!(trial.get(&ask).await, None, "{word:?}");
        trial.grant(&trial.retry(&ask)).await;
        assert_eq!(
            trial.settle(&stale, word.clone()).await,
            Settled::Stale,
            "{word:?}"
        );
        assert_eq!(trial.state(&ask).await, Some(State::Running), "{word:?}");
    }
}

/// A settlement after the end of the lease, or out of `unknown`, counts as long as
/// no other claim was granted since.
pub async fn late_holder_is_still_heard(trial: &Trial) {
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
pub async fn same_word_again_is_done(trial: &Trial) {
    for word in words() {
        let ask = trial.ask();
        let grant = trial.grant(&ask).await;
        assert!(trial.settle(&grant, word.clone()).await.is_recorded());
        let before = trial.get(&ask).await;
        trial.advance(Duration::from_secs(1));
        assert!(
            trial.settle(&grant, word.clone()).await.is_recorded(),
            "{word:?}"
        );
        assert_eq!(trial.get(&ask).await, before, "{word:?}");
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

/// Records an outcome, and checks its times: they are those of the record, also
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

/// A holder need not read the record to know when its reply expires, whatever
/// retention counts from.
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

/// The same for a holder that comes late, out of `unknown` too.
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

/// A finished operation stays as it is, whatever its holder settles later.
pub async fn other_word_after_the_end_is_stale(trial: &Trial) {
    for end in [completed(201), failed(422)] {
        let ask = trial.ask();
        let grant = trial.grant(&ask).await;
        assert!(trial.settle(&grant, end.clone()).await.is_recorded());
        let before = trial.get(&ask).await;
        let others = words().into_iter().filter(|word| *word != end);
        for word in others {
            assert_eq!(
                trial.settle(&grant, word.clone()).await,
                Settled::Stale,
                "{word:?}"
            );
        }
        assert_eq!(trial.renew(&grant).await, Settled::Stale);
        assert_eq!(trial.get(&ask).await, before);
    }
}

/// Status, headers in order with several lines of one name, bytes that are no
/// text, trailers: all of it comes back.
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

/// A failure for good is replayed like a success.
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

/// A mebibyte is kept as well as nothing.
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

/// A reply that was too large, or a stream, leaves its status.
pub async fn reply_not_kept_tells_its_status(trial: &Trial) {
    let answer = Answer::NotKept { status: 206 };
    replays(
        trial,
        Settlement::Completed(answer.clone()),
        &answer,
        State::Completed,
    )
    .await;
}

async fn replays(trial: &Trial, word: Settlement, answer: &Answer, state: State) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    assert!(trial.settle(&grant, word).await.is_recorded());
    let told = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    assert_eq!(told.state, state);
    assert!(
        told.answer.as_ref() == Some(answer),
        "the claim tells another answer"
    );
    let seen = trial
        .get(&ask)
        .await
        .expect("a finished operation is on record");
    assert!(
        seen.answer.as_ref() == Some(answer),
        "get tells another answer"
    );
    assert_eq!(seen.completed_at, told.completed_at);
}

/// A stream that was not kept broke off: the operation may have run, and no more is
/// known. A kept reply can no longer become unknown.
pub async fn reply_not_kept_and_then_lost_is_unknown(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    let mark = Settlement::Completed(Answer::NotKept { status: 200 });
    assert!(trial.settle(&grant, mark).await.is_recorded());
    assert!(trial.settle(&grant, Settlement::Lost).await.is_recorded());
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "unknown");
    assert_eq!((&seen.answer, seen.completed_at), (&None, None));
}

/// Time does not tell whether it ran: a lost operation stays unknown.
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

/// Where running twice was declared safe, the next request runs it, as the
/// same operation, and the lost holder is stale from then on.
pub async fn lost_is_granted_again_where_that_is_safe(trial: &Trial) {
    let ask = trial.ask_with(terms(AfterLoss::Free));
    let lost = trial.grant(&ask).await;
    assert!(trial.settle(&lost, Settlement::Lost).await.is_recorded());
    let again: Grant = granted(trial.claim(&trial.retry(&ask)).await);
    assert_eq!(again.id, lost.id);
    assert!(again.fence > lost.fence);
    assert_eq!(trial.settle(&lost, completed(201)).await, Settled::Stale);
}

/// Paused work is told as such until an operator resumes it; then the next
/// request runs it.
pub async fn paused_is_told_until_resumed(trial: &Trial) {
    let ask = trial.operation_in(State::Paused).await;
    trial.advance(LEASE * 2);
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "paused");
    done(trial.inspect.resume(seen.id).await);
    assert_eq!(granted(trial.claim(&trial.retry(&ask)).await).id, seen.id);
}
