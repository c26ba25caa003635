//! Promises about claims: which attempt may run.

use std::collections::HashSet;

use super::trial::{
    LEASE, Trial, accepted, completed, describe, done, expect, granted, identity, terms,
};
use crate::class::AfterLoss;
use crate::record::{Settlement, State};
use crate::store::{Claim, Force, Resolution};

/// The first claim of a free key is granted, under the id that it brought.
pub async fn first_claim_is_granted(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    assert_eq!((grant.digest, grant.id), (ask.digest, ask.id));
    let record = trial.get(&ask).await.expect("a granted claim is on record");
    assert_eq!(record.state, State::Running);
    assert_eq!(record.identity, ask.identity);
    assert_eq!(record.fingerprint, ask.fingerprint);
    assert_eq!(record.terms, ask.terms);
    assert_eq!((record.fence, record.attempts), (grant.fence, 1));
}

/// While one attempt runs, another is answered *busy* with the record.
pub async fn second_claim_is_busy(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    let seen = expect(&trial.claim(&trial.retry(&ask)).await, "busy");
    assert_eq!(
        (seen.id, seen.state, seen.fence),
        (grant.id, State::Running, grant.fence)
    );
}

/// A claim whose answer was lost may be repeated.
pub async fn same_attempt_is_granted_again_under_the_same_fence(trial: &Trial) {
    let ask = trial.ask();
    let first = trial.grant(&ask).await;
    assert_eq!(trial.grant(&ask).await, first);
    let record = trial.get(&ask).await.expect("a granted claim is on record");
    assert_eq!(record.attempts, 1, "a repeated claim is no second attempt");
}

/// A different request under the key is answered *mismatch* in every state, and
/// changes nothing.
pub async fn mismatch_beats_every_state(trial: &Trial) {
    let states = State::ALL.into_iter();
    for state in states.filter(|state| *state != State::Released) {
        let ask = trial.operation_in(state).await;
        let before = trial.get(&ask).await;
        let claim = trial.claim(&trial.other_request(&ask)).await;
        assert_eq!(describe(&claim).0, "mismatch", "while {state:?}");
        assert_eq!(trial.get(&ask).await, before, "while {state:?}");
    }
}

/// A different request may claim a released key. It is the same operation, with one
/// more attempt.
pub async fn released_key_is_free_for_any_request(trial: &Trial) {
    let ask = trial.operation_in(State::Released).await;
    let id = trial.id(&ask).await;
    let other = trial.other_request(&ask);
    assert_eq!(trial.grant(&other).await.id, id);
    let record = trial.get(&ask).await.expect("a granted claim is on record");
    assert_eq!(record.attempts, 2);
    assert_eq!(record.fingerprint, other.fingerprint);
}

/// Every grant has a higher fence: after release, purge, a lease that ended, and
/// resolution.
pub async fn fence_rises_with_every_grant(trial: &Trial) {
    let ask = trial.ask_with(terms(AfterLoss::Free));
    let mut fences = Vec::new();
    for step in 0..12 {
        let grant = trial.grant(&trial.retry(&ask)).await;
        fences.push(grant.fence);
        match step % 4 {
            0 => assert!(
                trial
                    .settle(&grant, Settlement::Released)
                    .await
                    .is_recorded()
            ),
            1 => done(trial.inspect.purge(grant.id, Force::Yes).await),
            2 => trial.advance(LEASE),
            _ => {
                assert!(trial.settle(&grant, Settlement::Lost).await.is_recorded());
                done(
                    trial
                        .inspect
                        .resolve(grant.id, None, Resolution::NotRun)
                        .await,
                );
            }
        }
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// No two grants of a key share a fence, also when the record of the earlier
/// one was swept away.
pub async fn fence_is_never_used_again(trial: &Trial) {
    let ask = trial.ask();
    let mut fences = HashSet::new();
    for _ in 0..4 {
        let grant = trial.grant(&trial.retry(&ask)).await;
        assert!(
            fences.insert(grant.fence),
            "{:?} was used twice",
            grant.fence
        );
        assert!(
            trial
                .settle(&grant, Settlement::Released)
                .await
                .is_recorded()
        );
        trial.advance(LEASE);
        trial
            .inspect
            .sweep(usize::MAX)
            .await
            .expect("the store sweeps");
    }
}

/// An attempt whose grant was lost on the way releases the operation.
pub async fn withdrawing_frees_the_own_attempt(trial: &Trial) {
    let ask = trial.ask();
    trial.grant(&ask).await;
    trial.withdraw(&ask).await;
    assert_eq!(trial.state(&ask).await, Some(State::Released));
    granted(trial.claim(&trial.retry(&ask)).await);
}

/// Withdrawing changes nothing where the attempt holds nothing: an operation that
/// was never claimed, that another attempt runs, that is finished, or that is queued.
pub async fn withdrawing_leaves_others_alone(trial: &Trial) {
    let never = trial.ask();
    trial.withdraw(&never).await;
    assert_eq!(trial.get(&never).await, None);

    let held = trial.ask();
    let grant = trial.grant(&held).await;
    trial.withdraw(&trial.retry(&held)).await;
    assert_eq!(trial.state(&held).await, Some(State::Running));

    assert!(trial.settle(&grant, completed(201)).await.is_recorded());
    trial.withdraw(&held).await;
    assert_eq!(trial.state(&held).await, Some(State::Completed));

    trial.clear_queue().await;
    let queued = trial.ask();
    accepted(&trial.enqueue(&queued, b"request", LEASE).await);
    trial.withdraw(&queued).await;
    assert_eq!(trial.state(&queued).await, Some(State::Queued));
    trial.advance(LEASE);
    trial.due(10).await;
    trial.withdraw(&queued).await;
    assert_eq!(
        trial.state(&queued).await,
        Some(State::Running),
        "a delivery belongs to the gateway, not to the request that enqueued it"
    );
}

/// Of many claims at once one is granted, and the others are *busy*.
pub async fn sixty_four_claims_at_once_grant_one(trial: &Trial) {
    let ask = trial.ask();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (trial, ask) = (trial.clone(), trial.retry(&ask));
        tasks.spawn(async move { trial.claim(&ask).await });
    }
    let claims = tasks.join_all().await;
    let granted = claims
        .iter()
        .filter(|claim| matches!(claim, Claim::Granted(_)));
    assert_eq!(granted.count(), 1);
    let busy = claims
        .iter()
        .filter(|claim| matches!(claim, Claim::Busy(_)));
    assert_eq!(busy.count(), 63);
}

/// The same key of another tenant, project or endpoint is another operation.
pub async fn identities_never_mix(trial: &Trial) {
    let first = trial.ask();
    let tenant = first.identity.caller.tenant();
    let other_tenant = format!("{tenant}-2");
    let others = [
        identity(&other_tenant, "shop", "payments.create", "key"),
        identity(tenant, "shop-2", "payments.create", "key"),
        identity(tenant, "shop", "refunds.create", "key"),
        identity(tenant, "shop", "payments.create", "key-2"),
        identity(tenant, "shop", "payments.create", "KEY"),
    ];
    let grant = trial.grant(&first).await;
    assert!(trial.settle(&grant, completed(201)).await.is_recorded());
    for other in others {
        let ask = trial.ask_as(other, first.terms.clone());
        assert_eq!(trial.get(&ask).await, None, "{:?}", ask.identity);
        let grant = trial.grant(&ask).await;
        assert!(
            trial
                .settle(&grant, Settlement::Released)
                .await
                .is_recorded()
        );
    }
    assert_eq!(trial.state(&first).await, Some(State::Completed));
}
