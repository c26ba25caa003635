//! Concurrent transactions. An operation that another transaction has begun and not
//! committed is in flight, and no transaction waits for it.

use std::rc::Rc;
use std::time::Duration;

use onceward_core::application::{Begun, Error, RecordOptions, ScopedKey};
use onceward_core::class::AfterLoss;
use serde_json::json;
use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::fixture::bound::*;

/// Far below what any transaction here is open for. The server itself ends a
/// statement that waits for a lock, so a wait is an error, not a slow answer.
const DEADLINE: Duration = Duration::from_secs(10);
const NO_WAITING: &str = "SET LOCAL lock_timeout = '100ms'";

/// What a second transaction finds under a key while the first is open.
async fn found_meanwhile(
    fixture: &Fixture,
    binding: BindingKind,
    key: &str,
    request: u32,
) -> String {
    let (key, request) = (crate::fixture::bound::key(key), json!(request));
    let second = fixture.transact(
        binding,
        End::Rollback,
        async |application: &mut dyn Application| {
            assert!(application.sql(NO_WAITING).await);
            word(&application.begin(&key, &request).await)
        },
    );
    timeout(DEADLINE, second).await.expect("nobody waits")
}

#[tokio::test]
async fn a_second_transaction_gets_in_flight_at_once() {
    let fixture = Fixture::new().await;
    for first in BindingKind::ALL {
        for second in BindingKind::BOTH {
            let name = format!("{first:?}-{second:?}");
            let key = key(&name);
            fixture
                .transact(
                    first,
                    End::Commit,
                    async |application: &mut dyn Application| {
                        let fresh = fresh(application.begin(&key, &json!(1)).await);
                        let found = found_meanwhile(&fixture, second, &name, 1).await;
                        assert_eq!(found, "in flight", "{name}");
                        // The request of the open transaction is not visible yet.
                        let found = found_meanwhile(&fixture, second, &name, 2).await;
                        assert_eq!(found, "in flight", "{name}");
                        application.commit(fresh, &json!(7)).await.expect("ours");
                        let found = found_meanwhile(&fixture, second, &name, 1).await;
                        assert_eq!(found, "in flight", "{name}");
                    },
                )
                .await;
            let found = found_meanwhile(&fixture, second, &name, 1).await;
            assert_eq!(found, "result 7", "{name}");
        }
    }
}

#[tokio::test]
async fn row_that_is_taken_over_is_in_flight_too() {
    let fixture = Fixture::new().await;
    let key = key("released");
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key, &json!(1)).await);
                application.fail_transient(fresh).await.expect("ours");
            },
        )
        .await;
    fixture
        .transact(
            BindingKind::SqlxWithTx,
            End::Rollback,
            async |application: &mut dyn Application| {
                fresh(application.begin(&key, &json!(1)).await);
                let found =
                    found_meanwhile(&fixture, BindingKind::TokioWithTx, "released", 1).await;
                assert_eq!(found, "in flight");
            },
        )
        .await;
    let found = found_meanwhile(&fixture, BindingKind::TokioWithTx, "released", 1).await;
    assert_eq!(found, "fresh");
}

#[tokio::test]
async fn replays_do_not_block_each_other() {
    let fixture = Fixture::new().await;
    let key = key("hot");
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key, &json!(1)).await);
                application.commit(fresh, &json!(7)).await.expect("ours");
            },
        )
        .await;
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Rollback,
            async |application: &mut dyn Application| {
                assert_eq!(word(&application.begin(&key, &json!(1)).await), "result 7");
                for (request, want) in [(1, "result 7"), (2, "mismatch")] {
                    let found =
                        found_meanwhile(&fixture, BindingKind::SqlxWithTx, "hot", request).await;
                    assert_eq!(found, want);
                }
            },
        )
        .await;
}

/// The late holder of an ended lease records its outcome in an open transaction:
/// the operation is in flight.
#[tokio::test]
async fn late_holder_that_is_not_done_yet_is_in_flight() {
    let fixture = Fixture::new().await;
    let records = fixture.with_options(&RecordOptions::default().with(|options| {
        options.lease = Duration::from_millis(1);
        options.after_loss = AfterLoss::Free;
    }));
    let key = key("late");
    let binding = BindingKind::TokioOnConnection;
    let late = alone(
        &records,
        &fixture.url,
        binding,
        async |application: &mut dyn Application| fresh(application.begin(&key, &json!(1)).await),
    )
    .await;
    let fixture = Fixture { records, ..fixture };
    until("the end of the lease", async || {
        let found = fixture.find(&key, &json!(1)).await;
        (word(&found) == "fresh").then_some(())
    })
    .await;
    fixture
        .transact(
            binding,
            End::Commit,
            async |application: &mut dyn Application| {
                application
                    .commit(late, &json!("late"))
                    .await
                    .expect("nobody was granted");
                let found = found_meanwhile(&fixture, BindingKind::SqlxWithTx, "late", 1).await;
                assert_eq!(found, "in flight");
            },
        )
        .await;
    let found = found_meanwhile(&fixture, BindingKind::SqlxWithTx, "late", 1).await;
    assert_eq!(found, "result \"late\"");
}

/// Many concurrent transactions, half of them rolled back: each key is paid once,
/// and every transaction gets one of the five outcomes.
#[tokio::test]
async fn crowd_pays_each_key_once() {
    const KEYS: usize = 12;
    const CALLERS: usize = 8;
    let fixture = Rc::new(Fixture::new().await);
    let crowd = LocalSet::new();
    for round in 0..KEYS {
        let callers = (0..CALLERS).map(|caller| {
            let fixture = fixture.clone();
            let binding = BindingKind::ALL[(round + caller) % BindingKind::ALL.len()];
            crowd.spawn_local(async move {
                let key = key(&format!("crowd-{round}"));
                let ends = [End::Commit, End::Rollback].into_iter().cycle();
                for end in ends.skip(caller) {
                    if attempt(&fixture, binding, &key, end).await {
                        break;
                    }
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            let ended = crowd.run_until(caller).await;
            ended.expect("no caller panicked");
        }
        let key = key(&format!("crowd-{round}"));
        assert_eq!(fixture.counts(&key), (1, 1), "round {round}");
    }
}

/// One try; whether the key is done for good.
async fn attempt(fixture: &Fixture, binding: BindingKind, key: &ScopedKey, end: End) -> bool {
    fixture
        .transact(
            binding,
            end,
            async |application: &mut dyn Application| match application.begin(key, &json!(1)).await
            {
                Ok(Begun::Fresh(fresh)) => {
                    assert!(application.sql(&pay(key)).await);
                    application.commit(fresh, &json!(1)).await.expect("ours");
                    end == End::Commit
                }
                Ok(Begun::InFlight) => false,
                Ok(Begun::PriorResult(_)) => true,
                other => panic!("{binding:?}: {other:?}"),
            },
        )
        .await
}

/// A snapshot that is older than the other commit cannot show the result: the
/// transaction must run again, and then finds it.
#[tokio::test]
async fn a_snapshot_older_than_the_other_commit_must_run_again() {
    let fixture = Fixture::new().await;
    for (binding, level) in [
        (BindingKind::TokioWithTx, "REPEATABLE READ"),
        (BindingKind::SqlxWithTx, "SERIALIZABLE"),
    ] {
        let name = format!("{binding:?}");
        let key = key(&name);
        fixture
            .transact(
                binding,
                End::Rollback,
                async |application: &mut dyn Application| {
                    assert!(
                        application
                            .sql(&format!("SET TRANSACTION ISOLATION LEVEL {level}"))
                            .await
                    );
                    assert!(application.sql("SELECT count(*) FROM payment").await);
                    fixture
                        .transact(binding, End::Commit, async |other: &mut dyn Application| {
                            let fresh = fresh(other.begin(&key, &json!(1)).await);
                            other.commit(fresh, &json!(7)).await.expect("ours");
                        })
                        .await;
                    let error = application
                        .begin(&key, &json!(1))
                        .await
                        .expect_err("an old snapshot");
                    assert!(matches!(error, Error::Conflict(_)), "{error:?}");
                },
            )
            .await;
        let found = found_meanwhile(&fixture, binding, &name, 1).await;
        assert_eq!(found, "result 7");
    }
}
