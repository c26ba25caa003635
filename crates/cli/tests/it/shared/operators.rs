//! Changes by operators at one gateway, as they take effect at the other.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::Value;

use crate::fixture::client::{Client, Response, hours_kept, post_request};
use crate::fixture::command::run;
use crate::fixture::gateway::Gateway;
use crate::fixture::origin::{Behaviour, origin};
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Settings, StoreKind};

/// The delay at other gateways that `docs/operating.md` promises.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(5);

/// Creates an API key of tenant acme at this gateway. Returns its id and the key.
async fn create(gateway: &Gateway) -> (String, String) {
    let order = "keys create --tenant acme --project shop --subject service:worker --json";
    let said = run(gateway, &order.split(' ').collect::<Vec<_>>()).await;
    let made = said.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made["key"]["id"]), text(&made["secret"]))
}

async fn revoke(gateway: &Gateway, id: &str) {
    let said = run(gateway, &["keys", "revoke", id, "--why", "it leaked"]).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
}

async fn pay(gateway: &Gateway, api_key: &str, key: &str) -> Response {
    let mut request = post_request(key, BODY);
    let value = format!("Bearer {api_key}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    let mut client = Client::new(gateway.listen());
    client.send(request).await.unwrap()
}

/// Waits until a gateway answers as expected, and prints the time since the change.
async fn followed<F: Future<Output = bool>>(what: &str, holds: impl FnMut() -> F) {
    let changed = Instant::now();
    until(what, holds).await;
    let after = changed.elapsed();
    eprintln!("{what} after {after:?}");
    assert!(after < FOLLOWED_WITHIN, "{what} only after {after:?}");
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_classes_changed_at_one_gateway_are_in_force_at_the_other(
    #[case] kind: StoreKind,
) {
    let deployment = Deployment::open(kind, origin(Behaviour::PAY).await).await;
    let words = Settings {
        more: "[auth.api_keys]",
        ..Settings::default()
    };
    let [one, other] = deployment.two(&words).await;

    let (id, api_key) = create(&one).await;
    assert_eq!(pay(&one, &api_key, "k").await.status, 201, "at once");
    followed("the key is known", || async {
        pay(&other, &api_key, "k").await.status == 201
    })
    .await;
    let replay = pay(&other, &api_key, "k").await;
    assert!(replay.is_replay(), "{replay:?}");

    let order = ["classes", "set", "interactive", "retention=48h"];
    let set = [&order[..], &["--why", "a test"]].concat();
    let said = run(&one, &set).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    assert_eq!(hours_kept(&pay(&one, &api_key, "day").await), 48, "at once");
    let mut number = 0;
    followed("the class is in force", || {
        number += 1;
        let key = format!("day-{number}");
        let (other, api_key) = (&other, &api_key);
        async move { hours_kept(&pay(other, api_key, &key).await) == 48 }
    })
    .await;

    // The same in the other direction.
    revoke(&other, &id).await;
    assert_eq!(pay(&other, &api_key, "k").await.status, 401, "at once");
    followed("the key is refused", || async {
        pay(&one, &api_key, "k").await.status == 401
    })
    .await;
    // A gateway can revoke a key that it does not know yet.
    let (id, api_key) = create(&one).await;
    revoke(&other, &id).await;
    followed("the second key is refused", || async {
        pay(&one, &api_key, "k").await.status == 401
    })
    .await;
    assert_eq!(pay(&other, &api_key, "k").await.status, 401);

    // Both gateways have the same audit log.
    for gateway in [&one, &other] {
        let audit = run(gateway, &["audit", "--json"]).await.json();
        let entries = audit["entries"].as_array().unwrap();
        let of = |why: &str| entries.iter().filter(|entry| entry["why"] == why).count();
        assert_eq!((of("it leaked"), of("a test")), (2, 1), "{audit}");
    }
    assert_eq!(deployment.origin.runs_of("k").len(), 1);
}
