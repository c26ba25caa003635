//! What the library adds to a transaction: two statements.

use std::sync::Arc;

use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, apply};
use serde_json::json;

use crate::fixture::bound::*;

/// A server that logs every statement.
async fn fixture() -> Fixture {
    let settings = [("log_statement", "all"), ("log_line_prefix", "%p ")];
    let postgres = Postgres::start_with(&settings);
    let made = apply(&postgres.url(), &Options::default()).await;
    made.expect("the tables are made");
    Fixture::at(Arc::new(postgres))
}

/// The first words of the statements between two marks, of the connection that
/// made them.
fn between(fixture: &Fixture, from: &str, to: &str) -> Vec<String> {
    let log = fixture.postgres.log();
    let line = log.lines().find(|line| line.contains(from));
    let pid = line
        .and_then(|line| line.split(' ').next())
        .expect("the mark is there");
    log.lines()
        .filter(|line| line.split(' ').next() == Some(pid))
        .skip_while(|line| !line.contains(from))
        .take_while(|line| !line.contains(to))
        .filter_map(|line| {
            let (_, said) = line.split_once("LOG:  statement: ").or_else(|| {
                let (_, executed) = line.split_once("LOG:  execute ")?;
                executed.split_once(": ")
            })?;
            said.split_whitespace().next().map(ToOwned::to_owned)
        })
        .collect()
}

#[tokio::test]
async fn transaction_pays_with_two_statements() {
    let fixture = fixture().await;
    for binding in BindingKind::ALL {
        let key = key(&format!("{binding:?}"));
        let (from, to) = (format!("from_{binding:?}"), format!("to_{binding:?}"));
        fixture
            .transact(
                binding,
                End::Commit,
                async |application: &mut dyn Application| {
                    assert!(application.sql(&format!("SELECT '{from}'")).await);
                    let fresh = fresh(application.begin(&key, &json!(1)).await);
                    assert!(application.sql(&pay(&key)).await);
                    application.commit(fresh, &json!(2)).await.expect("ours");
                    assert!(application.sql(&format!("SELECT '{to}'")).await);
                },
            )
            .await;
        let said = between(&fixture, &from, &to);
        let want: &[&str] = match binding {
            // Each of the two bindings first checks that there is a transaction.
            BindingKind::TokioInTransaction | BindingKind::SqlxInTransaction => {
                &["SELECT", "LOCK", "WITH", "INSERT", "LOCK", "WITH"]
            }
            _ => &["SELECT", "WITH", "INSERT", "WITH"],
        };
        assert_eq!(said, want, "{binding:?}");
    }
}

/// One binding for the whole transaction is checked once.
#[tokio::test]
async fn check_is_one_statement() {
    let fixture = fixture().await;
    let client = client(&fixture.url).await;
    client.batch_execute("BEGIN").await.expect("a transaction");
    client
        .batch_execute("SELECT 'from_once'")
        .await
        .expect("a mark");
    let mut store = fixture
        .records
        .in_transaction(&client)
        .await
        .expect("in one");
    let fresh = fresh(store.begin(&key("k"), &json!(1)).await);
    // The connection is the application's own all the while.
    client.batch_execute(&pay(&key("k"))).await.expect("paid");
    store.commit(fresh, &json!(2)).await.expect("ours");
    client
        .batch_execute("SELECT 'to_once'")
        .await
        .expect("a mark");
    client.batch_execute("COMMIT").await.expect("it commits");
    let said = between(&fixture, "from_once", "to_once");
    assert_eq!(said, ["SELECT", "LOCK", "WITH", "INSERT", "WITH"]);
}

#[tokio::test]
async fn replay_is_one_statement() {
    let fixture = fixture().await;
    let key = key("k");
    for (mark, end) in [("first", "first_end"), ("again", "again_end")] {
        fixture
            .transact(
                BindingKind::SqlxWithTx,
                End::Commit,
                async |application: &mut dyn Application| {
                    assert!(application.sql(&format!("SELECT '{mark}_mark'")).await);
                    match application.begin(&key, &json!(1)).await {
                        Ok(onceward_core::application::Begun::Fresh(fresh)) => {
                            application.commit(fresh, &json!(2)).await.expect("ours");
                        }
                        other => assert_eq!(word(&other), "result 2"),
                    }
                    assert!(application.sql(&format!("SELECT '{end}'")).await);
                },
            )
            .await;
    }
    let said = between(&fixture, "again_mark", "again_end");
    assert_eq!(said, ["SELECT", "WITH"]);
}
