//! The resource that an operation refers to.

use std::sync::Arc;

use onceward_core::application::Error;
use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, apply};
use serde_json::json;

use crate::fixture::bound::*;

const UUID: &str = "0195f3a0-0000-7000-8000-000000000001";

async fn fixture() -> Fixture {
    let postgres = Postgres::start();
    postgres.sql(
        "postgres",
        &format!(
            "CREATE TABLE project (id uuid PRIMARY KEY); INSERT INTO project VALUES ('{UUID}');
             CREATE TABLE invoice (id bigint PRIMARY KEY); INSERT INTO invoice VALUES (7);
             CREATE TABLE label (id text PRIMARY KEY); INSERT INTO label VALUES ('it''s');"
        ),
    );
    let resources = [
        "project=project(id)",
        "invoice=invoice(id)",
        "label=label(id)",
    ];
    let options = {
        let mut options = Options::default();
        options.resources = resources
            .map(|one| one.parse().expect("a resource"))
            .to_vec();
        options
    };
    let made = apply(&postgres.url(), &options).await;
    made.expect("the tables are made");
    Fixture::at(Arc::new(postgres))
}

fn referred(fixture: &Fixture, key: &str) -> String {
    let sql = format!(
        "SELECT resource_project, resource_invoice, resource_label \
         FROM idempotency_record WHERE key_value = '{key}'"
    );
    fixture.postgres.sql("postgres", &sql)
}

#[tokio::test]
async fn resources_of_any_type_are_referred_to() {
    let fixture = fixture().await;
    for binding in BindingKind::ALL {
        for (resource, id, want) in [
            ("project", UUID, format!("{UUID}||")),
            ("invoice", "7", "|7|".to_owned()),
            ("label", "it's", "||it's".to_owned()),
        ] {
            let name = format!("{binding:?}-{resource}");
            fixture
                .transact(
                    binding,
                    End::Commit,
                    async |application: &mut dyn Application| {
                        let fresh = fresh(application.begin(&key(&name), &json!(1)).await);
                        application
                            .refer(&fresh, resource, id)
                            .await
                            .expect("it is there");
                        application.commit(fresh, &json!(1)).await.expect("ours");
                    },
                )
                .await;
            assert_eq!(referred(&fixture, &name), want);
        }
    }
}

#[tokio::test]
async fn operation_is_about_the_last_that_was_named() {
    let fixture = fixture().await;
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key("k"), &json!(1)).await);
                application
                    .refer(&fresh, "project", UUID)
                    .await
                    .expect("it is there");
                application
                    .refer(&fresh, "invoice", "7")
                    .await
                    .expect("it is there");
                application.fail_transient(fresh).await.expect("ours");
            },
        )
        .await;
    assert_eq!(referred(&fixture, "k"), "|7|");
}

#[tokio::test]
async fn an_unknown_resource_is_an_error_that_keeps_the_transaction() {
    let fixture = fixture().await;
    fixture
        .transact(
            BindingKind::SqlxWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key("k"), &json!(1)).await);
                let error = application
                    .refer(&fresh, "customer", "7")
                    .await
                    .expect_err("no column");
                assert_eq!(
                    error.to_string(),
                    "the table `idempotency_record` has no reference to a `customer`: add it with \
                 `onceward migrate apply --resource customer=TABLE(COLUMN)`"
                );
                for name in ["", "Project", "a-b", "1a", "a\"b", "a b", "project; --"] {
                    let error = application
                        .refer(&fresh, name, "7")
                        .await
                        .expect_err("no name");
                    assert!(matches!(error, Error::ResourceName(_)), "{name}: {error:?}");
                }
                // The transaction goes on.
                application.commit(fresh, &json!(1)).await.expect("ours");
            },
        )
        .await;
}

#[tokio::test]
async fn a_missing_resource_row_is_an_error_of_the_database() {
    let fixture = fixture().await;
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Rollback,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key("k"), &json!(1)).await);
                let error = application
                    .refer(&fresh, "invoice", "8")
                    .await
                    .expect_err("no such row");
                assert!(error.to_string().contains("foreign key"), "{error}");
            },
        )
        .await;
}
