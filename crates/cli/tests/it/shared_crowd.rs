//! Two hundred clients with one key, half of them at each of two gateways.

use rstest::rstest;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::origin::{Manner, origin};
use crate::shared_house::{BODY, House, Kind, Words, until};

const CLIENTS: usize = 200;

#[rstest]
#[case::postgres(Kind::Postgres)]
#[case::redis(Kind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_at_two_gateways_runs_once_and_all_get_its_reply(#[case] kind: Kind) {
    let house = House::open(kind, origin(Manner::Hold).await).await;
    let gateways = house.two(&Words::default()).await;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = Client::new(gateways[number % 2].listen());
        clients.spawn(async move { client.post("k", BODY).await.unwrap() });
    }
    let waiters = async || {
        let mut all = 0;
        for gateway in &gateways {
            all += gateway.counted("onceward_waiters").await;
        }
        all
    };
    until("all but one wait", || async {
        waiters().await == CLIENTS - 1
    })
    .await;
    house.origin.open();

    let answers = clients.join_all().await;
    assert_eq!(house.origin.runs().len(), 1);
    let first = answers.iter().filter(|answer| !answer.is_replay());
    let [first] = first.collect::<Vec<_>>()[..] else {
        panic!("more than one ran: {answers:?}");
    };
    assert_eq!((first.status, answers.len()), (201, CLIENTS));
    for answer in &answers {
        assert_eq!(answer.kept(), first.kept());
        let word = answer.header("idempotency-status");
        assert_eq!(word, "completed", "{answer:?}");
    }
    // And so it stays, wherever one asks.
    for gateway in &gateways {
        let again = gateway.post("k", BODY).await.unwrap();
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.kept(), first.kept());
        let other = gateway.post("k", r#"{"amount":1}"#).await.unwrap();
        assert_eq!((other.status, other.code().as_str()), (422, "key-reused"));
    }
    assert_eq!(house.origin.runs().len(), 1);
}
