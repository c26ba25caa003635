//! Errors, each in one clear sentence.

use onceward_core::application::{Begun, Error, Minter};
use onceward_core::namespace::Namespace;
use onceward_stores::postgres::Table;
use serde_json::json;

use crate::fixture::bound::*;

#[tokio::test]
async fn outside_of_a_transaction_is_refused_before_anything_is_written() {
    let fixture = Fixture::new().await;
    for binding in [
        BindingKind::TokioInTransaction,
        BindingKind::SqlxInTransaction,
    ] {
        let key = key(&format!("{binding:?}"));
        fixture
            .alone(binding, async |application: &mut dyn Application| {
                let error = application
                    .begin(&key, &json!(1))
                    .await
                    .expect_err("not in one");
                assert!(matches!(error, Error::NotInTransaction), "{error:?}");
                assert_eq!(
                    error.to_string(),
                    "the connection is not in a transaction: begin one first, \
                     or bind with `on_connection`"
                );
                // The connection is still usable.
                assert!(application.sql("BEGIN").await);
                fresh(application.begin(&key, &json!(1)).await);
                assert!(application.sql("ROLLBACK").await);
                let error = application
                    .begin(&key, &json!(1))
                    .await
                    .expect_err("it ended");
                assert!(matches!(error, Error::NotInTransaction), "{error:?}");
            })
            .await;
        assert_eq!(fixture.counts(&key), (0, 0), "{binding:?}");
    }
}

#[tokio::test]
async fn failed_transaction_names_the_way_back() {
    let fixture = Fixture::new().await;
    for binding in BindingKind::ALL {
        let key = key(&format!("{binding:?}"));
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    let kept = fresh(application.begin(&key, &json!(1)).await);
                    assert!(application.sql("SAVEPOINT work").await);
                    assert!(!application.sql("SELECT 1 / 0").await);
                    let error = application
                        .begin(&key, &json!(1))
                        .await
                        .expect_err("it has failed");
                    assert!(matches!(error, Error::TransactionFailed(_)), "{error:?}");
                    assert!(
                        error.to_string().contains("ROLLBACK TO SAVEPOINT"),
                        "{error}"
                    );
                    assert!(application.sql("ROLLBACK TO SAVEPOINT work").await);
                    application
                        .commit(kept, &json!(7))
                        .await
                        .expect("the claim is older");
                },
            )
            .await;
        let found = fixture.find(&key, &json!(1)).await;
        assert_eq!(word(&found), "result 7", "{binding:?}");
    }
}

#[tokio::test]
async fn missing_table_names_the_migration() {
    let fixture = Fixture::new().await;
    let absent = Table::parse("nobody_made_it").expect("a good name");
    let records = fixture.records.clone().table(absent);
    for binding in BindingKind::ALL {
        let begin =
            async |application: &mut dyn Application| application.begin(&key("k"), &json!(1)).await;
        let error = transact(&records, &fixture.url, binding, End::Rollback, begin).await;
        let error = error.expect_err("no such table");
        assert_eq!(
            error.to_string(),
            "the table `nobody_made_it` is missing or is of another version: run \
             `onceward migrate apply`, or add the SQL of `onceward migrate print` to your own \
             migrations",
            "{binding:?}"
        );
    }
    // A table of that name that Onceward did not create.
    fixture
        .postgres
        .sql("postgres", "CREATE TABLE nobody_made_it (id bigint)");
    let begin =
        async |application: &mut dyn Application| application.begin(&key("k"), &json!(1)).await;
    let error = transact(
        &records,
        &fixture.url,
        BindingKind::SqlxWithTx,
        End::Rollback,
        begin,
    )
    .await;
    assert!(matches!(error, Err(Error::NotMigrated { .. })), "{error:?}");
}

#[tokio::test]
async fn missing_rights_are_named() {
    let fixture = Fixture::new().await;
    fixture.postgres.sql(
        "postgres",
        "CREATE ROLE reader LOGIN; GRANT SELECT ON idempotency_record TO reader;",
    );
    let url = fixture.postgres.url_of("reader", "postgres");
    for binding in BindingKind::ALL {
        let begin =
            async |application: &mut dyn Application| application.begin(&key("k"), &json!(1)).await;
        let error = transact(&fixture.records, &url, binding, End::Rollback, begin).await;
        let error = error.expect_err("it may not write");
        assert!(
            matches!(error, Error::Rights { .. }),
            "{binding:?}: {error:?}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with("this role lacks a privilege on the table `idempotency_record`: ")
                && text.contains("permission denied for")
                && text.ends_with("; the table's owner can grant it"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn key_of_another_namespace_is_refused() {
    let fixture = Fixture::new().await;
    let elsewhere = Minter::new(Namespace::new("mail").expect("a good name"));
    let stranger = elsewhere.mint(&["a"]).expect("minted");
    let error = fixture
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
    let fixture = Fixture::new().await;
    let mut client = client(&fixture.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let mut store = fixture.records.with_tx(&tx);
    let Ok(Begun::Fresh(fresh)) = store.begin(&key("k"), &json!(1)).await else {
        panic!("not fresh");
    };
    fixture.postgres.sql(
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE state = 'idle in transaction'",
    );
    let error = store
        .commit(fresh, &json!(1))
        .await
        .expect_err("it is gone");
    assert!(matches!(error, Error::Store(_)), "{error:?}");
    until("the rollback", async || {
        let found = fixture.find(&key("k"), &json!(1)).await;
        (word(&found) == "fresh").then_some(())
    })
    .await;
}

/// Keys with characters that are special in SQL, JSON or a terminal.
#[tokio::test]
async fn unusual_keys_and_requests_are_like_any_other() {
    let fixture = Fixture::new().await;
    let names = [
        "'; DROP TABLE payment; --",
        "ключ",
        "k\u{200b}",
        "%s {table} $1",
        "\"\\",
    ];
    for (name, binding) in names.iter().zip(BindingKind::ALL) {
        let key = key(name);
        let request = json!({"nul": "\u{0}", "name": name, "big": u64::MAX, "e": 1e300});
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    let fresh = fresh(application.begin(&key, &request).await);
                    application.commit(fresh, &request).await.expect("ours");
                },
            )
            .await;
        let found = fixture.find(&key, &request).await;
        assert!(matches!(found, Ok(Begun::PriorResult(result)) if result == request));
    }
    let longest = key(&"ä".repeat(255));
    assert_eq!(word(&fixture.find(&longest, &json!(null)).await), "fresh");
}
