//! The five outcomes, and what is seen of them after a commit and a rollback.

use onceward_core::application::{Begun, Failure, RecordedRequest, StoredError};
use onceward_stores::postgres::migrate::{Options, apply};
use onceward_stores::postgres::{Records, Table};
use serde_json::json;

use crate::fixture::bound::*;

#[tokio::test]
async fn five_outcomes_are_returned_by_every_driver() {
    let fixture = Fixture::new().await;
    for binding in BindingKind::ALL {
        let name = format!("{binding:?}");
        let (key, request) = (key(&name), json!({"amount": 100, "to": ["anna", null]}));
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    let fresh = fresh(application.begin(&key, &request).await);
                    assert_eq!(fresh.key(), &key);
                    assert!(application.sql(&pay(&key)).await);
                    // It sees its own claim.
                    assert_eq!(word(&application.begin(&key, &request).await), "in flight");
                    application
                        .commit(fresh, &json!({"id": 7}))
                        .await
                        .expect(&name);
                    let again = application.begin(&key, &request).await;
                    assert_eq!(word(&again), "result {\"id\":7}");
                },
            )
            .await;
        assert_eq!(fixture.counts(&key), (1, 1), "{binding:?}");
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    let again = application.begin(&key, &request).await;
                    assert_eq!(word(&again), "result {\"id\":7}");
                    let other = application.begin(&key, &json!({"amount": 1})).await;
                    let Ok(Begun::Mismatch(mismatch)) = other else {
                        panic!("{binding:?}: {other:?}");
                    };
                    assert_eq!(mismatch.recorded.get(), Some(&request));
                    assert_ne!(mismatch.recorded_hash, mismatch.submitted_hash);
                },
            )
            .await;
    }
}

#[tokio::test]
async fn errors_for_good_stay_and_errors_for_now_do_not() {
    let fixture = Fixture::new().await;
    for binding in BindingKind::ALL {
        let (lasting, passing) = (
            key(&format!("{binding:?}-1")),
            key(&format!("{binding:?}-2")),
        );
        let declined = StoredError {
            cause: Some("no such card: it was cancelled".to_owned()),
            ..StoredError::new("declined", "the card was declined")
        };
        let fence = fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    let fresh_one = fresh(application.begin(&lasting, &json!(1)).await);
                    let failed = application.fail_permanent(fresh_one, &declined).await;
                    failed.expect("the claim is ours");
                    let fresh_one = fresh(application.begin(&passing, &json!(1)).await);
                    let fence = fresh_one.fence();
                    let failed = application.fail_transient(fresh_one).await;
                    failed.expect("the claim is ours");
                    fence
                },
            )
            .await;
        let again = fixture.find(&lasting, &json!(1)).await;
        assert!(matches!(again, Ok(Begun::PriorError(error)) if error == declined));
        // Free for any request, under a higher fence.
        let again = fresh(fixture.find(&passing, &json!(2)).await);
        assert!(again.fence() > fence);
    }
}

#[tokio::test]
async fn a_rolled_back_operation_never_existed() {
    let fixture = Fixture::new().await;
    for binding in BindingKind::ALL {
        let key = key(&format!("{binding:?}"));
        fixture
            .transact(
                binding,
                End::Rollback,
                async |application: &mut dyn Application| {
                    let fresh = fresh(application.begin(&key, &json!(1)).await);
                    assert!(application.sql(&pay(&key)).await);
                    application.commit(fresh, &json!(2)).await.expect("ours");
                    let seen = application.begin(&key, &json!(1)).await;
                    assert_eq!(word(&seen), "result 2");
                },
            )
            .await;
        assert_eq!(fixture.counts(&key), (0, 0), "{binding:?}");
        assert_eq!(word(&fixture.find(&key, &json!("anything")).await), "fresh");
    }
}

/// The work failed for good: its rows are rolled back to the savepoint, and the
/// error stays.
#[tokio::test]
async fn permanent_failure_is_recorded_behind_a_savepoint() {
    let fixture = Fixture::new().await;
    for binding in BindingKind::ALL {
        let key = key(&format!("{binding:?}"));
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    let fresh = fresh(application.begin(&key, &json!(1)).await);
                    assert!(application.sql("SAVEPOINT work").await);
                    assert!(application.sql(&pay(&key)).await);
                    assert!(
                        !application
                            .sql("INSERT INTO payment VALUES (NULL, NULL)")
                            .await
                    );
                    assert!(application.sql("ROLLBACK TO SAVEPOINT work").await);
                    let error = StoredError::new("refused", "the bank refused it");
                    application
                        .fail_permanent(fresh, &error)
                        .await
                        .expect("ours");
                },
            )
            .await;
        assert_eq!(fixture.counts(&key), (0, 1), "{binding:?}");
        let again = fixture.find(&key, &json!(1)).await;
        assert_eq!(word(&again), "error refused: the bank refused it");
    }
}

/// After a rollback to a savepoint, a `begin` behind it leaves no claim and no
/// lock.
#[tokio::test]
async fn claim_behind_a_savepoint_goes_back_with_it() {
    let fixture = Fixture::new().await;
    for binding in BindingKind::ALL {
        let key = key(&format!("{binding:?}"));
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    assert!(application.sql("SAVEPOINT work").await);
                    fresh(application.begin(&key, &json!(1)).await);
                    assert!(application.sql("ROLLBACK TO SAVEPOINT work").await);
                    // Another transaction, while this one is open.
                    let found = fixture.find(&key, &json!(1)).await;
                    assert_eq!(word(&found), "fresh", "{binding:?}");
                },
            )
            .await;
    }
}

#[tokio::test]
async fn connection_without_a_transaction_commits_each_step() {
    let fixture = Fixture::new().await;
    for binding in [
        BindingKind::TokioOnConnection,
        BindingKind::SqlxOnConnection,
    ] {
        let key = key(&format!("{binding:?}"));
        fixture
            .alone(binding, async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key, &json!({"a": 1})).await);
                // Other transactions see the claim, so a mismatch is recognised.
                let same = fixture.find(&key, &json!({"a": 1})).await;
                assert_eq!(word(&same), "in flight");
                let other = fixture.find(&key, &json!({"a": 2})).await;
                let Ok(Begun::Mismatch(mismatch)) = other else {
                    panic!("{binding:?}: {other:?}");
                };
                assert_eq!(mismatch.recorded.get(), Some(&json!({"a": 1})));
                application.renew(&fresh).await.expect("ours");
                application.commit(fresh, &json!(2)).await.expect("ours");
            })
            .await;
        let found = fixture.find(&key, &json!({"a": 1})).await;
        assert_eq!(word(&found), "result 2");
    }
}

#[tokio::test]
async fn types_come_back_or_the_state_is_incompatible() {
    let fixture = Fixture::new().await;
    let mut client = client(&fixture.url).await;
    let key = key("typed");
    let tx = client.transaction().await.expect("a transaction");
    let mut store = fixture
        .records
        .with_tx(&tx)
        .typed::<(String, u32), Vec<u64>>();
    let request = ("anna".to_owned(), 1);
    let found = store.begin(&key, &request).await.expect("an outcome");
    let Begun::Fresh(fresh) = found else {
        panic!("not fresh: {found:?}");
    };
    store.commit(fresh, &vec![1, 2]).await.expect("ours");
    let found = store.begin(&key, &request).await;
    assert!(matches!(found, Ok(Begun::PriorResult(result)) if result == [1, 2]));

    let mut changed = fixture.records.with_tx(&tx).typed::<(String, u32), bool>();
    let error = changed
        .begin(&key, &request)
        .await
        .expect_err("another type");
    assert!(error.to_string().contains("does not decode"), "{error}");

    // The request's type has changed since: still a mismatch.
    let mut changed = fixture.records.with_tx(&tx).typed::<u8, Vec<u64>>();
    let found = changed.begin(&key, &3).await.expect("an outcome");
    let Begun::Mismatch(mismatch) = found else {
        panic!("not a mismatch: {found:?}");
    };
    assert!(matches!(mismatch.recorded, RecordedRequest::Undecodable(_)));

    let mut same = fixture
        .records
        .with_tx(&tx)
        .typed::<(String, u32), Vec<u64>>();
    let found = same.begin(&key, &("otto".to_owned(), 1)).await;
    let Ok(Begun::Mismatch(mismatch)) = found else {
        panic!("not a mismatch: {found:?}");
    };
    assert_eq!(mismatch.recorded.get(), Some(&request));
}

/// The connection is free again after the last use of the store, in the arms
/// of a `match` too.
#[tokio::test]
async fn connection_is_lent_for_no_longer_than_needed() {
    let fixture = Fixture::new().await;
    let key = key("lent");
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&fixture.url)
        .await
        .expect("a connection");
    let mut tx = sqlx::Connection::begin(&mut connection)
        .await
        .expect("a transaction");
    let mut store = fixture.records.with_tx(&mut tx).typed::<u32, u32>();
    match store.begin(&key, &1).await.expect("an outcome") {
        Begun::Fresh(fresh) => {
            let paid = sqlx::raw_sql(sqlx::AssertSqlSafe(pay(&key)));
            paid.execute(&mut *tx).await.expect("it is paid");
            let committed = fixture.records.with_tx(&mut tx).typed::<u32, u32>();
            let mut committed = committed;
            committed.commit(fresh, &2).await.expect("ours");
        }
        other => panic!("not fresh: {other:?}"),
    }
    tx.commit().await.expect("it commits");
    assert_eq!(fixture.counts(&key), (1, 1));
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum Refused {
    #[error("the card was declined")]
    Declined,
}

impl Failure for Refused {
    fn class(&self) -> &str {
        "declined"
    }

    fn restore(stored: &StoredError) -> Option<Self> {
        (stored.class == "declined").then_some(Self::Declined)
    }
}

#[tokio::test]
async fn errors_come_back_as_the_type_they_were() {
    let fixture = Fixture::new().await;
    let mut client = client(&fixture.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let mut store = fixture.records.with_tx(&tx).typed::<u32, u32>();
    for (name, later) in [("known", None), ("unknown", Some("overdrawn"))] {
        let key = key(name);
        let Ok(Begun::Fresh(fresh)) = store.begin(&key, &1).await else {
            panic!("not fresh");
        };
        match later {
            None => store.fail_permanent(fresh, &Refused::Declined).await,
            Some(class) => {
                let error = StoredError::new(class, "a later version wrote this");
                store.fail_permanent(fresh, &error).await
            }
        }
        .expect("ours");
        let Ok(Begun::PriorError(stored)) = store.begin(&key, &1).await else {
            panic!("not an error");
        };
        match (stored.restore::<Refused>(), later) {
            (Ok(error), None) => assert_eq!(error, Refused::Declined),
            (Err(internal), Some(class)) => {
                assert_eq!(internal.0.class, class);
                assert_eq!(internal.0.message, "a later version wrote this");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn table_of_another_name_is_another_table() {
    let fixture = Fixture::new().await;
    fixture.postgres.sql("postgres", "CREATE SCHEMA app");
    let table = Table::parse("app.once").expect("a good name");
    let options = {
        let mut options = Options::default();
        options.table = table.clone();
        options
    };
    apply(&fixture.url, &options)
        .await
        .expect("the table is made");
    let elsewhere: Records = fixture.records.clone().table(table);
    let key = key("k");
    for (records, result) in [(&elsewhere, 1), (&fixture.records, 2)] {
        transact(
            records,
            &fixture.url,
            BindingKind::SqlxWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key, &json!(1)).await);
                application
                    .commit(fresh, &json!(result))
                    .await
                    .expect("ours");
            },
        )
        .await;
    }
    let kept = fixture
        .postgres
        .sql("postgres", "SELECT count(*) FROM app.once");
    assert_eq!(kept, "1");
}
