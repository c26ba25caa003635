//! The pages that the gateway publishes, for programs and people.

use std::collections::BTreeSet;
use std::path::Path;

use onceward_http::problem::Code;
use rstest::rstest;
use serde_json::json;

use crate::harness::{configured, gateway, origin};

const POLICY: &str = "/.well-known/idempotency";
const PROBLEMS: &str = "/.well-known/idempotency/problems";
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

#[rstest]
#[case::policy(POLICY, "*/*", "application/json")]
#[case::policy(POLICY, "application/json", "application/json")]
#[case::policy(POLICY, BROWSER, "text/html; charset=utf-8")]
#[case::index(PROBLEMS, "*/*", "text/markdown; charset=utf-8")]
#[case::index(PROBLEMS, BROWSER, "text/html; charset=utf-8")]
#[case::index(PROBLEMS, "application/json", "application/json")]
#[tokio::test]
async fn accept_selects_the_form_of_a_page(
    #[case] path: &str,
    #[case] accept: &str,
    #[case] want: &str,
) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let page = gateway.get(path).header("accept", accept).send().await;
    assert_eq!((page.status, page.header("content-type")), (200, want));
    assert_eq!(page.header("vary"), "Accept");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    let security = page.header("content-security-policy");
    assert!(security.starts_with("default-src 'none'"), "{security}");
    assert!(!security.contains("unsafe"), "{security}");
    assert_eq!(origin.begun(), 0, "it is the gateway's own");
}

#[rstest]
#[tokio::test]
async fn head_has_the_length_and_no_body(#[values(false, true)] h2: bool) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    for path in [POLICY, PROBLEMS] {
        let version = |ask: crate::harness::ClientRequest| if h2 { ask.h2c() } else { ask };
        let whole = version(gateway.get(path)).send().await;
        let head = version(gateway.request(&format!("HEAD {path}")))
            .send()
            .await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        let length = whole.body.len().to_string();
        assert_eq!(head.header("content-length"), length, "{path}");
    }
    assert_eq!(origin.begun(), 0);
}

#[tokio::test]
async fn an_unknown_problem_has_no_page() {
    let origin = origin().run().await;
    let text = r#"
        [[routes]]
        endpoint = "payments.create"
        path = "/payments"
        upstream = "origin"
    "#;
    let gateway = configured(&origin, text).run().await;
    let path = format!("{PROBLEMS}/no-such-code");
    let answer = gateway.get(&path).send().await;
    assert_eq!(answer.problem(), (404, "no-route".to_owned()));
}

#[tokio::test]
async fn every_problem_page_is_about_an_existing_problem() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/problems");
    let files: BTreeSet<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let codes = Code::ALL.map(|code| format!("{}.md", code.as_str()));
    assert_eq!(files, codes.into());
}

#[tokio::test]
async fn a_route_is_published_without_its_upstream() {
    let origin = origin().run().await;
    let text = r#"
        [classes.slow]
        retention = "2h"
        in_flight = "accept"

        [[routes]]
        endpoint = "exports.make"
        method = "POST"
        path = "/shops/{shop}/exports"
        upstream = "origin"
        policy = "REQUIRED_A"
        class = "slow"
    "#;
    let gateway = configured(&origin, text).run().await;
    let policy = gateway.get(POLICY).send().await;
    let route = &policy.json()["routes"][0];
    let said = json!([
        route["endpoint"],
        route["methods"],
        route["path"],
        route["policy"],
        route["retention_seconds"],
        route["in_flight"],
    ]);
    let want = json!([
        "exports.make",
        ["POST"],
        "/shops/{shop}/exports",
        "REQUIRED_A",
        7200,
        "accept"
    ]);
    assert_eq!(said, want);
    let page = gateway.get(POLICY).header("accept", BROWSER).send().await;
    for text in [policy.text(), page.text()] {
        assert!(!text.contains(&origin.url()), "{text}");
        assert!(!text.contains("origin"), "{text}");
    }
}

#[tokio::test]
async fn the_published_key_rules_are_enforced() {
    let origin = origin().run().await;
    let text = r#"
        [[routes]]
        endpoint = "payments.create"
        method = "POST"
        path = "/payments"
        upstream = "origin"
        policy = "REQUIRED_A"
        key_format = "uuid"
    "#;
    let gateway = configured(&origin, text).run().await;
    let policy = gateway.get(POLICY).send().await.json();
    assert_eq!(policy["header"], "Idempotency-Key");
    assert_eq!(policy["routes"][0]["key_format"], "uuid");
    let refused = gateway.post("/payments", "k-1").send().await;
    assert_eq!(refused.json()["reason"], "format");
    let key = "2f1c6a1e-6f0c-4b8e-9a53-0c1f2f9b7d11";
    let first = gateway.post("/payments", key).send().await;
    assert_eq!(first.status, 200, "{}", first.text());
    let url = policy["routes"][0]["recovery"]["status"].as_str().unwrap();
    let status = gateway.get(&url.replace("{key}", key)).send().await;
    let url = policy["operations"]["status"].as_str().unwrap();
    let id = first.header("x-operation-id");
    let by_id = gateway.get(&url.replace("{operation_id}", id)).send().await;
    assert_eq!((status.status, by_id.status), (200, 200));
    assert_eq!(status.json(), by_id.json());
}

#[tokio::test]
async fn a_problems_link_leads_a_browser_to_its_page() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let refused = gateway.post("/orders", "").send().await;
    let url = refused.json()["type"].as_str().unwrap().to_owned();
    let path = url.strip_prefix("http://shop.example").unwrap();
    let page = gateway.get(path).header("accept", BROWSER).send().await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let title = "<h1>The Idempotency-Key is not valid</h1>";
    assert!(page.text().contains(title), "{}", page.text());
    assert!(!page.text().contains("<script"), "{}", page.text());
}
