//! Promises about time: leases, retention and remembering, judged by the
//! store's clock alone.

use std::time::Duration;

use super::trial::{
    LEASE, REMEMBER, RETENTION, Trial, completed, describe, done, expect, granted, reply, terms,
};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::record::{Answer, Settled, Settlement, State};
use crate::store::{Changed, ClaimRequest, Filter, Force, Grant, Resolution};

const MOMENT: Duration = Duration::from_millis(1);

/// After the end of its lease an operation is unknown: it may have run.
pub async fn end_of_lease_is_unknown(trial: &Trial) {
    let ask = trial.ask();
    trial.grant(&ask).await;
    trial.advance(LEASE - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "busy");
    trial.advance(MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "unknown");
    assert_eq!(trial.state(&ask).await, Some(State::Unknown));
}

/// Where running twice was declared safe, the end of the lease frees the key.
pub async fn end_of_lease_frees_where_that_is_safe(trial: &Trial) {
    let ask = trial.ask_with(terms(AfterLoss::Free));
    let lost = trial.grant(&ask).await;
    trial.advance(LEASE - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "busy");
    trial.advance(MOMENT);
    assert_eq!(trial.get(&ask).await, None);
    let again = granted(trial.claim(&trial.other_request(&ask)).await);
    assert!(again.fence > lost.fence);
    assert_eq!(trial.settle(&lost, completed(201)).await, Settled::Stale);
}

/// A lease does not end while the store's clock stands still, however much real time
/// passes.
pub async fn only_the_clock_of_the_store_ends_a_lease(trial: &Trial) {
    let short = Terms {
        lease: Duration::from_millis(5),
        ..terms(AfterLoss::Hold)
    };
    let ask = trial.ask_with(short);
    trial.grant(&ask).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    expect(&trial.claim(&trial.retry(&ask)).await, "busy");
}

/// A renewed lease lasts its full length from the renewal.
pub async fn renewal_extends_the_lease(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    for _ in 0..3 {
        trial.advance(LEASE - MOMENT);
        assert_eq!(trial.renew(&grant).await, Settled::Done);
    }
    trial.advance(LEASE - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "busy");
    trial.advance(MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "unknown");
}

/// A renewal lets an unknown operation run again, as long as no other claim was
/// granted since.
pub async fn renewal_lets_an_unknown_operation_run_again(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    trial.advance(LEASE);
    assert_eq!(trial.state(&ask).await, Some(State::Unknown));
    assert_eq!(trial.renew(&grant).await, Settled::Done);
    assert_eq!(trial.state(&ask).await, Some(State::Running));
}

/// A released operation is shown for the length of one lease; then it is absent, and
/// the next claim begins a new one.
pub async fn released_is_shown_for_one_lease(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    assert!(
        trial
            .settle(&grant, Settlement::Released)
            .await
            .is_recorded()
    );
    trial.advance(LEASE - MOMENT);
    assert_eq!(trial.state(&ask).await, Some(State::Released));
    trial.advance(MOMENT);
    assert_eq!(trial.get(&ask).await, None);
    assert_eq!(trial.find(grant.id).await, None);
    let next = trial.retry(&ask);
    assert_eq!(trial.grant(&next).await.id, next.id);
}

/// The reply is replayed during its retention, then only its status is known, then
/// the key is free. Both spans count from completion.
pub async fn reply_expires_and_then_the_key_is_forgotten(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    trial.advance(LEASE / 2);
    assert!(trial.settle(&grant, completed(201)).await.is_recorded());

    trial.advance(RETENTION - MOMENT);
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    assert!(seen.answer == Some(Answer::Kept(reply(201, "done"))));
    trial.advance(MOMENT);
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    assert_eq!(seen.answer, Some(Answer::Gone { status: 201 }));
    let seen = trial
        .get(&ask)
        .await
        .expect("an expired operation is on record");
    assert_eq!(seen.answer, Some(Answer::Gone { status: 201 }));

    trial.advance(REMEMBER - RETENTION - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    trial.advance(MOMENT);
    assert_eq!(trial.get(&ask).await, None);
    assert_eq!(trial.find(grant.id).await, None);
    let next = trial.other_request(&ask);
    let again = trial.grant(&next).await;
    assert_eq!(again.id, next.id);
    assert!(again.fence > grant.fence);
}

/// Completes a new operation under these terms.
async fn complete(trial: &Trial, terms: Terms) -> (ClaimRequest, Grant) {
    let ask = trial.ask_with(terms);
    let grant = trial.grant(&ask).await;
    assert!(trial.settle(&grant, completed(201)).await.is_recorded());
    (ask, grant)
}

fn counted_from(ttl_basis: TtlBasis) -> Terms {
    Terms {
        ttl_basis,
        ..terms(AfterLoss::Hold)
    }
}

/// Retention that counts from creation includes the time that the run took.
pub async fn retention_may_count_from_creation(trial: &Trial) {
    let ask = trial.ask_with(counted_from(TtlBasis::Creation));
    let grant = trial.grant(&ask).await;
    trial.advance(LEASE / 2);
    assert!(trial.settle(&grant, completed(201)).await.is_recorded());
    trial.advance(RETENTION - LEASE / 2 - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    trial.advance(MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    trial.advance(REMEMBER - RETENTION - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    trial.advance(MOMENT);
    trial.grant(&trial.retry(&ask)).await;
}

/// Where retention counts from creation, an operation that completes late is still
/// remembered: otherwise the next retry would run it again.
pub async fn late_completion_is_remembered(trial: &Trial) {
    let resolved = trial.ask_with(counted_from(TtlBasis::Creation));
    let rerun = trial.ask_with(Terms {
        after_loss: AfterLoss::Free,
        ..counted_from(TtlBasis::Creation)
    });
    for ask in [&resolved, &rerun] {
        let lost = trial.grant(ask).await;
        assert!(trial.settle(&lost, Settlement::Lost).await.is_recorded());
    }
    trial.advance(REMEMBER * 2);
    let ran = Resolution::Ran(reply(201, "done"));
    let id = trial.id(&resolved).await;
    done(trial.inspect.resolve(id, None, ran).await);
    let again = trial.grant(&trial.retry(&rerun)).await;
    assert!(trial.settle(&again, completed(201)).await.is_recorded());
    for (span, want) in [
        (Duration::ZERO, "finished"),
        (RETENTION - MOMENT, "finished"),
        (MOMENT, "expired"),
        (REMEMBER - RETENTION - MOMENT, "expired"),
        (MOMENT, "granted"),
    ] {
        trial.advance(span);
        trial.sweep().await;
        for ask in [&resolved, &rerun] {
            let claim = trial.claim(&trial.retry(ask)).await;
            assert_eq!(describe(&claim).0, want, "{claim:?}");
        }
    }
}

/// Where retention counts from access, each replay extends it.
pub async fn retention_may_count_from_the_last_replay(trial: &Trial) {
    let (ask, grant) = complete(trial, counted_from(TtlBasis::Access)).await;
    for _ in 0..5 {
        trial.advance(RETENTION - MOMENT);
        let seen = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
        assert!(seen.answer == Some(Answer::Kept(reply(201, "done"))));
        trial.touch(&ask).await;
        trial.sweep().await;
    }
    let seen = trial.find(grant.id).await.expect("it is on record");
    assert!(seen.answer == Some(Answer::Kept(reply(201, "done"))));
    trial.advance(RETENTION);
    expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    trial.touch(&ask).await;
    trial.advance(REMEMBER - RETENTION - MOMENT);
    expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    trial.advance(MOMENT);
    trial.grant(&trial.retry(&ask)).await;
}

/// Not every replay is written, and none where retention does not count from access.
pub async fn noted_replays_are_bounded(trial: &Trial) {
    let (ask, _) = complete(trial, counted_from(TtlBasis::Access)).await;
    let noted = async |after: Duration| {
        trial.advance(after);
        trial.touch(&ask).await;
        let record = trial.get(&ask).await.expect("it is on record");
        record.expires_at()
    };
    let first = noted(RETENTION / 10 - MOMENT).await;
    let second = noted(MOMENT).await;
    assert!(second > first);
    assert_eq!(noted(RETENTION / 10 - MOMENT).await, second);
    assert!(noted(MOMENT).await > second);
    for basis in [TtlBasis::Completion, TtlBasis::Creation] {
        let (ask, _) = complete(trial, counted_from(basis)).await;
        let before = trial.get(&ask).await;
        trial.advance(RETENTION / 2);
        trial.touch(&ask).await;
        assert_eq!(trial.get(&ask).await, before, "{basis:?}");
    }
    trial.touch(&trial.ask()).await;
}

fn lazy() -> Terms {
    Terms {
        expiry: Expiry::Lazy,
        ..terms(AfterLoss::Hold)
    }
}

/// With lazy expiry a reply is replayed, and its key taken, until a sweep, however
/// late that comes.
pub async fn lazy_reply_is_replayed_until_swept(trial: &Trial) {
    let (ask, grant) = complete(trial, lazy()).await;
    trial.advance(REMEMBER * 10);
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    assert!(seen.answer == Some(Answer::Kept(reply(201, "done"))));
    let other = trial.claim(&trial.other_request(&ask)).await;
    assert!(matches!(other, crate::store::Claim::Mismatch), "{other:?}");
    assert_eq!(trial.find(grant.id).await, Some(seen.clone()));
    assert_eq!(trial.get(&ask).await, Some(seen));
    assert_eq!(listed(trial, &ask).await, [State::Completed]);
    trial.sweep().await;
    assert_eq!(trial.get(&ask).await, None);
    assert_eq!(trial.find(grant.id).await, None);
    assert_eq!(trial.show(grant.id).await, None);
    assert_eq!(listed(trial, &ask).await, []);
    let next = trial.retry(&ask);
    assert_eq!(trial.grant(&next).await.id, next.id);
}

/// A sweep removes a lazily expiring reply when its retention is over, and its key
/// when `remember` is over.
pub async fn lazy_reply_goes_before_its_key(trial: &Trial) {
    let (ask, _) = complete(trial, lazy()).await;
    trial.sweep().await;
    expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    trial.advance(REMEMBER - LEASE);
    expect(&trial.claim(&trial.retry(&ask)).await, "finished");
    trial.sweep().await;
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    assert_eq!(seen.answer, Some(Answer::Gone { status: 201 }));
    assert_eq!(trial.state(&ask).await, Some(State::Expired));
    assert_eq!(listed(trial, &ask).await, [State::Expired]);
    trial.advance(REMEMBER);
    expect(&trial.claim(&trial.retry(&ask)).await, "expired");
    trial.sweep().await;
    trial.grant(&trial.retry(&ask)).await;
}

/// How long traces on trial are kept.
const TRACE: Duration = Duration::from_secs(5 * 60 * 60);

fn traced() -> Terms {
    Terms {
        keep_expired: TRACE,
        ..terms(AfterLoss::Hold)
    }
}

/// An operation whose key is forgotten leaves a trace that only operators see: its
/// state without its reply.
pub async fn trace_is_shown_when_the_key_is_forgotten(trial: &Trial) {
    // A trace begins when the key is forgotten, so it makes expiry strict.
    for expiry in [Expiry::Strict, Expiry::Lazy] {
        let (ask, grant) = complete(trial, Terms { expiry, ..traced() }).await;
        trial.advance(REMEMBER);
        for _ in 0..2 {
            assert_eq!(trial.get(&ask).await, None);
            assert_eq!(trial.find(grant.id).await, None);
            let trace = trial.show(grant.id).await.expect("its trace is shown");
            assert_eq!(trace.state, State::Expired);
            assert_eq!(trace.answer, Some(Answer::Gone { status: 201 }));
            assert_eq!(listed(trial, &ask).await, [State::Expired]);
            trial.sweep().await;
            trial.advance(TRACE / 2 - MOMENT);
        }
        trial.advance(2 * MOMENT);
        assert_eq!(trial.show(grant.id).await, None);
        assert_eq!(listed(trial, &ask).await, []);
        assert_eq!(trial.settle(&grant, completed(201)).await, Settled::Stale);
    }
}

/// A key that left a trace is free; the next operation replaces the trace.
pub async fn trace_gives_way_to_the_next_operation(trial: &Trial) {
    let (ask, grant) = complete(trial, traced()).await;
    trial.advance(REMEMBER);
    let next = trial.other_request(&ask);
    let again = trial.grant(&next).await;
    assert_eq!(again.id, next.id);
    assert!(again.fence > grant.fence);
    assert_eq!(trial.show(grant.id).await, None);
    assert_eq!(listed(trial, &ask).await, [State::Running]);
    assert_eq!(trial.settle(&grant, completed(201)).await, Settled::Stale);
    assert!(trial.settle(&again, completed(200)).await.is_recorded());
    assert_eq!(listed(trial, &ask).await, [State::Completed]);
}

/// A trace can be purged; every other change is refused.
pub async fn trace_is_purged_like_an_operation(trial: &Trial) {
    let (ask, grant) = complete(trial, traced()).await;
    trial.advance(REMEMBER);
    let refused = Changed::Refused(State::Expired);
    let resumed = trial.inspect.resume(grant.id).await;
    assert_eq!(resumed.expect("the store answers"), refused);
    let resolved = trial
        .inspect
        .resolve(grant.id, None, Resolution::NotRun)
        .await;
    assert_eq!(resolved.expect("the store answers"), refused);
    done(trial.inspect.purge(grant.id, Force::No).await);
    assert_eq!(trial.show(grant.id).await, None);
    assert_eq!(listed(trial, &ask).await, []);
    let again = trial.inspect.purge(grant.id, Force::No).await;
    assert_eq!(again.expect("the store answers"), Changed::Absent);
}

/// The states that a listing of the operation's tenant shows.
async fn listed(trial: &Trial, ask: &ClaimRequest) -> Vec<State> {
    let filter = Filter {
        tenant: Some(ask.identity.caller.tenant().to_owned()),
        ..Filter::default()
    };
    let records = trial.list(&filter).await;
    records.iter().map(|record| record.state).collect()
}
