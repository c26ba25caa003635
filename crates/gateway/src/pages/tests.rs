//! The published pages, without a running gateway.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use onceward_core::class::OnError;
use onceward_core::identity::{Endpoint, KeySpace};
use onceward_http::problem::{Code, Problem, ProblemLinks};
use onceward_http::rules::DuplicateCreate;
use rstest::rstest;
use serde_json::{Value, json};

use super::article::Article;
use super::*;
use crate::config::{DerivedKey, EndpointName, KeyFormat, KeyPart, Policy, Route, Scope, Upstream};

const SITE: &str = "https://api.example.com";

#[rstest]
#[case("/.well-known/idempotency", "Policy")]
#[case("/.well-known/idempotency/problems", "Problems")]
#[case("/.well-known/idempotency/problems/key-reused", "key-reused")]
#[case("/.well-known/idempotency/", "")]
#[case("/.well-known/idempotency/problems/", "")]
#[case("/.well-known/idempotency/problems/no-such-code", "")]
#[case("/.well-known/idempotency/problems/key-reused/more", "")]
#[case("/.well-known/idempotency/problems-of-life", "")]
#[case("/.well-known/idempotent", "")]
#[case("/", "")]
fn paths(#[case] path: &str, #[case] want: &str) {
    let got = match find(path) {
        Some(Page::Policy) => "Policy",
        Some(Page::Problems) => "Problems",
        Some(Page::Problem(article)) => article.code().as_str(),
        None => "",
    };
    assert_eq!(got, want);
}

/// A problem in the form of a response.
async fn problem_json(code: Code) -> Value {
    let response = Problem::new(code, "…").to_response(&ProblemLinks::of_gateway(SITE), "/");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn every_page_agrees_with_its_problem() {
    for code in Code::ALL {
        let name = code.as_str();
        let article = Article::find(name).unwrap_or_else(|| panic!("{name} has no page"));
        let summary = serde_json::to_value(article.summary(SITE)).unwrap();
        let problem = problem_json(code).await;
        for member in ["code", "status", "title", "retryable", "safe_new_key"] {
            assert_eq!(summary[member], problem[member], "{member} of {name}");
        }
        assert_eq!(summary["url"], problem["type"], "{name}");
    }
}

#[tokio::test]
async fn the_example_on_a_page_is_a_possible_response() {
    for article in Article::all() {
        let name = article.code().as_str();
        let (_, example) = article.text().split_once("```json\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let example: Value = serde_json::from_str(example).unwrap();
        let problem = problem_json(article.code()).await;
        for member in ["type", "title", "code", "retryable", "safe_new_key"] {
            assert_eq!(example[member], problem[member], "{member} of {name}");
        }
        // The one status that depends on the request.
        let status = if name == "outcome-unknown" {
            json!(504)
        } else {
            problem["status"].clone()
        };
        assert_eq!(example["status"], status, "{name}");
        let detail = example["detail"].as_str().unwrap();
        assert!(!detail.is_empty(), "{name}");
    }
}

#[test]
fn every_page_has_the_same_shape() {
    let headings = [
        "## What happened",
        "## What to do as a client developer",
        "## What to do as an operator",
        "## Members and headers",
        "## Example",
    ];
    for article in Article::all() {
        let name = article.code().as_str();
        let text = article.text();
        assert!(text.starts_with(&format!("# {name} — ")), "{name}");
        let lines = text.lines().filter(|line| line.starts_with("##"));
        assert_eq!(lines.collect::<Vec<_>>(), headings, "{name}");
        // A link to a file would be broken on the served page.
        assert!(!text.contains("]("), "{name}");
    }
}

fn config() -> Config {
    let fixed = |name| EndpointName::Fixed(Endpoint::new(name));
    let mut payments = Route::new(fixed("payments.create"), "/payments", "ledger");
    payments.methods = vec![Method::POST];
    payments.policy = Some(Policy::RequiredA);
    payments.class = "financial".into();
    payments.key_format = KeyFormat::Uuid;
    payments.key_space = KeySpace::Project;
    payments.keep_statuses = [409].into();
    payments.release_statuses = [404, 422].into();
    payments.duplicate_create = DuplicateCreate::Ok;
    let mut orders = Route::new(fixed("orders.any"), "/shops/{shop}/orders/", "ledger");
    orders.derived_key = Some(DerivedKey {
        parts: vec![
            KeyPart::Caller,
            KeyPart::Pointer("/order/id".to_owned()),
            KeyPart::Query("<n>".to_owned()),
        ],
        window: Duration::from_secs(600),
    });
    let mut reports = Route::new(fixed("reports.run"), "/reports", "ledger");
    reports.scope = Scope::Tenant;
    let mut config = Config::unconfigured("http://10.1.2.3:4567");
    config.upstreams = [("ledger".into(), Upstream::new("http://10.1.2.3:4567"))].into();
    config.routes = vec![payments, orders, reports];
    config.server.public_url = Some(SITE.to_owned());
    config
}

fn published(config: &Config) -> Published {
    let classes = config.classes.iter();
    let classes = classes.map(|(name, class)| (name.clone(), Arc::new(class.clone())));
    Published::new(config, &classes.collect())
}

async fn text(path: &str, accept: &str, config: &Config) -> String {
    let headers = [(header::ACCEPT, HeaderValue::try_from(accept).unwrap())];
    let page = find(path).unwrap();
    let response = answer(page, &headers.into_iter().collect(), &published(config));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.into()).unwrap()
}

async fn routes(config: &Config) -> Vec<Value> {
    let document = text(WELL_KNOWN, "*/*", config).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    document["routes"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_route_publishes_all_that_clients_need() {
    let routes = routes(&config()).await;
    assert_eq!(
        routes[0],
        json!({
            "endpoint": "payments.create",
            "methods": ["POST"],
            "path": "/payments",
            "policy": "REQUIRED_A",
            "class": "financial",
            "retention_seconds": 7 * 86_400,
            "remember_seconds": 30 * 86_400,
            "in_flight": "wait",
            "wait_seconds": 30,
            "key_format": "uuid",
            "key_space": "project",
            "derived_key": null,
            "on_error": "unknown",
            "keep_statuses": [409],
            "release_statuses": [404, 422],
            "duplicate_create": 200,
            "recovery": {
                "reply": "https://api.example.com/payments/by-idempotency-key/{key}",
                "output": "https://api.example.com/payments/by-idempotency-key/{key}/output",
                "status": "https://api.example.com/payments/by-idempotency-key/{key}/status",
            },
        })
    );
    let derived = json!({ "parts": ["caller", "/order/id", "query:<n>"], "window_seconds": 600 });
    assert_eq!(routes[1]["derived_key"], derived);
    let recovery = "https://api.example.com/shops/{shop}/orders/by-idempotency-key/{key}";
    assert_eq!(routes[1]["recovery"]["reply"], recovery);
}

#[tokio::test]
async fn a_route_without_a_policy_has_an_entry_per_policy_of_its_methods() {
    let routes = routes(&config()).await;
    let entries: Vec<_> = routes[1..]
        .iter()
        .map(|route| json!([route["path"], route["methods"], route["policy"]]))
        .collect();
    let want = json!([
        ["/shops/{shop}/orders/", ["POST", "PATCH"], "ACCEPTED"],
        [
            "/shops/{shop}/orders/",
            ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"],
            null
        ],
        [
            "/reports",
            ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
            "PROHIBITED"
        ],
        [
            "/api/v1/webhooks/{provider}/{webhook_id}",
            ["POST"],
            "REQUIRED_B"
        ],
    ]);
    assert_eq!(json!(entries), want);
    for route in [&routes[2], &routes[3]] {
        assert!(
            route.get("class").is_none(),
            "nothing is protected: {route}"
        );
    }
}

#[test]
fn a_class_changed_at_run_time_is_published_as_it_is_now() {
    let config = config();
    let mut class = Class::financial();
    class.retention = Duration::from_secs(5);
    class.on_error = OnError::Keep;
    let classes = [("financial".into(), Arc::new(class))].into();
    let document = json!(Published::new(&config, &classes).policy);
    assert_eq!(document["routes"][0]["retention_seconds"], 5);
    assert_eq!(document["routes"][0]["on_error"], "keep");
}

#[tokio::test]
async fn nothing_internal_is_published() {
    for accept in ["application/json", "text/html"] {
        let page = text(WELL_KNOWN, accept, &config()).await;
        for secret in ["10.1.2.3", "4567", "ledger"] {
            assert!(!page.contains(secret), "{secret} in {accept}");
        }
    }
}

#[tokio::test]
async fn without_a_public_url_links_begin_at_the_root() {
    let mut config = config();
    config.server.public_url = None;
    let routes = routes(&config).await;
    let status = "/payments/by-idempotency-key/{key}/status";
    assert_eq!(routes[0]["recovery"]["status"], status);
    let page = text(WELL_KNOWN, "text/html", &config).await;
    assert!(
        page.contains("href=\"/.well-known/idempotency/problems\""),
        "{page}"
    );
}

#[tokio::test]
async fn an_html_page_escapes_the_configuration() {
    let page = text(WELL_KNOWN, "text/html", &config()).await;
    assert!(page.contains("query:&#60;n&#62;"), "{page}");
    assert!(!page.contains("<n>") && !page.contains("<script"), "{page}");
}

#[tokio::test]
async fn the_content_security_policy_allows_the_embedded_style_sheet() {
    use sha2::Digest as _;
    let pages = [
        WELL_KNOWN,
        PROBLEMS,
        "/.well-known/idempotency/problems/paused",
    ];
    for path in pages {
        let page = text(path, "text/html", &config()).await;
        let (_, style) = page.split_once("<style>").unwrap();
        let (style, _) = style.split_once("</style>").unwrap();
        let digest = data_encoding::BASE64.encode(&sha2::Sha256::digest(style));
        let policy = html::content_security();
        let policy = policy.to_str().unwrap();
        assert!(
            policy.contains(&format!("style-src 'sha256-{digest}'")),
            "{path}"
        );
        assert!(!page.contains("style=\""), "{path}");
    }
}

#[tokio::test]
async fn every_problem_is_on_the_index_in_every_form() {
    for accept in ["text/html", "text/markdown", "application/json"] {
        let page = text(PROBLEMS, accept, &config()).await;
        for code in Code::ALL {
            let name = code.as_str();
            assert!(page.contains(name), "{name} in {accept}");
        }
    }
}

#[tokio::test]
async fn a_problem_page_as_json_has_the_text_too() {
    let path = "/.well-known/idempotency/problems/in-progress";
    let document = text(path, "application/json", &config()).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["retryable"], true);
    assert_eq!(document["url"], format!("{SITE}{path}"));
    let page = Article::find("in-progress").unwrap();
    assert_eq!(document["text"], page.text());
}
