//! Creating the tables: once, by any number of processes, all or nothing. Row-level
//! security, resources, partitions and failed connections have modules of their
//! own.

mod reaching;
mod resources;
mod security;

use onceward_servers::{PgBouncer, Postgres};
use onceward_stores::postgres::Table;
use onceward_stores::postgres::migrate::{
    Applied, LATEST, MigrateError, Options, Resource, RowSecurity, Version, apply, print, version,
};
use tokio_postgres::Client;

use crate::fixture::postgres::connect;

/// How an application sets its user.
const USER: &str = "current_setting('app.user_id', true)";

fn table(name: &str) -> Table {
    Table::parse(name).expect("a good name")
}

fn named(name: &str) -> Options {
    let mut options = Options::default();
    options.table = table(name);
    options
}

fn row_security(role: &str, user: &str) -> Options {
    let mut options = Options::default();
    options.rls = Some(RowSecurity::new(role, user).expect("a role and a user"));
    options
}

fn resources(texts: &[&str]) -> Vec<Resource> {
    let read = texts.iter().map(|text| text.parse().expect("a resource"));
    read.collect()
}

fn referring(texts: &[&str]) -> Options {
    let mut options = Options::default();
    options.resources = resources(texts);
    options
}

async fn applied(url: &str, options: &Options) -> Applied {
    let applied = apply(url, options).await;
    applied.unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

async fn refused(url: &str, options: &Options) -> MigrateError {
    match apply(url, options).await {
        Ok(applied) => panic!("{applied:?}"),
        Err(error) => error,
    }
}

/// All objects in a schema of a database.
fn catalog(postgres: &Postgres, database: &str, schema: &str) -> String {
    let sql = include_str!("catalog.sql").replace("{schema}", schema);
    postgres.sql(database, &sql)
}

async fn error_of(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => panic!("it was done: {sql}"),
        Err(error) => error.as_db_error().expect("the server's word").to_string(),
    }
}

#[tokio::test]
async fn a_repeated_migration_changes_nothing() {
    let postgres = Postgres::start();
    let first = applied(&postgres.url(), &Options::default()).await;
    assert_eq!(first.before, Version::Missing);
    assert_eq!(first.database, "postgres");
    assert_eq!(first.table.to_string(), "public.idempotency_record");
    let made = catalog(&postgres, "postgres", "public");
    let second = applied(&postgres.url(), &Options::default()).await;
    assert_eq!(second.before, Version::Current);
    assert_eq!(catalog(&postgres, "postgres", "public"), made);
    let versions = "SELECT version FROM idempotency_record_migration";
    assert_eq!(postgres.sql("postgres", versions), LATEST.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_migrations_run_one_after_the_other() {
    let postgres = Postgres::start();
    postgres.sql(
        "postgres",
        "CREATE ROLE app LOGIN; CREATE TABLE project (id uuid PRIMARY KEY)",
    );
    let options = {
        let mut options = row_security("app", USER);
        options.partitions = Some(3);
        options.resources = resources(&["project=project(id)"]);
        options
    };
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (url, options) = (postgres.url(), options.clone());
            tokio::spawn(async move { applied(&url, &options).await.before })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await.expect("it ends") {
            Version::Missing => made += 1,
            other => assert_eq!(other, Version::Current),
        }
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn printed_sql_makes_what_apply_makes() {
    let postgres = Postgres::start();
    let theirs = "CREATE SCHEMA tenant; CREATE SCHEMA app; \
                  CREATE TABLE tenant.projects (id uuid PRIMARY KEY); \
                  CREATE TABLE tenant.\"Users\" (\"user\" numeric(20, 0) PRIMARY KEY);";
    postgres.sql("postgres", "CREATE ROLE \"app's \"\"role\" LOGIN");
    let mut all = Options::for_table(table("app.once"));
    all.partitions = Some(2);
    all.resources = resources(&[
        "project=tenant.projects(id):uuid",
        "person=tenant.\"Users\"(\"user\"):numeric(20, 0)",
    ]);
    all.rls = row_security(
        "app's \"role",
        "current_setting('app.user\\id'  -- whose\n, true)",
    )
    .rls;
    let cases = [
        ("plain", Options::default(), "public"),
        ("schema", named("app.idempotency_record"), "app"),
        ("longest", named(&format!("app.{}", "t".repeat(40))), "app"),
        ("everything", all, "app"),
    ];
    for (name, options, schema) in cases {
        let by_us = format!("{name}_applied");
        let url = postgres.database(&by_us);
        postgres.sql(&by_us, theirs);
        applied(&url, &options).await;
        let want = catalog(&postgres, &by_us, schema);
        assert!(
            want.contains(&format!("relation {}_fence S", options.table.name())),
            "{want}"
        );

        let by_psql = format!("{name}_printed");
        let url = postgres.database(&by_psql);
        postgres.sql(&by_psql, theirs);
        let printed = print(&options).expect("it can be printed");
        let empty = catalog(&postgres, &by_psql, schema);
        postgres.sql(&by_psql, &format!("BEGIN;\n{printed}\nROLLBACK;"));
        assert_eq!(
            catalog(&postgres, &by_psql, schema),
            empty,
            "in a transaction"
        );
        postgres.sql(&by_psql, &printed);
        assert_eq!(catalog(&postgres, &by_psql, schema), want, "{name}");

        postgres.sql(&by_psql, &printed);
        assert_eq!(applied(&url, &options).await.before, Version::Current);
        assert_eq!(catalog(&postgres, &by_psql, schema), want, "{name} again");
    }
}

#[test]
fn printed_sql_says_how_it_was_made() {
    let options = {
        let mut options = row_security("app", "current_setting('app.user_id',\ntrue)");
        options.partitions = Some(8);
        options
    };
    let printed = print(&options).expect("it can be printed");
    let (header, _) = printed.split_once("\nDO $onceward$\n").expect("one block");
    assert_eq!(
        header,
        format!(
            "-- The table public.idempotency_record of Onceward: version 1, as Onceward {} prints it by
--
--     onceward migrate print --partitions 8 --rls-role app --rls-user 'current_setting('\\''app.user_id'\\'', true)'
--
-- Run it as it is, for example with `psql -v ON_ERROR_STOP=1 -f FILE`, or give it to
-- your own migration tool, in a transaction or not. It is one statement, which takes
-- effect as a whole or not at all. A repeated run creates only the missing objects.
-- Versions only go forward; each is recorded in public.idempotency_record_migration.
-- The name was given without a schema, so the table is created in \"public\"; for
-- another schema, use --table schema.idempotency_record.
",
            env!("CARGO_PKG_VERSION")
        )
    );
    let printed = print(&named("app.once")).expect("it can be printed");
    assert!(!printed.contains("without a schema"), "{printed}");
    assert!(
        !printed.contains('{'),
        "nothing is left to fill in: {printed}"
    );
}

#[test]
fn printing_needs_the_types_of_resources() {
    let refused = print(&referring(&["project=tenant.projects(id)"]));
    assert_eq!(
        refused.expect_err("no type").to_string(),
        "resource project: `migrate print` needs the type of the referenced column; \
         write project=tenant.projects(id):uuid, if it is uuid"
    );
}

#[tokio::test]
async fn the_version_of_an_existing_table_decides_what_is_created() {
    let postgres = Postgres::start();
    let client = connect(&postgres.url()).await;
    let plain = Table::default();
    let standing = async || version(&client, &plain).await.expect("the server answers");
    assert_eq!(standing().await, Version::Missing);

    postgres.sql("postgres", "CREATE TABLE idempotency_record (id int)");
    assert_eq!(standing().await, Version::Foreign);
    let error = refused(&postgres.url(), &Options::default()).await;
    assert_eq!(
        error.to_string(),
        "a table public.idempotency_record exists that Onceward did not create; use another name (--table)"
    );
    postgres.sql("postgres", "DROP TABLE idempotency_record");

    applied(&postgres.url(), &Options::default()).await;
    assert_eq!(standing().await, Version::Current);
    postgres.sql("postgres", "CREATE ROLE stranger LOGIN");
    let stranger = connect(&postgres.url_of("stranger", "postgres")).await;
    let seen = version(&stranger, &plain)
        .await
        .expect("the server answers");
    assert_eq!(seen, Version::Hidden);
    let error = refused(
        &postgres.url_of("stranger", "postgres"),
        &Options::default(),
    )
    .await;
    assert_eq!(
        error.to_string(),
        "this user lacks a right (42501: permission denied for table idempotency_record_migration); \
         use the owner of the table, or for a new table a user with the CREATE right in its schema"
    );

    let made = catalog(&postgres, "postgres", "public");
    postgres.sql(
        "postgres",
        "INSERT INTO idempotency_record_migration VALUES (9)",
    );
    assert_eq!(standing().await, Version::Newer(9));
    let newer = "the table public.idempotency_record has version 9, created by a newer Onceward; \
                 this program knows versions up to 1: use the newer one";
    let error = refused(&postgres.url(), &row_security("stranger", USER)).await;
    assert_eq!(error.to_string(), newer);
    let printed = print(&row_security("stranger", USER)).expect("it can be printed");
    assert_eq!(error_of(&client, &printed).await, format!("ERROR: {newer}"));
    assert_eq!(catalog(&postgres, "postgres", "public"), made);

    postgres.sql(
        "postgres",
        "DELETE FROM idempotency_record_migration WHERE version = 9",
    );
    postgres.sql("postgres", "DROP TABLE idempotency_record CASCADE");
    assert_eq!(standing().await, Version::Missing);
    let error = refused(&postgres.url(), &Options::default()).await;
    assert_eq!(
        error.to_string(),
        "the table public.idempotency_record is missing, although public.idempotency_record_migration \
         records that it was created; restore it, or drop its remaining objects to start again"
    );
}

#[test]
fn each_version_of_the_table_names_what_to_do() {
    let plain = Table::default();
    let other = table("app.once");
    let cases = [
        (Version::Current, &plain, None),
        (
            Version::Missing,
            &plain,
            Some(
                "the table idempotency_record does not exist in database pay; run `onceward migrate apply \
                 --store URL`, or apply the SQL of `onceward migrate print`",
            ),
        ),
        (
            Version::Missing,
            &other,
            Some(
                "the table app.once does not exist in database pay; run `onceward migrate apply --store URL \
                 --table app.once`, or apply the SQL of `onceward migrate print --table app.once`",
            ),
        ),
        (
            Version::Behind(3),
            &plain,
            Some(
                "the table idempotency_record in database pay has version 3, but this program needs 1; run \
                 `onceward migrate apply --store URL`, or apply the SQL of `onceward migrate print`",
            ),
        ),
        (
            Version::Newer(7),
            &plain,
            Some(
                "the table idempotency_record in database pay has version 7, created by a newer Onceward; \
                 this program knows versions up to 1: use the newer one",
            ),
        ),
    ];
    for (version, table, want) in cases {
        assert_eq!(version.refusal(table, "pay").as_deref(), want);
    }
}

#[tokio::test]
async fn reserved_words_of_sql_are_refused_as_table_names() {
    let postgres = Postgres::start();
    let words = "SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')";
    for word in postgres.sql("postgres", words).lines() {
        assert!(Table::parse(word).is_err(), "{word}");
    }
    // Words that are not reserved are allowed.
    for word in ["value", "name", "loop", "sequence", "public.version"] {
        applied(&postgres.url(), &named(word)).await;
    }
}

#[tokio::test]
async fn search_path_leads_to_the_table() {
    let postgres = Postgres::start();
    postgres.sql(
        "postgres",
        "CREATE SCHEMA first; CREATE SCHEMA second; CREATE SCHEMA \"Third\"",
    );
    let url_with = |path: &str| format!("{}?options=-c%20search_path%3D{path}", postgres.url());
    let second = applied(&url_with("second"), &Options::default()).await;
    assert_eq!(second.table.to_string(), "second.idempotency_record");
    // An existing table is found in a later schema of the search path.
    let found = applied(&url_with("first,second"), &Options::default()).await;
    assert_eq!(found.table, second.table);
    assert_eq!(found.before, Version::Current);
    for path in ["nowhere", "%22Third%22"] {
        let error = refused(&url_with(path), &Options::default()).await;
        assert_eq!(
            error.to_string(),
            "the search path of database postgres has no usable schema for the table; \
             add the schema (--table schema.idempotency_record)"
        );
    }
    let error = refused(&postgres.url(), &named("nowhere.once")).await;
    assert_eq!(
        error.to_string(),
        "there is no schema nowhere in database postgres; create it, or use another one (--table)"
    );
}

#[tokio::test]
async fn pooler_in_transaction_mode_is_no_hindrance() {
    let postgres = Postgres::start();
    postgres.sql("postgres", "CREATE TABLE project (id uuid PRIMARY KEY)");
    let pooler = PgBouncer::start(&postgres, "transaction", 2);
    let url = format!("{}?pgbouncer=true", pooler.url_of("postgres", "postgres"));
    let options = referring(&["project=project(id)"]);
    assert_eq!(applied(&url, &options).await.before, Version::Missing);
    assert_eq!(applied(&url, &options).await.before, Version::Current);
}

#[tokio::test]
async fn a_migration_gives_up_on_a_locked_table() {
    let postgres = Postgres::start();
    postgres.sql("postgres", "CREATE TABLE project (id uuid PRIMARY KEY)");
    applied(&postgres.url(), &Options::default()).await;
    let made = catalog(&postgres, "postgres", "public");
    let client = connect(&postgres.url()).await;
    client
        .batch_execute("BEGIN; SELECT FROM idempotency_record")
        .await
        .expect("it can be read");
    let error = refused(&postgres.url(), &referring(&["project=project(id)"])).await;
    assert_eq!(
        error.to_string(),
        "another transaction holds the table for too long (55P03: canceling statement due to lock timeout); \
         nothing was changed: try again later"
    );
    assert_eq!(catalog(&postgres, "postgres", "public"), made);
    // A repeated migration needs no lock on an existing table.
    applied(&postgres.url(), &Options::default()).await;
}
