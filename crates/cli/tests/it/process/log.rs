//! The log: JSON lines with the documented field names, and none of the clients' secrets.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::client::{Client, PATH, get_request, post_request};
use crate::fixture::gateway::gateway;
use crate::fixture::origin::{Behaviour, origin};

/// Part of every value that must not be logged.
const CANARY: &str = "canary7e41";

/// The names that the contract gives to the line of a protected request.
const NAMES: [&str; 10] = [
    "idempotency_case",
    "idempotency_key_namespaced",
    "idempotency_source",
    "idempotency_policy",
    "idempotency_outcome",
    "restate_cache_hit",
    "tenant",
    "project",
    "endpoint",
    "operation_id",
];

#[tokio::test]
async fn the_log_has_the_outcome_of_each_request_and_no_secrets() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    // The most detailed log.
    let plan = gateway(&origin, directory.path())
        .option("--log", "trace,hyper=off,hyper_util=off,h2=off,mio=off");
    let gateway = plan.run().await;
    let mut client = Client::new(gateway.listen());
    for request in requests() {
        client.send(request).await.unwrap();
    }
    gateway.signal(Signal::TERM);
    let (status, log) = gateway.ended().await;
    assert_eq!(status.code(), Some(0));

    let parsed = log.iter().map(|line| serde_json::from_str(line));
    let lines: Vec<Value> = parsed
        .collect::<Result<_, _>>()
        .expect("every line is JSON");
    for line in &log {
        assert!(!line.contains(CANARY), "{line}");
    }
    let told = |name: &str| -> Vec<&Value> {
        let lines = lines
            .iter()
            .filter(|line| line["target"] == "onceward::access");
        lines.filter_map(|line| line.get(name)).collect()
    };
    assert_eq!(
        told("idempotency_outcome"),
        [
            "completed",
            "replayed",
            "key-reused",
            "replayed",
            "key-invalid"
        ]
    );
    for name in NAMES {
        assert!(told(name).len() >= 2, "{name} is told: {lines:?}");
    }
    let keys = told("idempotency_key_namespaced");
    assert!(
        keys.iter().all(|key| *key == keys[0]),
        "one key, one hash: {keys:?}"
    );
}

/// Whether the line states the operation or its span does.
#[tokio::test]
async fn every_line_about_an_operation_has_its_id() {
    let origin = origin(Behaviour::Half).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).option("--log", "info");
    let gateway = gateway.run().await;
    let mut client = Client::new(gateway.listen());
    client.send(post_request("k", "{}")).await.unwrap();
    gateway.signal(Signal::TERM);
    let (_, log) = gateway.ended().await;
    let lines: Vec<Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).expect("every line is JSON"))
        .collect();
    let line = |holds: &dyn Fn(&&Value) -> bool| lines.iter().find(holds).expect("it is logged");
    let access = line(&|line| line["target"] == "onceward::access");
    let warning = line(&|line| line["message"] == "no answer from the upstream; outcome unknown");
    for name in ["operation_id", "endpoint", "tenant", "project"] {
        assert!(warning[name].is_string(), "{name} in {warning}");
        assert_eq!(warning[name], access[name], "{name}");
    }
}

/// A first request, a repeated one, a different one under its key, a recovery, and one with an
/// invalid key.
fn requests() -> [Request<Full<Bytes>>; 5] {
    let key = format!("{CANARY}-key");
    let first = || with_secrets(post_request(&key, &format!(r#"{{"card":"{CANARY}"}}"#)));
    let other = with_secrets(post_request(
        &key,
        &format!(r#"{{"card":"{CANARY}","also":"this"}}"#),
    ));
    let recovery = with_secrets(get_request(&format!("{PATH}/by-idempotency-key/{key}")));
    let invalid = post_request(&format!("{CANARY}:no"), "{}");
    [first(), first(), other, recovery, invalid]
}

fn with_secrets(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let headers = request.headers_mut();
    for (name, value) in [
        ("authorization", format!("Bearer {CANARY}")),
        ("x-api-key", CANARY.to_owned()),
        ("cookie", format!("session={CANARY}")),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    request
}
