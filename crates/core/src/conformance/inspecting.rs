//! Promises about listings and about changes by operators.

use std::sync::Arc;
use std::time::Duration;

use super::trial::{
    LEASE, REMEMBER, RETENTION, Trial, completed, done, expect, granted, identity, reply, terms,
};
use crate::class::AfterLoss;
use crate::clock::Clock;
use crate::record::{Answer, Record, Settled, Settlement, State};
use crate::store::{Changed, ClaimRequest, Cursor, Filter, Force, PageRequest, Resolution, Stats};

/// `get`, `find` and `show` return the same record.
pub async fn get_and_find_return_the_same(trial: &Trial) {
    for state in State::ALL {
        let ask = trial.operation_in(state).await;
        let record = trial.get(&ask).await.expect("the operation is on record");
        let shown = trial.show(record.id).await;
        assert_eq!(shown, Some(record.clone()), "{state:?}");
        assert_eq!(trial.find(record.id).await, Some(record), "{state:?}");
    }
    assert_eq!(trial.find(trial.ask().id).await, None);
    assert_eq!(trial.show(trial.ask().id).await, None);
}

/// Each field of a filter narrows the listing, and all of them do together.
pub async fn list_filters_by_every_field(trial: &Trial) {
    let tenant = trial.ask().identity.caller.tenant().to_owned();
    let base = Filter {
        tenant: Some(tenant.clone()),
        ..Filter::default()
    };
    let mut ids = Vec::new();
    for (project, endpoint, key) in [("p", "e.a", "k1"), ("p", "e.b", "k2"), ("q", "e.a", "k3")] {
        let ask = trial.ask_as(
            identity(&tenant, project, endpoint, key),
            terms(AfterLoss::Hold),
        );
        let grant = trial.grant(&ask).await;
        if key == "k2" {
            assert!(trial.settle(&grant, completed(201)).await.is_recorded());
        }
        ids.push((key, grant.id));
        trial.advance(Duration::from_secs(1));
    }
    let now = trial.clock.now();
    let second = trial
        .find(ids[1].1)
        .await
        .expect("the operation is on record");
    let cases = [
        (base.clone(), "k2 k3 k1"),
        (
            Filter {
                tenant: Some("nobody".into()),
                ..base.clone()
            },
            "",
        ),
        (
            Filter {
                project: Some("p".into()),
                ..base.clone()
            },
            "k2 k1",
        ),
        (
            Filter {
                endpoint: Some("e.a".into()),
                ..base.clone()
            },
            "k3 k1",
        ),
        (
            Filter {
                key: Some("k3".into()),
                ..base.clone()
            },
            "k3",
        ),
        (
            Filter {
                state: Some(State::Completed),
                ..base.clone()
            },
            "k2",
        ),
        (
            Filter {
                state: Some(State::Running),
                ..base.clone()
            },
            "k3 k1",
        ),
        (
            Filter {
                since: Some(second.created_at),
                ..base.clone()
            },
            "k2 k3",
        ),
        (
            Filter {
                before: Some(second.created_at),
                ..base.clone()
            },
            "k1",
        ),
        (
            Filter {
                since: Some(now),
                ..base.clone()
            },
            "",
        ),
        (
            Filter {
                project: Some("p".into()),
                state: Some(State::Running),
                ..base
            },
            "k1",
        ),
    ];
    for (filter, want) in cases {
        let records = trial.list(&filter).await;
        let mut got: Vec<_> = records
            .iter()
            .map(|record| record.identity.key.as_str())
            .collect();
        let mut want: Vec<_> = want.split_whitespace().collect();
        got.sort_unstable();
        want.sort_unstable();
        assert_eq!(got, want, "{filter:?}");
    }
}

/// The most recently claimed or settled operation comes first, and pages of any
/// length return each operation once.
pub async fn list_pages_without_gap_or_repeat(trial: &Trial) {
    let tenant = trial.ask().identity.caller.tenant().to_owned();
    let filter = Filter {
        tenant: Some(tenant.clone()),
        ..Filter::default()
    };
    let mut grants = Vec::new();
    for number in 0..7 {
        let name = identity(&tenant, "shop", "payments.create", &format!("k{number}"));
        grants.push(
            trial
                .grant(&trial.ask_as(name, terms(AfterLoss::Hold)))
                .await,
        );
    }
    for changed in [2, 5] {
        assert!(
            trial
                .settle(&grants[changed], completed(200))
                .await
                .is_recorded()
        );
    }
    let again = trial.settle(&grants[2], completed(200)).await;
    assert!(
        again.is_recorded(),
        "a repeated settlement changes neither the record nor its position"
    );
    let wanted: Vec<_> = [5, 2, 6, 4, 3, 1, 0].map(|n| grants[n].id).into();
    for limit in [1, 2, 3, 7, 100] {
        let got: Vec<_> = pages(trial, &filter, limit)
            .await
            .iter()
            .map(|r| r.id)
            .collect();
        assert_eq!(got, wanted, "by {limit}");
    }
}

/// Time changes states without a write: listings show the current ones.
pub async fn list_shows_states_as_of_now(trial: &Trial) {
    let ask = trial.ask();
    let filter = |state| Filter {
        tenant: Some(ask.identity.caller.tenant().to_owned()),
        state: Some(state),
        ..Filter::default()
    };
    let grant = trial.grant(&ask).await;
    assert_eq!(trial.list(&filter(State::Running)).await.len(), 1);
    trial.advance(LEASE);
    assert_eq!(trial.list(&filter(State::Running)).await.len(), 0);
    assert_eq!(trial.list(&filter(State::Unknown)).await.len(), 1);
    assert!(trial.settle(&grant, completed(200)).await.is_recorded());
    assert_eq!(trial.list(&filter(State::Completed)).await.len(), 1);
    trial.advance(RETENTION);
    assert_eq!(trial.list(&filter(State::Completed)).await.len(), 0);
    assert_eq!(trial.list(&filter(State::Expired)).await.len(), 1);
    trial.advance(REMEMBER - RETENTION);
    assert_eq!(trial.list(&filter(State::Expired)).await.len(), 0);
}

/// A running operation is purged only by force.
pub async fn purge_refuses_what_runs_unless_forced(trial: &Trial) {
    let ask = trial.operation_in(State::Running).await;
    let id = trial.id(&ask).await;
    let refused = trial.inspect.purge(id, Force::No).await;
    assert_eq!(
        refused.expect("the store answers"),
        Changed::Refused(State::Running)
    );
    assert_eq!(trial.state(&ask).await, Some(State::Running));
    done(trial.inspect.purge(id, Force::Yes).await);
    assert_eq!(trial.get(&ask).await, None);
}

/// An operation purged in any state is absent, and the next claim of its key begins
/// a new one.
pub async fn purged_operation_is_absent_and_runs_under_a_new_id(trial: &Trial) {
    let states = State::ALL.into_iter();
    for state in states.filter(|state| *state != State::Running) {
        let ask = trial.operation_in(state).await;
        let id = trial.id(&ask).await;
        done(trial.inspect.purge(id, Force::No).await);
        assert_eq!(trial.get(&ask).await, None, "{state:?}");
        assert_eq!(trial.find(id).await, None, "{state:?}");
        let again = trial.inspect.purge(id, Force::No).await;
        assert_eq!(
            again.expect("the store answers"),
            Changed::Absent,
            "{state:?}"
        );
        let next = trial.retry(&ask);
        assert_eq!(trial.grant(&next).await.id, next.id, "{state:?}");
    }
}

/// A reply given by `resolve` is replayed like any other, and the earlier holder is
/// stale.
pub async fn resolve_ran_is_replayed(trial: &Trial) {
    for (status, state) in [(201, State::Completed), (422, State::Failed)] {
        let ask = trial.ask();
        let lost = trial.grant(&ask).await;
        trial.advance(LEASE);
        let resolution = Resolution::Ran(reply(status, "found"));
        done(trial.inspect.resolve(lost.id, None, resolution).await);
        let seen = expect(&trial.claim(&trial.retry(&ask)).await, "finished");
        assert_eq!(seen.state, state);
        assert!(seen.answer == Some(Answer::Kept(reply(status, "found"))));
        assert_eq!(trial.settle(&lost, completed(200)).await, Settled::Stale);
        assert_eq!(trial.settle(&lost, Settlement::Lost).await, Settled::Stale);
    }
}

/// After `not_run` the next request runs the operation.
pub async fn resolve_not_run_frees_the_key(trial: &Trial) {
    let ask = trial.ask();
    let lost = trial.grant(&ask).await;
    assert!(trial.settle(&lost, Settlement::Lost).await.is_recorded());
    done(
        trial
            .inspect
            .resolve(lost.id, None, Resolution::NotRun)
            .await,
    );
    assert_eq!(trial.settle(&lost, completed(200)).await, Settled::Stale);
    assert_eq!(trial.renew(&lost).await, Settled::Stale);
    assert_eq!(trial.state(&ask).await, Some(State::Released));
    let again = granted(trial.claim(&trial.retry(&ask)).await);
    assert_eq!(again.id, lost.id);
    assert!(again.fence > lost.fence);
}

/// A resolution about an earlier grant does not resolve a later one.
pub async fn resolve_is_about_the_grant_that_is_named(trial: &Trial) {
    let ask = trial.ask();
    let first = trial.grant(&ask).await;
    assert!(trial.settle(&first, Settlement::Lost).await.is_recorded());
    done(
        trial
            .inspect
            .resolve(first.id, Some(first.fence), Resolution::NotRun)
            .await,
    );
    let second = granted(trial.claim(&trial.retry(&ask)).await);
    assert!(trial.settle(&second, Settlement::Lost).await.is_recorded());
    let late = trial
        .inspect
        .resolve(first.id, Some(first.fence), Resolution::NotRun)
        .await;
    assert_eq!(
        late.expect("the store answers"),
        Changed::Refused(State::Unknown)
    );
    assert_eq!(trial.state(&ask).await, Some(State::Unknown));
    done(
        trial
            .inspect
            .resolve(first.id, Some(second.fence), Resolution::NotRun)
            .await,
    );
}

/// Only unknown operations are resolved, and only paused ones resumed.
pub async fn resolve_and_resume_refuse_other_states(trial: &Trial) {
    for state in State::ALL {
        let ask = trial.operation_in(state).await;
        let before = trial.get(&ask).await;
        let id = trial.id(&ask).await;
        if state != State::Unknown {
            let got = trial.inspect.resolve(id, None, Resolution::NotRun).await;
            assert_eq!(got.expect("the store answers"), Changed::Refused(state));
        }
        if state != State::Paused {
            let got = trial.inspect.resume(id).await;
            assert_eq!(got.expect("the store answers"), Changed::Refused(state));
        }
        assert_eq!(trial.get(&ask).await, before, "{state:?}");
    }
    let nobody = trial.ask().id;
    let got = trial
        .inspect
        .resolve(nobody, None, Resolution::NotRun)
        .await;
    assert_eq!(got.expect("the store answers"), Changed::Absent);
    let got = trial.inspect.resume(nobody).await;
    assert_eq!(got.expect("the store answers"), Changed::Absent);
}

/// Sweeping reclaims space and changes no answer, neither about operations on
/// record nor about those that are over.
pub async fn sweep_takes_only_what_is_over(trial: &Trial) {
    let over = trial.operation_in(State::Completed).await;
    trial.advance(REMEMBER);
    // The expired one first: it takes time, in which the other operations change.
    let mut there = vec![trial.operation_in(State::Expired).await];
    for state in State::ALL
        .into_iter()
        .filter(|state| *state != State::Expired)
    {
        there.push(trial.operation_in(state).await);
    }
    let before = records(trial, &there).await;
    trial.sweep().await;
    assert_eq!(records(trial, &there).await, before);
    assert_eq!(trial.get(&over).await, None);
    let next = trial.retry(&over);
    assert_eq!(trial.grant(&next).await.id, next.id);
}

/// Operations on record are counted by their current state.
pub async fn stats_count_by_state(trial: &Trial) {
    for state in State::ALL {
        if state == State::Expired {
            // It takes time, in which other operations change.
            continue;
        }
        let before = trial.stats().await;
        trial.operation_in(state).await;
        let mut want = before;
        want.count(state);
        assert_eq!(
            without_bytes(trial.stats().await),
            without_bytes(want),
            "{state:?}"
        );
    }
    let ask = trial.operation_in(State::Completed).await;
    let before = trial.stats().await;
    done(trial.inspect.purge(trial.id(&ask).await, Force::No).await);
    assert_eq!(trial.stats().await.operations, before.operations - 1);
}

/// Each store occupies its own number of bytes.
fn without_bytes(stats: Stats) -> Stats {
    Stats { bytes: 0, ..stats }
}

async fn records(trial: &Trial, asks: &[ClaimRequest]) -> Vec<Option<Arc<Record>>> {
    let mut records = Vec::new();
    for ask in asks {
        records.push(trial.get(ask).await);
    }
    records
}

/// The records of all pages.
async fn pages(trial: &Trial, filter: &Filter, limit: usize) -> Vec<Arc<Record>> {
    let mut records = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let page = trial
            .inspect
            .list(filter, PageRequest::first(limit).after(after))
            .await;
        let page = page.expect("the store lists");
        assert!(page.records.len() <= limit, "a page longer than {limit}");
        records.extend(page.records);
        after = page.next;
        if after.is_none() {
            return records;
        }
    }
}
