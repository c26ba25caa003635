//! A real request causes every problem, and the page that the problem names exists.

use onceward_gateway::config::Policy;
use onceward_http::problem::Code;
use serde_json::json;

use crate::harness::credentials::{API_KEYS, Sent, api_key, scoped_key};
use crate::harness::fixture::{answering, ask_until, classy, payments, without_store, word};
use crate::harness::{Answer, Reserved, Running, configured, configured_to, origin};

#[tokio::test]
async fn every_problem_is_reachable_and_has_a_page() {
    for code in Code::ALL {
        let (gateway, answer) = Box::pin(reach(code)).await;
        let (_, reached) = answer.problem();
        assert_eq!(reached, code.as_str(), "{}", answer.text());
        check(&gateway, &answer).await;
    }
}

/// The members of every problem, and its page.
async fn check(gateway: &Running, answer: &Answer) {
    let problem = answer.json();
    let code = problem["code"].as_str().unwrap();
    assert_eq!(problem["status"], answer.status, "{code}");
    for name in ["title", "detail", "instance"] {
        let text = problem[name].as_str().unwrap();
        assert!(!text.is_empty(), "{code}: {name}");
    }
    for name in ["retryable", "safe_new_key"] {
        assert!(problem[name].is_boolean(), "{code}: {name}");
    }
    let id = problem["operation_id"].as_str().unwrap_or_default();
    assert_eq!(answer.header("x-operation-id"), id, "{code}");
    assert_eq!(answer.header("cache-control"), "no-store", "{code}");
    let link = "<http://shop.example/.well-known/idempotency>; rel=\"describedby\"";
    assert_eq!(answer.header("link"), link, "{code}");

    let page = problem["type"].as_str().unwrap();
    let page = page.strip_prefix("http://shop.example").unwrap();
    assert_eq!(page, format!("/.well-known/idempotency/problems/{code}"));
    let page = gateway.get(page).send().await;
    assert_eq!(page.status, 200, "{code}");
    assert!(page.text().contains(code), "{}", page.text());
}

/// Causes this problem. A new code needs a case here.
async fn reach(code: Code) -> (Running, Answer) {
    let keyed = "policy = \"REQUIRED_A\"";
    match code {
        Code::InProgress => {
            let origin = origin().gated().run().await;
            let gateway = classy(&origin, "in_flight = \"reject\"").await;
            let _first = gateway.post("/payments", "k").spawn();
            origin.called(1).await;
            second(gateway, "k").await
        }
        Code::KeyReused => {
            let gateway = plain("").await;
            gateway.post("/payments", "k").body("other").send().await;
            second(gateway, "k").await
        }
        Code::KeyMissing => {
            let gateway = plain(keyed).await;
            let answer = gateway.request("POST /payments").send().await;
            (gateway, answer)
        }
        Code::KeyInvalid => second(plain(keyed).await, "a b").await,
        Code::KeyProhibited => second(plain("policy = \"PROHIBITED\"").await, "k").await,
        Code::OutcomeUnknown => {
            let origin = origin().hanging_up().run().await;
            let gateway = classy(&origin, "").await;
            second(gateway, "k").await
        }
        Code::UpstreamUnreachable => {
            let reserved = Reserved::new();
            let gateway = configured_to(&reserved.url(), &payments("")).run().await;
            second(gateway, "k").await
        }
        Code::Paused => {
            let origin = answering(&[503]).run().await;
            let gateway = classy(&origin, "max_attempts = 2\nbackoff = \"1ms\"").await;
            second(gateway, "k").await
        }
        Code::ReplyNotKept => {
            let origin = origin().reply(201, "too large").run().await;
            let gateway = configured(&origin, &payments("reply_limit = \"2B\""))
                .run()
                .await;
            gateway.post("/payments", "k").send().await;
            second(gateway, "k").await
        }
        Code::ReplyExpired => {
            let origin = origin().run().await;
            let gateway = classy(&origin, "retention = \"50ms\"\nremember = \"1h\"").await;
            let ask = || gateway.post("/payments", "k");
            let answer = ask_until(ask, |answer| answer.status != 200).await;
            (gateway, answer)
        }
        Code::StoreUnavailable => {
            let origin = origin().run().await;
            without_store(&origin, "").await
        }
        Code::NoOperation => {
            let gateway = plain("").await;
            let answer = gateway.get("/payments/by-idempotency-key/k").send().await;
            (gateway, answer)
        }
        Code::MethodNotAllowed => {
            let gateway = plain("").await;
            let answer = gateway.request("DELETE /payments").send().await;
            (gateway, answer)
        }
        Code::BodyTooLarge => {
            let gateway = plain("body_limit = \"2B\"").await;
            let answer = gateway
                .post("/payments", "k")
                .body("too large")
                .send()
                .await;
            (gateway, answer)
        }
        Code::TranslationFailed => {
            let origin = origin().run().await;
            // The file has no setting for it: it is only for webhooks.
            let gateway = configured(&origin, &payments(""))
                .with(|config| config.routes[0].policy = Some(Policy::RequiredB))
                .run()
                .await;
            second(gateway, "k").await
        }
        Code::Unauthenticated => second(guarded("").await, "k").await,
        Code::Forbidden => {
            let gateway = guarded("scopes = [\"pay\"]").await;
            let ann = scoped_key(&gateway, ("acme", "shop", "user:ann"), &["read"]).await;
            let answer = gateway.post("/payments", "k").by(&ann).send().await;
            (gateway, answer)
        }
        Code::NoRoute => {
            let gateway = plain("").await;
            let answer = gateway.get("/nowhere").send().await;
            (gateway, answer)
        }
        Code::TooManyRequests => {
            let limits = "\n[limits]\nrequests_per_tenant = { per_second = 1, burst = 1 }";
            let gateway = guarded(limits).await;
            let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
            let ask = || gateway.post("/payments", "k").by(&ann);
            let answer = ask_until(ask, |answer| answer.status != 200).await;
            (gateway, answer)
        }
        Code::AuthUnavailable => {
            let origin = origin().run().await;
            let nobody = Reserved::new();
            let issuer = format!(
                "[[auth.jwt]]\nissuer = \"https://id.example/\"\naudience = \"shop\"\n\
                 jwks_url = \"{}/jwks.json\"\nalgorithms = [\"EdDSA\"]\ntenant = \"/tenant\"\n",
                nobody.url()
            );
            let gateway = configured(&origin, &[issuer, payments("")].concat())
                .run()
                .await;
            let encode = |value: serde_json::Value| {
                data_encoding::BASE64URL_NOPAD.encode(value.to_string().as_bytes())
            };
            let token = [
                encode(json!({"alg": "EdDSA", "kid": "k"})),
                encode(
                    json!({"iss": "https://id.example/", "aud": "shop", "exp": 99_999_999_999_u64}),
                ),
                encode(json!("signature")),
            ];
            let answer = gateway.post("/payments", "k").bearing(&token.join("."));
            let answer = answer.send().await;
            (gateway, answer)
        }
        Code::BadRequest => {
            let gateway = plain("").await;
            let answer = gateway.get("/payments/%zz").send().await;
            (gateway, answer)
        }
        new => panic!("no request here reaches {}", new.as_str()),
    }
}

async fn plain(settings: &str) -> Running {
    let origin = origin().run().await;
    configured(&origin, &payments(settings)).run().await
}

async fn guarded(settings: &str) -> Running {
    let origin = origin().run().await;
    let text = [API_KEYS, &payments(settings)];
    configured(&origin, &text.concat()).run().await
}

async fn second(gateway: Running, key: &str) -> (Running, Answer) {
    let answer = gateway.post("/payments", key).send().await;
    (gateway, answer)
}

/// `public_url` replaces the host of the request.
#[tokio::test]
async fn links_begin_with_the_public_url() {
    let origin = origin().run().await;
    let server = "server: public_url = \"https://api.example.com\"\n";
    let text = [server, &payments("policy = \"REQUIRED_A\"")];
    let gateway = configured(&origin, &text.concat()).run().await;
    let refused = gateway
        .request("POST /payments")
        .host("evil.example")
        .send()
        .await;
    assert_eq!(word(&refused), "400 key-missing");
    let page = "https://api.example.com/.well-known/idempotency/problems/key-missing";
    assert_eq!(refused.json()["type"], page);
    assert!(
        refused
            .header("link")
            .starts_with("<https://api.example.com/")
    );
}
