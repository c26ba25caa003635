//! Limits: requests beyond them are refused, leave no trace, and do not affect
//! other tenants.

use serde_json::json;

use crate::harness::credentials::{API_KEYS, Sent, api_key};
use crate::harness::fixture::{ask_until, look, payments, route, word};
use crate::harness::{Answer, Running, configured, origin};

const ANN: (&str, &str, &str) = ("acme", "shop", "user:ann");
const BOB: (&str, &str, &str) = ("acme", "blog", "user:bob");
const OTHER: (&str, &str, &str) = ("globex", "shop", "user:ann");

fn text(limits: &str) -> String {
    [API_KEYS, "[limits]\n", limits, "\n", &payments("")].concat()
}

fn assert_refused(answer: &Answer) {
    assert_eq!(word(answer), "429 too-many-requests");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.header("idempotency-status"), "");
    assert_eq!(answer.json()["retryable"], json!(true));
}

async fn stored(gateway: &Running, key: &str) -> usize {
    let page = look(gateway, &format!("/admin/v1/operations?key={key}")).await;
    page.json()["operations"].as_array().unwrap().len()
}

#[tokio::test]
async fn requests_per_tenant() {
    let origin = origin().reply(201, "paid").run().await;
    // So low that no test waits for the next one.
    let limits = "requests_per_tenant = { per_second = 1, burst = 3 }";
    let gateway = configured(&origin, &text(limits)).run().await;
    let (ann, bob) = (api_key(&gateway, ANN).await, api_key(&gateway, BOB).await);
    let other = api_key(&gateway, OTHER).await;
    for key in ["k1", "k2"] {
        assert_eq!(
            gateway.post("/payments", key).by(&ann).send().await.status,
            201
        );
    }
    assert_eq!(
        gateway.post("/payments", "k3").by(&bob).send().await.status,
        201,
        "of the same tenant"
    );
    let mut refused = Vec::new();
    for key in ["k4", "k5", "k6"] {
        let answer = gateway.post("/payments", key).by(&bob).send().await;
        if answer.status != 201 {
            assert_refused(&answer);
            refused.push(key);
        }
    }
    assert!(!refused.is_empty());
    for key in refused {
        assert_eq!(
            stored(&gateway, key).await,
            0,
            "nothing is stored under {key}"
        );
    }
    // Another tenant is not affected.
    for key in ["k1", "k2", "k3"] {
        assert_eq!(
            gateway
                .post("/payments", key)
                .by(&other)
                .send()
                .await
                .status,
            201
        );
    }
    // Later the same request runs, or is replayed.
    let retry = || gateway.post("/payments", "k4").by(&bob);
    assert_eq!(
        ask_until(retry, |answer| answer.status != 429).await.status,
        201
    );
}

#[tokio::test]
async fn in_flight_per_tenant() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("in_flight_per_tenant = 1"))
        .run()
        .await;
    let (ann, bob) = (api_key(&gateway, ANN).await, api_key(&gateway, BOB).await);
    let other = api_key(&gateway, OTHER).await;
    let first = gateway.post("/payments", "k1").by(&ann).spawn();
    origin.called(1).await;
    assert_refused(&gateway.post("/payments", "k2").by(&ann).send().await);
    assert_refused(&gateway.post("/payments", "k3").by(&bob).send().await);
    assert_eq!(
        stored(&gateway, "k2").await + stored(&gateway, "k3").await,
        0
    );
    let theirs = gateway.post("/payments", "k1").by(&other).spawn();
    origin.called(2).await;
    origin.open();
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(theirs.await.unwrap().status, 201);
    origin.open();
    let retry = || gateway.post("/payments", "k2").by(&ann);
    assert_eq!(
        ask_until(retry, |answer| answer.status != 429).await.status,
        201
    );
    assert_eq!(origin.runs(), 3);
}

#[tokio::test]
async fn a_large_body_beyond_the_limit_is_refused_before_it_is_hashed() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("in_flight_per_tenant = 1"))
        .run()
        .await;
    let ann = api_key(&gateway, ANN).await;
    let large = || {
        let body = vec![b'x'; 100 << 10];
        gateway.post("/payments", "large").by(&ann).body(body)
    };
    origin.open();
    assert_eq!(large().send().await.status, 201);
    let small = gateway.post("/payments", "small").by(&ann).spawn();
    origin.called(2).await;
    // Only its hash could tell that it is a replay.
    assert_refused(&large().send().await);
    origin.open();
    assert_eq!(small.await.unwrap().status, 201);
    assert!(ask_until(large, Answer::is_replay).await.is_replay());
    // Replays gave their slots back.
    assert!(large().send().await.is_replay());
}

#[tokio::test]
async fn in_flight_in_total() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("in_flight = 1")).run().await;
    let (ann, other) = (api_key(&gateway, ANN).await, api_key(&gateway, OTHER).await);
    let first = gateway.post("/payments", "k").by(&ann).spawn();
    origin.called(1).await;
    assert_refused(&gateway.post("/payments", "k").by(&other).send().await);
    // The slot of a client that disconnects stays taken until its operation ends.
    first.abort();
    assert_refused(&gateway.post("/payments", "k").by(&other).send().await);
    origin.open();
    origin.open();
    let retry = || gateway.post("/payments", "k").by(&other);
    assert_eq!(
        ask_until(retry, |answer| answer.status != 429).await.status,
        201
    );
}

#[tokio::test]
async fn waiters_per_key() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("waiters_per_key = 2"))
        .run()
        .await;
    let ann = api_key(&gateway, ANN).await;
    let ask = |key: &str| gateway.post("/payments", key).by(&ann);
    let first = ask("k1").spawn();
    origin.called(1).await;
    let waiting: Vec<_> = (0..2).map(|_| ask("k1").spawn()).collect();
    gateway.waiting(2).await;
    let one_more = ask("k1").send().await;
    assert_eq!(word(&one_more), "409 in-progress");
    let recovery = gateway.get("/payments/by-idempotency-key/k1").by(&ann);
    assert_eq!(word(&recovery.send().await), "409 in-progress");
    // Another key has its own slots.
    let other = ask("k2").spawn();
    origin.called(2).await;
    let waits = ask("k2").spawn();
    gateway.waiting(3).await;
    origin.open();
    origin.open();
    for answer in waiting.into_iter().chain([first, other, waits]) {
        assert_eq!(answer.await.unwrap().status, 201);
    }
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn waiters_per_tenant() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("waiters_per_tenant = 1"))
        .run()
        .await;
    let (ann, bob) = (api_key(&gateway, ANN).await, api_key(&gateway, BOB).await);
    let other = api_key(&gateway, OTHER).await;
    let all = [("k1", &ann), ("k2", &bob), ("k3", &other)];
    let firsts: Vec<_> = all
        .iter()
        .map(|(key, who)| gateway.post("/payments", key).by(who).spawn())
        .collect();
    origin.called(3).await;
    let waits = gateway.post("/payments", "k1").by(&ann).spawn();
    gateway.waiting(1).await;
    let too_many = gateway.post("/payments", "k2").by(&bob).send().await;
    assert_eq!(word(&too_many), "409 in-progress");
    let theirs = gateway.post("/payments", "k3").by(&other).spawn();
    gateway.waiting(2).await;
    for _ in 0..3 {
        origin.open();
    }
    for answer in firsts.into_iter().chain([waits, theirs]) {
        assert_eq!(answer.await.unwrap().status, 201);
    }
}

#[tokio::test]
async fn buffered_bytes() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let text = [
        "server: body_limit = \"1KiB\"\n",
        "[limits]\nbuffered_bytes = \"1KiB\"\n",
        &payments(""),
        &route("a.open", "PUT", "/open", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ask = |key: &str, bytes: usize| gateway.post("/payments", key).body(vec![b'x'; bytes]);
    let first = ask("k1", 1000).spawn();
    origin.called(1).await;
    assert_refused(&ask("k2", 1000).send().await);
    assert_refused(&ask("k2", 25).send().await);
    assert_eq!(stored(&gateway, "k2").await, 0);
    // The remaining bytes are granted, and unprotected bodies are not buffered.
    let small = ask("k3", 24).spawn();
    origin.called(2).await;
    let streams = gateway
        .request("PUT /open")
        .body(vec![b'x'; 10_000])
        .spawn();
    origin.called(3).await;
    for _ in 0..3 {
        origin.open();
    }
    for answer in [first, small, streams] {
        assert_eq!(answer.await.unwrap().status, 201);
    }
    origin.open();
    let retry = || ask("k2", 1000);
    assert_eq!(
        ask_until(retry, |answer| answer.status != 429).await.status,
        201
    );
}

/// An unauthenticated request counts for no tenant.
#[tokio::test]
async fn an_unauthenticated_request_does_not_use_up_a_tenants_rate() {
    let origin = origin().reply(201, "paid").run().await;
    let limits = "requests_per_tenant = { per_second = 1, burst = 1 }";
    let gateway = configured(&origin, &text(limits)).run().await;
    let ann = api_key(&gateway, ANN).await;
    for _ in 0..5 {
        let stranger = gateway.post("/payments", "k").header("x-tenant-id", "acme");
        assert_eq!(stranger.send().await.status, 401);
    }
    assert_eq!(
        gateway.post("/payments", "k").by(&ann).send().await.status,
        201
    );
}

#[tokio::test]
async fn limits_change_with_a_reload() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("in_flight_per_tenant = 1"))
        .run()
        .await;
    let ann = api_key(&gateway, ANN).await;
    let first = gateway.post("/payments", "k1").by(&ann).spawn();
    origin.called(1).await;
    assert_refused(&gateway.post("/payments", "k2").by(&ann).send().await);
    let more = text("in_flight_per_tenant = 2");
    gateway.reload(&origin.url(), &more).await.unwrap();
    let second = gateway.post("/payments", "k2").by(&ann).spawn();
    origin.called(2).await;
    assert_refused(&gateway.post("/payments", "k3").by(&ann).send().await);
    origin.open();
    origin.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(second.await.unwrap().status, 201);
}

#[tokio::test]
async fn waiters_in_total() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = configured(&origin, &text("waiters = 1")).run().await;
    let (ann, other) = (api_key(&gateway, ANN).await, api_key(&gateway, OTHER).await);
    let firsts = [&ann, &other].map(|who| gateway.post("/payments", "k").by(who).spawn());
    origin.called(2).await;
    let waits = gateway.post("/payments", "k").by(&ann).spawn();
    gateway.waiting(1).await;
    let too_many = gateway.post("/payments", "k").by(&other).send().await;
    assert_eq!(word(&too_many), "409 in-progress");
    origin.open();
    origin.open();
    for answer in firsts.into_iter().chain([waits]) {
        assert_eq!(answer.await.unwrap().status, 201);
    }
    assert_eq!(origin.runs(), 2);
}
