//! Which resource an operation is about.

use std::sync::Arc;

use onceward_core::application::Error;
use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, apply};
use serde_json::json;

use super::desk::*;

const UUID: &str = "0195f3a0-0000-7000-8000-000000000001";

async fn house() -> House {
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
    let options = Options {
        resources: resources
            .map(|one| one.parse().expect("a resource"))
            .to_vec(),
        ..Options::default()
    };
    let made = apply(&postgres.url(), &options).await;
    made.expect("the tables are made");
    House::at(Arc::new(postgres))
}

fn referred(house: &House, key: &str) -> String {
    let sql = format!(
        "SELECT resource_project, resource_invoice, resource_label \
         FROM idempotency_record WHERE key_value = '{key}'"
    );
    house.postgres.sql("postgres", &sql)
}

#[tokio::test]
async fn resources_of_any_type_are_referred_to() {
    let house = house().await;
    for way in Way::ALL {
        for (resource, id, want) in [
            ("project", UUID, format!("{UUID}||")),
            ("invoice", "7", "|7|".to_owned()),
            ("label", "it's", "||it's".to_owned()),
        ] {
            let name = format!("{way:?}-{resource}");
            house
                .transact(way, End::Commit, async |desk: &mut dyn Desk| {
                    let fresh = fresh(desk.begin(&key(&name), &json!(1)).await);
                    desk.refer(&fresh, resource, id).await.expect("it is there");
                    desk.commit(fresh, &json!(1)).await.expect("ours");
                })
                .await;
            assert_eq!(referred(&house, &name), want);
        }
    }
}

#[tokio::test]
async fn operation_is_about_the_last_that_was_named() {
    let house = house().await;
    house
        .transact(
            Way::TokioWithTx,
            End::Commit,
            async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key("k"), &json!(1)).await);
                desk.refer(&fresh, "project", UUID)
                    .await
                    .expect("it is there");
                desk.refer(&fresh, "invoice", "7")
                    .await
                    .expect("it is there");
                desk.fail_transient(fresh).await.expect("ours");
            },
        )
        .await;
    assert_eq!(referred(&house, "k"), "|7|");
}

#[tokio::test]
async fn unknown_resource_is_told_and_fails_nothing() {
    let house = house().await;
    house
        .transact(Way::SqlxWithTx, End::Commit, async |desk: &mut dyn Desk| {
            let fresh = fresh(desk.begin(&key("k"), &json!(1)).await);
            let error = desk
                .refer(&fresh, "customer", "7")
                .await
                .expect_err("no column");
            assert_eq!(
                error.to_string(),
                "the table `idempotency_record` has no reference to a `customer`: add it with \
                 `onceward migrate apply --resource customer=TABLE(COLUMN)`"
            );
            for name in ["", "Project", "a-b", "1a", "a\"b", "a b", "project; --"] {
                let error = desk.refer(&fresh, name, "7").await.expect_err("no name");
                assert!(matches!(error, Error::ResourceName(_)), "{name}: {error:?}");
            }
            // The transaction goes on.
            desk.commit(fresh, &json!(1)).await.expect("ours");
        })
        .await;
}

#[tokio::test]
async fn resource_that_is_not_there_is_the_databases_refusal() {
    let house = house().await;
    house
        .transact(
            Way::TokioWithTx,
            End::Rollback,
            async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key("k"), &json!(1)).await);
                let error = desk
                    .refer(&fresh, "invoice", "8")
                    .await
                    .expect_err("no such row");
                assert!(error.to_string().contains("foreign key"), "{error}");
            },
        )
        .await;
}
