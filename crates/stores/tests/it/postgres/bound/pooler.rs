//! The library behind PgBouncer in transaction mode, where the next statement
//! outside of a transaction may meet another connection of the server.

use onceward_servers::PgBouncer;
use serde_json::json;

use super::desk::*;

#[tokio::test]
async fn transactions_behind_a_pooler_are_like_any_other() {
    let house = House::new().await;
    let pooler = PgBouncer::start(&house.postgres, "transaction", 2);
    let url = pooler.url_of("postgres", "postgres");
    let records = house.records.clone().behind_pooler();
    for way in Way::ALL {
        for round in 0..3 {
            let key = key(&format!("{way:?}-{round}"));
            let pays = async |desk: &mut dyn Desk| {
                let fresh = fresh(desk.begin(&key, &json!(1)).await);
                assert!(desk.sql(&pay(&key)).await);
                // Another transaction, on the server's other connection.
                let look = async |other: &mut dyn Desk| word(&other.begin(&key, &json!(1)).await);
                let seen = transact(&records, &url, way, End::Rollback, look).await;
                assert_eq!(seen, "in flight", "{way:?}");
                desk.commit(fresh, &json!(7)).await.expect("ours");
            };
            transact(&records, &url, way, End::Commit, pays).await;
            let found = house.find(&key, &json!(1)).await;
            assert_eq!(word(&found), "result 7", "{way:?}");
            assert_eq!(house.counts(&key), (1, 1), "{way:?}");
        }
    }
}
