//! The OpenAPI document is correct: it has every endpoint, and real requests and
//! answers match its schemas.

use serde_json::{Map, json};

use super::*;
use crate::admin::endpoints;

async fn document(bench: &Bench) -> Value {
    bench.get("viewer", "/admin/v1/openapi.json").await.json()
}

/// Closes every schema, so that an undescribed member is an error.
fn closed(mut document: Value) -> Value {
    let schemas = document["components"]["schemas"].as_object_mut();
    for schema in schemas.into_iter().flat_map(Map::values_mut) {
        let properties = schema.get("properties").is_some();
        if let Some(schema) = schema.as_object_mut().filter(|_| properties) {
            schema.entry("additionalProperties").or_insert(json!(false));
        }
    }
    document
}

fn mistakes(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&whole).expect("a schema");
    let errors = validator.iter_errors(value);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[tokio::test]
async fn every_endpoint_is_described_and_nothing_else() {
    let bench = bench().await;
    let document = document(&bench).await;
    let mut described: Vec<String> = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            described.push(format!("{} {path}", method.to_uppercase()));
            let parameters = operation["parameters"].as_array().expect("a list");
            let in_path = parameters
                .iter()
                .filter(|parameter| parameter["in"] == "path");
            assert_eq!(in_path.count(), path.matches('{').count(), "{path}");
            assert!(operation["summary"].is_string() && operation["operationId"].is_string());
        }
    }
    let mut served: Vec<_> = endpoints::all()
        .iter()
        .map(|endpoint| format!("{} {}", endpoint.method, endpoint.path))
        .collect();
    described.sort();
    served.sort();
    assert_eq!(described, served);
    let list = &document["paths"]["/admin/v1/operations"]["get"]["parameters"];
    let names: Vec<_> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(names.len(), 9, "{names:?}");
}

#[tokio::test]
async fn real_answers_match_their_schemas() {
    let bench = bench().await;
    let document = closed(document(&bench).await);
    let done = bench.completed("acme", "a").await.id;
    let unknown = bench.unknown("acme", "b").await.id;
    let paused = bench.paused("acme", "d").await.id;
    let most = bench.completed("acme", "f").await.id;
    let event = bench.failed_event("g").await;
    bench.completed("acme", "z").await;
    let purge = json!({ "filter": { "key": "z" }, "why": "x" });
    let preview = bench
        .post("ops", "/admin/v1/operations/purge", &purge)
        .await;
    let set = preview.json()["set"].clone();
    let webhook = json!({
        "tenant": "acme", "project": "shop", "provider": "svix", "generate": true,
        "path": "/in", "deliver": "sync", "same_bytes": "refuse", "why": "x",
    });
    let made = bench.post("root", "/admin/v1/webhooks", &webhook).await;
    let made = made.json();
    let webhook_id = made["webhook_id"].as_str().expect("an id");
    let key = json!({ "tenant": "acme", "subject": "service:a", "why": "x" });
    let made = bench.post("root", "/admin/v1/keys", &key).await.json();
    let id = made["key"]["id"].as_str().expect("an id");
    let operation = |id: OperationId, rest: &str| format!("/admin/v1/operations/{id}{rest}");
    let reply = json!({ "status": 201, "headers": [["a", "b"]], "body_base64": "eA==" });
    let asked = [
        (
            "/admin/v1/operations",
            "/admin/v1/operations".to_owned(),
            None,
        ),
        (
            "/admin/v1/operations/{operation_id}",
            operation(done, "?body=1"),
            None,
        ),
        (
            "/admin/v1/operations/{operation_id}",
            operation(unknown, ""),
            None,
        ),
        (
            "/admin/v1/operations/{operation_id}/resolve",
            operation(unknown, "/resolve"),
            Some(json!({ "outcome": "ran", "reply": reply, "why": "x" })),
        ),
        (
            "/admin/v1/operations/resolve",
            "/admin/v1/operations/resolve".to_owned(),
            Some(json!({ "all": true, "outcome": "not_run", "why": "x" })),
        ),
        (
            "/admin/v1/operations/{operation_id}/resume",
            operation(paused, "/resume"),
            Some(json!({ "why": "x" })),
        ),
        (
            "/admin/v1/operations/resume",
            "/admin/v1/operations/resume".to_owned(),
            Some(json!({ "all": true, "why": "x" })),
        ),
        (
            "/admin/v1/operations/{operation_id}/purge",
            operation(most, "/purge"),
            Some(json!({ "force": true, "why": "x" })),
        ),
        (
            "/admin/v1/operations/purge",
            "/admin/v1/operations/purge".to_owned(),
            Some(json!({ "filter": { "state": "completed" }, "limit": 1, "why": "x" })),
        ),
        (
            "/admin/v1/operations/purge",
            "/admin/v1/operations/purge".to_owned(),
            Some(json!({ "set": set, "why": "x" })),
        ),
        (
            "/admin/v1/operations/{operation_id}/redeliver",
            operation(event, "/redeliver"),
            Some(json!({ "why": "x" })),
        ),
        (
            "/admin/v1/operations/redeliver",
            "/admin/v1/operations/redeliver".to_owned(),
            Some(json!({ "all": true, "why": "x" })),
        ),
        ("/admin/v1/classes", "/admin/v1/classes".to_owned(), None),
        (
            "/admin/v1/classes/{name}",
            "/admin/v1/classes/brief".to_owned(),
            Some(json!({ "settings": { "retention": "1h", "backoff": "1s" }, "why": "x" })),
        ),
        (
            "/admin/v1/classes/{name}",
            "/admin/v1/classes/brief".to_owned(),
            None,
        ),
        (
            "/admin/v1/classes/{name}",
            "/admin/v1/classes/brief".to_owned(),
            Some(json!({ "settings": { "mismatch": "409" }, "why": "x" })),
        ),
        (
            "/admin/v1/classes/{name}/unset",
            "/admin/v1/classes/brief/unset".to_owned(),
            Some(json!({ "why": "x" })),
        ),
        ("/admin/v1/keys", "/admin/v1/keys".to_owned(), None),
        (
            "/admin/v1/keys",
            "/admin/v1/keys".to_owned(),
            Some(key.clone()),
        ),
        (
            "/admin/v1/keys/{id}/revoke",
            format!("/admin/v1/keys/{id}/revoke"),
            Some(json!({ "why": "x" })),
        ),
        (
            "/admin/v1/webhooks",
            "/admin/v1/webhooks".to_owned(),
            Some(webhook),
        ),
        (
            "/admin/v1/webhooks",
            "/admin/v1/webhooks?provider=svix&limit=1".to_owned(),
            None,
        ),
        (
            "/admin/v1/webhooks/{webhook_id}",
            format!("/admin/v1/webhooks/{webhook_id}"),
            None,
        ),
        (
            "/admin/v1/webhooks/{webhook_id}/update",
            format!("/admin/v1/webhooks/{webhook_id}/update"),
            Some(json!({ "path": "/elsewhere", "why": "x" })),
        ),
        (
            "/admin/v1/webhooks/{webhook_id}/rotate",
            format!("/admin/v1/webhooks/{webhook_id}/rotate"),
            Some(json!({ "secret": "AAAA", "overlap": "1h", "why": "x" })),
        ),
        (
            "/admin/v1/webhooks/{webhook_id}/delete",
            format!("/admin/v1/webhooks/{webhook_id}/delete"),
            Some(json!({ "why": "x" })),
        ),
        ("/admin/v1/audit", "/admin/v1/audit".to_owned(), None),
        (
            "/admin/v1/reload",
            "/admin/v1/reload".to_owned(),
            Some(json!({ "why": "x" })),
        ),
        (
            "/admin/v1/openapi.json",
            "/admin/v1/openapi.json".to_owned(),
            None,
        ),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (path, concrete, body) in asked {
        let method = if body.is_some() { "post" } else { "get" };
        seen.insert(format!("{method} {path}"));
        let operation = &document["paths"][path][method];
        let answer = match &body {
            None => bench.get("root", &concrete).await,
            Some(body) => {
                let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
                assert_eq!(mistakes(&document, schema, body), [""; 0], "{path}");
                bench.post("root", &concrete, body).await
            }
        };
        let problem = &document["components"]["responses"]["Problem"];
        let described = match answer.status {
            // There is no configuration to reload in these tests.
            409 => &problem["content"]["application/problem+json"]["schema"],
            status => {
                &operation["responses"][status.to_string()]["content"]["application/json"]["schema"]
            }
        };
        assert!(
            !described.is_null(),
            "{method} {path}: {} {}",
            answer.status,
            answer.text()
        );
        assert_eq!(
            mistakes(&document, described, &answer.json()),
            [""; 0],
            "{method} {path}"
        );
    }
    assert_eq!(seen.len(), endpoints::all().len(), "{seen:?}");
}

#[tokio::test]
async fn refused_requests_do_not_match_their_schemas() {
    let bench = bench().await;
    let document = document(&bench).await;
    let purge = &document["paths"]["/admin/v1/operations/purge"]["post"]["requestBody"];
    let schema = &purge["content"]["application/json"]["schema"];
    assert!(!mistakes(&document, schema, &json!({ "all": true })).is_empty());
    assert!(!mistakes(&document, schema, &json!({ "why": "x", "nonsense": 1 })).is_empty());
}
