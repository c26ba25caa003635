//! Configurations, origins and requests that many tests share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::{Answer, ClientRequest, Origin, OriginBuilder, Reply, Running, configured, origin};

/// The pause between two checks of something that only time changes.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// The namespaced key at an upstream without authenticated callers.
pub(crate) const LOCAL: &str = "t-_local:_local:client:anonymous";

/// An origin that answers with its caller and the number of its runs.
pub(crate) fn echo() -> OriginBuilder {
    origin().replying(|seen, run| {
        let who = ["x-tenant-id", "x-project-id", "x-subject"].map(|name| seen.header(name));
        Reply::new(201, format!("run {run} for {}", who.join(" ")))
    })
}

/// An origin that gives these answers in turn, repeating the last one.
pub(crate) fn answering(statuses: &'static [u16]) -> OriginBuilder {
    origin().replying(|_, run| {
        let status = statuses[run.min(statuses.len()) - 1];
        Reply::new(status, format!("run {run}"))
    })
}

/// A protected route for POST /payments with further settings.
pub(crate) fn payments(more: &str) -> String {
    route("payments.create", "POST", "/payments", more)
}

pub(crate) fn route(endpoint: &str, method: &str, path: &str, more: &str) -> String {
    format!(
        "\n[[routes]]\nendpoint = \"{endpoint}\"\nmethod = \"{method}\"\npath = \"{path}\"\n\
         upstream = \"origin\"\n{more}\n"
    )
}

/// A gateway that protects POST /payments under this class.
pub(crate) async fn classy(origin: &Origin, class: &str) -> Running {
    let text = format!("[classes.own]\n{class}\n{}", payments("class = \"own\""));
    configured(origin, &text).run().await
}

/// The problem's status and code, as one word.
pub(crate) fn word(answer: &Answer) -> String {
    match answer.problem() {
        (status, code) if code.is_empty() => status.to_string(),
        (status, code) => format!("{status} {code}"),
    }
}

/// Sends a GET to the admin API, as a local operator.
pub(crate) async fn look(gateway: &Running, path: &str) -> Answer {
    ClientRequest::new(gateway.admin_address(), &format!("GET {path}"))
        .host("localhost")
        .send()
        .await
}

/// Makes a change through the admin API, which must accept it.
pub(crate) async fn operate(gateway: &Running, path: &str, body: Value) -> Value {
    let answer = gateway.change(path, &body.to_string());
    let answer = answer.host("localhost").send().await;
    assert!(answer.status < 300, "{path}: {}", answer.text());
    answer.json()
}

/// An operation as operators see it.
pub(crate) async fn shown(gateway: &Running, id: &str) -> Value {
    let answer = look(gateway, &format!("/admin/v1/operations/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Sends until the answer satisfies the condition, and returns that answer.
pub(crate) async fn ask_until(
    ask: impl Fn() -> ClientRequest,
    holds: impl Fn(&Answer) -> bool,
) -> Answer {
    loop {
        let answer = ask().send().await;
        if holds(&answer) {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A gateway whose store deadline is too short for any store, and the answer to a
/// request whose claim timed out. Many requests are sent at once, each with its own
/// key, so that some have to queue.
pub(crate) async fn without_store(origin: &Origin, class: &str) -> (Running, Answer) {
    let text = format!("[classes.own]\n{class}\n{}", payments("class = \"own\""));
    let gateway = configured(origin, &text)
        .with(|config| config.limits.store_deadline = Duration::from_nanos(1))
        .run()
        .await;
    let number = AtomicUsize::new(0);
    loop {
        let asks = (0..32).map(|_| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            gateway.post("/payments", &format!("k{number}")).spawn()
        });
        for answer in asks.collect::<Vec<_>>() {
            let answer = answer.await.unwrap();
            if answer.status == 503 || answer.header("idempotency-status") == "bypassed" {
                return (gateway, answer);
            }
        }
    }
}
