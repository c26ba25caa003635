//! The reasons for which a store does not open, in one sentence each.

use onceward_core::clock::SystemClock;
use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::{Options, apply};
use onceward_stores::{Settings, open};

use crate::fixture::postgres::server;

async fn refusal(settings: impl Into<Settings>) -> String {
    match open(settings, std::sync::Arc::new(SystemClock::new())).await {
        Ok(_) => panic!("the store opened"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_missing_object_is_reported_in_one_sentence() {
    let postgres = server().await;
    let database = |name: &str| postgres.database(name);
    database("empty");
    let newer = database("newer");
    apply(&newer, &Options::default())
        .await
        .expect("it is made");
    postgres.sql(
        "newer",
        "INSERT INTO idempotency_record_migration (version) VALUES (99)",
    );
    database("foreign_one");
    postgres.sql("foreign_one", "CREATE TABLE idempotency_record (x int)");
    postgres.sql("postgres", "CREATE ROLE nobody_much LOGIN");
    postgres.sql(
        "postgres",
        "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    );
    postgres.sql(
        "postgres",
        "CREATE ROLE hasty LOGIN SUPERUSER; ALTER ROLE hasty SET synchronous_commit = off",
    );
    let writes = "SELECT, INSERT, UPDATE, DELETE ON idempotency_record";
    let draws = "USAGE ON SEQUENCE idempotency_record_fence";
    for (role, grants) in [
        ("undocumented", vec![writes]),
        (
            "fenceless",
            vec![writes, "ALL ON idempotency_record_document"],
        ),
        (
            "dusty",
            vec![writes, "ALL ON idempotency_record_document", draws],
        ),
    ] {
        let role_and_sight = format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
        );
        postgres.sql("postgres", &role_and_sight);
        for grant in grants {
            postgres.sql("postgres", &format!("GRANT {grant} TO {role}"));
        }
    }
    let latin =
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    postgres.sql("postgres", latin);
    postgres.sql(
        "postgres",
        "CREATE ROLE quiet LOGIN SUPERUSER; ALTER ROLE quiet SET default_transaction_read_only = on",
    );
    let at = |user: &str, database: &str| postgres.url_of(user, database);
    let cases = [
        (at("postgres", "nowhere"), "database nowhere does not exist"),
        (
            at("postgres", "empty"),
            "the table idempotency_record does not exist in database empty; run `onceward migrate apply",
        ),
        (
            at("postgres", "newer"),
            "has version 99, created by a newer Onceward",
        ),
        (at("postgres", "foreign_one"), "was not created by Onceward"),
        (at("stranger", "postgres"), "rejects user stranger"),
        (at("nobody_much", "postgres"), "cannot be read by this user"),
        (
            at("reader", "postgres"),
            "the user \"reader\" lacks the right to insert idempotency_record",
        ),
        (
            at("undocumented", "postgres"),
            "\"undocumented\" lacks the right to insert idempotency_record_document",
        ),
        (
            at("fenceless", "postgres"),
            "lacks the right to use the sequence idempotency_record_fence",
        ),
        (
            at("dusty", "postgres"),
            "lacks the right to run the function idempotency_record_sweep",
        ),
        (
            format!(
                "{}?sslmode=verify-full&sslrootcert=/nowhere/ca.pem",
                postgres.url()
            ),
            "/nowhere/ca.pem",
        ),
        (at("hasty", "postgres"), "synchronous_commit is off"),
        (at("postgres", "latin"), "\"latin\" has the encoding LATIN1"),
        (at("quiet", "postgres"), "are read-only"),
        (
            "postgres://postgres@127.0.0.1:1/postgres".to_owned(),
            "cannot reach PostgreSQL at",
        ),
        (
            format!("{}?sslmode=perhaps", postgres.url()),
            "sslmode in the URL is \"perhaps\"",
        ),
        (
            format!("{}?pgbouncer=maybe", postgres.url()),
            "pgbouncer in the URL is \"maybe\"",
        ),
        (format!("{}?sslmode=require", postgres.url()), "TLS"),
        (
            "postgres://:hidden@[broken".to_owned(),
            "the URL cannot be read",
        ),
    ];
    for (url, want) in cases {
        let words = refusal(url.as_str()).await;
        assert!(words.contains(want), "{url}: {words}");
        assert!(!words.contains("hidden"), "{words}");
        assert_eq!(words.lines().count(), 1, "{words}");
    }
    let mut named = Settings::at(postgres.url());
    named.table = "Bad Table".to_owned();
    assert!(refusal(named).await.contains("table: `Bad Table`"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_reported_without_the_password() {
    let postgres = Postgres::start();
    postgres.sql("postgres", "CREATE ROLE locked LOGIN PASSWORD 'right'");
    let hba = postgres.sql("postgres", "SHOW hba_file");
    let text = std::fs::read_to_string(hba.trim()).expect("it can be read");
    let text = format!("host all locked 127.0.0.1/32 scram-sha-256\n{text}");
    std::fs::write(hba.trim(), text).expect("it can be written");
    postgres.sql("postgres", "SELECT pg_reload_conf()");
    let url = postgres.url().replace("postgres@", "locked:hidden@");
    let words = loop {
        let words = refusal(url.as_str()).await;
        // The server reloads its file after a moment.
        if !words.contains("does not exist") {
            break words;
        }
    };
    assert!(
        words.contains("rejects the password of user locked"),
        "{words}"
    );
    assert!(!words.contains("hidden"), "{words}");
}
