//! Roles: what each may do on every endpoint, and how a request without the role is refused.

use serde_json::{Value, json};

use super::*;
use crate::admin::endpoints;

/// A valid body for a resource that does not exist.
fn body(name: &str) -> Value {
    let mut body = match name {
        "purgeOperations" | "resumeOperations" | "redeliverOperations" => json!({ "all": true }),
        "resolveOperations" => json!({ "all": true, "outcome": "not_run" }),
        "resolveOperation" => json!({ "outcome": "not_run" }),
        "setClass" => json!({ "settings": { "retention": "1h" } }),
        "createKey" => json!({ "tenant": "acme", "subject": "service:worker" }),
        "createWebhook" => {
            json!({ "tenant": "acme", "project": "shop", "provider": "svix", "generate": true })
        }
        "rotateWebhook" => json!({ "generate": true }),
        "updateWebhook" => json!({ "path": "/hooks" }),
        _ => json!({}),
    };
    body["why"] = "because".into();
    body
}

/// The path with a value in place of its variable part.
fn concrete(path: &str) -> String {
    path.replace("{operation_id}", "op_00000000000000000000000000000000")
        .replace("{name}", "brief")
        .replace("{id}", "nobody")
        .replace("{webhook_id}", "wh_nobody")
}

#[tokio::test]
async fn every_endpoint_requires_its_role() {
    let bench = bench().await;
    let ladder = [
        ("nobody", None),
        ("viewer", Some(Role::Read)),
        ("ops", Some(Role::Operate)),
        ("root", Some(Role::Admin)),
    ];
    for endpoint in endpoints::all() {
        for (who, role) in ladder {
            let path = concrete(endpoint.path);
            let answer = match endpoint.body {
                None => bench.get(who, &path).await,
                Some(_) => bench.post(who, &path, &body(endpoint.name)).await,
            };
            let passed = !matches!(answer.status, 401 | 403);
            let allowed = role.is_some_and(|role| role >= endpoint.role);
            assert_eq!(
                passed,
                allowed,
                "{} as {who}: {}",
                endpoint.name,
                answer.text()
            );
            // An open endpoint has a handler.
            assert!(
                !passed || ![405, 415, 400].contains(&answer.status),
                "{} as {who}: {}",
                endpoint.name,
                answer.text()
            );
            if !passed {
                let want = if role.is_some() { 403 } else { 401 };
                assert_eq!(answer.status, want, "{} as {who}", endpoint.name);
            }
            for (name, value) in [
                ("cache-control", "no-store"),
                ("x-content-type-options", "nosniff"),
            ] {
                assert_eq!(answer.headers[name], value, "{} as {who}", endpoint.name);
            }
        }
    }
}

#[tokio::test]
async fn the_roles_are_those_of_the_contract() {
    let needed = |role: Role| -> Vec<&str> {
        let endpoints = endpoints::all()
            .into_iter()
            .filter(|endpoint| endpoint.role == role);
        endpoints.map(|endpoint| endpoint.name).collect()
    };
    assert_eq!(
        needed(Role::Operate),
        [
            "purgeOperation",
            "purgeOperations",
            "resolveOperation",
            "resolveOperations",
            "resumeOperation",
            "resumeOperations",
            "redeliverOperation",
            "redeliverOperations",
        ]
    );
    assert_eq!(
        needed(Role::Admin),
        [
            "setClass",
            "unsetClass",
            "createKey",
            "revokeKey",
            "createWebhook",
            "updateWebhook",
            "rotateWebhook",
            "deleteWebhook",
            "reload"
        ]
    );
    let reads = endpoints::all()
        .into_iter()
        .filter(|endpoint| endpoint.role == Role::Read);
    assert!(reads.into_iter().all(|endpoint| endpoint.body.is_none()));
}

#[tokio::test]
async fn a_refusal_reveals_nothing() {
    let bench = bench().await;
    let there = bench.completed("acme", "k").await.id;
    let mut answers = Vec::new();
    for path in [
        format!("/admin/v1/operations/{there}"),
        "/admin/v1/operations/op_00000000000000000000000000000000".to_owned(),
        "/admin/v1/operations?state=nonsense".to_owned(),
    ] {
        answers.push(bench.get("nobody", &path).await.text());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
    let mut answers = Vec::new();
    for path in [
        format!("/admin/v1/operations/{there}/purge"),
        "/admin/v1/keys".to_owned(),
    ] {
        answers.push(
            bench
                .post("viewer", &path, &json!({ "nonsense": 1 }))
                .await
                .text(),
        );
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
}

#[tokio::test]
async fn health_needs_no_token() {
    let bench = bench().await;
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(bench.get("nobody", path).await.status, 200, "{path}");
    }
    let refused: Result<(), _> = Err(StoreError::Unavailable("full".into()));
    bench.store_health.record_write(&refused);
    let answer = bench.get("nobody", "/readyz").await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (503, "the store refused the last write\n")
    );
    bench.store_health.record_write(&Ok(()));
    assert_eq!(bench.get("nobody", "/readyz").await.status, 200);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let bench = bench().await;
    let answer = bench.get("root", "/admin/v1/nothing").await;
    assert_eq!(
        (answer.status, answer.code()),
        (404, "not-found".to_owned())
    );
    let answer = bench.post("root", "/admin/v1/audit", &json!({})).await;
    assert_eq!(
        (answer.status, answer.code()),
        (405, "method-not-allowed".to_owned())
    );
}
