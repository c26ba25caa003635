//! PostgreSQL.

use std::process::{Command, Stdio};

use onceward_servers::Postgres;

use crate::fixture::{as_child, check_drop, check_gone, check_kill_of, processes_of, until};

#[test]
fn it_answers_with_the_settings_that_tests_rely_on() {
    let postgres = Postgres::start_with(&[("work_mem", "7MB"), ("max_connections", "33")]);
    let cases = [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("listen_addresses", "127.0.0.1"),
        ("server_encoding", "UTF8"),
        ("work_mem", "7MB"),
        ("max_connections", "33"),
    ];
    for (name, value) in cases {
        let said = postgres.sql("postgres", &format!("SHOW {name}"));
        assert_eq!(said, value, "{name}");
    }
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port());
    assert_eq!(postgres.url(), url);
    assert!(postgres.log().contains("ready to accept connections"));
}

#[test]
fn servers_are_copies_of_one_template() {
    // Makes the template if it does not exist.
    drop(Postgres::start());
    let name = || {
        let ask = "SELECT system_identifier FROM pg_control_system()";
        Postgres::start().sql("postgres", ask)
    };
    assert_eq!(name(), name());
}

#[test]
fn databases_and_users_have_urls() {
    let postgres = Postgres::start();
    let url = postgres.database("a-shop");
    assert_eq!(url, postgres.url_of("postgres", "a-shop"));
    postgres.sql(
        "a-shop",
        "CREATE ROLE clerk LOGIN; CREATE TABLE sale (id int);",
    );
    let psql = Command::new("psql")
        .args(["-XAt", "-c", "SELECT current_user, current_database()"])
        .arg(postgres.url_of("clerk", "a-shop"))
        .output()
        .expect("psql is installed");
    assert_eq!(String::from_utf8_lossy(&psql.stdout), "clerk|a-shop\n");
}

#[test]
fn a_script_returns_only_its_rows() {
    let postgres = Postgres::start();
    let script = "CREATE TABLE pair (a int, b text);
                  INSERT INTO pair VALUES (1, 'one'), (2, NULL);
                  SELECT * FROM pair ORDER BY a;";
    assert_eq!(postgres.sql("postgres", script), "1|one\n2|");
}

#[test]
#[should_panic(expected = "relation \"nothing\" does not exist")]
fn a_failed_script_panics_with_the_servers_message() {
    Postgres::start().sql("postgres", "SELECT 1; SELECT * FROM nothing; SELECT 2;");
}

#[test]
fn committed_rows_survive_kills_and_stops() {
    let mut postgres = Postgres::start();
    let port = postgres.port();
    postgres.sql("postgres", "CREATE TABLE kept (round int)");
    for round in 0..4 {
        postgres.sql("postgres", &format!("INSERT INTO kept VALUES ({round})"));
        let running = processes_of(postgres.directory());
        // The server's children among them: the checkpointer, the WAL writer.
        assert!(running.len() > 4, "{running:?}");
        if round % 2 == 0 {
            postgres.kill();
        } else {
            postgres.stop();
        }
        let guard = processes_of(postgres.directory());
        assert_eq!(guard.len(), 1, "only the guard is left: {guard:?}");
        postgres.restart();
        let count = postgres.sql("postgres", "SELECT count(*) FROM kept");
        assert_eq!(count, (round + 1).to_string());
    }
    assert_eq!(postgres.port(), port);
    let recovered = postgres.log().matches("automatic recovery").count();
    assert_eq!(recovered, 2, "a kill is a crash, a stop is not");
}

#[test]
fn a_kill_ends_busy_sessions_too() {
    let mut postgres = Postgres::start();
    let mut busy = Command::new("psql")
        .args(["-X", "-c", "DO 'BEGIN LOOP END LOOP; END'"])
        .arg(postgres.url())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("psql is installed");
    until("somebody works", || {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO%'";
        postgres.sql("postgres", count) == "1"
    });
    postgres.kill();
    assert_eq!(processes_of(postgres.directory()).len(), 1);
    assert!(!busy.wait().expect("nobody else waits").success());
    postgres.restart();
    assert_eq!(postgres.sql("postgres", "SELECT 1"), "1");
}

#[test]
fn nothing_is_left_after_a_drop() {
    let postgres = Postgres::start();
    let directory = postgres.directory().to_owned();
    check_drop(postgres, &directory);
}

#[test]
fn nothing_is_left_after_a_drop_of_a_killed_server() {
    let mut postgres = Postgres::start();
    let directory = postgres.directory().to_owned();
    let segment = segment(&postgres);
    assert!(segments().contains(&segment));
    postgres.kill();
    drop(postgres);
    check_gone(&directory);
    assert!(!segments().contains(&segment));
}

/// The key of the shared memory by which a server detects its predecessor.
fn segment(postgres: &Postgres) -> String {
    let lock = postgres.directory().join("data/postmaster.pid");
    let lock = std::fs::read_to_string(lock).expect("it runs");
    let line = lock.lines().nth(6).expect("it has a segment");
    let id = line.split_whitespace().nth(1).expect("a key and an id");
    id.to_owned()
}

/// The ids of all segments of shared memory.
fn segments() -> Vec<String> {
    let list = std::fs::read_to_string("/proc/sysvipc/shm").expect("the system is Linux");
    let id = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    list.lines().filter_map(id).collect()
}

#[test]
fn child_starts_one() {
    as_child(|| {
        let postgres = Postgres::start();
        let directory = postgres.directory().to_owned();
        (postgres, vec![directory])
    });
}

#[test]
fn nothing_is_left_when_the_test_itself_is_killed() {
    check_kill_of("postgres::child_starts_one");
}

#[test]
fn nothing_is_left_after_a_panic() {
    let directory = std::sync::Mutex::default();
    let panicked = std::panic::catch_unwind(|| {
        let postgres = Postgres::start();
        *directory.lock().expect("no panic") = postgres.directory().to_owned();
        postgres.sql("postgres", "this is no SQL");
    });
    assert!(panicked.is_err());
    let directory: std::path::PathBuf = directory.into_inner().expect("no panic");
    check_gone(&directory);
}
