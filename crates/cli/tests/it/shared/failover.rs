//! A Redis that is lost and replaced by a replica. By default replication is not awaited: writes that
//! the replica did not have are lost with the primary. `durability = "wait:1"` refuses requests
//! instead of losing them.

use std::time::Duration;

use onceward_servers::Redis;
use tokio::task::block_in_place;

use crate::fixture::gateway::Gateway;
use crate::fixture::origin::{Behaviour, Sequence, origin, origin_choosing};
use crate::fixture::{BODY, until};
use crate::shared::deployment::{Deployment, Server, Settings, StoreKind};
use crate::shared::relay::Relay;

fn primary(deployment: &Deployment) -> &Redis {
    match &deployment.server {
        Server::Redis(server) => server,
        Server::Postgres(_) => panic!("these tests are of Redis"),
    }
}

/// Waits until a replica has everything that its primary has.
async fn catch_up(primary: &Redis, replica: &Redis) {
    block_in_place(|| primary.cli(&["SET", "caught-up", "yes"]));
    let there = || async { block_in_place(|| replica.cli(&["GET", "caught-up"])) == "yes" };
    until("the replica has it", there).await;
}

/// Two gateways that reach the primary through a relay.
async fn two_apart(deployment: &Deployment) -> (Relay, [Gateway; 2]) {
    let relay = Relay::to(primary(deployment).port()).await;
    let words = Settings {
        url: Some(deployment.server.url_at(relay.port())),
        ..Settings::default()
    };
    let gateways = deployment.two(&words).await;
    (relay, gateways)
}

async fn ready(gateways: &[Gateway; 2]) {
    for gateway in gateways {
        until("it is ready", || async { gateway.is_ready().await }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicated_steps_are_kept_and_others_are_lost() {
    let origin = origin_choosing(Sequence::default(), |key, times| {
        match key.starts_with("held") && times == 1 {
            true => Behaviour::Hold,
            false => Behaviour::PAY,
        }
    });
    let mut deployment = Deployment::open(StoreKind::Redis, origin.await).await;
    let replica = block_in_place(|| primary(&deployment).replica());
    let (relay, gateways) = two_apart(&deployment).await;
    let [one, other] = &gateways;

    let kept = one.post("kept", BODY).await.unwrap();
    assert_eq!(kept.status, 201);
    let held_kept = one.spawn_post("held-kept", BODY);
    deployment.origin.called(2).await;
    catch_up(primary(&deployment), &replica).await;
    // Without its replica, the primary accepts writes that no other server has.
    block_in_place(|| replica.promote());
    let lost = one.post("lost", BODY).await.unwrap();
    assert_eq!(
        (lost.status, lost.header("idempotency-status")),
        (201, "completed")
    );
    assert!(other.post("lost", BODY).await.unwrap().is_replay());
    let held_lost = one.spawn_post("held-lost", BODY);
    deployment.origin.called(4).await;
    deployment.server.kill();
    relay.lead_to(replica.port());
    ready(&gateways).await;

    // An acknowledged reply that the replica had is replayed.
    for gateway in &gateways {
        let again = gateway.post("kept", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), kept.kept());
    }
    // An operation that ran during the failover is recorded if its claim survived; otherwise it is
    // reported as unknown.
    deployment.origin.open();
    deployment.origin.open();
    let held_kept = held_kept.await.unwrap().unwrap();
    assert_eq!(
        (held_kept.status, held_kept.header("idempotency-status")),
        (201, "completed")
    );
    let again = other.post("held-kept", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), held_kept.kept());
    let held_lost = held_lost.await.unwrap().unwrap();
    assert_eq!(
        (held_lost.status, held_lost.header("idempotency-status")),
        (201, "unknown")
    );
    // A key whose claim was lost is free, and runs again under a higher fence. The other gateway
    // may still give the reply of `lost` that it read a moment ago.
    for (gateway, key) in [(one, "lost"), (other, "held-lost")] {
        let again = gateway.post(key, BODY).await.unwrap();
        assert_eq!((again.status, again.is_replay()), (201, false), "{key}");
        let runs = deployment.origin.runs_of(key);
        assert_eq!(runs.len(), 2, "{key}");
        assert!(runs[0].fence < runs[1].fence, "{runs:?}");
    }
    assert_eq!(deployment.origin.runs().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_became_a_replica_is_left_for_the_new_one() {
    let deployment = Deployment::open(StoreKind::Redis, origin(Behaviour::PAY).await).await;
    let replica = block_in_place(|| primary(&deployment).replica());
    let (relay, gateways) = two_apart(&deployment).await;
    let [one, other] = &gateways;
    let kept = one.post("kept", BODY).await.unwrap();
    catch_up(primary(&deployment), &replica).await;
    // An orderly switch: nothing writes, and no connection is cut.
    let new = replica.port().to_string();
    block_in_place(|| {
        replica.promote();
        primary(&deployment).cli(&["REPLICAOF", "127.0.0.1", &new])
    });
    relay.move_to(replica.port());
    for gateway in &gateways {
        until_paid(gateway, "after").await;
    }
    let again = other.post("kept", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), kept.kept());
    assert_eq!(deployment.origin.runs_of("after").len(), 1);
    assert_eq!(deployment.origin.runs().len(), 2);
}

const WAIT_FOR_ONE: Settings = Settings {
    url: None,
    store: "durability = \"wait:1\"",
    key: "the same for all gateways",
    more: "",
};

/// A gateway that requires a replica refuses requests and forwards nothing.
async fn refuses(deployment: &Deployment, gateway: &Gateway, key: &str) {
    let refused = gateway.post(key, BODY).await.unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "store-unavailable"),
        "{key}"
    );
    assert_ne!(refused.header("retry-after"), "");
    assert_eq!(deployment.origin.runs_of(key).len(), 0, "{key}");
    assert!(!gateway.is_ready().await);
}

/// Retries until the service's response arrives. An unconfirmed claim may be on record until it is
/// withdrawn.
async fn until_paid(gateway: &Gateway, key: &str) {
    until("it is paid", || async {
        let answer = gateway.post(key, BODY).await.unwrap();
        match (answer.status, answer.code().as_str()) {
            (201, _) => true,
            (409, "in-progress") | (503, "store-unavailable") => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                false
            }
            _ => panic!("{answer:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_replica_nothing_is_granted_that_must_be_confirmed() {
    let deployment = Deployment::open(StoreKind::Redis, origin(Behaviour::PAY).await).await;
    let mut replica = block_in_place(|| primary(&deployment).replica());
    let gateways = deployment.two(&WAIT_FOR_ONE).await;
    let [one, other] = &gateways;
    let kept = one.post("kept", BODY).await.unwrap();
    assert_eq!(kept.status, 201);

    block_in_place(|| replica.kill());
    refuses(&deployment, one, "refused-1").await;
    refuses(&deployment, other, "refused-2").await;

    block_in_place(|| replica.restart());
    ready(&gateways).await;
    for key in ["refused-1", "refused-2"] {
        until_paid(other, key).await;
        assert!(one.post(key, BODY).await.unwrap().is_replay());
        assert_eq!(deployment.origin.runs_of(key).len(), 1);
    }
    let again = other.post("kept", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), kept.kept());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_steps_survive_the_primary() {
    let mut deployment = Deployment::open(StoreKind::Redis, origin(Behaviour::PAY).await).await;
    let replica = block_in_place(|| primary(&deployment).replica());
    let relay = Relay::to(primary(&deployment).port()).await;
    let gateways = deployment
        .two(&Settings {
            url: Some(deployment.server.url_at(relay.port())),
            ..WAIT_FOR_ONE
        })
        .await;
    let [one, other] = &gateways;
    let mut kept = Vec::new();
    for number in 0..20 {
        let key = format!("kept-{number}");
        let answer = gateways[number % 2].post(&key, BODY).await.unwrap();
        assert_eq!(answer.status, 201);
        kept.push((key, answer.kept()));
    }
    // Without its replica, the primary cannot confirm a write.
    block_in_place(|| replica.promote());
    refuses(&deployment, one, "refused").await;
    deployment.server.kill();
    relay.lead_to(replica.port());
    // Neither can its successor, until it has a replica.
    refuses(&deployment, other, "refused").await;
    let _second = block_in_place(|| replica.replica());
    ready(&gateways).await;
    until_paid(one, "refused").await;
    for (key, reply) in kept {
        for gateway in &gateways {
            let again = gateway.post(&key, BODY).await.unwrap();
            assert!(again.is_replay(), "{again:?}");
            assert_eq!(again.kept(), reply);
        }
    }
    assert_eq!(deployment.origin.runs().len(), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_replicas_are_missing_does_not_start() {
    let deployment = Deployment::open(StoreKind::Redis, origin(Behaviour::PAY).await).await;
    let starting = deployment.plan(&WAIT_FOR_ONE).start();
    let (status, log) = starting.ended().await;
    assert_eq!(status.code(), Some(1), "{log:?}");
    let last = log.last().unwrap();
    let told = last.starts_with("Error: durability is wait:1, but Redis at 127.0.0.1:")
        && last.ends_with("has 0 replicas connected; start more, or require fewer");
    assert!(told, "{last}");
}
