//! A gateway that is stopped while slow operations run: those that finish in time are recorded, and
//! the others are unknown and do not run again.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::BODY;
use crate::fixture::command::run;
use crate::fixture::gateway::{Gateway, GatewayCommand, gateway_of};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin_choosing};

/// Longer than the slow operations, on a busy machine too.
const LONG: &str = "60s";
const SHORT: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_millis(700);

/// A slow service, which never answers keys that begin with `held`.
async fn slow() -> Origin {
    origin_choosing(Sequence::default(), |key, _| {
        match key.starts_with("held") {
            true => Behaviour::Hold,
            false => Behaviour::Pay(SLOW),
        }
    })
    .await
}

fn plan(origin: &Origin, directory: &TempDir, drain: &str) -> GatewayCommand {
    let file = directory.path().join("onceward.toml");
    let text = text(origin, &directory.path().join("data"), drain);
    std::fs::write(&file, text).unwrap();
    gateway_of(&file)
}

fn text(origin: &Origin, store: &Path, drain: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndrain = \"{drain}\"\n\
         [store]\nurl = \"embedded:{}\"\n[upstreams.origin]\nurl = \"http://{}\"\n\
         [[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\npath = \"/payments\"\n\
         upstream = \"origin\"\npolicy = \"REQUIRED_A\"\nclass = \"financial\"\n",
        store.display(),
        origin.address(),
    )
}

/// The keys that `onceward operations list --state unknown` lists.
async fn unknown(gateway: &Gateway) -> Vec<String> {
    let args = ["operations", "list", "--state", "unknown", "--json"];
    let page = run(gateway, &args).await.json();
    let operations = page["operations"].as_array().unwrap().iter();
    let mut keys: Vec<_> = operations
        .map(|operation| {
            assert_eq!(operation["endpoint"], "payments.create");
            assert_eq!(operation["state"], "unknown");
            operation["key"].as_str().unwrap().to_owned()
        })
        .collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn slow_work_ends_within_the_drain_and_is_recorded() {
    let origin = slow().await;
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&origin, &directory, LONG);
    let gateway = plan.run().await;
    let keys = ["a", "b", "c"];
    let asked = keys.map(|key| gateway.spawn_post(key, BODY));
    let gone = gateway.spawn_post("gone", BODY);
    origin.called(4).await;
    gone.abort();
    gateway.signal(Signal::TERM);
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    assert!(log.iter().any(|line| line.contains("stopped")), "{log:?}");

    let restarted = plan.run().await;
    for (key, asked) in keys.into_iter().zip(asked) {
        let first = asked.await.unwrap().unwrap();
        assert_eq!(
            (first.status, first.header("idempotency-status")),
            (201, "completed")
        );
        let again = restarted.post(key, BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), first.kept());
    }
    // The client has gone, and the outcome is recorded nevertheless.
    assert!(restarted.post("gone", BODY).await.unwrap().is_replay());
    assert_eq!(unknown(&restarted).await, [""; 0]);
    assert_eq!(origin.runs().len(), 4);
}

#[tokio::test]
async fn work_that_outlasts_the_drain_is_unknown_and_does_not_run_again() {
    let origin = slow().await;
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(&origin, &directory, &format!("{}ms", SHORT.as_millis()));
    let gateway = plan.run().await;
    let held = ["held-1", "held-2"];
    let cut = held.map(|key| gateway.spawn_post(key, BODY));
    let ends = gateway.spawn_post("ends", BODY);
    origin.called(3).await;
    // A duplicate waits for a reply that never arrives.
    let waits = gateway.spawn_post("held-1", BODY);
    gateway.signal(Signal::TERM);
    let signalled = Instant::now();
    let ends = ends.await.unwrap().unwrap();
    assert_eq!(ends.header("idempotency-status"), "completed");
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    assert!(signalled.elapsed() >= SHORT, "no work was cut early");
    let cut_line = log
        .iter()
        .find(|line| line.contains("they are now unknown"));
    let cut_line: Value = serde_json::from_str(cut_line.unwrap()).unwrap();
    assert_eq!(cut_line["running"], 2, "{log:?}");
    for cut in cut.into_iter().chain([waits]) {
        // The connection breaks, or the answer still arrives.
        if let Ok(told) = cut.await.unwrap() {
            assert_eq!(told.code(), "outcome-unknown", "{told:?}");
        }
    }

    let restarted = plan.run().await;
    assert_eq!(unknown(&restarted).await, held);
    for key in held {
        let retry = restarted.post(key, BODY).await.unwrap();
        assert_eq!(
            (retry.status, retry.code().as_str()),
            (409, "outcome-unknown")
        );
        assert_eq!(origin.runs_of(key).len(), 1);
    }
    assert!(restarted.post("ends", BODY).await.unwrap().is_replay());
    assert_eq!(origin.runs().len(), 3);
}
