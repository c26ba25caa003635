//! `onceward migrate` against a real PostgreSQL, with its output compared to the letter.

use onceward_servers::Postgres;
use serde_json::{Value, json};

use crate::fixture::command::{CommandOutput, done, finish, refused};
use crate::fixture::gateway::onceward;

/// The environment variable for the database's URL.
const STORE: &str = "ONCEWARD__STORE__URL";

async fn run_with(store: Option<&str>, args: &[&str]) -> CommandOutput {
    let mut command = onceward();
    command.arg("migrate").args(args).env_remove(STORE);
    if let Some(url) = store {
        command.env(STORE, url);
    }
    finish(command).await
}

async fn run(args: &[&str]) -> CommandOutput {
    run_with(None, args).await
}

#[tokio::test]
async fn tables_are_created_once_and_reported_in_one_line() {
    let postgres = Postgres::start();
    let url = postgres.database("pay");
    let first = run(&["apply", "--store", &url]).await;
    let made = "Created public.idempotency_record in database pay: version 1.\n";
    assert_eq!(first, done(made));
    let again = run_with(Some(&url), &["apply"]).await;
    let there = "public.idempotency_record in database pay already has version 1.\n";
    assert_eq!(again, done(there));

    let other = ["apply", "--store", &url, "--table", "public.once", "--json"];
    for before in [Value::Null, json!(1)] {
        let said = run(&other).await;
        assert_eq!((said.code, said.err.as_str()), (0, ""));
        assert_eq!(
            serde_json::from_str::<Value>(&said.out).unwrap(),
            json!({ "database": "pay", "table": "public.once", "before": before, "version": 1 })
        );
    }
}

#[tokio::test]
async fn concurrent_processes_create_the_tables_once() {
    let postgres = Postgres::start();
    let url = postgres.url();
    let runs: Vec<_> = (0..6)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { run(&["apply", "--store", &url]).await })
        })
        .collect();
    let mut made = 0;
    for run in runs {
        let said = run.await.unwrap();
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
        made += usize::from(said.out.starts_with("Created "));
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn printed_sql_equals_applied_sql() {
    let postgres = Postgres::start();
    let url = postgres.url();
    postgres.sql(
        "postgres",
        "CREATE ROLE app LOGIN; CREATE TABLE project (id uuid PRIMARY KEY)",
    );
    let wanted = [
        "--partitions",
        "2",
        "--rls-role",
        "app",
        "--rls-user",
        "current_setting('app.user_id', true)",
        "--resource",
        "project=project(id):uuid",
    ];
    let printed = run(&[&["print"], &wanted[..]].concat()).await;
    assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{printed:?}");
    postgres.sql("postgres", &printed.out);
    let applied = run(&[&["apply", "--store", &url], &wanted[..]].concat()).await;
    let there = "public.idempotency_record in database postgres already has version 1.\n";
    assert_eq!(applied, done(there));
    let made = "SELECT relkind, relrowsecurity FROM pg_class WHERE relname = 'idempotency_record'; \
                SELECT count(resource_project) FROM idempotency_record";
    assert_eq!(postgres.sql("postgres", made), "p|t\n0");
}

#[tokio::test]
async fn every_refusal_is_one_sentence() {
    let mut postgres = Postgres::start();
    let port = postgres.port();
    postgres.sql("postgres", "CREATE ROLE app LOGIN");
    let url = postgres.url();
    let nowhere = postgres.url_of("postgres", "nowhere");
    let cases: [(&[&str], String); 10] = [
        (
            &["apply", "--store", "postgres://app:secret@127.0.0.1:x/pay"],
            "store: the URL cannot be read (invalid connection string: invalid value for option `port`); \
             write postgres://user:password@host:5432/database, for example"
                .to_owned(),
        ),
        (
            &["apply", "--store", "embedded:./data"],
            "store: `embedded:` is not PostgreSQL and needs no migration; \
             write postgres://user:password@host:5432/database, for example"
                .to_owned(),
        ),
        (
            &["apply", "--store", &url, "--table", "Once"],
            "table: `Once` contains other characters than lower-case letters, digits and `_`; \
             write `idempotency_record` or `schema.idempotency_record`, for example"
                .to_owned(),
        ),
        (
            &["print", "--table", "order"],
            "table: `order` is a reserved word of SQL; \
             write `idempotency_record` or `schema.idempotency_record`, for example"
                .to_owned(),
        ),
        (
            &["print", "--partitions", "1"],
            "partitions: 1 is not between 2 and 256; omit it for one table".to_owned(),
        ),
        (
            &["print", "--resource", "project"],
            "resource: `project` is not of the form NAME=TABLE(COLUMN); write project=tenant.projects(id), \
             for example, and names with other than a-z, 0-9 and _ in double quotes"
                .to_owned(),
        ),
        (
            &["print", "--resource", "project=tenant.projects(id)"],
            "resource project: `migrate print` needs the type of the referenced column; \
             write project=tenant.projects(id):uuid, if it is uuid"
                .to_owned(),
        ),
        (
            &["print", "--rls-role", "app", "--rls-user", " "],
            "rls-user: the expression is empty or has a NUL in it; write SQL that returns the user, \
             such as current_setting('app.user_id', true)"
                .to_owned(),
        ),
        (
            &["apply", "--store", &nowhere],
            format!(
                "database nowhere does not exist on PostgreSQL at 127.0.0.1:{port}; \
                 create it, or use another one in the URL"
            ),
        ),
        (
            &["apply", "--store", &postgres.url_of("app", "postgres")],
            "this user lacks a right (42501: permission denied for schema public); \
             use the owner of the table, or for a new table a user with the CREATE right in its schema"
                .to_owned(),
        ),
    ];
    for (args, want) in cases {
        assert_eq!(run(args).await, refused(&want), "{args:?}");
    }

    run(&["apply", "--store", &url]).await;
    postgres.sql(
        "postgres",
        "INSERT INTO idempotency_record_migration VALUES (2)",
    );
    let newer = run(&["apply", "--store", &url]).await;
    assert_eq!(
        newer,
        refused(
            "the table public.idempotency_record has version 2, created by a newer Onceward; \
             this program knows versions up to 1: use the newer one"
        )
    );
    postgres.stop();
    let away = run(&["apply", "--store", &url]).await;
    let want = format!("Error: cannot reach PostgreSQL at 127.0.0.1:{port} (");
    assert!(away.code == 1 && away.err.starts_with(&want), "{away:?}");
    assert_eq!(away.err.lines().count(), 1, "{away:?}");
}

#[tokio::test]
async fn options_that_belong_together_are_required_together() {
    let cases: [(&[&str], &str); 3] = [
        (&["apply"], "--store <URL>"),
        (&["print", "--rls-role", "app"], "--rls-user <EXPRESSION>"),
        (
            &["print", "--rls-user", "current_user"],
            "--rls-role <ROLE>",
        ),
    ];
    for (args, want) in cases {
        let said = run(args).await;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{said:?}");
        assert!(
            said.err.contains("required arguments were not provided"),
            "{said:?}"
        );
        assert!(said.err.contains(want), "{said:?}");
    }
}
