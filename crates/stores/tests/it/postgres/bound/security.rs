//! The library as a role that sees only its user's rows.

use std::sync::Arc;

use onceward_core::application::Error;
use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, RowSecurity, apply};
use serde_json::json;

use crate::fixture::bound::*;

const ROLE: &str = "app";

async fn fixture() -> Fixture {
    let postgres = Postgres::start();
    postgres.sql("postgres", &format!("CREATE ROLE {ROLE} LOGIN"));
    let rls = RowSecurity::new(ROLE, "current_setting('app.user_id', true)");
    let options = {
        let mut options = Options::default();
        options.rls = Some(rls.expect("a role and a user"));
        options
    };
    let made = apply(&postgres.url(), &options).await;
    made.expect("the tables are made");
    let fixture = Fixture::at(Arc::new(postgres));
    let grant = format!("GRANT INSERT, SELECT ON payment TO {ROLE}");
    fixture.postgres.sql("postgres", &grant);
    Fixture {
        url: fixture.postgres.url_of(ROLE, "postgres"),
        ..fixture
    }
}

fn user(name: &str) -> String {
    format!("SET LOCAL app.user_id = '{name}'")
}

#[tokio::test]
async fn users_do_not_share_keys() {
    let fixture = fixture().await;
    for binding in BindingKind::ALL {
        let key = key(&format!("{binding:?}"));
        for (name, result) in [("alice", 1), ("bob", 2)] {
            fixture
                .transact(
                    binding,
                    End::Commit,
                    async |application: &mut dyn Application| {
                        assert!(application.sql(&user(name)).await);
                        let fresh = fresh(application.begin(&key, &json!({"by": name})).await);
                        assert!(application.sql(&pay(&key)).await);
                        application
                            .commit(fresh, &json!(result))
                            .await
                            .expect("ours");
                    },
                )
                .await;
        }
        for (name, want) in [("alice", "result 1"), ("bob", "result 2")] {
            fixture
                .transact(
                    binding,
                    End::Rollback,
                    async |application: &mut dyn Application| {
                        assert!(application.sql(&user(name)).await);
                        let found = application.begin(&key, &json!({"by": name})).await;
                        assert_eq!(word(&found), want, "{binding:?}");
                        let other = application.begin(&key, &json!({"by": "eve"})).await;
                        assert_eq!(word(&other), "mismatch", "{binding:?}");
                    },
                )
                .await;
        }
    }
}

#[tokio::test]
async fn a_missing_user_is_an_error() {
    let fixture = fixture().await;
    for binding in BindingKind::ALL {
        let begin =
            async |application: &mut dyn Application| application.begin(&key("k"), &json!(1)).await;
        let error = fixture.transact(binding, End::Rollback, begin).await;
        let error = error.expect_err("it has no owner");
        assert!(
            matches!(error, Error::MissingUser { .. }),
            "{binding:?}: {error:?}"
        );
        assert_eq!(
            error.to_string(),
            "row-level security is on for the table `idempotency_record`, and this transaction \
             has no user: set the value that the expression of `--rls-user` reads, in this \
             transaction"
        );
    }
}

#[tokio::test]
async fn purge_by_the_role_really_deletes() {
    let fixture = fixture().await;
    let key = key("k");
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                assert!(application.sql(&user("alice")).await);
                let fresh = fresh(application.begin(&key, &json!(1)).await);
                application.commit(fresh, &json!(1)).await.expect("ours");
            },
        )
        .await;
    fixture.postgres.sql(
        "postgres",
        "UPDATE idempotency_record SET sweep_ms = 1, expires_ms = 1, remember_ms = 0, retention_ms = 0",
    );
    let purge = async |application: &mut dyn Application| {
        assert!(application.sql(&user("bob")).await);
        application.purge_expired().await
    };
    let purged = fixture
        .transact(BindingKind::SqlxWithTx, End::Commit, purge)
        .await;
    assert_eq!(purged.expect("the role may"), 1);
    let left = fixture
        .postgres
        .sql("postgres", "SELECT count(*) FROM idempotency_record");
    assert_eq!(left, "0");
}
