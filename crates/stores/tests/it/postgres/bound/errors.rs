//! What goes wrong, in one clear sentence each.

use onceward_core::application::{Begun, Error, Minter};
use onceward_core::namespace::Namespace;
use onceward_stores::postgres::Table;
use serde_json::json;

use super::desk::*;

#[tokio::test]
async fn outside_of_a_transaction_is_refused_before_anything_is_written() {
    let house = House::new().await;
    for way in [Way::TokioInTransaction, Way::SqlxInTransaction] {
        let key = key(&format!("{way:?}"));
        house
            .alone(way, async |desk: &mut dyn Desk| {
                let error = desk.begin(&key, &json!(1)).await.expect_err("not in one");
                assert!(matches!(error, Error::NotInTransaction), "{error:?}");
                assert_eq!(
                    error.to_string(),
                    "the connection is not in a transaction: begin one first, \
                     or bind with `on_connection`"
                );
                // The connection is as good as before.
                assert!(desk.sql("BEGIN").await);
                fresh(desk.begin(&key, &json!(1)).await);
                assert!(desk.sql("ROLLBACK").await);
                let error = desk.begin(&key, &json!(1)).await.expect_err("it ended");
                assert!(matches!(error, Error::NotInTransaction), "{error:?}");
            })
            .await;
        assert_eq!(house.counts(&key), (0, 0), "{way:?}");
    }
}

#[tokio::test]
async fn failed_transaction_names_the_way_back() {
    let house = House::new().await;
    for way in Way::ALL {
        let key = key(&format!("{way:?}"));
        house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                let kept = fresh(desk.begin(&key, &json!(1)).await);
                assert!(desk.sql("SAVEPOINT work").await);
                assert!(!desk.sql("SELECT 1 / 0").await);
                let error = desk
                    .begin(&key, &json!(1))
                    .await
                    .expect_err("it has failed");
                assert!(matches!(error, Error::TransactionFailed(_)), "{error:?}");
                assert!(
                    error.to_string().contains("ROLLBACK TO SAVEPOINT"),
                    "{error}"
                );
                assert!(desk.sql("ROLLBACK TO SAVEPOINT work").await);
                desk.commit(kept, &json!(7))
                    .await
                    .expect("the claim is older");
            })
            .await;
        let found = house.find(&key, &json!(1)).await;
        assert_eq!(word(&found), "result 7", "{way:?}");
    }
}

#[tokio::test]
async fn missing_table_names_the_migration() {
    let house = House::new().await;
    let absent = Table::parse("nobody_made_it").expect("a good name");
    let records = house.records.clone().table(absent);
    for way in Way::ALL {
        let begin = async |desk: &mut dyn Desk| desk.begin(&key("k"), &json!(1)).await;
        let error = transact(&records, &house.url, way, End::Rollback, begin).await;
        let error = error.expect_err("no such table");
        assert_eq!(
            error.to_string(),
            "the table `nobody_made_it` is missing or is of another version: run \
             `onceward migrate apply`, or add what `onceward migrate print` says to your own \
             migrations",
            "{way:?}"
        );
    }
    // A table of that name that is something else.
    house
        .postgres
        .sql("postgres", "CREATE TABLE nobody_made_it (id bigint)");
    let begin = async |desk: &mut dyn Desk| desk.begin(&key("k"), &json!(1)).await;
    let error = transact(&records, &house.url, Way::SqlxWithTx, End::Rollback, begin).await;
    assert!(matches!(error, Err(Error::NotMigrated { .. })), "{error:?}");
}

#[tokio::test]
async fn missing_rights_are_named() {
    let house = House::new().await;
    house.postgres.sql(
        "postgres",
        "CREATE ROLE reader LOGIN; GRANT SELECT ON idempotency_record TO reader;",
    );
    let url = house.postgres.url_of("reader", "postgres");
    for way in Way::ALL {
        let begin = async |desk: &mut dyn Desk| desk.begin(&key("k"), &json!(1)).await;
        let error = transact(&house.records, &url, way, End::Rollback, begin).await;
        let error = error.expect_err("it may not write");
        assert!(matches!(error, Error::Rights { .. }), "{way:?}: {error:?}");
        let text = error.to_string();
        assert!(
            text.starts_with("this role lacks a right on the table `idempotency_record`: ")
                && text.contains("permission denied for")
                && text.ends_with("; its owner can grant it"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn key_of_another_namespace_is_refused() {
    let house = House::new().await;
    let elsewhere = Minter::new(Namespace::new("mail").expect("a good name"));
    let stranger = elsewhere.mint(&["a"]).expect("minted");
    let error = house
        .find(&stranger, &json!(1))
        .await
        .expect_err("not ours");
    assert_eq!(
        error.to_string(),
        "the key belongs to the namespace `mail`, and these are the records of `payments`"
    );
}

#[tokio::test]
async fn lost_connection_is_an_unavailable_store() {
    let house = House::new().await;
    let mut client = client(&house.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let mut store = house.records.with_tx(&tx);
    let Ok(Begun::Fresh(fresh)) = store.begin(&key("k"), &json!(1)).await else {
        panic!("not fresh");
    };
    house.postgres.sql(
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE state = 'idle in transaction'",
    );
    let error = store
        .commit(fresh, &json!(1))
        .await
        .expect_err("it is gone");
    assert!(matches!(error, Error::Store(_)), "{error:?}");
    wait_until("the rollback", async || {
        let found = house.find(&key("k"), &json!(1)).await;
        (word(&found) == "fresh").then_some(())
    })
    .await;
}

/// Keys with what SQL, JSON or a terminal may stumble over.
#[tokio::test]
async fn unusual_keys_and_requests_are_like_any_other() {
    let house = House::new().await;
    let names = [
        "'; DROP TABLE payment; --",
        "ключ",
        "k\u{200b}",
        "%s {table} $1",
        "\"\\",
    ];
    for (name, way) in names.iter().zip(Way::ALL) {
        let key = key(name);
        let request = json!({"nul": "\u{0}", "name": name, "big": u64::MAX, "e": 1e300});
        house
            .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &request).await);
                desk.commit(fresh, &request).await.expect("ours");
            })
            .await;
        let found = house.find(&key, &request).await;
        assert!(matches!(found, Ok(Begun::PriorResult(result)) if result == request));
    }
    let longest = key(&"ä".repeat(255));
    assert_eq!(word(&house.find(&longest, &json!(null)).await), "fresh");
}
