//! Thousands who wait at one gateway for a run at another: they cost the store
//! little more than one, and all get the reply.

use std::time::{Duration, Instant};

use rstest::rstest;
use tokio::task::JoinSet;

use crate::crowd::{Line, ask};
use crate::origin::{Manner, origin};
use crate::shared_house::{BODY, House, Kind, Words};

const CONNECTIONS: usize = 10;
/// Within `limits.streams`.
const STREAMS: usize = 100;
const WAITERS: usize = CONNECTIONS * STREAMS;

#[rstest]
#[case::postgres(Kind::Postgres)]
#[case::redis(Kind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_wait_at_one_gateway_for_a_run_at_the_other(#[case] kind: Kind) {
    let house = House::open(kind, origin(Manner::Hold).await).await;
    let words = Words {
        more: "timeout = \"5m\"\n[classes.interactive]\nwait = \"5m\"\nlease = \"5m\"",
        ..Words::default()
    };
    let [one, other] = house.two(&words).await;
    let leader = one.spawn_post("crowd", BODY);
    house.origin.called(1).await;
    let begun = Instant::now();
    let mut crowd = JoinSet::new();
    let mut lines = Vec::new();
    for _ in 0..CONNECTIONS {
        let line = Line::open(other.listen()).await;
        for _ in 0..STREAMS {
            crowd.spawn(ask(line.sender.clone()));
        }
        lines.push(line);
    }
    while other.counted("onceward_waiters").await < WAITERS {
        if let Some(early) = crowd.try_join_next() {
            let early = early.unwrap();
            panic!("one did not wait: {}", String::from_utf8_lossy(&early.body));
        }
    }
    eprintln!("gathered in {:?}", begun.elapsed());
    // Some looks go by.
    tokio::time::sleep(Duration::from_secs(4)).await;
    if let Some(early) = crowd.try_join_next() {
        let early = early.unwrap();
        panic!("one did not wait: {}", String::from_utf8_lossy(&early.body));
    }
    let asked = Instant::now();
    let begun = house.origin.runs().len();
    assert_eq!(begun, 1);
    assert!(other.is_ready().await);
    eprintln!("ready in {:?}", asked.elapsed());
    house.origin.open();
    let opened = Instant::now();
    let first = leader.await.unwrap().unwrap();
    while let Some(answer) = crowd.join_next().await {
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.replayed), (201, true), "{answer:?}");
        assert_eq!(answer.body, first.body);
    }
    eprintln!("answered in {:?}", opened.elapsed());
    assert_eq!(house.origin.runs().len(), 1);
}
