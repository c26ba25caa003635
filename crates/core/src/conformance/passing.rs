//! Promises about time: leases, retention and remembering, judged by the
//! store's clock alone.

use std::time::Duration;

use super::trial::{LEASE, REMEMBER, RETENTION, Trial, completed, expect, granted, reply, terms};
use crate::class::{AfterLoss, Terms};
use crate::record::{Answer, Settled, Settlement, State};

const MOMENT: Duration = Duration::from_millis(1);

/// A lease that runs out does not tell whether it ran.
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

/// A lease shorter than the time that really passes does not end while the
/// store's clock stands.
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

/// Renewed before its end, a lease lasts its full length from then.
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

/// A holder that was thought lost, while nobody was granted since, runs again.
pub async fn renewal_revives_what_was_thought_lost(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    trial.advance(LEASE);
    assert_eq!(trial.state(&ask).await, Some(State::Unknown));
    assert_eq!(trial.renew(&grant).await, Settled::Done);
    assert_eq!(trial.state(&ask).await, Some(State::Running));
}

/// Released is shown for the length of one lease, then the operation is absent
/// and the next is a new one.
pub async fn released_is_shown_for_one_lease(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    assert_eq!(
        trial.settle(&grant, Settlement::Released).await,
        Settled::Done
    );
    trial.advance(LEASE - MOMENT);
    assert_eq!(trial.state(&ask).await, Some(State::Released));
    trial.advance(MOMENT);
    assert_eq!(trial.get(&ask).await, None);
    assert_eq!(trial.find(grant.id).await, None);
    let next = trial.retry(&ask);
    assert_eq!(trial.grant(&next).await.id, next.id);
}

/// The reply for its retention, then only its status, then nothing: the key
/// is granted anew. Both count from completion.
pub async fn reply_expires_and_then_the_key_is_forgotten(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    trial.advance(LEASE / 2);
    assert_eq!(trial.settle(&grant, completed(201)).await, Settled::Done);

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
