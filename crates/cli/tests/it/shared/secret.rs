//! Gateways that share a store need the same `secrets.key`. With different ones, each would treat
//! the other's retries as different requests and make clients use a new key.

use rstest::rstest;

use crate::fixture::BODY;
use crate::fixture::gateway::gateway_on;
use crate::fixture::origin::{Behaviour, origin};
use crate::shared::deployment::{Deployment, Settings, StoreKind};

const ANOTHER: Settings = Settings {
    url: None,
    store: "",
    key: "some other secret of ours",
    more: "",
};

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_with_another_secrets_key_does_not_start(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::PAY).await).await;
    let refused = "Error: this store is used by gateways with another secrets.key (ONCEWARD_KEY): with this one retries \
                   would look like different requests, and API keys would be unknown; set the same key as in the other \
                   gateways, or another store.namespace to start with an empty store";
    let one = deployment.plan(&Settings::default()).run().await;
    let first = one.post("k", BODY).await.unwrap();
    let (status, log) = deployment.plan(&ANOTHER).start().ended().await;
    assert_eq!(
        (status.code(), log.last()),
        (Some(1), Some(&refused.to_owned()))
    );

    // The store is authoritative; the first gateway need not run.
    one.kill().await;
    let (status, log) = deployment.plan(&ANOTHER).start().ended().await;
    assert_eq!(
        (status.code(), log.last()),
        (Some(1), Some(&refused.to_owned()))
    );
    let one = deployment.plan(&Settings::default()).run().await;
    let again = one.post("k", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), first.kept());

    // In another namespace it is the first gateway.
    let apart = Settings {
        store: "namespace = \"apart\"",
        ..ANOTHER
    };
    let apart = deployment.plan(&apart).run().await;
    let fresh = apart.post("k", BODY).await.unwrap();
    assert_eq!((fresh.status, fresh.is_replay()), (201, false));
}

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_file_the_secrets_key_comes_from_the_environment(#[case] kind: StoreKind) {
    let deployment = Deployment::open(kind, origin(Behaviour::PAY).await).await;
    let plan = gateway_on(&deployment.origin, deployment.server.url());
    let with = |key: &str| plan.clone().variable("ONCEWARD_KEY", key);
    let (one, other) = (with(ANOTHER.key).run().await, with(ANOTHER.key).run().await);
    let first = one.post("k", BODY).await.unwrap();
    let again = other.post("k", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), first.kept());
    for (key, words) in [
        (
            "0123456789abcdef",
            "this store is used by gateways with another secrets.key",
        ),
        ("short", "ONCEWARD_KEY has 5 characters"),
        ("", "ONCEWARD_KEY has 0 characters"),
    ] {
        let (status, log) = with(key).start().ended().await;
        assert_eq!(status.code(), Some(1), "{log:?}");
        let last = log.last().unwrap();
        assert!(last.starts_with(&format!("Error: {words}")), "{last}");
    }
    assert_eq!(deployment.origin.runs().len(), 1);
}
