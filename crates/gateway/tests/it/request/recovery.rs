//! Recovery of a reply by its key, after the answer was lost.

use jiff::Timestamp;
use rstest::rstest;

use crate::harness::{Reply, Running, gateway, origin};

#[tokio::test]
async fn a_reply_is_recovered_by_its_key() {
    let origin = origin()
        .reply(201, "paid")
        .header("location", "/payments/1")
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k-1").body("a").send().await;
    for rest in ["", "/output"] {
        for key in ["k-1", "k%2D1"] {
            let target = format!("/payments/by-idempotency-key/{key}{rest}");
            let reply = gateway.get(&target).send().await;
            assert_eq!(
                (reply.status, reply.text(), reply.is_replay()),
                (201, "paid", true)
            );
            assert_eq!(reply.header("location"), "/payments/1");
            assert_eq!(reply.header("cache-control"), "no-store");
            assert_eq!(
                reply.header("x-operation-id"),
                first.header("x-operation-id")
            );
        }
    }
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn an_early_recovery_request_waits_or_gets_the_status() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let output = gateway
        .get("/payments/by-idempotency-key/k/output")
        .send()
        .await;
    assert_eq!(
        (output.status, output.header("idempotency-status")),
        (202, "processing")
    );
    assert_eq!(output.json()["state"], "running");
    let hasty = gateway
        .get("/payments/by-idempotency-key/k")
        .header("prefer", "wait=0")
        .send()
        .await;
    assert_eq!(hasty.problem(), (409, "in-progress".to_owned()));

    let patient = gateway.get("/payments/by-idempotency-key/k").spawn();
    gateway.waiting(1).await;
    origin.open();
    assert_eq!(patient.await.unwrap().text(), "paid");
    assert_eq!(first.await.unwrap().text(), "paid");
}

#[tokio::test]
async fn the_status_document_has_the_members_of_the_contract() {
    let origin = origin().reply(422, "no").gated().run().await;
    let gateway = gateway(&origin).run().await;
    let before = Timestamp::now();
    let first = gateway.post("/payments", "k").spawn();
    origin.called(1).await;
    let running = status(&gateway, "k").await;
    assert_eq!(
        (&running["state"], &running["status"]),
        (&"running".into(), &"processing".into())
    );
    for name in ["completed_at", "expires_at", "original_status"] {
        assert!(running[name].is_null(), "{name}");
    }

    origin.open();
    let first = first.await.unwrap();
    let done = status(&gateway, "k").await;
    let names: Vec<_> = done
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut contract = [
        "operation_id",
        "endpoint",
        "state",
        "status",
        "attempts",
        "created_at",
        "completed_at",
        "expires_at",
        "original_status",
    ];
    contract.sort_unstable();
    assert_eq!(names, contract);
    assert_eq!(done["operation_id"], first.header("x-operation-id"));
    assert_eq!(done["endpoint"], "POST /payments");
    assert_eq!(
        (&done["state"], &done["status"]),
        (&"failed".into(), &"failed".into())
    );
    assert_eq!(
        (&done["attempts"], &done["original_status"]),
        (&1.into(), &422.into())
    );
    assert_eq!(done["expires_at"], first.header("idempotency-expires"));
    let at = |name: &str| done[name].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert!(at("created_at").as_millisecond() >= before.as_millisecond());
    assert!(at("created_at") <= at("completed_at") && at("completed_at") < at("expires_at"));
}

#[tokio::test]
async fn recovery_finds_a_post_before_a_patch() {
    let origin = origin()
        .replying(|seen, _| Reply::new(200, seen.method.to_string()))
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    gateway.request("PATCH /payments").key("k").send().await;
    assert_eq!(
        gateway
            .get("/payments/by-idempotency-key/k")
            .send()
            .await
            .text(),
        "PATCH"
    );
    gateway.request("POST /payments").key("k").send().await;
    assert_eq!(
        gateway
            .get("/payments/by-idempotency-key/k")
            .send()
            .await
            .text(),
        "POST"
    );
}

#[tokio::test]
async fn an_operation_at_the_root_path_is_recoverable() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    gateway.post("/", "k").send().await;
    assert_eq!(
        gateway.get("/by-idempotency-key/k").send().await.text(),
        "paid"
    );
}

#[tokio::test]
async fn head_of_a_recovery_path_is_get_without_the_body() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    gateway.post("/payments", "k").send().await;
    let head = gateway
        .request("HEAD /payments/by-idempotency-key/k")
        .send()
        .await;
    assert_eq!(
        (head.status, head.text(), head.is_replay()),
        (201, "", true)
    );
}

#[rstest]
#[case::unknown_key("/payments/by-idempotency-key/none", 404, "no-operation")]
#[case::another_path("/refunds/by-idempotency-key/k", 404, "no-operation")]
#[case::another_case("/payments/by-idempotency-key/K", 404, "no-operation")]
#[case::malformed("/payments/by-idempotency-key/a%20b", 400, "key-invalid")]
#[case::decoded_once("/payments/by-idempotency-key/k%252D1", 400, "key-invalid")]
#[case::empty("/payments/by-idempotency-key/", 400, "key-invalid")]
#[case::namespaced("/payments/by-idempotency-key/t-x", 400, "key-invalid")]
#[tokio::test]
async fn recovery_of_an_unknown_or_malformed_key_is_a_problem(
    #[case] target: &str,
    #[case] status: u16,
    #[case] code: &str,
    #[values("", "/output", "/status")] rest: &str,
) {
    let origin = origin().run().await;
    let gateway = gateway(&origin).in_memory().run().await;
    gateway.post("/payments", "k").send().await;
    let answer = gateway.get(&format!("{target}{rest}")).send().await;
    assert_eq!(answer.problem(), (status, code.to_owned()));
    assert_eq!(origin.runs(), 1, "recovery is never forwarded");
}

/// Another client's operation looks, byte by byte, like one that never existed.
#[tokio::test]
async fn another_clients_operation_looks_absent() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = gateway(&origin).run().await;
    let routes = ["", "/output", "/status"];
    let mut before = Vec::new();
    for rest in routes {
        before.push(recover_as_thief(&gateway, rest).await);
    }
    let owner = gateway
        .post("/payments", "k")
        .header("authorization", "Bearer owner");
    assert_eq!(owner.send().await.status, 201);
    for (rest, before) in routes.into_iter().zip(before) {
        assert!(before.starts_with("HTTP/1.1 404 "), "{before}");
        assert_eq!(recover_as_thief(&gateway, rest).await, before);
    }
    let own = gateway
        .get("/payments/by-idempotency-key/k")
        .header("authorization", "Bearer owner");
    assert_eq!(own.send().await.text(), "paid");
}

/// All bytes of the answer except its date.
async fn recover_as_thief(gateway: &Running, rest: &str) -> String {
    let mut client = gateway.raw().await;
    client
        .say(format!(
            "GET /payments/by-idempotency-key/k{rest} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
             Authorization: Bearer thief\r\n\r\n"
        ))
        .await;
    let heard = client.hear_out().await;
    heard
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("date: "))
        .collect()
}

async fn status(gateway: &Running, key: &str) -> serde_json::Value {
    let answer = gateway
        .get(&format!("/payments/by-idempotency-key/{key}/status"))
        .send()
        .await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/json")
    );
    answer.json()
}
