//! The dashboard and the alerts under `deploy/`: Prometheus accepts them, each
//! alert fires when it should, and a gateway exports every metric and label that
//! they name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use onceward_gateway::config::{Config, Policy};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Running, configured, origin};

/// The labels that Prometheus adds to each series.
const SCRAPED: [&str; 2] = ["instance", "job"];

/// Exported only if an issuer's keys are fetched.
const NOT_YET: [&str; 1] = ["onceward_jwks_refresh_failed_total"];

/// The keywords of the query language; every other word is a name.
const WORDS: [&str; 24] = [
    "and",
    "avg",
    "bool",
    "by",
    "count",
    "histogram_quantile",
    "ignoring",
    "increase",
    "label_values",
    "max",
    "min",
    "offset",
    "on",
    "or",
    "rate",
    "sum",
    "topk",
    "unless",
    "without",
    "group_left",
    "group_right",
    "d",
    "h",
    "m",
];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(deploy().join(path)).unwrap()
}

/// Runs promtool, which is downloaded if it is missing.
#[track_caller]
fn promtool(arguments: &[&str], directory: &Path) {
    let ran = Command::new(deploy().canonicalize().unwrap().join("promtool"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("deploy/promtool is a script that runs");
    assert!(
        ran.status.success(),
        "promtool {arguments:?}: {}\n{}{}",
        ran.status,
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
}

#[test]
fn prometheus_accepts_the_rules_and_their_tests_pass() {
    let directory = deploy().join("prometheus");
    promtool(&["check", "rules", "rules.yml"], &directory);
    promtool(&["test", "rules", "rules.test.yml"], &directory);
}

#[test]
fn every_alert_is_tested_and_documented() {
    let tests = read("prometheus/rules.test.yml");
    let book = read("../docs/observing.md");
    let alerts = values(&read("prometheus/rules.yml"), "alert:");
    assert!(alerts.len() >= 9, "{alerts:?}");
    for alert in alerts {
        let of_alert = |block: &&str| block.lines().next() == Some(alert.as_str());
        let cases: Vec<_> = tests.split("alertname: ").filter(of_alert).collect();
        let fires = |case: &&&str| case.contains("exp_alerts:");
        let firing = cases.iter().filter(fires).count();
        assert!(firing > 0, "{alert} never fires in a test");
        assert!(cases.len() > firing, "{alert} never rests in a test");
        assert!(
            book.contains(&format!("`{alert}`")),
            "{alert} is not in the book"
        );
    }
}

/// The text after a word in each line that begins with it.
fn values(text: &str, word: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            line.trim_start()
                .trim_start_matches("- ")
                .strip_prefix(word)
        })
        .map(|value| value.trim().to_owned())
        .collect()
}

#[test]
fn prometheus_accepts_every_query_of_the_dashboard() {
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    let (queries, _) = dashboard();
    for (number, query) in queries.iter().enumerate() {
        let query = query.replace("$__rate_interval", "5m");
        rules += &format!(
            "  - record: query:{number}\n    expr: {}\n",
            Value::from(query)
        );
    }
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("rules.yml"), rules).unwrap();
    promtool(&["check", "rules", "rules.yml"], directory.path());
}

/// The queries of the dashboard's panels and variables.
fn dashboard() -> (Vec<String>, Vec<String>) {
    let dashboard: Value = serde_json::from_str(&read("grafana/onceward.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    let queries: Vec<_> = targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(queries.len() > 30, "{}", queries.len());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| variable["definition"].as_str());
    (queries, variables.map(str::to_owned).collect())
}

/// The queries of the rules: the text after `expr:`, on its line or, after a bar,
/// indented below it.
fn rules() -> Vec<String> {
    let text = read("prometheus/rules.yml");
    let mut queries = Vec::new();
    let mut lines = text.lines().peekable();
    let indent = |line: &str| line.len() - line.trim_start().len();
    while let Some(line) = lines.next() {
        let Some(rest) = line.trim_start().strip_prefix("expr:") else {
            continue;
        };
        let mut query = rest.trim().trim_start_matches('|').to_owned();
        while let Some(more) = lines.next_if(|next| indent(next) > indent(line)) {
            query = query + " " + more.trim();
        }
        queries.push(query);
    }
    queries
}

/// The metrics in a query, each with the labels in its selector, and the labels by
/// which results are grouped.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    metrics: BTreeMap<String, BTreeSet<String>>,
    groups: BTreeSet<String>,
}

/// Parses a query loosely.
fn asked(query: &str) -> Asked {
    let mut asked = Asked::default();
    let tokens = tokens(query);
    let mut metric = String::new();
    let mut place = 0;
    while place < tokens.len() {
        let token = tokens[place].as_str();
        let groups = ["by", "without", "on", "ignoring"].contains(&token);
        if groups || token == "{" {
            let end = if groups { ")" } else { "}" };
            let length = tokens[place..].iter().position(|token| token == end);
            let inside = &tokens[place..place + length.unwrap()];
            let labels = inside.iter().skip(1).filter(|token| is_name(token));
            let labels = labels.cloned().collect::<BTreeSet<_>>();
            if groups {
                asked.groups.extend(labels);
            } else {
                asked.metrics.get_mut(&metric).unwrap().extend(labels);
            }
            place += inside.len();
        } else if token == "label_values" {
            // label_values(metric, label)
            asked.groups.insert(tokens[tokens.len() - 2].clone());
        } else if is_name(token) && !WORDS.contains(&token) {
            let is_label = tokens[..place].last().is_some_and(|before| before == ",");
            if !is_label {
                metric = token.to_owned();
                asked.metrics.entry(metric.clone()).or_default();
            }
        }
        place += 1;
    }
    asked
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Names and single characters, without quoted texts and without durations in
/// brackets.
fn tokens(query: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut letters = query.chars().peekable();
    let in_name = |letter: &char| letter.is_ascii_alphanumeric() || "_:".contains(*letter);
    while let Some(letter) = letters.next() {
        match letter {
            '"' => while letters.next_if(|next| *next != '"').is_some() {},
            '[' => while letters.next_if(|next| *next != ']').is_some() {},
            '0'..='9' => {
                while letters
                    .next_if(|next| in_name(next) || *next == '.')
                    .is_some()
                {}
            }
            letter if in_name(&letter) => {
                let mut name = letter.to_string();
                while let Some(more) = letters.next_if(in_name) {
                    name.push(more);
                }
                tokens.push(name);
            }
            letter if letter.is_whitespace() => {}
            letter => tokens.push(letter.to_string()),
        }
        if letter == '"' || letter == '[' {
            letters.next();
        }
    }
    tokens
}

#[test]
fn a_query_is_parsed_into_metrics_and_labels() {
    let read = asked(
        "sum by (tenant, le) (rate(a_total{x=~\"by|$y\",z!=\"\"}[5m])) / (b offset 1d > 0.01)",
    );
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let metrics = [("a_total", names(&["x", "z"])), ("b", names(&[]))];
    assert_eq!(
        read,
        Asked {
            metrics: metrics
                .map(|(name, labels)| (name.to_owned(), labels))
                .into(),
            groups: names(&["le", "tenant"]),
        }
    );
    let read = asked("label_values(a_total{x=\"1\"}, y)");
    assert_eq!(read.groups, names(&["y"]));
    assert_eq!(read.metrics.keys().collect::<Vec<_>>(), ["a_total"]);
}

/// The labels of each series of the rendered metrics, by name.
fn emitted(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut emitted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, _)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = tokens(labels).into_iter().filter(|token| is_name(token));
        emitted.entry(name.to_owned()).or_default().extend(labels);
    }
    emitted
}

#[tokio::test]
async fn every_queried_metric_and_label_exists() {
    let exported = emitted(&eventful().await);
    let mut recorded: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let names = values(&read("prometheus/rules.yml"), "record:");
    let (queries, variables) = dashboard();
    let rules = rules();
    for (name, query) in names.iter().zip(&rules) {
        recorded.insert(name.clone(), asked(query).groups);
    }
    for query in queries.iter().chain(&variables).chain(&rules) {
        let asked = asked(query);
        assert!(!asked.metrics.is_empty(), "{query}");
        let mut known: BTreeSet<&str> = SCRAPED.into();
        if asked
            .metrics
            .keys()
            .any(|metric| NOT_YET.contains(&metric.as_str()))
        {
            continue;
        }
        for (metric, labels) in &asked.metrics {
            let has = exported.get(metric).or_else(|| recorded.get(metric));
            let has = has.unwrap_or_else(|| panic!("no gateway exports {metric}: {query}"));
            known.extend(has.iter().map(String::as_str));
            for label in labels {
                let found = has.contains(label) || SCRAPED.contains(&label.as_str());
                assert!(found, "{metric} has no label {label}: {query}");
            }
        }
        for label in &asked.groups {
            let found = known.contains(label.as_str()) || recorded_without(&asked, &recorded);
            assert!(found, "nothing in it has the label {label}: {query}");
        }
    }
}

/// A recorded series that is not grouped again has the labels of its own query.
fn recorded_without(asked: &Asked, recorded: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let mut metrics = asked.metrics.keys();
    metrics.all(|metric| recorded.get(metric).is_some_and(BTreeSet::is_empty))
}

#[tokio::test]
async fn every_metric_has_help_and_documentation() {
    let page = eventful().await;
    let book = read("../docs/observing.md");
    for name in emitted(&page).keys() {
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        assert!(
            book.contains(&format!("`{base}`")),
            "{base} is not in the book"
        );
        assert!(
            page.contains(&format!("# HELP {base} ")),
            "{base} has no help"
        );
    }
}

/// The metrics of a gateway after every event that it counts.
async fn eventful() -> String {
    let origin = origin().reply(201, "done").run().await;
    // No configuration has such a route: the policy is only for webhooks.
    let lifted = |config: &mut Config| config.routes[3].policy = Some(Policy::RequiredB);
    let gateway = configured(&origin, ROUTES).with(lifted).run().await;
    for (what, key) in [
        ("POST /required", Some("k")),
        ("POST /required", Some("k")),
        ("POST /required", Some("a b")),
        ("POST /required", None),
        ("POST /accepted", None),
        ("POST /handler", None),
        ("POST /provider", None),
        ("POST /known", Some("k")),
        ("POST /nowhere", Some("k")),
    ] {
        let ask = gateway.request(what);
        let ask = match key {
            Some(key) => ask.key(key),
            None => ask,
        };
        ask.send().await;
    }
    ask_by_token(&gateway).await;
    send_events(&gateway).await;
    gateway.reload(&origin.url(), "nonsense").await.unwrap_err();
    while gateway.get("/accepted").send().await.status != 429 {}
    gateway.metrics().await
}

/// Sends an event to a webhook, once with its password and once with a wrong one.
async fn send_events(gateway: &Running) {
    let webhook = r#"{"tenant": "t", "project": "p", "provider": "postmark",
        "secrets": ["user:password"], "upstream": "origin", "path": "/events"}"#;
    let created = gateway.change("/admin/v1/webhooks", webhook).send().await;
    let created = created.json();
    let id = created["webhook_id"].as_str().unwrap();
    for password in ["password", "another"] {
        let credential = data_encoding::BASE64.encode(format!("user:{password}").as_bytes());
        let target = format!("POST /api/v1/webhooks/postmark/{id}");
        let event = r#"{"RecordType": "Delivery", "MessageID": "m", "Recipient": "r"}"#;
        let ask = gateway.request(&target).body(event);
        ask.header("authorization", format!("Basic {credential}"))
            .send()
            .await;
    }
    let deliveries = "onceward_webhook_deliveries_total{upstream=\"origin\"";
    gateway
        .shows(&format!("{deliveries},outcome=\"completed\"}} 1"))
        .await;
}

/// Sends a token of an issuer whose keys cannot be fetched.
async fn ask_by_token(gateway: &Running) {
    let encode = |text: &str| data_encoding::BASE64URL_NOPAD.encode(text.as_bytes());
    let head = encode(r#"{"alg":"RS256","kid":"k","typ":"JWT"}"#);
    let claims = encode(
        r#"{"iss":"https://issuer.example","aud":"shop","sub":"u","tenant":"t","exp":99999999999}"#,
    );
    let token = format!("Bearer {head}.{claims}.{}", encode("signature"));
    let ask = gateway.post("/known", "k").header("authorization", token);
    ask.send().await;
}

const ROUTES: &str = r#"
    [limits]
    requests_per_tenant = { per_second = 50, burst = 50 }

    [[auth.jwt]]
    issuer = "https://issuer.example"
    audience = "shop"
    jwks_url = "http://127.0.0.1:9/keys"
    tenant = "/tenant"
    project = { value = "p" }

    [[routes]]
    endpoint = "all.required"
    method = "POST"
    path = "/required"
    upstream = "origin"
    policy = "REQUIRED_A"
    auth = "none"

    [[routes]]
    endpoint = "all.accepted"
    path = "/accepted"
    upstream = "origin"
    auth = "none"

    [[routes]]
    endpoint = "all.handler"
    method = "POST"
    path = "/handler"
    upstream = "origin"
    policy = "HANDLER_INTERNAL_C"
    auth = "none"

    [[routes]]
    endpoint = "all.provider"
    method = "POST"
    path = "/provider"
    upstream = "origin"
    auth = "none"

    [[routes]]
    endpoint = "all.known"
    method = "POST"
    path = "/known"
    upstream = "origin"
    policy = "REQUIRED_A"
"#;
