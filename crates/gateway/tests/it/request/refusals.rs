//! Refusals before any claim, and their texts.

use std::time::Duration;

use onceward_http::problem::Code;
use rstest::rstest;

use crate::harness::{gateway, origin};

const SOON: Duration = Duration::from_millis(300);

#[rstest]
#[case::declared("Content-Length: 11\r\n\r\n")]
#[case::chunked("Transfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n")]
#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_any_claim(#[case] rest: &str) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).body_limit(10).run().await;
    let mut client = gateway.raw().await;
    client
        .say(format!(
            "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n{rest}"
        ))
        .await;
    let answers = client.answers(1).await;
    assert_eq!(answers[0].status, 413);
    assert!(
        answers[0]
            .message
            .body
            .contains("\"code\":\"body-too-large\"")
    );
    let status = gateway
        .get("/payments/by-idempotency-key/k/status")
        .send()
        .await;
    assert_eq!((status.status, origin.begun()), (404, 0));
    let answer = gateway
        .post("/payments", "k")
        .body("0123456789")
        .send()
        .await;
    assert_eq!(
        (answer.status, answer.is_replay()),
        (200, false),
        "the limit itself is good"
    );
}

#[tokio::test]
async fn an_unprotected_body_has_no_limit() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().body_limit(10).run().await;
    let answer = gateway
        .request("POST /payments")
        .body("hello world")
        .send()
        .await;
    assert_eq!((answer.status, origin.runs()), (200, 1));
}

#[rstest]
#[case::protected("Idempotency-Key: k\r\n")]
#[case::passing("")]
#[tokio::test]
async fn a_body_that_does_not_arrive_times_out(#[case] key: &str) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().body_deadline(SOON).run().await;
    let mut client = gateway.raw().await;
    client
        .say(format!(
            "POST /payments HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 9\r\n\r\nhalf"
        ))
        .await;
    let heard = client.hear_out().await;
    assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
    assert!(heard.contains("\"code\":\"bad-request\""), "{heard}");
    assert_eq!(origin.runs(), 0);
}

#[rstest]
#[case::nul("/a%00b")]
#[case::not_hexadecimal("/a%zzb")]
#[case::cut_off("/a%2")]
#[case::alone("/a%")]
#[case::in_the_query("/a?b=%00")]
#[case::on_a_recovery_route("/a/by-idempotency-key/k%00")]
#[case::on_a_page("/.well-known/idempotency/problems/key-reused%00")]
#[tokio::test]
async fn a_malformed_target_is_refused_on_every_route(
    #[case] target: &str,
    #[values("GET", "PUT", "POST")] method: &str,
) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let answer = gateway
        .request(&format!("{method} {target}"))
        .key("k")
        .send()
        .await;
    assert_eq!(answer.problem(), (400, "bad-request".to_owned()));
    assert_eq!(origin.begun(), 0);
}

#[rstest]
#[case::trace("TRACE /payments")]
#[case::connect("CONNECT shop.example:80")]
#[case::lower_case("post /payments")]
#[tokio::test]
async fn trace_connect_and_lower_case_methods_are_refused(#[case] what: &str) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(format!("{what} HTTP/1.1\r\nHost: shop.example:80\r\n\r\n"))
        .await;
    let answers = client.answers(1).await;
    assert_eq!(answers[0].status, 405);
    assert!(
        answers[0]
            .message
            .body
            .contains("\"code\":\"method-not-allowed\"")
    );
    assert_eq!(origin.begun(), 0);
}

#[rstest]
#[case::the_key("idempotency-key")]
#[case::the_credentials("authorization")]
#[case::the_cookie("cookie")]
#[tokio::test]
async fn connection_may_not_name_a_checked_header(#[case] name: &str) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let ask = gateway.post("/payments", "k").header("connection", name);
    assert_eq!(ask.send().await.problem(), (400, "bad-request".to_owned()));
    assert_eq!(origin.begun(), 0);
}

#[tokio::test]
async fn a_problem_has_every_member_of_the_contract() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let answer = gateway.post("/payments?a=1", "a b").send().await;
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!(answer.header("cache-control"), "no-store");
    let link = "<http://shop.example/.well-known/idempotency>; rel=\"describedby\"";
    assert_eq!(answer.header("link"), link);
    let problem = answer.json();
    assert_eq!(
        problem["type"],
        "http://shop.example/.well-known/idempotency/problems/key-invalid"
    );
    assert_eq!(problem["status"], 400);
    assert_eq!(problem["instance"], "/payments");
    assert_eq!(problem["code"], "key-invalid");
    assert_eq!(
        (&problem["retryable"], &problem["safe_new_key"]),
        (&false.into(), &true.into())
    );
    assert!(problem["title"].is_string() && problem["detail"].is_string());
}

#[rstest]
#[case::key_invalid("POST /payments", "a b")]
#[case::no_operation("GET /payments/by-idempotency-key/none", "")]
#[case::bad_request("GET /a%00b", "")]
#[case::method_not_allowed("TRACE /payments", "")]
#[tokio::test]
async fn the_page_of_a_problem_exists(#[case] what: &str, #[case] key: &str) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let problem = gateway.request(what).key(key).send().await.json();
    let code = problem["code"].as_str().unwrap();
    let link = problem["type"].as_str().unwrap();
    let path = link.strip_prefix("http://shop.example").unwrap();
    let page = gateway.get(path).send().await;
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, "text/markdown; charset=utf-8")
    );
    assert!(page.text().contains(code), "{}", page.text());
    assert_eq!(origin.begun(), 0, "it is the gateway's own");
}

#[tokio::test]
async fn every_problem_has_a_page() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    for code in Code::ALL {
        let word = code.as_str();
        let path = format!("/.well-known/idempotency/problems/{word}");
        let page = gateway.get(&path).send().await;
        assert!(page.status == 200 && page.text().contains(word), "{word}");
    }
    assert_eq!(origin.begun(), 0);
}

#[tokio::test]
async fn the_policy_that_a_problem_links_to_is_published() {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    let policy = gateway.get("/.well-known/idempotency").send().await;
    assert_eq!(
        (policy.status, policy.header("content-type")),
        (200, "application/json")
    );
    let route = &policy.json()["routes"][0];
    assert_eq!(route["policy"], "ACCEPTED");
    assert_eq!(route["retention_seconds"], 24 * 60 * 60);
    assert_eq!(origin.begun(), 0);
}

#[rstest]
#[case::nothing("")]
#[case::one_letter("P")]
#[case::half_a_preface("PRI * HTTP/2")]
#[case::half_a_head("POST /orders HTTP/1.1\r\nHost: a\r\n")]
#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_closed(#[case] said: &str) {
    let origin = origin().run().await;
    let deadline = Duration::from_millis(200);
    let gateway = gateway(&origin)
        .in_memory()
        .head_deadline(deadline)
        .run()
        .await;
    let mut client = gateway.raw().await;
    client.say(said).await;
    client.hear_out().await;
    assert_eq!(origin.runs(), 0);
}
