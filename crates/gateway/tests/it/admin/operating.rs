//! Running a gateway: health, metrics and shutdown.

use std::time::Duration;

use onceward_core::class::Class;
use onceward_gateway::{Drained, Gateway, StartError};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::harness::{ClientRequest, Reply, Running, gateway, origin, until};

const LABELS: &str = "tenant=\"_local\",project=\"_local\",endpoint=\"_default\"";

#[tokio::test]
async fn a_started_gateway_is_alive_and_ready() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).run().await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(gateway.admin(path).await.status, 200, "{path}");
    }
    assert_eq!(
        gateway.admin("/payments").await.status,
        404,
        "it does not forward"
    );
    assert_eq!(gateway.get("/livez").send().await.status, 200);
    assert_eq!(
        origin.only().target,
        "/livez",
        "and the other listener does"
    );
}

#[tokio::test]
async fn traffic_is_counted_without_keys_or_paths() {
    let origin = origin().replying(|seen, _| {
        let status = if seen.target.contains("refused") {
            422
        } else {
            201
        };
        Reply::new(status, "")
    });
    let origin = origin.run().await;
    let gateway = gateway(&origin).run().await;
    let count = async |line: String| assert_line(&gateway, &line).await;

    gateway.request("POST /secretpath").send().await;
    gateway
        .post("/secretpath", "secretkey")
        .body("a")
        .send()
        .await;
    gateway
        .post("/secretpath", "secretkey")
        .body("a")
        .send()
        .await;
    gateway
        .post("/secretpath", "secretkey")
        .body("b")
        .send()
        .await;
    gateway.post("/refused", "secretkey").send().await;
    gateway.post("/refused", "secretkey").send().await;
    gateway.post("/secretpath", "a b").send().await;
    gateway
        .get("/secretpath/by-idempotency-key/secretkey")
        .send()
        .await;
    gateway
        .get("/secretpath/by-idempotency-key/secretkey/status")
        .send()
        .await;

    count(format!(
        "idempotency_key_present_total{{{LABELS},case=\"A\"}} 5"
    ))
    .await;
    count(format!(
        "idempotency_key_missing_total{{{LABELS},class=\"interactive\"}} 1"
    ))
    .await;
    count(format!(
        "idempotency_key_invalid_total{{{LABELS},reason=\"charset\"}} 1"
    ))
    .await;
    count(format!("idempotency_key_collision_total{{{LABELS}}} 1")).await;
    // A retry and a recovery count; a status request counts as neither.
    count(format!(
        "idempotency_cache_hit_total{{{LABELS},restate_status=\"completed\"}} 2"
    ))
    .await;
    count(format!(
        "idempotency_cache_hit_total{{{LABELS},restate_status=\"failed\"}} 1"
    ))
    .await;
    let page = gateway.metrics().await;
    assert_eq!(sum(&page, "onceward_request_duration_seconds_count{"), 9);
    assert_eq!(sum(&page, "onceward_upstream_duration_seconds_count{"), 3);
    let claims = "onceward_store_duration_seconds_count{step=\"claim\",outcome=\"done\"}";
    // Two replays came from memory, without a step.
    assert_eq!(sum(&page, claims), 3);
    count("onceward_in_flight 0".to_owned()).await;
    count("onceward_stored_operations 2".to_owned()).await;
    for gauge in [
        "onceward_waiters",
        "onceward_queued",
        "onceward_unknown",
        "onceward_paused",
    ] {
        count(format!("{gauge} 0")).await;
    }
    let page = gateway.metrics().await;
    assert!(!page.contains("secret"), "{page}");
}

/// The sum of all lines with this prefix.
fn sum(page: &str, start: &str) -> u64 {
    let lines = page.lines().filter(|line| line.starts_with(start));
    let values = lines.filter_map(|line| line.rsplit(' ').next());
    values.filter_map(|value| value.parse::<u64>().ok()).sum()
}

async fn assert_line(gateway: &Running, line: &str) {
    let page = gateway.metrics().await;
    assert!(
        page.lines().any(|is| is == line),
        "{line} is not in\n{page}"
    );
}

#[tokio::test]
async fn a_drain_waits_for_running_operations_and_records_them() {
    let directory = TempDir::new().unwrap();
    let origin = origin().reply(201, "paid").gated().run().await;
    let start = || gateway(&origin).directory(directory.path()).run();
    let gateway = start().await;
    let (listen, admin) = (gateway.address(), gateway.admin_address());
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let gone = gateway.post("/payments", "abandoned").spawn();
    origin.called(2).await;
    gone.abort();

    let draining = tokio::spawn(gateway.drain());
    until(async || ClientRequest::new(admin, "GET /readyz").send().await.status == 503).await;
    assert_eq!(
        ClientRequest::new(admin, "GET /livez").send().await.status,
        200
    );
    // No new connections.
    until(async || TcpStream::connect(listen).await.is_err()).await;
    origin.open();
    origin.open();
    assert_eq!(
        first.await.unwrap().text(),
        "paid",
        "what was begun is answered"
    );
    assert_eq!(draining.await.unwrap(), Drained::Whole);

    let gateway = start().await;
    for key in ["k", "abandoned"] {
        let again = gateway.post("/payments", key).send().await;
        assert_eq!((again.text(), again.is_replay()), ("paid", true));
    }
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn a_drain_that_times_out_leaves_an_unknown_outcome() {
    let directory = TempDir::new().unwrap();
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).directory(directory.path()).run().await;
    let _first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let drained = gateway.drain_within(Duration::from_millis(50)).await;
    assert_eq!(drained, Drained::Cut { running: 1 });
    assert_eq!(origin.runs(), 1);
}

/// A client that reads events forever must not keep the process alive.
#[tokio::test]
async fn a_drain_ends_although_a_client_keeps_its_stream_open() {
    let origin = origin()
        .header("content-type", "text/event-stream")
        .streaming()
        .run()
        .await;
    let gateway = gateway(&origin).in_memory().run().await;
    origin.emit("data: 1\n\n");
    let mut events = gateway.get("/events").begin().await;
    assert_eq!(events.piece().await, "data: 1\n\n");
    let draining = gateway.drain_within(Duration::from_millis(50));
    let drained = tokio::time::timeout(Duration::from_secs(20), draining).await;
    assert_eq!(drained.unwrap(), Drained::Cut { running: 0 });
}

#[tokio::test]
async fn a_second_gateway_on_the_same_directory_is_refused() {
    let directory = TempDir::new().unwrap();
    let origin = origin().run().await;
    let first = gateway(&origin).directory(directory.path()).run().await;
    let (config, _) = gateway(&origin).directory(directory.path()).config();
    let error = Gateway::start(config, None).await.err().unwrap();
    assert!(matches!(error, StartError::Store(_)), "{error}");
    let text = error.to_string();
    let owner = format!("is held by process {}", std::process::id());
    assert!(
        text.contains(&owner) && text.contains("use another directory"),
        "{text}"
    );
    assert_eq!(
        first.get("/payments").send().await.status,
        200,
        "the first goes on"
    );
}

#[tokio::test]
async fn replies_and_fingerprints_survive_a_restart() {
    let directory = TempDir::new().unwrap();
    let origin = origin().reply(201, "paid").run().await;
    let start = || {
        gateway(&origin)
            .directory(directory.path())
            .class(Class::financial())
            .run()
    };
    let gateway = start().await;
    let ask = |gateway: &Running, body: &'static str| {
        gateway
            .post("/payments", "k")
            .header("authorization", "Bearer t")
            .body(body)
            .send()
    };
    let first = ask(&gateway, "a").await;
    assert_eq!(gateway.drain().await, Drained::Whole);

    let gateway = start().await;
    let again = ask(&gateway, "a").await;
    assert_eq!((again.text(), again.is_replay()), ("paid", true));
    for name in ["x-operation-id", "idempotency-expires"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    assert_eq!(ask(&gateway, "b").await.status, 422);
    assert_eq!(origin.runs(), 1);
}
