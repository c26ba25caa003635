//! Effects of time: the end of leases and replays, and reclaimed space.

use std::time::Duration;

use onceward_core::application::{Error, RecordOptions};
use onceward_core::class::{AfterLoss, Expiry};
use serde_json::json;

use crate::fixture::bound::*;

const SHORT: Duration = Duration::from_millis(1);

impl Fixture {
    async fn kept(self, options: &RecordOptions) -> Self {
        let records = self.with_options(options);
        Self { records, ..self }
    }

    /// Commits a result.
    async fn done(&self, name: &str, result: u32) {
        let key = key(name);
        self.transact(
            BindingKind::TokioWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&key, &json!(1)).await);
                application
                    .commit(fresh, &json!(result))
                    .await
                    .expect("ours");
            },
        )
        .await;
    }

    async fn found(&self, name: &str) -> String {
        word(&self.find(&key(name), &json!(1)).await)
    }

    /// Waits until a key has this state.
    async fn becomes(&self, name: &str, want: &str) {
        let seen = async || (self.found(name).await == want).then_some(());
        until(&format!("{name} being {want}"), seen).await;
    }

    /// Moves a record into the past.
    fn age(&self, by: Duration) {
        let ms = by.as_millis();
        self.postgres.sql(
            "postgres",
            &format!(
                "UPDATE idempotency_record SET created_ms = created_ms - {ms}, \
                 until_ms = until_ms - {ms}, completed_ms = completed_ms - {ms}, \
                 expires_ms = expires_ms - {ms}, free_ms = free_ms - {ms}, \
                 sweep_ms = sweep_ms - {ms}"
            ),
        );
    }

    async fn purge(&self, binding: BindingKind) -> u64 {
        let purge = async |application: &mut dyn Application| application.purge_expired().await;
        let purged = self.transact(binding, End::Commit, purge).await;
        purged.expect("the owner may")
    }
}

#[tokio::test]
async fn replays_end_by_time_or_by_a_purge() {
    let day = Duration::from_secs(24 * 60 * 60);
    let gone = "was done and its outcome is no longer kept";
    // The states within the window, after it, and after a purge.
    let cases = [
        (Expiry::Strict, None, ["result 7", "fresh", "fresh"]),
        (Expiry::Lazy, None, ["result 7", "result 7", "fresh"]),
        (Expiry::Strict, Some(3 * day), ["result 7", gone, gone]),
        (Expiry::Lazy, Some(3 * day), ["result 7", "result 7", gone]),
    ];
    let fixture = Fixture::new().await;
    let mut fixture = Some(fixture);
    for (expiry, remember, want) in cases {
        let options = RecordOptions::default().with(|options| {
            options.replay_window = day;
            options.remember = remember;
            options.expiry = expiry;
        });
        let kept = fixture.take().expect("one fixture").kept(&options).await;
        kept.postgres
            .sql("postgres", "DELETE FROM idempotency_record");
        kept.done("k", 7).await;
        let mut seen = vec![kept.found("k").await];
        kept.age(day);
        seen.push(kept.found("k").await);
        kept.purge(BindingKind::SqlxWithTx).await;
        seen.push(kept.found("k").await);
        for (seen, want) in seen.iter().zip(want) {
            assert!(seen.contains(want), "{expiry:?} {remember:?}: {seen}");
        }
        fixture = Some(kept);
    }
}

#[tokio::test]
async fn purging_counts_its_own_operations_with_every_driver() {
    let fixture = Fixture::new().await;
    let other = onceward_core::namespace::Namespace::new("other").expect("a good name");
    let stranger = onceward_stores::postgres::Records::new(other.clone(), entropy());
    let minted = onceward_core::application::Minter::new(other).mint(&["a"]);
    let strange_key = minted.expect("minted");
    for binding in BindingKind::ALL {
        for number in 0..3 {
            fixture.done(&format!("{binding:?}-{number}"), number).await;
        }
        let open = End::Commit;
        transact(
            &stranger,
            &fixture.url,
            binding,
            open,
            async |application: &mut dyn Application| {
                let fresh = fresh(application.begin(&strange_key, &json!(1)).await);
                application.fail_transient(fresh).await.expect("ours");
            },
        )
        .await;
        assert_eq!(fixture.purge(binding).await, 0, "{binding:?}");
        fixture.age(Duration::from_secs(25 * 60 * 60));
        assert_eq!(fixture.purge(binding).await, 3, "{binding:?}");
        assert_eq!(fixture.purge(binding).await, 0, "{binding:?}");
        let left = fixture
            .postgres
            .sql("postgres", "SELECT namespace FROM idempotency_record");
        assert_eq!(left, "other", "{binding:?}");
    }
}

#[tokio::test]
async fn rolled_back_purge_purged_nothing() {
    let fixture = Fixture::new().await;
    fixture.done("k", 1).await;
    fixture.age(Duration::from_secs(25 * 60 * 60));
    let purge = async |application: &mut dyn Application| application.purge_expired().await;
    let purged = fixture
        .transact(BindingKind::TokioWithTx, End::Rollback, purge)
        .await;
    assert_eq!(purged.expect("the owner may"), 1);
    assert_eq!(fixture.purge(BindingKind::TokioWithTx).await, 1);
}

#[tokio::test]
async fn abandoned_claim_is_unknown_and_named() {
    let options = RecordOptions::default().with(|options| options.lease = SHORT);
    let fixture = Fixture::new().await.kept(&options).await;
    for binding in [
        BindingKind::TokioOnConnection,
        BindingKind::SqlxOnConnection,
    ] {
        let name = format!("{binding:?}");
        let key = key(&name);
        let abandoned = fixture
            .alone(binding, async |application: &mut dyn Application| {
                fresh(application.begin(&key, &json!(1)).await)
            })
            .await;
        let error = until("the end of the lease", async || {
            fixture.find(&key, &json!(1)).await.err()
        })
        .await;
        let named =
            matches!(error, Error::UnknownOutcome { operation } if operation == abandoned.id());
        assert!(named, "{error:?}");
        // The holder is late, and no other claim was granted since.
        fixture
            .alone(binding, async |application: &mut dyn Application| {
                application
                    .commit(abandoned, &json!(7))
                    .await
                    .expect("still ours");
            })
            .await;
        assert_eq!(fixture.found(&name).await, "result 7");
    }
}

#[tokio::test]
async fn an_abandoned_claim_is_taken_over_where_running_twice_is_safe() {
    let held = RecordOptions::default().with(|options| options.lease = SHORT);
    let fixture = Fixture::new().await.kept(&held).await;
    // Left by a program under which an abandoned claim is unknown.
    fixture
        .alone(
            BindingKind::TokioOnConnection,
            async |application: &mut dyn Application| {
                drop(fresh(application.begin(&key("k"), &json!(1)).await));
            },
        )
        .await;
    let unknown = async || fixture.found("k").await.contains("unknown").then_some(());
    until("the end of the lease", unknown).await;
    let fixture = fixture
        .kept(&held.with(|options| options.after_loss = AfterLoss::Free))
        .await;
    fixture.becomes("k", "fresh").await;
}

#[tokio::test]
async fn a_stale_holder_is_refused_and_must_roll_back() {
    let options = RecordOptions::default().with(|options| {
        options.lease = SHORT;
        options.after_loss = AfterLoss::Free;
    });
    let fixture = Fixture::new().await.kept(&options).await;
    for binding in [
        BindingKind::TokioOnConnection,
        BindingKind::SqlxOnConnection,
    ] {
        let name = format!("{binding:?}");
        let key = key(&name);
        let begin = async |application: &mut dyn Application| {
            fresh(application.begin(&key, &json!(1)).await)
        };
        let [one, two, three] = [
            fixture.alone(binding, begin).await,
            {
                fixture.becomes(&name, "fresh").await;
                fixture.alone(binding, begin).await
            },
            {
                fixture.becomes(&name, "fresh").await;
                fixture.alone(binding, begin).await
            },
        ];
        assert!(one.fence() < two.fence() && two.fence() < three.fence());
        let (id, fence) = (one.id(), one.fence());
        fixture
            .transact(
                binding,
                End::Rollback,
                async |application: &mut dyn Application| {
                    assert!(application.sql(&pay(&key)).await);
                    let renewed = application
                        .renew(&one)
                        .await
                        .expect_err("somebody was granted");
                    assert!(matches!(renewed, Error::Stale { .. }));
                    let error = application.commit(one, &json!(1)).await.expect_err("stale");
                    assert_eq!(
                        error.to_string(),
                        format!(
                            "the claim on {id} under fence {} is stale: nothing was recorded, \
                         so roll back the work that was done under it",
                            fence.0
                        )
                    );
                    let error = application
                        .fail_transient(two)
                        .await
                        .expect_err("stale too");
                    assert!(matches!(error, Error::Stale { .. }));
                },
            )
            .await;
        fixture
            .alone(binding, async |application: &mut dyn Application| {
                application.commit(three, &json!(3)).await.expect("ours");
            })
            .await;
        assert_eq!(fixture.found(&name).await, "result 3");
        assert_eq!(fixture.counts(&key), (0, 1));
    }
}
