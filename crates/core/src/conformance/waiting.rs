//! Promises about waiting for a running operation.

use std::time::{Duration, Instant};

use super::trial::{Trial, completed, done};
use crate::record::State;
use crate::store::{ClaimRequest, Force};

/// Longer than any store needs to notify a waiter.
const LONG: Duration = Duration::from_secs(30);
/// Longer than a waiter needs to start listening.
const SHORT: Duration = Duration::from_millis(30);

/// A waiter is woken when the operation is settled.
pub async fn waiting_ends_when_settled(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    let waiters: Vec<_> = (0..8).map(|_| spawn_waiter(trial, &ask)).collect();
    tokio::time::sleep(SHORT).await;
    assert!(trial.settle(&grant, completed(201)).await.is_recorded());
    for waiter in waiters {
        woken_early(waiter.await.expect("the waiter does not panic"));
    }
}

/// A waiter is woken when an operator purges the operation.
pub async fn waiting_ends_when_purged(trial: &Trial) {
    let ask = trial.ask();
    let grant = trial.grant(&ask).await;
    let waiter = spawn_waiter(trial, &ask);
    tokio::time::sleep(SHORT).await;
    done(trial.inspect.purge(grant.id, Force::Yes).await);
    woken_early(waiter.await.expect("the waiter does not panic"));
}

/// A wait ends at its limit.
pub async fn waiting_ends_at_its_limit(trial: &Trial) {
    let ask = trial.ask();
    trial.grant(&ask).await;
    let waited = wait(trial, &ask, SHORT).await;
    assert!(
        waited >= SHORT,
        "returned after {waited:?}, before the limit"
    );
    woken_early(waited);
    assert_eq!(trial.state(&ask).await, Some(State::Running));
}

/// A wait for an operation that is not running, or absent, ends at once.
pub async fn waiting_ends_at_once_when_nothing_runs(trial: &Trial) {
    woken_early(wait(trial, &trial.ask(), LONG).await);
    let states = [
        State::Completed,
        State::Failed,
        State::Released,
        State::Unknown,
        State::Paused,
        State::Expired,
    ];
    for state in states {
        let ask = trial.operation_in(state).await;
        woken_early(wait(trial, &ask, LONG).await);
    }
}

fn spawn_waiter(trial: &Trial, ask: &ClaimRequest) -> tokio::task::JoinHandle<Duration> {
    let (trial, ask) = (trial.clone(), ask.clone());
    tokio::spawn(async move { wait(&trial, &ask, LONG).await })
}

#[expect(clippy::disallowed_methods, reason = "tests measure real time")]
async fn wait(trial: &Trial, ask: &ClaimRequest, limit: Duration) -> Duration {
    let start = Instant::now();
    let waited = trial.store.wait(&ask.digest, limit).await;
    waited.expect("the store answers a wait");
    start.elapsed()
}

#[track_caller]
fn woken_early(waited: Duration) {
    assert!(waited < LONG / 2, "waited {waited:?} although nothing ran");
}
