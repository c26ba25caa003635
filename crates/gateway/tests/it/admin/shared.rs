//! Two gateways on one PostgreSQL: an operator's change at one gateway reaches the
//! other a little later.

use std::time::{Duration, Instant};

use onceward_servers::Postgres;
use onceward_stores::postgres::migrate;
use serde_json::{Value, json};

use crate::harness::{Answer, Origin, Running, configured, origin};

/// The documentation promises five seconds; a busy machine may take longer.
const SOON: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

const ROUTES: &str = "[auth.api_keys]\n[[routes]]\nendpoint = \"payments.create\"\n\
                      method = \"POST\"\npath = \"/payments\"\nupstream = \"origin\"\n";

async fn database() -> Postgres {
    let postgres = Postgres::start();
    let made = migrate::apply(&postgres.url(), &migrate::Options::default()).await;
    made.expect("the tables are made");
    postgres
}

async fn gateway(origin: &Origin, postgres: &Postgres) -> Running {
    let (url, deadline) = (postgres.url(), Duration::from_secs(20));
    configured(origin, ROUTES)
        .with(|config| {
            config.store = url.as_str().into();
            config.store.deadline = deadline;
            config.limits.store_deadline = deadline;
            config.secrets.key = Some("the same for both of them".into());
        })
        .run()
        .await
}

async fn operate(gateway: &Running, path: &str, body: Value) -> Value {
    let answer = gateway.change(path, &body.to_string());
    let answer = answer.host("localhost").send().await;
    assert!(answer.status < 300, "{path}: {}", answer.text());
    answer.json()
}

async fn pay(gateway: &Running, key: &str, secret: &str) -> Answer {
    let ask = gateway.post("/payments", key);
    let ask = ask.header("authorization", format!("Bearer {secret}"));
    ask.send().await
}

/// Pays until the status is this one, and returns how long it took.
async fn until_status(gateway: &Running, secret: &str, status: u16) -> Duration {
    let begun = Instant::now();
    while pay(gateway, "k", secret).await.status != status {
        assert!(begun.elapsed() < SOON, "still not {status}");
        tokio::time::sleep(PAUSE).await;
    }
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_keys_and_classes_reach_the_other_gateway() {
    let postgres = database().await;
    let origin = origin().reply(201, "paid").run().await;
    let [one, other] = [
        gateway(&origin, &postgres).await,
        gateway(&origin, &postgres).await,
    ];

    let wish = json!({
        "tenant": "acme", "project": "shop", "subject": "service:worker", "why": "a test",
    });
    let made = operate(&one, "/admin/v1/keys", wish).await;
    let secret = made["secret"].as_str().expect("a secret").to_owned();
    let id = made["key"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(pay(&one, "k", &secret).await.status, 201);
    until_status(&other, &secret, 201).await;
    assert_eq!(origin.runs(), 1, "the other replays what the first ran");

    let path = format!("/admin/v1/keys/{id}/revoke");
    operate(&one, &path, json!({ "why": "it leaked" })).await;
    assert_eq!(pay(&one, "k", &secret).await.status, 401, "here at once");
    until_status(&other, &secret, 401).await;

    let set = json!({ "settings": { "retention": "9d" }, "why": "audit" });
    operate(&one, "/admin/v1/classes/interactive", set).await;
    let begun = Instant::now();
    loop {
        let classes = other.admin("/admin/v1/classes").await;
        if classes.text().contains("\"9d\"") {
            break;
        }
        assert!(begun.elapsed() < SOON, "{}", classes.text());
        tokio::time::sleep(PAUSE).await;
    }
}

/// While the store is unavailable, known keys and classes stay in force; changes in
/// the store apply when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_keys_and_classes_stay_while_the_store_is_unavailable() {
    let mut postgres = database().await;
    let origin = origin().reply(201, "paid").run().await;
    let [one, other] = [
        gateway(&origin, &postgres).await,
        gateway(&origin, &postgres).await,
    ];
    let wish = json!({
        "tenant": "acme", "project": "shop", "subject": "service:worker", "why": "a test",
    });
    let made = operate(&one, "/admin/v1/keys", wish).await;
    let secret = made["secret"].as_str().expect("a secret").to_owned();
    until_status(&other, &secret, 201).await;

    postgres.kill();
    // Longer than the pause between two refreshes.
    let away = Instant::now();
    while away.elapsed() < Duration::from_secs(4) {
        let unprotected = other.request("POST /payments");
        let unprotected = unprotected.header("authorization", format!("Bearer {secret}"));
        assert_eq!(unprotected.send().await.status, 201, "still known");
        tokio::time::sleep(PAUSE).await;
    }
    postgres.restart();
    until_status(&other, &secret, 201).await;
    let id = made["key"]["id"].as_str().expect("an id").to_owned();
    let path = format!("/admin/v1/keys/{id}/revoke");
    operate(&one, &path, json!({ "why": "it leaked" })).await;
    until_status(&other, &secret, 401).await;
}
