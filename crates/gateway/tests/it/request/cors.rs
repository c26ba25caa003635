//! CORS: the sites that may call, the headers that they may send and read.

use crate::harness::credentials::{API_KEYS, Sent, api_key};
use crate::harness::fixture::{payments, route, word};
use crate::harness::{Answer, Running, configured, origin};

const APP: &str = "https://app.example";
const EVIL: &str = "https://evil.example";

async fn house(more: &str) -> Running {
    let origin = origin()
        .reply(201, "paid")
        .header("access-control-allow-origin", "*")
        .header("access-control-expose-headers", "x-internal")
        .run()
        .await;
    let text = format!(
        "[cors]\norigins = [\"{APP}\"]\nheaders = [\"X-Request-Id\"]\nexpose = [\"X-Total\"]\n{API_KEYS}{}{}",
        payments(more),
        route("open.list", "GET", "/open", "cors = { origins = [\"*\"] }"),
    );
    configured(&origin, &text).run().await
}

/// A preflight request.
async fn preflight(gateway: &Running, path: &str, method: &str, site: &str) -> Answer {
    gateway
        .request(&format!("OPTIONS {path}"))
        .header("origin", site)
        .header("access-control-request-method", method)
        .header(
            "access-control-request-headers",
            "idempotency-key,authorization",
        )
        .send()
        .await
}

fn listed(answer: &Answer, header: &str) -> Vec<String> {
    let names = answer.header(header).split(',');
    names.map(|name| name.trim().to_ascii_lowercase()).collect()
}

#[tokio::test]
async fn a_preflight_lists_the_methods_and_headers_that_a_page_may_send() {
    let gateway = house("").await;
    let answer = preflight(&gateway, "/payments", "POST", APP).await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("access-control-allow-origin"), APP);
    assert_eq!(answer.header("access-control-allow-methods"), "POST");
    assert_eq!(answer.header("access-control-max-age"), "600");
    assert_eq!(answer.header("vary"), "Origin");
    let sent = listed(&answer, "access-control-allow-headers");
    for name in [
        "idempotency-key",
        "prefer",
        "authorization",
        "x-api-key",
        "content-type",
        "x-request-id",
    ] {
        assert!(
            sent.iter().any(|is| is == name),
            "{name} is not in {sent:?}"
        );
    }
}

#[tokio::test]
async fn a_preflight_from_elsewhere_allows_nothing() {
    let gateway = house("").await;
    for site in [
        EVIL,
        "null",
        "http://app.example",
        "https://app.example.evil.example",
        "https://app.example:8443",
    ] {
        let answer = preflight(&gateway, "/payments", "POST", site).await;
        let said: Vec<_> = answer
            .headers
            .keys()
            .filter(|name| name.as_str().starts_with("access-control-"))
            .collect();
        assert!(said.is_empty(), "{site}: {said:?}");
    }
    let everybody = preflight(&gateway, "/open", "GET", EVIL).await;
    assert_eq!(everybody.header("access-control-allow-origin"), "*");
    let nowhere = preflight(&gateway, "/nowhere", "POST", APP).await;
    assert_eq!(nowhere.header("access-control-allow-origin"), "");
}

/// The answer, its replay, its refusals and its recovery can be read.
#[tokio::test]
async fn every_answer_lists_the_headers_that_a_page_may_read() {
    let gateway = house("").await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    let post = |key: &str| gateway.post("/payments", key).header("origin", APP);
    let get = |path: &str| gateway.get(path).header("origin", APP);
    for (what, answer) in [
        ("the first", post("k").by(&ann).send().await),
        ("a replay", post("k").by(&ann).send().await),
        ("a bad key", post("a b").by(&ann).send().await),
        (
            "another request",
            post("k").by(&ann).body("other").send().await,
        ),
        ("nobody", post("k").send().await),
        (
            "recovery",
            get("/payments/by-idempotency-key/k").by(&ann).send().await,
        ),
        (
            "nothing",
            get("/payments/by-idempotency-key/none")
                .by(&ann)
                .send()
                .await,
        ),
    ] {
        assert_eq!(
            answer.headers("access-control-allow-origin"),
            [APP],
            "{what}"
        );
        assert!(answer.headers("vary").contains(&"Origin"), "{what}");
        let read = listed(&answer, "access-control-expose-headers");
        for name in [
            "idempotency-status",
            "idempotency-expires",
            "idempotency-key-source",
            "idempotent-replayed",
            "x-operation-id",
            "link",
            "location",
            "retry-after",
            "x-total",
        ] {
            assert!(
                read.iter().any(|is| is == name),
                "{what}: {name} is not in {read:?}"
            );
        }
        assert!(
            !read.contains(&"x-internal".to_owned()),
            "the upstream's word is replaced"
        );
    }
}

#[tokio::test]
async fn other_sites_may_read_nothing() {
    let gateway = house("").await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    for site in [Some(EVIL), None] {
        let ask = gateway.post("/payments", "k").by(&ann);
        let ask = match site {
            Some(site) => ask.header("origin", site),
            None => ask,
        };
        let answer = ask.send().await;
        assert_eq!(answer.status, 201);
        for name in [
            "access-control-allow-origin",
            "access-control-expose-headers",
        ] {
            assert_eq!(answer.header(name), "", "{site:?}");
        }
        assert!(answer.headers("vary").contains(&"Origin"));
    }
}

/// A page that lost its answer recovers it with its credential; the browser sends a
/// preflight request there too.
#[tokio::test]
async fn a_page_may_recover_its_own_operation() {
    let gateway = house("").await;
    for end in ["", "/output", "/status"] {
        let path = format!("/payments/by-idempotency-key/k{end}");
        let answer = preflight(&gateway, &path, "GET", APP).await;
        assert_eq!(answer.status, 204, "{end}");
        assert_eq!(answer.header("access-control-allow-origin"), APP, "{end}");
        assert_eq!(
            answer.header("access-control-allow-methods"),
            "GET",
            "{end}"
        );
        let evil = preflight(&gateway, &path, "GET", EVIL).await;
        assert_eq!(evil.header("access-control-allow-origin"), "", "{end}");
    }
}

#[tokio::test]
async fn a_route_may_have_its_own_origins_and_credentials() {
    let gateway = house("cors = { origins = [\"https://own.example\"], credentials = true }").await;
    let own = preflight(&gateway, "/payments", "POST", "https://own.example").await;
    assert_eq!(
        own.header("access-control-allow-origin"),
        "https://own.example"
    );
    assert_eq!(own.header("access-control-allow-credentials"), "true");
    let app = preflight(&gateway, "/payments", "POST", APP).await;
    assert_eq!(
        app.header("access-control-allow-origin"),
        "",
        "it replaces [cors] whole"
    );
}

/// Without CORS an OPTIONS request is an ordinary request.
#[tokio::test]
async fn without_cors_the_upstreams_headers_pass() {
    let origin = origin()
        .reply(200, "")
        .header("access-control-allow-origin", "*");
    let origin = origin.run().await;
    let text = [
        payments(""),
        route("pay.options", "OPTIONS", "/payments", ""),
        route("refunds.create", "POST", "/refunds", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let answer = preflight(&gateway, "/payments", "POST", APP).await;
    assert_eq!(answer.headers("access-control-allow-origin"), ["*"]);
    assert_eq!(origin.only().method, "OPTIONS");
    let refused = preflight(&gateway, "/refunds", "POST", APP).await;
    assert_eq!(word(&refused), "405 method-not-allowed");
}
