//! PgBouncer.

use std::process::Command;

use onceward_servers::{PgBouncer, Postgres};

use crate::fixture::check_drop;

fn ask(url: &str, sql: &str) -> String {
    let psql = Command::new("psql")
        .args(["-XAtq", "-c", sql, url])
        .output()
        .expect("psql is installed");
    let said = String::from_utf8_lossy(&psql.stderr);
    assert!(psql.status.success(), "{said}");
    String::from_utf8_lossy(&psql.stdout).trim_end().to_owned()
}

#[test]
fn every_user_reaches_every_database() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "transaction", 3);
    postgres.database("shop");
    postgres.sql("postgres", "CREATE ROLE clerk LOGIN");
    for user in ["postgres", "clerk"] {
        let who = "SELECT current_user, current_database()";
        let said = ask(&bouncer.url_of(user, "shop"), who);
        assert_eq!(said, format!("{user}|shop"));
    }
}

#[test]
fn pool_mode_and_size_are_as_configured() {
    let postgres = Postgres::start();
    for (mode, size) in [("transaction", 3), ("session", 5)] {
        let bouncer = PgBouncer::start(&postgres, mode, size);
        let config = ask(&bouncer.url_of("postgres", "pgbouncer"), "SHOW CONFIG");
        let mode = format!("pool_mode|{mode}|");
        let size = format!("default_pool_size|{size}|");
        assert!(config.contains(&mode) && config.contains(&size), "{config}");
    }
}

#[test]
fn it_serves_again_after_its_postgres_restarts() {
    let mut postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "transaction", 3);
    let url = bouncer.url_of("postgres", "postgres");
    assert_eq!(ask(&url, "SELECT 1"), "1");
    postgres.kill();
    postgres.restart();
    assert_eq!(ask(&url, "SELECT 2"), "2");
}

#[test]
fn nothing_is_left_after_a_drop() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::start(&postgres, "session", 3);
    assert_eq!(
        ask(&bouncer.url_of("postgres", "postgres"), "SELECT 1"),
        "1"
    );
    let directory = bouncer.directory().to_owned();
    check_drop(bouncer, &directory);
    assert_eq!(postgres.sql("postgres", "SELECT 1"), "1");
}
