//! The library as a role that sees only its user's rows.

use std::sync::Arc;

use onceward_core::application::Error;
use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, RowSecurity, apply};
use serde_json::json;

use super::desk::*;

const ROLE: &str = "app";

async fn house() -> House {
    let postgres = Postgres::start();
    postgres.sql("postgres", &format!("CREATE ROLE {ROLE} LOGIN"));
    let rls = RowSecurity::new(ROLE, "current_setting('app.user_id', true)");
    let options = Options {
        rls: Some(rls.expect("a role and a user")),
        ..Options::default()
    };
    let made = apply(&postgres.url(), &options).await;
    made.expect("the tables are made");
    let house = House::at(Arc::new(postgres));
    let grant = format!("GRANT INSERT, SELECT ON payment TO {ROLE}");
    house.postgres.sql("postgres", &grant);
    House {
        url: house.postgres.url_of(ROLE, "postgres"),
        ..house
    }
}

fn user(name: &str) -> String {
    format!("SET LOCAL app.user_id = '{name}'")
}

#[tokio::test]
async fn users_do_not_meet() {
    let house = house().await;
    for way in Way::ALL {
        let key = key(&format!("{way:?}"));
        for (name, result) in [("alice", 1), ("bob", 2)] {
            house
                .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                    assert!(desk.sql(&user(name)).await);
                    let fresh = fresh(desk.begin(&key, &json!({"by": name})).await);
                    assert!(desk.sql(&pay(&key)).await);
                    desk.commit(fresh, &json!(result)).await.expect("ours");
                })
                .await;
        }
        for (name, want) in [("alice", "result 1"), ("bob", "result 2")] {
            house
                .transact(way, End::Rollback, async |desk: &mut dyn Desk| {
                    assert!(desk.sql(&user(name)).await);
                    let found = desk.begin(&key, &json!({"by": name})).await;
                    assert_eq!(word(&found), want, "{way:?}");
                    let other = desk.begin(&key, &json!({"by": "eve"})).await;
                    assert_eq!(word(&other), "mismatch", "{way:?}");
                })
                .await;
        }
    }
}

#[tokio::test]
async fn nobody_in_particular_is_told_so() {
    let house = house().await;
    for way in Way::ALL {
        let begin = async |desk: &mut dyn Desk| desk.begin(&key("k"), &json!(1)).await;
        let error = house.transact(way, End::Rollback, begin).await;
        let error = error.expect_err("whose would it be");
        assert!(matches!(error, Error::Nobody { .. }), "{way:?}: {error:?}");
        assert_eq!(
            error.to_string(),
            "row-level security is on for the table `idempotency_record` and this connection \
             names no user: set what its `--rls-user` reads, in this transaction"
        );
    }
}

#[tokio::test]
async fn purge_by_the_role_really_deletes() {
    let house = house().await;
    let key = key("k");
    house
        .transact(
            Way::TokioWithTx,
            End::Commit,
            async |desk: &mut dyn Desk| {
                assert!(desk.sql(&user("alice")).await);
                let fresh = fresh(desk.begin(&key, &json!(1)).await);
                desk.commit(fresh, &json!(1)).await.expect("ours");
            },
        )
        .await;
    house.postgres.sql(
        "postgres",
        "UPDATE idempotency_record SET sweep_ms = 1, expires_ms = 1, remember_ms = 0, retention_ms = 0",
    );
    let purge = async |desk: &mut dyn Desk| {
        assert!(desk.sql(&user("bob")).await);
        desk.purge_expired().await
    };
    let purged = house.transact(Way::SqlxWithTx, End::Commit, purge).await;
    assert_eq!(purged.expect("the role may"), 1);
    let left = house
        .postgres
        .sql("postgres", "SELECT count(*) FROM idempotency_record");
    assert_eq!(left, "0");
}
