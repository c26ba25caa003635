//! Virtual hosts behind one gateway: no host ever gets another host's reply,
//! whether the upstream receives the client's host as Host or as X-Forwarded-Host.

use rstest::rstest;

use crate::harness::credentials::{API_KEYS, Sent, api_key};
use crate::harness::fixture::{echo, look, payments, route, word};
use crate::harness::{ClientRequest, OriginBuilder, Reply, Running, configured, origin};

const FIXED_HOST: &str = "host = \"payments.internal\"\n";

/// Answers with its Host.
fn virtual_hosts() -> OriginBuilder {
    hosts_by("host")
}

/// Answers with the host in this header.
fn hosts_by(name: &'static str) -> OriginBuilder {
    origin().replying(move |seen, run| {
        let host = seen.header(name);
        Reply::new(201, format!("run {run} for {host}"))
    })
}

fn pay(gateway: &Running, host: &str) -> ClientRequest {
    gateway.post("/payments", "k").body("10").host(host)
}

#[rstest]
#[case::http1(false)]
#[case::http2(true)]
#[tokio::test]
async fn the_same_key_with_another_host_is_a_different_request(#[case] over_h2: bool) {
    let origin = virtual_hosts().run().await;
    let gateway = configured(&origin, &payments("")).run().await;
    let send = async |host: &str| match over_h2 {
        true => pay(&gateway, host).h2c().send().await,
        false => pay(&gateway, host).send().await,
    };
    let first = send("a.example").await;
    assert_eq!((first.status, first.text()), (201, "run 1 for a.example"));
    let other = send("b.example").await;
    assert_eq!(word(&other), "422 key-reused");
    assert!(!other.text().contains("a.example"), "{}", other.text());
    let again = send("a.example").await;
    assert!(again.is_replay());
    assert_eq!(again.text(), "run 1 for a.example");
    assert_eq!(origin.runs(), 1);
    let id = first.header("x-operation-id");
    let shown = look(&gateway, &format!("/admin/v1/operations/{id}")).await;
    assert_eq!(shown.json()["fingerprint"], "raw-1+host");
}

#[rstest]
#[case::one_path("/payments", "/payments")]
#[case::many_paths("/shops/{shop}/payments", "/shops/7/payments")]
#[tokio::test]
async fn a_reply_is_not_recovered_under_another_host(#[case] pattern: &str, #[case] path: &str) {
    let origin = virtual_hosts().run().await;
    let text = route("payments.create", "POST", pattern, "");
    let gateway = configured(&origin, &text).run().await;
    let first = gateway.post(path, "k").host("a.example").send().await;
    let id = first.header("x-operation-id");
    for asked in [
        format!("{path}/by-idempotency-key/k"),
        format!("{path}/by-idempotency-key/k/output"),
        format!("{path}/by-idempotency-key/k/status"),
        format!("/api/v1/operations/{id}"),
        format!("/api/v1/operations/{id}/status"),
    ] {
        let own = gateway.get(&asked).host("A.example:8080").send().await;
        assert!(own.status < 300, "{asked}: {}", own.text());
        let other = gateway.get(&asked).host("b.example").send().await;
        assert_eq!(word(&other), "404 no-operation", "{asked}");
    }
}

#[tokio::test]
async fn waiters_with_another_host_do_not_share_a_running_operation() {
    let origin = virtual_hosts().gated().run().await;
    let gateway = configured(&origin, &payments("")).run().await;
    let first = pay(&gateway, "a.example").spawn();
    origin.called(1).await;
    assert_eq!(
        word(&pay(&gateway, "b.example").send().await),
        "422 key-reused"
    );
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test]
async fn mismatch_replay_does_not_cross_hosts() {
    let origin = virtual_hosts().run().await;
    let class = "[classes.own]\nmismatch = \"replay\"\n";
    let text = format!("{class}{}", payments("class = \"own\""));
    let gateway = configured(&origin, &text).run().await;
    pay(&gateway, "a.example").send().await;
    let other_body = pay(&gateway, "a.example").body("11").send().await;
    assert!(other_body.is_replay());
    let other_host = pay(&gateway, "b.example").send().await;
    assert_eq!(word(&other_host), "422 key-reused");
}

/// The upstream receives the host that a trusted proxy states.
#[tokio::test]
async fn the_host_stated_by_a_trusted_proxy_is_compared() {
    let origin = virtual_hosts().run().await;
    let text = format!("server: trusted_proxies = ['127.0.0.1']\n{}", payments(""));
    let gateway = configured(&origin, &text).run().await;
    let asked_for =
        |host: &'static str| pay(&gateway, "gateway.internal").header("x-forwarded-host", host);
    let first = asked_for("a.example").send().await;
    assert_eq!(first.text(), "run 1 for a.example");
    assert_eq!(word(&asked_for("b.example").send().await), "422 key-reused");
    assert!(asked_for("a.example").send().await.is_replay());
    let recovered = gateway.get("/payments/by-idempotency-key/k");
    let recovered = recovered
        .header("x-forwarded-host", "b.example")
        .send()
        .await;
    assert_eq!(word(&recovered), "404 no-operation");
}

/// An upstream with a configured `host` still receives the client's host, as
/// X-Forwarded-Host, and may choose the virtual host by it.
#[rstest]
#[case::by_host("host", "payments.internal")]
#[case::by_forwarded_host("x-forwarded-host", "a.example")]
#[tokio::test]
async fn an_upstream_with_a_configured_host_shares_no_reply_between_hosts(
    #[case] header: &'static str,
    #[case] seen: &str,
) {
    let origin = hosts_by(header).run().await;
    let text = format!("{FIXED_HOST}{}", payments(""));
    let gateway = configured(&origin, &text).run().await;
    let first = pay(&gateway, "a.example").send().await;
    assert_eq!(first.text(), format!("run 1 for {seen}"));
    let other = pay(&gateway, "b.example").send().await;
    assert_eq!(word(&other), "422 key-reused");
    assert!(pay(&gateway, "a.example").send().await.is_replay());
    for (host, status) in [("a.example", 201), ("b.example", 404)] {
        let recovered = gateway.get("/payments/by-idempotency-key/k").host(host);
        assert_eq!(recovered.send().await.status, status, "{host}");
    }
    assert_eq!(origin.runs(), 1);
}

/// An authenticated caller gets no reply of another host either: the upstream's
/// virtual hosts may be its tenants.
#[tokio::test]
async fn an_authenticated_caller_shares_no_reply_between_hosts() {
    let origin = virtual_hosts().run().await;
    let text = [API_KEYS, &payments("")].concat();
    let gateway = configured(&origin, &text).run().await;
    let key = api_key(&gateway, ("acme", "shop", "service:worker")).await;
    let first = pay(&gateway, "a.example").by(&key).send().await;
    assert_eq!((first.status, first.text()), (201, "run 1 for a.example"));
    let other = pay(&gateway, "b.example").by(&key).send().await;
    assert_eq!(word(&other), "422 key-reused");
    let id = first.header("x-operation-id");
    for path in [
        "/payments/by-idempotency-key/k".to_owned(),
        format!("/api/v1/operations/{id}"),
    ] {
        let own = gateway.get(&path).host("a.example").by(&key).send().await;
        assert_eq!((own.status, own.text()), (201, "run 1 for a.example"));
        let other = gateway.get(&path).host("b.example").by(&key).send().await;
        assert_eq!(word(&other), "404 no-operation");
    }
}

/// A reload that changes the upstream's `host` does not change how a record is
/// compared.
#[tokio::test]
async fn a_record_keeps_its_host_after_a_reload() {
    let origin = echo().run().await;
    let fixed = format!("{FIXED_HOST}{}", payments(""));
    let gateway = configured(&origin, &fixed).run().await;
    assert_eq!(pay(&gateway, "a.example").send().await.status, 201);
    let recover = |host| gateway.get("/payments/by-idempotency-key/k").host(host);
    for text in [payments(""), fixed] {
        gateway.reload(&origin.url(), &text).await.unwrap();
        let again = pay(&gateway, "a.example").send().await;
        assert!(again.is_replay(), "{}", again.text());
        let other_body = pay(&gateway, "a.example").body("11").send().await;
        assert_eq!(word(&other_body), "422 key-reused");
        let other_host = pay(&gateway, "b.example").send().await;
        assert_eq!(word(&other_host), "422 key-reused");
        assert_eq!(recover("a.example").send().await.status, 201);
        let stranger = recover("b.example").send().await;
        assert_eq!(word(&stranger), "404 no-operation");
    }
}
