//! The library behind PgBouncer in transaction mode, where the next statement
//! outside of a transaction may meet another connection of the server.

use onceward_servers::PgBouncer;
use serde_json::json;

use crate::fixture::bound::*;

#[tokio::test]
async fn transactions_behind_a_pooler_are_like_any_other() {
    let fixture = Fixture::new().await;
    let pooler = PgBouncer::start(&fixture.postgres, "transaction", 2);
    let url = pooler.url_of("postgres", "postgres");
    let records = fixture.records.clone().behind_pooler();
    for binding in BindingKind::ALL {
        for round in 0..3 {
            let key = key(&format!("{binding:?}-{round}"));
            let pays = async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key, &json!(1)).await);
                assert!(application.sql(&pay(&key)).await);
                // Another transaction, on the server's other connection.
                let look =
                    async |other: &mut dyn Application| word(&other.begin(&key, &json!(1)).await);
                let seen = transact(&records, &url, binding, End::Rollback, look).await;
                assert_eq!(seen, "in flight", "{binding:?}");
                application.commit(fresh, &json!(7)).await.expect("ours");
            };
            transact(&records, &url, binding, End::Commit, pays).await;
            let found = fixture.find(&key, &json!(1)).await;
            assert_eq!(word(&found), "result 7", "{binding:?}");
            assert_eq!(fixture.counts(&key), (1, 1), "{binding:?}");
        }
    }
}
