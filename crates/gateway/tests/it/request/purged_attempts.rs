//! The gateway's own attempts end when their operation is purged.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{configured, origin};

const STUBBORN: &str = r#"
[classes.stubborn]
max_attempts = 50
backoff = { first = "400ms", max = "400ms" }
[[routes]]
endpoint = "payments.create"
method = "POST"
path = "/payments"
upstream = "origin"
policy = "REQUIRED_A"
class = "stubborn"
"#;

/// An operation purged between attempts would otherwise run beside its successor.
#[tokio::test]
async fn an_operation_purged_between_two_attempts_is_not_retried() {
    let origin = origin().reply(503, "not now").run().await;
    let gateway = configured(&origin, STUBBORN).run().await;
    let first = gateway.post("/payments", "k").body("a").spawn();
    let operations = loop {
        let answer = gateway.admin("/admin/v1/operations").await;
        let page: Value = answer.json();
        if page["operations"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
            && origin.runs() > 0
        {
            break page["operations"].clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let id = operations[0]["operation_id"].as_str().unwrap();
    let purge = r#"{"why":"enough","force":true}"#;
    let purged = gateway
        .change(&format!("/admin/v1/operations/{id}/purge"), purge)
        .send()
        .await;
    assert_eq!(purged.status, 200, "{}", purged.text());
    let before = origin.runs();
    assert_eq!(first.await.unwrap().status, 503);
    gateway.idle().await;
    assert_eq!(origin.runs(), before, "nothing was sent after the purge");
}
