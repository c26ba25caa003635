//! Every promise of the contract, and the model, for PostgreSQL: as the owner
//! of the table, as a role that sees only its own rows, on partitions, and
//! through a pooler.

use std::sync::Arc;

use onceward_core::clock::ManualClock;
use onceward_core::conformance::{Restart, differential, run_all};
use onceward_servers::{PgBouncer, Postgres};
use onceward_stores::postgres::migrate::{Options, RowSecurity, apply};

use crate::fixture::postgres::{clock, server, server_with, settings, trial};

/// A role that sees only the rows of the user that its connection sets.
const ROLE: &str = "app";

fn row_security() -> Options {
    let rls = RowSecurity::new(ROLE, "current_setting('app.user_id', true)");
    {
        let mut options = Options::default();
        options.rls = Some(rls.expect("a good role"));
        options
    }
}

/// A server with row-level security, and the URL of one of its users.
async fn server_with_users() -> (Arc<Postgres>, String) {
    let postgres = Postgres::start();
    postgres.sql("postgres", &format!("CREATE ROLE {ROLE} LOGIN"));
    let applied = apply(&postgres.url(), &row_security()).await;
    applied.expect("the tables are made");
    let url = format!(
        "{}?options=-c%20app.user_id%3Dalice",
        postgres.url_of(ROLE, "postgres")
    );
    (Arc::new(postgres), url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_every_promise() {
    let postgres = server().await;
    run_all(async || trial(&settings(&postgres.url()), clock()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_every_promise_when_it_is_never_emptied() {
    let postgres = server().await;
    let shared = trial(&settings(&postgres.url()), clock()).await;
    run_all(async || shared.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unprivileged_role_with_row_security_keeps_every_promise() {
    let (_postgres, url) = server_with_users().await;
    run_all(async || trial(&settings(&url), clock()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_keep_every_promise() {
    let options = {
        let mut options = Options::default();
        options.partitions = Some(4);
        options
    };
    let postgres = server_with(&options).await;
    run_all(async || trial(&settings(&postgres.url()), clock()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pooler_in_transaction_mode_keeps_every_promise() {
    let postgres = server().await;
    let pooler = PgBouncer::start(&postgres, "transaction", 4);
    let url = format!("{}?pgbouncer=true", pooler.url_of("postgres", "postgres"));
    run_all(async || {
        let mut settings = settings(&url);
        settings.listen_url = Some(postgres.url());
        trial(&settings, clock()).await
    })
    .await;
}

#[test]
fn postgres_equals_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let postgres = runtime.block_on(server());
    differential(24, Restart::KeepsLeases, || {
        let settings = settings(&postgres.url());
        async move |clock: Arc<ManualClock>| trial(&settings, clock).await
    });
}

#[test]
fn row_security_equals_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_postgres, url) = runtime.block_on(server_with_users());
    differential(8, Restart::KeepsLeases, || {
        let settings = settings(&url);
        async move |clock: Arc<ManualClock>| trial(&settings, clock).await
    });
}
