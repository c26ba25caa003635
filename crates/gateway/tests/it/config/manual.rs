//! The commented default file is the manual, so it is tested: its active settings
//! work, every commented-out line is valid, every key of the schema is in it, and
//! its defaults are the program's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use onceward_core::class::Class;
use onceward_gateway::config::{self, Config, Limits, Route, Server, Upstream, Webhooks};
use serde_json::Value;

use super::lines;

const MANUAL: &str = include_str!("../../../../../onceward.toml");

#[test]
fn the_default_file_has_no_mistakes_and_no_warnings() {
    let file = std::path::Path::new("onceward.toml");
    let loaded = config::parse(MANUAL, file, &BTreeMap::new());
    let loaded = loaded.unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    assert_eq!(loaded.warnings, []);
    let [route] = loaded.config.routes.as_slice() else {
        panic!("the default file has one route");
    };
    assert_eq!(route.path, "/api/v1/payments");
    assert_eq!(route.policy, Some(config::Policy::RequiredA));
}

#[test]
fn every_commented_out_setting_is_valid() {
    for text in uncommented() {
        read(&text);
    }
}

#[test]
fn every_key_of_the_schema_is_in_the_manual() {
    let schema = config::schema();
    let mut found = BTreeSet::new();
    for text in uncommented() {
        let text: toml::Table = toml::from_str(&text).unwrap();
        let text = serde_json::to_value(text).unwrap();
        collect_keys(&text, &schema, &schema, &mut found);
    }
    let definitions = schema["$defs"].as_object().unwrap().iter();
    let all = definitions.map(|(name, one)| (name.as_str(), one));
    let mut untold = Vec::new();
    for (name, one) in all.chain([("", &schema)]) {
        for key in one["properties"].as_object().into_iter().flatten() {
            if !found.contains(&(name.to_owned(), key.0.clone())) {
                untold.push(format!("{name}.{}", key.0));
            }
        }
    }
    assert_eq!(untold, [""; 0]);
}

#[test]
fn the_manuals_defaults_are_the_programs() {
    let config = read(&uncommented()[0]);
    let usual = Server::default();
    let server = &config.server;
    assert_eq!(server.listen, usual.listen);
    assert_eq!(server.admin, usual.admin);
    assert_eq!(
        (server.body_limit, server.reply_limit),
        (usual.body_limit, usual.reply_limit)
    );
    assert_eq!(
        [
            server.head_deadline,
            server.body_deadline,
            server.write_deadline,
            server.drain
        ],
        [
            usual.head_deadline,
            usual.body_deadline,
            usual.write_deadline,
            usual.drain
        ]
    );
    assert_eq!(
        config.store,
        Config::unconfigured("http://127.0.0.1:1").store
    );
    let mut class = config.classes["interactive"].clone();
    assert!(class.reconcile_url.take().is_some());
    // A written value counts as chosen.
    assert!(std::mem::take(&mut class.remember_chosen));
    assert_eq!(class, Class::interactive());
    let mut upstream = config.upstreams["payments"].clone();
    assert!(upstream.host.take().is_some());
    assert!(upstream.signing_secret.take().is_some());
    assert_eq!(upstream, Upstream::new(&upstream.url));
    let mut limits = config.limits.clone();
    assert!(limits.requests_per_tenant.take().is_some());
    assert_eq!(limits, Limits::default());
    let (said, usual) = (&config.webhooks, Webhooks::default());
    assert_eq!(
        (&said.path, &said.class, said.tolerance),
        (&usual.path, &usual.class, usual.tolerance)
    );
    assert_eq!(
        (said.same_bytes, said.overlap),
        (usual.same_bytes, usual.overlap)
    );
    assert_eq!(
        (said.deliveries, said.deliveries_per_upstream),
        (usual.deliveries, usual.deliveries_per_upstream)
    );
    let route = &config.routes[0];
    let usual = Route::new(config::EndpointName::ByPath, "/", "payments");
    assert_eq!(route.scope, usual.scope);
    assert_eq!(route.key_format, usual.key_format);
    assert_eq!(route.key_space, usual.key_space);
    assert_eq!(route.forward_key, usual.forward_key);
    assert_eq!(route.duplicate_create, usual.duplicate_create);
    assert_eq!(route.joined, usual.joined);
}

/// The manual with every setting in force; then once more for each alternative,
/// with it in place of the line above it.
fn uncommented() -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut alternatives: Vec<(usize, Vec<&str>)> = Vec::new();
    let mut all: Vec<&str> = Vec::new();
    let mut in_group = false;
    for line in MANUAL.lines() {
        if let Some(alternative) = line.strip_prefix("#or ") {
            match alternatives.last_mut() {
                Some((_, group)) if in_group => group.push(alternative),
                _ => alternatives.push((all.len() - 1, vec![alternative])),
            }
            in_group = true;
            continue;
        }
        in_group = false;
        let said = line.strip_prefix('#').unwrap_or(line);
        if said.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') {
            all.push(said);
        }
    }
    texts[0] = all.join("\n");
    for (at, group) in alternatives {
        let mut other = all.clone();
        other.splice(at..=at, group);
        texts.push(other.join("\n"));
    }
    texts
}

/// Parses a text in a directory that has the files it names.
fn read(text: &str) -> Config {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("tls")).unwrap();
    for name in [
        "tls/cert.pem",
        "tls/key.pem",
        "tls/clients.pem",
        "tls/ca.pem",
        "jwks.json",
    ] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    fs::write(directory.path().join("admin.token"), "0123456789abcdef").unwrap();
    let names = [
        "ONCEWARD_ADMIN_TOKEN",
        "GRAFANA_TOKEN",
        "ONCEWARD_KEY",
        "ONCEWARD_DB_PASSWORD",
        "ONCEWARD_REDIS_PASSWORD",
        "BAO_TOKEN",
        "BAO_SECRET_ID",
        "UNKEY_ROOT_KEY",
        "UNKEY_WEBHOOK_ROOT_KEY",
        "SCHEDULER_SECRET",
        "SCHEDULER_SECRET_BEFORE",
    ];
    let environment = names.map(|name| (name.to_owned(), format!("the secret in {name}")));
    let signing = ("PAYMENTS_SIGNING_SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZg==");
    let signing = (signing.0.to_owned(), signing.1.to_owned());
    let environment: BTreeMap<_, _> = environment.into_iter().chain([signing]).collect();
    let file = directory.path().join("onceward.toml");
    match config::parse(text, &file, &environment) {
        Ok(loaded) => loaded.config,
        Err(mistakes) => panic!("{}\n{text}", lines(&mistakes)),
    }
}

/// Records the keys of each definition that a value uses.
fn collect_keys(
    value: &Value,
    schema: &Value,
    root: &Value,
    found: &mut BTreeSet<(String, String)>,
) {
    let reference = schema["$ref"].as_str().unwrap_or_default();
    let name = reference.rsplit('/').next().unwrap_or_default();
    let schema = match name {
        "" => schema,
        name => &root["$defs"][name],
    };
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        collect_keys(value, choice, root, found);
    }
    match value {
        Value::Object(entries) => {
            let known = schema["properties"].as_object();
            // Of several alternatives, the one with all of the keys.
            if known.is_some_and(|known| !entries.keys().all(|key| known.contains_key(key))) {
                return;
            }
            for (key, value) in entries {
                match known {
                    Some(known) => {
                        found.insert((name.to_owned(), key.clone()));
                        collect_keys(value, &known[key], root, found);
                    }
                    None => collect_keys(value, &schema["additionalProperties"], root, found),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_keys(item, &schema["items"], root, found);
            }
        }
        _ => {}
    }
}
