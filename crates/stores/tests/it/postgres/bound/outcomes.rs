//! The five outcomes, and what is seen of them after a commit and a rollback.

use onceward_core::application::{Begun, Failure, RecordedRequest, StoredError};
use onceward_stores::postgres::migrate::{Options, apply};
use onceward_stores::postgres::{Records, Table};
use serde_json::json;

use super::desk::*;

#[tokio::test]
async fn five_outcomes_are_told_every_way() {
    let house = House::new().await;
    for way in Way::ALL {
        let name = format!("{way:?}");
        let (key, request) = (key(&name), json!({"amount": 100, "to": ["anna", null]}));
        house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &request).await);
                assert_eq!(fresh.key(), &key);
                assert!(desk.sql(&pay(&key)).await);
                // It sees its own claim.
                assert_eq!(word(&desk.begin(&key, &request).await), "in flight");
                desk.commit(fresh, &json!({"id": 7})).await.expect(&name);
                let again = desk.begin(&key, &request).await;
                assert_eq!(word(&again), "result {\"id\":7}");
            })
            .await;
        assert_eq!(house.counts(&key), (1, 1), "{way:?}");
        house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                let again = desk.begin(&key, &request).await;
                assert_eq!(word(&again), "result {\"id\":7}");
                let other = desk.begin(&key, &json!({"amount": 1})).await;
                let Ok(Begun::Mismatch(mismatch)) = other else {
                    panic!("{way:?}: {other:?}");
                };
                assert_eq!(mismatch.recorded.get(), Some(&request));
                assert_ne!(mismatch.recorded_hash, mismatch.submitted_hash);
            })
            .await;
    }
}

#[tokio::test]
async fn errors_for_good_stay_and_errors_for_now_do_not() {
    let house = House::new().await;
    for way in Way::ALL {
        let (lasting, passing) = (key(&format!("{way:?}-1")), key(&format!("{way:?}-2")));
        let declined = StoredError {
            cause: Some("no such card: it was cancelled".to_owned()),
            ..StoredError::new("declined", "the card was declined")
        };
        let fence = house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                let fresh_one = fresh(desk.begin(&lasting, &json!(1)).await);
                let failed = desk.fail_permanent(fresh_one, &declined).await;
                failed.expect("the claim is ours");
                let fresh_one = fresh(desk.begin(&passing, &json!(1)).await);
                let fence = fresh_one.fence();
                let failed = desk.fail_transient(fresh_one).await;
                failed.expect("the claim is ours");
                fence
            })
            .await;
        let again = house.find(&lasting, &json!(1)).await;
        assert!(matches!(again, Ok(Begun::PriorError(error)) if error == declined));
        // Free for any request, under a higher fence.
        let again = fresh(house.find(&passing, &json!(2)).await);
        assert!(again.fence() > fence);
    }
}

#[tokio::test]
async fn rolled_back_is_as_if_it_never_was() {
    let house = House::new().await;
    for way in Way::ALL {
        let key = key(&format!("{way:?}"));
        house
            .transact(way, End::Rollback, async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &json!(1)).await);
                assert!(desk.sql(&pay(&key)).await);
                desk.commit(fresh, &json!(2)).await.expect("ours");
                let seen = desk.begin(&key, &json!(1)).await;
                assert_eq!(word(&seen), "result 2");
            })
            .await;
        assert_eq!(house.counts(&key), (0, 0), "{way:?}");
        assert_eq!(word(&house.find(&key, &json!("anything")).await), "fresh");
    }
}

/// The business failed for good: its rows go back to the savepoint, the error
/// stays.
#[tokio::test]
async fn permanent_failure_is_recorded_behind_a_savepoint() {
    let house = House::new().await;
    for way in Way::ALL {
        let key = key(&format!("{way:?}"));
        house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &json!(1)).await);
                assert!(desk.sql("SAVEPOINT work").await);
                assert!(desk.sql(&pay(&key)).await);
                assert!(!desk.sql("INSERT INTO payment VALUES (NULL, NULL)").await);
                assert!(desk.sql("ROLLBACK TO SAVEPOINT work").await);
                let error = StoredError::new("refused", "the bank refused it");
                desk.fail_permanent(fresh, &error).await.expect("ours");
            })
            .await;
        assert_eq!(house.counts(&key), (0, 1), "{way:?}");
        let again = house.find(&key, &json!(1)).await;
        assert_eq!(word(&again), "error refused: the bank refused it");
    }
}

/// `begin` behind a savepoint that is given up leaves no claim and no lock.
#[tokio::test]
async fn claim_behind_a_savepoint_goes_back_with_it() {
    let house = House::new().await;
    for way in Way::ALL {
        let key = key(&format!("{way:?}"));
        house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                assert!(desk.sql("SAVEPOINT work").await);
                fresh(desk.begin(&key, &json!(1)).await);
                assert!(desk.sql("ROLLBACK TO SAVEPOINT work").await);
                // Another transaction, while this one is open.
                let found = house.find(&key, &json!(1)).await;
                assert_eq!(word(&found), "fresh", "{way:?}");
            })
            .await;
    }
}

#[tokio::test]
async fn connection_without_a_transaction_commits_each_step() {
    let house = House::new().await;
    for way in [Way::TokioOnConnection, Way::SqlxOnConnection] {
        let key = key(&format!("{way:?}"));
        house
            .alone(way, async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &json!({"a": 1})).await);
                // Others see the claim itself, so a mismatch is told as such.
                let same = house.find(&key, &json!({"a": 1})).await;
                assert_eq!(word(&same), "in flight");
                let other = house.find(&key, &json!({"a": 2})).await;
                let Ok(Begun::Mismatch(mismatch)) = other else {
                    panic!("{way:?}: {other:?}");
                };
                assert_eq!(mismatch.recorded.get(), Some(&json!({"a": 1})));
                desk.renew(&fresh).await.expect("ours");
                desk.commit(fresh, &json!(2)).await.expect("ours");
            })
            .await;
        let found = house.find(&key, &json!({"a": 1})).await;
        assert_eq!(word(&found), "result 2");
    }
}

#[tokio::test]
async fn types_come_back_or_the_state_is_incompatible() {
    let house = House::new().await;
    let mut client = client(&house.url).await;
    let key = key("typed");
    let tx = client.transaction().await.expect("a transaction");
    let mut store = house
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

    let mut changed = house.records.with_tx(&tx).typed::<(String, u32), bool>();
    let error = changed
        .begin(&key, &request)
        .await
        .expect_err("another type");
    assert!(error.to_string().contains("does not decode"), "{error}");

    // The request's type has changed since: still a mismatch.
    let mut changed = house.records.with_tx(&tx).typed::<u8, Vec<u64>>();
    let found = changed.begin(&key, &3).await.expect("an outcome");
    let Begun::Mismatch(mismatch) = found else {
        panic!("not a mismatch: {found:?}");
    };
    assert!(matches!(mismatch.recorded, RecordedRequest::Undecodable(_)));

    let mut same = house
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
    let house = House::new().await;
    let key = key("lent");
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&house.url)
        .await
        .expect("a connection");
    let mut tx = sqlx::Connection::begin(&mut connection)
        .await
        .expect("a transaction");
    let mut store = house.records.with_tx(&mut tx).typed::<u32, u32>();
    match store.begin(&key, &1).await.expect("an outcome") {
        Begun::Fresh(fresh) => {
            let paid = sqlx::raw_sql(sqlx::AssertSqlSafe(pay(&key)));
            paid.execute(&mut *tx).await.expect("it is paid");
            let committed = house.records.with_tx(&mut tx).typed::<u32, u32>();
            let mut committed = committed;
            committed.commit(fresh, &2).await.expect("ours");
        }
        other => panic!("not fresh: {other:?}"),
    }
    tx.commit().await.expect("it commits");
    assert_eq!(house.counts(&key), (1, 1));
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
    let house = House::new().await;
    let mut client = client(&house.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let mut store = house.records.with_tx(&tx).typed::<u32, u32>();
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
    let house = House::new().await;
    house.postgres.sql("postgres", "CREATE SCHEMA app");
    let table = Table::parse("app.once").expect("a good name");
    let options = Options {
        table: table.clone(),
        ..Options::default()
    };
    apply(&house.url, &options)
        .await
        .expect("the table is made");
    let elsewhere: Records = house.records.clone().table(table);
    let key = key("k");
    for (records, result) in [(&elsewhere, 1), (&house.records, 2)] {
        transact(
            records,
            &house.url,
            Way::SqlxWithTx,
            End::Commit,
            async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &json!(1)).await);
                desk.commit(fresh, &json!(result)).await.expect("ours");
            },
        )
        .await;
    }
    let kept = house
        .postgres
        .sql("postgres", "SELECT count(*) FROM app.once");
    assert_eq!(kept, "1");
}
