//! The consumer of a queue.

use std::io::Write as _;
use std::process::{Command, Stdio};

use onceward_servers::Postgres;

/// Feeds messages to a consumer and returns its results.
fn consume(postgres: &Postgres, messages: &[&str]) -> Vec<String> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_queue_consumer"))
        .arg(postgres.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example can be started");
    let mut input = child.stdin.take().expect("it was asked for");
    for message in messages {
        writeln!(input, "{message}").expect("it reads");
    }
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).expect("text");
    said.lines().map(ToOwned::to_owned).collect()
}

#[test]
fn redelivered_message_is_acknowledged_and_not_run_again() {
    let postgres = Postgres::start();
    let good = r#"{"id":"m-1","member":"anna","points":5}"#;
    let bad = r#"{"id":"m-2","member":"otto","points":5}"#;
    let reused = r#"{"id":"m-1","member":"anna","points":6}"#;
    let failure = r#"m-2: dead letter, no-member: there is no member "otto""#;
    assert_eq!(
        consume(&postgres, &[good, good, bad]),
        ["m-1: ack", "m-1: ack, done before", failure]
    );
    // By another process, later. The failure is reported again.
    assert_eq!(
        consume(&postgres, &[bad, good, reused]),
        [
            failure,
            "m-1: ack, done before",
            "m-1: dead letter, id-reused: another message had this id before"
        ]
    );
    let points = postgres.sql("postgres", "SELECT member, points FROM points");
    assert_eq!(points, "anna|5");
}
