//! Two handles on one database, as two processes have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::record::{Settlement, State};
use onceward_core::store::{Claim, Filter, Inspect, PageRequest, Store};

use crate::fixture::postgres::{server, settings, store};
use crate::fixture::{ask, completed, grant, retry, settle, until};

/// The limit within which a waiter in another process learns of a completion.
const SOON: Duration = Duration::from_millis(100);
/// How long waiters would wait by themselves.
const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_claims_through_two_handles_is_granted() {
    let postgres = server().await;
    let settings = settings(&postgres.url());
    let handles = [
        Arc::new(store(&settings).await),
        Arc::new(store(&settings).await),
    ];
    let mut asked = ask(1);
    let claims: Vec<_> = (0..128)
        .map(|number: usize| {
            asked = retry(&asked);
            let (ask, store) = (asked.clone(), handles[number % 2].clone());
            tokio::spawn(async move { store.claim(&ask).await })
        })
        .collect();
    let mut granted = 0;
    for claim in claims {
        let claim = claim.await.expect("no claim panics");
        match claim.expect("the store answers") {
            Claim::Granted(_) => granted += 1,
            Claim::Busy(record) => assert_eq!(record.state, State::Running),
            other => panic!("neither granted nor busy: {other:?}"),
        }
    }
    assert_eq!(granted, 1);
}

/// The shortest of a few tries: on a busy machine, one quick notification is enough
/// to show that waiters do not poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_elsewhere_hears_of_a_completion_at_once() {
    let postgres = server().await;
    let settings = settings(&postgres.url());
    let (here, there) = (store(&settings).await, Arc::new(store(&settings).await));
    let mut shortest = LONG;
    for number in 0..10 {
        let granted = grant(&here, &ask(number)).await;
        let waiter = tokio::spawn({
            let there = there.clone();
            async move {
                let waited = there.wait(&granted.digest, LONG).await;
                waited.expect("the store answers a wait");
                Instant::now()
            }
        });
        until_awaited(&postgres, &granted.digest).await;
        let done = Instant::now();
        let settled = here.settle(&granted.digest, granted.fence, completed(number));
        assert!(settled.await.expect("it settles").is_recorded());
        let heard = waiter.await.expect("the waiter does not panic");
        shortest = shortest.min(heard.saturating_duration_since(done));
    }
    assert!(shortest < SOON, "heard after {shortest:?} at best");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_listener_reconnects_and_blocks_no_waiter() {
    let postgres = server().await;
    let settings = settings(&postgres.url());
    let (here, there) = (store(&settings).await, Arc::new(store(&settings).await));
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE query LIKE 'LISTEN%'";
    assert_eq!(postgres.sql("postgres", cut).trim(), "2");
    // This notification is lost; the wait ends at its limit.
    let granted = grant(&here, &ask(1)).await;
    let limit = Duration::from_millis(300);
    let waited = tokio::time::timeout(LONG, there.wait(&granted.digest, limit)).await;
    waited.expect("it ends").expect("the store answers a wait");
    // The listeners reconnect.
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    let begun = Instant::now();
    while postgres.sql("postgres", listens).trim() != "2" {
        assert!(begun.elapsed() < LONG, "nobody listens again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let waiter = tokio::spawn({
        let there = there.clone();
        async move { there.wait(&granted.digest, LONG).await }
    });
    until_awaited(&postgres, &granted.digest).await;
    let settled = here.settle(&granted.digest, granted.fence, Settlement::Released);
    assert!(settled.await.expect("it settles").is_recorded());
    let heard = tokio::time::timeout(LONG / 2, waiter).await;
    heard
        .expect("it is heard")
        .expect("no panic")
        .expect("no error");
}

/// A commit without a waiter in another process sends no notification, because
/// notifications serialise commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_notification_is_sent_without_a_waiter() {
    let postgres = server().await;
    let settings = settings(&postgres.url());
    let store = store(&settings).await;
    let (client, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls)
        .await
        .expect("the server answers");
    let (heard, mut notes) = tokio::sync::mpsc::unbounded_channel();
    let ears = tokio::spawn(async move {
        let mut connection = connection;
        let mut next =
            async || std::future::poll_fn(|context| connection.poll_message(context)).await;
        while let Some(Ok(message)) = next().await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                let _ = heard.send(note.payload().to_owned());
            }
        }
    });
    let listen = "LISTEN idempotency_record";
    client.batch_execute(listen).await.expect("one may listen");
    for number in 0..5 {
        let granted = grant(&store, &ask(number)).await;
        let settled = store.settle(&granted.digest, granted.fence, completed(number));
        assert!(settled.await.expect("it settles").is_recorded());
    }
    client
        .batch_execute("NOTIFY idempotency_record, 'the end'")
        .await
        .expect("one may notify");
    assert_eq!(notes.recv().await.as_deref(), Some("the end"));
    ears.abort();
}

#[tokio::test]
async fn a_repeated_settlement_keeps_its_position_in_listings() {
    let postgres = server().await;
    let store = store(&settings(&postgres.url())).await;
    let lost = grant(&store, &ask(1)).await;
    settle(&store, &lost, Settlement::Lost).await;
    grant(&store, &ask(2)).await;
    settle(&store, &lost, Settlement::Lost).await;
    let page = PageRequest::first(2);
    let listed = store.list(&Filter::default(), page).await;
    let listed = listed.expect("the store answers").records;
    let digests: Vec<_> = listed.iter().map(|record| record.digest).collect();
    assert_eq!(digests, [ask(2).digest, ask(1).digest]);
}

async fn until_awaited(
    postgres: &onceward_servers::Postgres,
    digest: &onceward_core::identity::Digest,
) {
    let asked = format!(
        "SELECT awaited FROM idempotency_record WHERE digest = '\\x{}'",
        data_encoding::HEXLOWER.encode(digest.as_bytes())
    );
    until("the row is marked as awaited", async || {
        (postgres.sql("postgres", &asked).trim() == "t").then_some(())
    })
    .await;
}
