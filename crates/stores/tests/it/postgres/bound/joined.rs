//! The gateway's record, completed by the application behind it in one
//! transaction with its own rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::application::Error;
use onceward_core::class::AfterLoss;
use onceward_core::identity::OperationId;
use onceward_core::namespace::Namespace;
use onceward_core::record::{Answer, Fence, Reply, Settlement, State};
use onceward_core::store::{Claim, ClaimRequest, Grant, Store as _};
use onceward_stores::postgres::{JoinedRecords, PostgresStore, Table};
use sqlx::Connection as _;

use crate::fixture::bound::{Fixture, client, pay, until};
use crate::fixture::{ask_with, retry, terms};

/// A gateway's claim on a joined route: work that is not committed was not done.
fn ask(number: u64, lease: Duration) -> ClaimRequest {
    let mut terms = terms(AfterLoss::Free);
    terms.lease = lease;
    ask_with(number, terms)
}

const LONG: Duration = Duration::from_secs(60);

async fn gateway(fixture: &Fixture) -> PostgresStore {
    let mut settings = crate::fixture::postgres::settings(&fixture.url);
    settings.namespace = Namespace::edge();
    crate::fixture::postgres::store(&settings).await
}

async fn granted(gateway: &PostgresStore, ask: &ClaimRequest) -> Grant {
    match gateway.claim(ask).await.expect("the store answers") {
        Claim::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

fn reply(status: u16) -> Reply {
    Reply {
        status,
        headers: vec![(Bytes::from_static(b"location"), Bytes::from_static(b"/7"))],
        body: Bytes::from_static(b"paid"),
        trailers: Vec::new(),
    }
}

#[tokio::test]
async fn reply_and_rows_are_committed_together() {
    let fixture = Fixture::new().await;
    let gateway = gateway(&fixture).await;
    let records = JoinedRecords::default();
    let payment = crate::fixture::bound::key("joined");
    for (number, status, state) in [(1, 201, State::Completed), (2, 422, State::Failed)] {
        let ask = ask(number, LONG);
        let grant = granted(&gateway, &ask).await;
        let mut client = client(&fixture.url).await;
        let tx = client.transaction().await.expect("a transaction");
        let mut store = records.with_tx(&tx);
        let current = store.is_current(grant.id, grant.fence).await;
        assert!(current.expect("the store answers"));
        tx.batch_execute(&pay(&payment)).await.expect("paid");
        let done = store.complete(grant.id, grant.fence, reply(status)).await;
        done.expect("the fence counts");
        // It is not visible before the commit.
        let record = gateway
            .get(&ask.digest)
            .await
            .expect("answers")
            .expect("there");
        assert_eq!(record.state, State::Running);
        tx.commit().await.expect("it commits");
        let record = gateway
            .get(&ask.digest)
            .await
            .expect("answers")
            .expect("there");
        assert_eq!(record.state, state);
        assert_eq!(record.answer, Some(Answer::Kept(Arc::new(reply(status)))));
    }
    let paid = fixture
        .postgres
        .sql("postgres", "SELECT count(*) FROM payment");
    assert_eq!(paid, "2");
}

#[tokio::test]
async fn a_rolled_back_reply_is_not_recorded() {
    let fixture = Fixture::new().await;
    let gateway = gateway(&fixture).await;
    let records = JoinedRecords::default();
    let ask = ask(1, LONG);
    let grant = granted(&gateway, &ask).await;
    let mut connection = sqlx::PgConnection::connect(&fixture.url)
        .await
        .expect("a connection");
    let mut tx = connection.begin().await.expect("a transaction");
    let mut store = records.with_tx(&mut tx);
    let done = store.complete(grant.id, grant.fence, reply(201)).await;
    done.expect("the fence counts");
    tx.rollback().await.expect("it rolls back");
    let record = gateway
        .get(&ask.digest)
        .await
        .expect("answers")
        .expect("there");
    assert_eq!(
        (record.state, record.answer.clone()),
        (State::Running, None)
    );
}

#[tokio::test]
async fn stale_fence_must_roll_back() {
    let fixture = Fixture::new().await;
    let gateway = gateway(&fixture).await;
    let records = JoinedRecords::default();
    let late = ask(1, Duration::from_millis(1));
    let first = granted(&gateway, &late).await;
    let second = until("the end of the lease", async || {
        match gateway.claim(&retry(&late)).await.expect("answers") {
            Claim::Granted(grant) => Some(grant),
            _ => None,
        }
    })
    .await;
    assert_eq!(second.id, first.id, "the same operation");
    let mut client = client(&fixture.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let mut store = records.with_tx(&tx);
    let never = OperationId::new(&late.digest, 0);
    for (id, fence) in [
        (first.id, first.fence),
        (first.id, Fence(u64::MAX)),
        (never, second.fence),
    ] {
        let current = store.is_current(id, fence).await.expect("answers");
        assert!(!current);
        let error = store
            .complete(id, fence, reply(201))
            .await
            .expect_err("stale");
        assert!(matches!(error, Error::Stale { .. }), "{error:?}");
        assert!(error.to_string().contains("roll back"), "{error}");
    }
    // The transaction is intact, and the holder of the fence can still record.
    let done = store.complete(second.id, second.fence, reply(201)).await;
    done.expect("the fence counts");
    // A second outcome is stale, because the application would have done the work
    // twice.
    let twice = store.complete(second.id, second.fence, reply(201)).await;
    assert!(matches!(twice, Err(Error::Stale { .. })));
    tx.commit().await.expect("it commits");
}

/// While the application's transaction is open, the operation is not granted again,
/// although the lease has ended.
#[tokio::test]
async fn reply_that_is_not_committed_yet_holds_the_operation() {
    let fixture = Fixture::new().await;
    let gateway = gateway(&fixture).await;
    let records = JoinedRecords::default();
    let ask = ask(1, Duration::from_millis(1));
    let grant = granted(&gateway, &ask).await;
    let mut client = client(&fixture.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let done = records
        .with_tx(&tx)
        .complete(grant.id, grant.fence, reply(201))
        .await;
    done.expect("nobody was granted");
    let meanwhile = gateway.claim(&retry(&ask)).await.expect("answers");
    assert!(matches!(meanwhile, Claim::Busy(_)), "{meanwhile:?}");
    tx.commit().await.expect("it commits");
    let after = gateway.claim(&retry(&ask)).await.expect("answers");
    assert!(matches!(after, Claim::Finished(_)), "{after:?}");
}

#[tokio::test]
async fn another_namespace_or_table_is_another_gateway() {
    let fixture = Fixture::new().await;
    let gateway = gateway(&fixture).await;
    let ask = ask(1, LONG);
    let grant = granted(&gateway, &ask).await;
    let mut client = client(&fixture.url).await;
    let tx = client.transaction().await.expect("a transaction");
    let strange = Namespace::new("strange").expect("a good name");
    let elsewhere = JoinedRecords::new(strange, Table::default());
    let mut store = elsewhere.with_tx(&tx);
    assert!(
        !store
            .is_current(grant.id, grant.fence)
            .await
            .expect("answers")
    );
    let released = gateway
        .settle(&grant.digest, grant.fence, Settlement::Released)
        .await;
    released.expect("answers");
    let absent = Table::parse("absent").expect("a good name");
    let nowhere = JoinedRecords::new(Namespace::edge(), absent);
    let error = nowhere.with_tx(&tx).is_current(grant.id, grant.fence).await;
    assert!(matches!(error, Err(Error::NotMigrated { .. })));
}
