//! A store that does not answer: nobody refuses and nobody hangs up, as when a
//! machine loses its power or a cable is pulled. Only time tells.

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::gateway::Gateway;
use crate::origin::{Manner, Order, origin, origin_choosing};
use crate::shared_house::{BODY, House, Kind, Words, two, until, waiting};
use crate::shared_relay::Relay;

/// The store has two seconds for a step, and a machine may be busy.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

async fn apart(house: &House) -> (Relay, [Gateway; 2]) {
    let relay = Relay::to(house.server.port()).await;
    let plan = house.plan(&Words {
        url: Some(house.server.url_at(relay.port())),
        ..Words::default()
    });
    let gateways = two(&plan).await;
    (relay, gateways)
}

/// Many at once, so that many connections are open.
async fn fill(gateways: &[Gateway; 2]) {
    let posts = (0..64).map(|number| gateways[number % 2].spawn_post(&format!("key-{number}"), BODY));
    for post in posts.collect::<Vec<_>>() {
        assert_eq!(post.await.unwrap().unwrap().status, 201);
    }
}

#[rstest]
#[case::postgres(Kind::Postgres)]
#[case::redis(Kind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_store_is_as_good_as_none(#[case] kind: Kind) {
    let house = House::open(kind, origin(Manner::PAY).await).await;
    let (relay, gateways) = apart(&house).await;
    fill(&gateways).await;
    relay.fall_silent();
    for gateway in &gateways {
        let asked = Instant::now();
        let refused = gateway.post("refused", BODY).await.unwrap();
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "store-unavailable")
        );
        assert_ne!(refused.header("retry-after"), "");
        assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
        assert!(!gateway.is_ready().await);
    }
    assert_eq!(house.origin.runs_of("refused").len(), 0);
    relay.lead_to(house.server.port());
    for gateway in &gateways {
        until("it is ready again", || async { gateway.is_ready().await }).await;
        let again = gateway.post("key-0", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(gateway.post("refused", BODY).await.unwrap().status, 201);
    }
    assert_eq!(house.origin.runs_of("refused").len(), 1);
}

#[rstest]
#[case::postgres(Kind::Postgres)]
#[case::redis(Kind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_lead_nowhere_are_given_up(#[case] kind: Kind) {
    let origin = origin_choosing(Order::default(), |key, _| match key.starts_with("held") {
        true => Manner::Hold,
        false => Manner::PAY,
    });
    let house = House::open(kind, origin.await).await;
    let (relay, gateways) = apart(&house).await;
    fill(&gateways).await;
    relay.forget(house.server.port());
    let begun = Instant::now();
    for gateway in &gateways {
        let mut refused = 0;
        while gateway.post("late", BODY).await.unwrap().status != 201 {
            refused += 1;
        }
        eprintln!("{refused} were refused, for {:?}", begun.elapsed());
    }
    for number in 0..64 {
        let again = gateways[number % 2].post(&format!("key-{number}"), BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
    }
    eprintln!("all after {:?}", begun.elapsed());
    assert_eq!(house.origin.runs().len(), 65);
    // Who waits is told at once again.
    let [one, other] = &gateways;
    let mut number = 0;
    loop {
        number += 1;
        let key = format!("held-{number}");
        let leader = one.spawn_post(&key, BODY);
        house.origin.called(65 + number).await;
        let waiter = other.spawn_post(&key, BODY);
        waiting(other, 1).await;
        house.origin.open();
        let opened = Instant::now();
        assert!(waiter.await.unwrap().unwrap().is_replay());
        let waited = opened.elapsed();
        leader.await.unwrap().unwrap();
        eprintln!("waited {waited:?} after {:?}", begun.elapsed());
        if waited < Duration::from_millis(100) { break }
        assert!(begun.elapsed() < Duration::from_secs(40));
    }
}
