//! The OpenAPI 3.1 document of the API. Its schemas are generated from the types
//! that the handlers read and write.

use axum::Json;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::endpoints::{self, AdminEndpoint, PROBLEM};

pub(super) async fn document() -> Json<Value> {
    Json(describe(&endpoints::all()))
}

/// The document of these endpoints.
fn describe(endpoints: &[AdminEndpoint]) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let entry = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        entry[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint, &mut generator);
    }
    let problem = PROBLEM(&mut generator);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Onceward admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Reads are GET requests, changes are POST requests; every change has a reason and an audit entry.",
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "responses": {
                "Problem": {
                    "description": "The request was refused or failed; `code` and `detail` say why.",
                    "content": { "application/problem+json": { "schema": problem } },
                },
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of server.admin_token or server.admin_tokens; not needed on loopback where none is configured.",
                },
            },
        },
        "security": [{ "token": [] }],
    })
}

fn operation(endpoint: &AdminEndpoint, generator: &mut SchemaGenerator) -> Value {
    let (status, answer) = endpoint.answer;
    let mut parameters = path_parameters(endpoint.path);
    if let Some(query) = endpoint.query {
        parameters.extend(query_parameters(&query(generator), generator));
    }
    let mut operation = json!({
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": format!("Requires the role `{}`.", endpoint.role.as_str()),
        "parameters": parameters,
        "responses": {
            status.to_string(): {
                "description": "Success.",
                "content": { "application/json": { "schema": answer(generator) } },
            },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if let Some(body) = endpoint.body {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": body(generator) } },
        });
    }
    operation
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    names.map(parameter).collect()
}

/// Makes one parameter of each member of a query's schema.
fn query_parameters(query: &Schema, generator: &SchemaGenerator) -> Vec<Value> {
    let name = query.get("$ref").and_then(Value::as_str);
    let name = name.and_then(|path| path.rsplit('/').next());
    let whole = name.and_then(|name| generator.definitions().get(name));
    let members = whole.and_then(|schema| schema.get("properties")?.as_object());
    let members = members.into_iter().flatten().map(|(name, schema)| {
        let mut schema = schema.clone();
        let description = schema
            .as_object_mut()
            .and_then(|schema| schema.remove("description"));
        json!({
            "name": name,
            "in": "query",
            "required": false,
            "description": description,
            "schema": schema,
        })
    });
    members.collect()
}
