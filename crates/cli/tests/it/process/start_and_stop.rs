//! How the process starts, refuses to start, and stops.

use std::ffi::OsString;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rstest::rstest;
use rustix::process::Signal;
use tokio::net::TcpStream;

use crate::fixture::BODY;
use crate::fixture::gateway::{Gateway, gateway, run_to_end};
use crate::fixture::origin::{Behaviour, origin};
use crate::fixture::until;

#[tokio::test]
async fn sigterm_lets_running_work_end_and_be_recorded() {
    let origin = origin(Behaviour::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let gateway = plan.run().await;
    let asked = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    gateway.signal(Signal::TERM);
    refused(&gateway).await;
    assert_eq!(gateway.admin("/livez").await.unwrap().status, 200);
    assert_eq!(gateway.admin("/readyz").await.unwrap().status, 503);
    assert!(!asked.is_finished());
    origin.open();

    let first = asked.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "completed")
    );
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    let restarted = plan.run().await;
    let again = restarted.post("k", BODY).await.unwrap();
    assert!(again.is_replay());
    assert_eq!(again.kept(), first.kept());
    assert_eq!(origin.runs().len(), 1);
}

#[tokio::test]
async fn sigterm_waits_for_work_whose_client_has_gone() {
    let origin = origin(Behaviour::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let gateway = plan.run().await;
    let asked = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    asked.abort();
    gateway.signal(Signal::TERM);
    refused(&gateway).await;
    origin.open();
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    let again = plan.run().await.post("k", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(origin.runs().len(), 1);
}

#[rstest]
#[case::sigterm(Signal::TERM)]
#[case::ctrl_c(Signal::INT)]
#[tokio::test]
async fn second_signal_ends_it_at_once(#[case] signal: Signal) {
    let origin = origin(Behaviour::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let gateway = plan.run().await;
    let asked = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    gateway.signal(signal);
    refused(&gateway).await;
    let second = Instant::now();
    gateway.signal(signal);
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(1), "{log:?}");
    // Draining would take the upstream's 30 seconds.
    assert!(second.elapsed() < Duration::from_secs(10));
    // The connection breaks, or the answer still arrives.
    if let Ok(told) = asked.await.unwrap() {
        assert_eq!(told.code(), "outcome-unknown", "{told:?}");
    }
    let restarted = plan.run().await;
    assert_eq!(restarted.state("k").await.as_deref(), Some("unknown"));
    assert_eq!(
        restarted.post("k", BODY).await.unwrap().code(),
        "outcome-unknown"
    );
    assert_eq!(origin.runs().len(), 1);
}

#[tokio::test]
async fn a_drain_that_takes_too_long_is_cut_and_running_work_is_unknown() {
    let origin = origin(Behaviour::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let gateway = plan.clone().option("--drain-ms", "300").run().await;
    let asked = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    gateway.signal(Signal::TERM);
    let signalled = Instant::now();
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0));
    assert!(signalled.elapsed() < Duration::from_secs(10));
    assert!(
        log.iter().any(|line| line.contains("they are now unknown")),
        "{log:?}"
    );
    // The connection breaks, or the answer still arrives.
    if let Ok(told) = asked.await.unwrap() {
        assert_eq!(told.code(), "outcome-unknown", "{told:?}");
    }
    let restarted = plan.run().await;
    assert_eq!(restarted.state("k").await.as_deref(), Some("unknown"));
}

/// Waits until new connections are refused.
async fn refused(gateway: &Gateway) {
    until("connections are refused", || async {
        TcpStream::connect(gateway.listen()).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn a_second_process_on_a_store_learns_which_process_holds_it() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let owner = plan.run().await;
    let said = refusal(&plan.args()).await;
    assert!(said.contains(directory.path().to_str().unwrap()), "{said}");
    assert!(said.contains(&format!("process {}", owner.pid())), "{said}");
    assert_eq!(owner.post("k", BODY).await.unwrap().status, 201);
}

#[tokio::test]
async fn taken_port_is_named() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let said = refusal(&gateway(&origin, directory.path()).at(taken).args()).await;
    assert!(
        said.contains(&format!("cannot listen on {taken}")),
        "{said}"
    );
    assert_eq!(said.matches("in use").count(), 1, "said once: {said}");
}

#[rstest]
#[case::no_url(
    "nonsense",
    "memory:",
    "the URL of an upstream must begin with http://, https:// or h2c://"
)]
#[case::no_host("http://", "memory:", "the upstream is not a valid URL")]
#[case::a_path("http://127.0.0.1:1/api", "memory:", "an upstream")]
#[case::a_password(
    "https://user:hunter2@shop.example",
    "memory:",
    "the URL of an upstream must have a host and may have a port, but no user name"
)]
#[case::unknown_store(
    "http://127.0.0.1:1",
    "mysql://user:hunter2@db/x",
    "there is no store `mysql:`"
)]
#[case::shared_store_without_a_secret(
    "http://127.0.0.1:1",
    "postgres://user:hunter2@db/x",
    "gateways that share a store need the same secrets.key: set ONCEWARD_KEY to the same 16 or more random characters"
)]
#[case::no_directory("http://127.0.0.1:1", "embedded:", "`embedded:` has no directory")]
#[case::no_place("http://127.0.0.1:1", "embedded:/proc/onceward", "/proc/onceward")]
#[tokio::test]
async fn a_mistake_is_reported_in_one_sentence(
    #[case] upstream: &str,
    #[case] store: &str,
    #[case] wanted: &str,
) {
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--upstream",
        upstream,
        "--store",
        store,
    ];
    let said = refusal(&args.map(OsString::from)).await;
    assert!(said.contains(wanted), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

/// Runs a command that must be refused. Returns its one line on standard error.
async fn refusal(args: &[OsString]) -> String {
    let output = run_to_end(args).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}
