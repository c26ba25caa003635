//! Metrics and traces of requests, as Prometheus and a collector read them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Origin, Running, configured, gateway, origin};

/// A value in every place that must not be exported.
const CANARY: &str = "canary7e41";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// A collector that accepts everything.
async fn collector() -> Origin {
    origin().reply(200, "{}").run().await
}

fn traced(collector: &Origin, more: &str) -> String {
    format!(
        r#"
        [telemetry.otlp]
        endpoint = "{}"
        service = "edge"
        {more}

        [[routes]]
        endpoint = "payments.create"
        method = "POST"
        path = "/payments"
        upstream = "origin"
        policy = "REQUIRED_A"
        "#,
        collector.url()
    )
}

/// A span as the collector received it.
#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    /// 2 is a server's span, 3 a client's.
    kind: u64,
    failed: bool,
    notes: BTreeMap<String, String>,
}

impl Span {
    fn of(span: &Value) -> Self {
        let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
        let nanos = |name: &str| text(name).parse::<u128>().unwrap();
        assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"));
        Self {
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            name: text("name"),
            kind: span["kind"].as_u64().unwrap(),
            failed: span["status"]["code"] == 2,
            notes: notes(&span["attributes"]),
        }
    }
}

fn notes(attributes: &Value) -> BTreeMap<String, String> {
    let attributes = attributes.as_array().unwrap().iter();
    attributes
        .map(|note| {
            let value = &note["value"];
            let text = value["stringValue"].as_str();
            let text = text.or_else(|| value["intValue"].as_str()).unwrap();
            (note["key"].as_str().unwrap().to_owned(), text.to_owned())
        })
        .collect()
}

/// Stops the gateway, which sends its spans, and reads what arrived.
async fn collected_spans(gateway: Running, collector: &Origin) -> Vec<Span> {
    gateway.drain().await;
    let mut spans = Vec::new();
    for batch in collector.ledger() {
        assert_eq!(batch.target, "/v1/traces");
        assert_eq!(batch.header("content-type"), "application/json");
        assert!(!batch.text().contains(CANARY), "{}", batch.text());
        let batch: Value = serde_json::from_slice(&batch.body).unwrap();
        for resource in batch["resourceSpans"].as_array().unwrap() {
            let about = notes(&resource["resource"]["attributes"]);
            assert_eq!(about["service.name"], "edge");
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().map(Span::of));
            }
        }
    }
    spans
}

fn parent_of(line: &str) -> (&str, &str, &str) {
    let parts: Vec<_> = line.split('-').collect();
    let [version, trace, parent, flags] = parts[..] else {
        panic!("not a traceparent: {line}");
    };
    assert_eq!(version, "00");
    (trace, parent, flags)
}

#[tokio::test]
async fn a_request_and_its_upstream_request_form_one_trace() {
    let (origin, collector) = (origin().reply(201, "paid").run().await, collector().await);
    let gateway = configured(&origin, &traced(&collector, "")).run().await;
    let ask = || {
        gateway
            .post(&format!("/payments?card={CANARY}"), CANARY)
            .header("traceparent", format!("00-{TRACE}-{CLIENT}-01"))
            .header("tracestate", "a=1,b=2")
            .header("authorization", format!("Bearer {CANARY}"))
            .header("cookie", format!("session={CANARY}"))
            .body(CANARY)
    };
    let first = ask().send().await;
    assert_eq!(first.status, 201);
    assert!(ask().send().await.is_replay());

    let seen = origin.only();
    assert_eq!(seen.header("tracestate"), "a=1,b=2");
    let (trace, sent_by, flags) = parent_of(seen.header("traceparent"));
    assert_eq!((trace, flags), (TRACE, "01"));

    let spans = collected_spans(gateway, &collector).await;
    assert_eq!(spans.len(), 3, "a replay asks nobody: {spans:?}");
    assert!(spans.iter().all(|span| span.trace == TRACE && !span.failed));
    let upstream = spans.iter().find(|span| span.kind == 3).unwrap();
    let servers: Vec<_> = spans.iter().filter(|span| span.kind == 2).collect();
    assert_eq!(upstream.id, sent_by);
    assert_eq!(upstream.parent, servers[0].id);
    assert_eq!(upstream.name, "POST");
    assert_eq!(upstream.notes["onceward.upstream"], "origin");
    assert_eq!(upstream.notes["onceward.outcome"], "answered");
    assert_eq!(upstream.notes["http.response.status_code"], "201");
    for (server, outcome) in servers.iter().zip(["completed", "replayed"]) {
        assert_eq!(server.parent, CLIENT);
        assert_eq!(server.name, "POST payments.create");
        let notes = &server.notes;
        assert_eq!(notes["http.request.method"], "POST");
        assert_eq!(notes["http.response.status_code"], "201");
        assert_eq!(notes["onceward.endpoint"], "payments.create");
        assert_eq!(notes["onceward.policy"], "REQUIRED_A");
        assert_eq!(notes["onceward.tenant"], "_local");
        assert_eq!(notes["onceward.project"], "_local");
        assert_eq!(notes["onceward.outcome"], outcome);
        assert_eq!(
            notes["onceward.operation_id"],
            first.header("x-operation-id")
        );
    }
}

#[tokio::test]
async fn an_upstream_that_closes_the_connection_is_a_failed_span() {
    let (origin, collector) = (origin().hanging_up().run().await, collector().await);
    let gateway = configured(&origin, &traced(&collector, "")).run().await;
    assert_eq!(gateway.post("/payments", "k").send().await.status, 504);
    let spans = collected_spans(gateway, &collector).await;
    assert_eq!(spans.len(), 2);
    for span in &spans {
        assert!(span.failed, "{span:?}");
        let outcome = if span.kind == 3 { "lost" } else { "unknown" };
        assert_eq!(span.notes["onceward.outcome"], outcome);
    }
}

#[tokio::test]
async fn a_refusal_is_a_span_with_its_code() {
    let (origin, collector) = (origin().run().await, collector().await);
    let gateway = configured(&origin, &traced(&collector, "")).run().await;
    gateway.request("POST /payments").send().await;
    let spans = collected_spans(gateway, &collector).await;
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].parent, "", "a trace that begins here");
    assert_eq!(spans[0].notes["onceward.outcome"], "key-missing");
}

#[tokio::test]
async fn an_unsampled_trace_stays_unsampled() {
    let (origin, collector) = (origin().run().await, collector().await);
    let gateway = configured(&origin, &traced(&collector, "")).run().await;
    gateway
        .post("/payments", "k")
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-00"))
        .send()
        .await;
    let seen = origin.only();
    let (trace, parent, flags) = parent_of(seen.header("traceparent"));
    assert_eq!((trace, flags), (TRACE, "00"));
    assert_ne!(parent, CLIENT);
    assert!(collected_spans(gateway, &collector).await.is_empty());
}

#[tokio::test]
async fn new_traces_are_sampled() {
    let (origin, collector) = (origin().run().await, collector().await);
    let text = traced(&collector, "sample = 0.0");
    let gateway = configured(&origin, &text).run().await;
    gateway.post("/payments", "k").send().await;
    let seen = origin.only();
    assert_eq!(parent_of(seen.header("traceparent")).2, "00");
    // A trace that began elsewhere keeps its sampling decision.
    gateway
        .post("/payments", "other")
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-01"))
        .send()
        .await;
    assert_eq!(collected_spans(gateway, &collector).await.len(), 2);
}

#[tokio::test]
async fn a_malformed_traceparent_begins_a_new_trace_and_is_not_forwarded() {
    let (origin, collector) = (origin().run().await, collector().await);
    let gateway = configured(&origin, &traced(&collector, "")).run().await;
    gateway
        .post("/payments", "k")
        .header("traceparent", format!("00-{}-{CLIENT}-01", "0".repeat(32)))
        .header("tracestate", "a=1")
        .send()
        .await;
    let seen = origin.only();
    assert_eq!(seen.headers.get_all("traceparent").iter().count(), 1);
    assert_eq!(seen.header("tracestate"), "");
    let (trace, _, flags) = parent_of(seen.header("traceparent"));
    assert_eq!(flags, "01");
    let spans = collected_spans(gateway, &collector).await;
    assert!(spans.iter().all(|span| span.trace == trace));
    let server = spans.iter().find(|span| span.kind == 2).unwrap();
    assert_eq!(server.parent, "");
}

#[tokio::test]
async fn without_a_collector_trace_headers_are_forwarded_unchanged() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    for said in [format!("00-{TRACE}-{CLIENT}-01"), "nonsense".to_owned()] {
        for ask in [gateway.post("/a", &said[..8]), gateway.get("/a")] {
            ask.header("traceparent", &said)
                .header("tracestate", "a=1")
                .send()
                .await;
            let seen = origin.ledger().pop().unwrap();
            assert_eq!(seen.header("traceparent"), said);
            assert_eq!(seen.header("tracestate"), "a=1");
        }
    }
}

#[tokio::test]
async fn an_unreachable_collector_costs_only_spans() {
    let (origin, collector) = (origin().run().await, collector().await);
    let text = traced(&collector, "");
    // No server listens on a port that was just free.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let text = text.replace(&collector.url(), &nobody);
    let gateway = configured(&origin, &text).run().await;
    assert_eq!(gateway.post("/payments", "k").send().await.status, 200);
    gateway
        .shows("onceward_spans_dropped_total{reason=\"not-taken\"} 2")
        .await;
    gateway.shows("onceward_spans_exported_total 0").await;
}

#[tokio::test]
async fn a_collector_that_never_answers_delays_neither_requests_nor_the_stop() {
    let origin = origin().run().await;
    let silent = crate::harness::origin().gated().run().await;
    let gateway = configured(&origin, &traced(&silent, "")).run().await;
    assert_eq!(gateway.post("/payments", "k").send().await.status, 200);
    let start = Instant::now();
    gateway.drain().await;
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn paths_are_not_labels() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let ask = async |number: usize| {
        let path = format!("/path{number}");
        gateway.post(&path, "k").send().await;
        gateway.post(&path, "k").send().await;
        gateway.get(&path).send().await;
    };
    let series = async || {
        let page = gateway.metrics().await;
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    ask(0).await;
    let few = series().await;
    for number in 1..50 {
        ask(number).await;
    }
    assert_eq!(series().await, few);
}

#[tokio::test]
async fn a_replay_reported_by_the_handler_is_counted() {
    let origin = origin()
        .replying(|_, run| {
            let reply = crate::harness::Reply::new(200, "done");
            match run {
                1 => reply,
                _ => reply.header("idempotent-replayed", "true"),
            }
        })
        .run()
        .await;
    let text = r#"
        [[routes]]
        endpoint = "jobs.start"
        method = "POST"
        path = "/jobs"
        upstream = "origin"
        policy = "HANDLER_INTERNAL_C"
    "#;
    let gateway = configured(&origin, text).run().await;
    for _ in 0..3 {
        gateway.request("POST /jobs").body("a").send().await;
    }
    gateway
        .shows("handler_internal_dedup_hit_total{tenant=\"_local\",project=\"_local\",endpoint=\"jobs.start\"} 2")
        .await;
}
