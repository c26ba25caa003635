//! Locked rows: steps wait for them only if they must.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::class::AfterLoss;
use onceward_core::record::{Settled, Settlement, State};
use onceward_core::store::{Claim, Store, StoreError};
use tokio_postgres::Client;

use crate::fixture::postgres::{connect, server, settings, store};
use crate::fixture::{ask, ask_with, completed, grant, retry, terms};

/// Far less than a lock is held in these tests.
const SOON: Duration = Duration::from_secs(5);

/// A transaction that has locked every row of the table.
async fn holding_all(url: &str) -> Client {
    let client = connect(url).await;
    let lock = "BEGIN; SELECT FROM idempotency_record FOR UPDATE";
    client.batch_execute(lock).await.expect("all can be locked");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_do_not_wait_for_a_locked_row() {
    let postgres = server().await;
    let settings = settings(&postgres.url());
    let store = store(&settings).await;
    let (running, released, lost, done) = (ask(1), ask(2), ask(3), ask(4));
    grant(&store, &running).await;
    for (ask, word) in [
        (&released, Settlement::Released),
        (&lost, Settlement::Lost),
        (&done, completed(4)),
    ] {
        let granted = grant(&store, ask).await;
        let settled = store.settle(&granted.digest, granted.fence, word).await;
        assert!(settled.expect("it settles").is_recorded());
    }
    let holder = holding_all(&postgres.url()).await;
    let begun = Instant::now();
    for (asked, want) in [
        (&running, "busy"),
        // Free, but locked: answered as running.
        (&released, "busy"),
        (&lost, "unknown"),
        (&done, "finished"),
    ] {
        let claim = store.claim(&retry(asked)).await.expect("it answers");
        let got = match claim {
            Claim::Busy(_) => "busy",
            Claim::Unknown(_) => "unknown",
            Claim::Finished(_) => "finished",
            _ => "something else",
        };
        assert_eq!(got, want);
    }
    // New keys have no locked row.
    grant(&store, &ask(5)).await;
    assert!(begun.elapsed() < SOON, "took {:?}", begun.elapsed());
    drop(holder);
}

/// Steps that are sent together share a transaction; one that waits for a row
/// must not take the others along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_waits_does_not_hold_up_others() {
    let postgres = server().await;
    let mut settings = settings(&postgres.url());
    settings.deadline = Duration::from_secs(2);
    let store = std::sync::Arc::new(store(&settings).await);
    let stuck = grant(&*store, &ask(1)).await;
    let holder = holding_all(&postgres.url()).await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            let word = completed(1);
            store.settle(&stuck.digest, stuck.fence, word).await
        }
    });
    let others: Vec<_> = (2..60)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { grant(&*store, &ask(number)).await })
        })
        .collect();
    for other in others {
        let answered = tokio::time::timeout(SOON, other).await;
        answered.expect("it does not wait").expect("it is granted");
    }
    // The server gives up by itself, and nothing was written.
    let refused = tokio::time::timeout(SOON, waiting).await;
    let refused = refused.expect("it ends").expect("no panic");
    assert!(matches!(refused, Err(StoreError::Unavailable(_))));
    drop(holder);
    let settled = store.settle(&stuck.digest, stuck.fence, completed(1)).await;
    assert!(settled.expect("it settles").is_recorded());
}

/// A late application that shares the record: the claim that was granted in between
/// wins, and the late outcome is stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ended_is_not_taken_over_from_under_a_transaction() {
    let postgres = server().await;
    let settings = settings(&postgres.url());
    let store = store(&settings).await;
    let mut short = terms(AfterLoss::Free);
    short.lease = Duration::from_millis(50);
    let asked = ask_with(1, short);
    let late = grant(&store, &asked).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let holder = holding_all(&postgres.url()).await;
    let claim = store.claim(&retry(&asked)).await.expect("it answers");
    let Claim::Busy(record) = claim else {
        panic!("not busy: {claim:?}");
    };
    assert_eq!(record.state, State::Running);
    drop(holder);
    let begun = Instant::now();
    let taken = loop {
        match store.claim(&retry(&asked)).await.expect("it answers") {
            Claim::Granted(grant) => break grant,
            // The server has not noticed yet that the holder has gone.
            _ => assert!(begun.elapsed() < SOON, "never free"),
        }
    };
    assert!(taken.fence > late.fence);
    let settled = store.settle(&late.digest, late.fence, completed(1)).await;
    assert_eq!(settled.expect("it answers"), Settled::Stale);
}

/// The server is slow, and grants the claim after its caller has gone: without a
/// holder the key must not stay taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_caller_has_gone_is_withdrawn() {
    let postgres = server().await;
    let store = std::sync::Arc::new(store(&settings(&postgres.url())).await);
    let client = connect(&postgres.url()).await;
    for claims in [1, 40] {
        let stop = "BEGIN; LOCK TABLE idempotency_record IN SHARE MODE";
        client.batch_execute(stop).await.expect("it can be stopped");
        let numbers = claims * 100..claims * 101;
        let asking: Vec<_> = numbers
            .clone()
            .map(|number| {
                let store = store.clone();
                tokio::spawn(async move { store.claim(&ask(number)).await.map(drop) })
            })
            .collect();
        let held = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let begun = Instant::now();
        while postgres.sql("postgres", held).trim() == "0" {
            assert!(begun.elapsed() < SOON, "nothing waits");
        }
        for asking in asking {
            asking.abort();
            assert!(asking.await.is_err(), "it was still under way");
        }
        client.batch_execute("COMMIT").await.expect("it can go on");
        for number in numbers {
            let begun = Instant::now();
            // The claim may not have reached the server, or may be withdrawn
            // already.
            while let Some(record) = store.get(&ask(number).digest).await.expect("it answers") {
                if record.state == State::Released {
                    break;
                }
                assert!(begun.elapsed() < SOON, "{number} is stranded: {record:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A waiter on a locked row still waits for the operation, and uses no connection
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_do_not_wait_for_a_locked_row() {
    let postgres = server().await;
    let mut settings = settings(&postgres.url());
    settings.connections = 4;
    let store = std::sync::Arc::new(store(&settings).await);
    let granted = grant(&*store, &ask(1)).await;
    let holder = holding_all(&postgres.url()).await;
    let begun = Instant::now();
    let waiters: Vec<_> = (0..24)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.wait(&granted.digest, Duration::from_secs(20)).await })
        })
        .collect();
    grant(&*store, &ask(2)).await;
    for waiter in waiters {
        let waited = waiter.await.expect("no panic");
        waited.expect("being kept from the row is no error");
    }
    assert!(begun.elapsed() < SOON, "took {:?}", begun.elapsed());
    drop(holder);
}

/// A waiter that marks the row during its settlement is still notified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_meets_a_settlement_does_not_sleep() {
    let postgres = server().await;
    let store = std::sync::Arc::new(store(&settings(&postgres.url())).await);
    let granted = grant(&*store, &ask(1)).await;
    let client = connect(&postgres.url()).await;
    let settle = "BEGIN; UPDATE idempotency_record SET state = 'completed'";
    client
        .batch_execute(settle)
        .await
        .expect("it can be settled");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            // As the engine does: wait, then look.
            loop {
                let waited = store.wait(&granted.digest, Duration::from_secs(20)).await;
                waited.expect("it may wait");
                let record = store.get(&granted.digest).await.expect("it answers");
                if record.is_none_or(|record| record.state != State::Running) {
                    return;
                }
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.batch_execute("COMMIT").await.expect("it commits");
    let told = tokio::time::timeout(SOON, waiting).await;
    told.expect("it is told").expect("no panic");
}

/// Many outcomes that wait for locked rows leave connections for other steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_settlements_leave_connections_for_other_steps() {
    let postgres = server().await;
    let mut settings = settings(&postgres.url());
    settings.connections = 4;
    let store = Arc::new(store(&settings).await);
    let mut waiting = Vec::new();
    for number in 0..40 {
        waiting.push((number, grant(&*store, &ask(number)).await));
    }
    let holder = holding_all(&postgres.url()).await;
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|(number, granted)| {
            let store = store.clone();
            let word = completed(number);
            tokio::spawn(async move { store.settle(&granted.digest, granted.fence, word).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    for number in 100..150 {
        let granted = grant(&*store, &ask(number)).await;
        let settled = store.settle(&granted.digest, granted.fence, completed(number));
        assert!(settled.await.expect("it settles").is_recorded());
    }
    assert!(begun.elapsed() < SOON, "took {:?}", begun.elapsed());
    assert!(waiting.iter().all(|task| !task.is_finished()));
    holder.batch_execute("COMMIT").await.expect("it lets go");
    for settled in waiting {
        let settled = settled.await.expect("no panic");
        assert!(settled.expect("it settles").is_recorded());
    }
}
