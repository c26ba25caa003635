//! The promise of the transaction: after a rollback neither record nor rows exist
//! and the key is free, after a commit both exist, and a killed process leaves one
//! of the two. Checked a hundred times, at every step.

use std::fs;
use std::path::Path;
use std::time::Duration;

use onceward_core::application::{Begun, StoredError};
use onceward_stores::postgres::Records;
use serde_json::json;

use crate::fixture::bound::*;
use crate::fixture::{child, directory, directory_as_child};

/// The child's task: the database, the binding, the key, and where to stop.
const ORDER: &str = "order";
/// The progress of the child.
const PLACE: &str = "place";

/// The point at which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    InTransaction,
    Begun,
    Paid,
    Committed,
    /// Between `COMMIT` and its answer.
    Ending,
    Ended,
    /// The work fails for good.
    SavepointSet,
    RolledBackToSavepoint,
    Failed,
    FailureEnded,
}

impl Step {
    const ALL: [Self; 10] = [
        Self::InTransaction,
        Self::Begun,
        Self::Paid,
        Self::Committed,
        Self::Ending,
        Self::Ended,
        Self::SavepointSet,
        Self::RolledBackToSavepoint,
        Self::Failed,
        Self::FailureEnded,
    ];

    fn fails(self) -> bool {
        use Step::{Failed, FailureEnded, RolledBackToSavepoint, SavepointSet};
        matches!(
            self,
            SavepointSet | RolledBackToSavepoint | Failed | FailureEnded
        )
    }

    /// The possible states of the key afterwards.
    fn may_leave(self) -> &'static [&'static str] {
        match self {
            Self::Ending => &["fresh", "result 7"],
            Self::Ended => &["result 7"],
            Self::FailureEnded => &["error refused: the bank refused it"],
            _ => &["fresh"],
        }
    }
}

/// Where the child stops to be killed.
struct Walk<'a> {
    home: &'a Path,
    until: Step,
}

impl Walk<'_> {
    async fn reach(&self, step: Step) {
        if step != self.until {
            return;
        }
        fs::write(self.home.join(PLACE), "here").expect("the place can be written");
        if step != Step::Ending {
            std::future::pending::<()>().await;
        }
    }
}

/// Pays in a transaction until it is killed. Does nothing unless it runs as a
/// child, because only a child has a directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_pays() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let order = fs::read_to_string(home.join(ORDER)).expect("there is an order");
    let mut order = order.lines();
    let mut next = || order.next().expect("a line for each");
    let (url, binding, name, until) = (next(), next(), next(), next());
    let binding = BindingKind::ALL
        .into_iter()
        .find(|one| format!("{one:?}") == binding);
    let until = Step::ALL
        .into_iter()
        .find(|one| format!("{one:?}") == until);
    let walk = Walk {
        home: &home,
        until: until.expect("a step"),
    };
    let records = Records::new(namespace(), entropy());
    let work = async |application: &mut dyn Application| pays(application, name, &walk).await;
    transact(
        &records,
        url,
        binding.expect("a binding"),
        End::Commit,
        work,
    )
    .await;
    walk.reach(Step::Ended).await;
    walk.reach(Step::FailureEnded).await;
}

async fn pays(application: &mut dyn Application, name: &str, walk: &Walk<'_>) {
    let key = key(name);
    walk.reach(Step::InTransaction).await;
    let fresh = fresh(application.begin(&key, &json!(1)).await);
    walk.reach(Step::Begun).await;
    if walk.until.fails() {
        assert!(application.sql("SAVEPOINT work").await);
        assert!(application.sql(&pay(&key)).await);
        walk.reach(Step::SavepointSet).await;
        assert!(application.sql("ROLLBACK TO SAVEPOINT work").await);
        walk.reach(Step::RolledBackToSavepoint).await;
        let error = StoredError::new("refused", "the bank refused it");
        application
            .fail_permanent(fresh, &error)
            .await
            .expect("ours");
        walk.reach(Step::Failed).await;
        return;
    }
    assert!(application.sql(&pay(&key)).await);
    walk.reach(Step::Paid).await;
    application.commit(fresh, &json!(7)).await.expect("ours");
    walk.reach(Step::Committed).await;
    walk.reach(Step::Ending).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_application_has_paid_and_recorded_or_neither() {
    const ROUNDS: u64 = 10;
    let fixture = Fixture::new().await;
    let home = directory();
    for round in 0..ROUNDS {
        for (number, step) in Step::ALL.into_iter().enumerate() {
            let binding = BindingKind::ALL[(round as usize + number) % BindingKind::ALL.len()];
            let name = format!("{step:?}-{round}");
            let order = format!("{}\n{binding:?}\n{name}\n{step:?}\n", fixture.url);
            fs::write(home.path().join(ORDER), order).expect("an order can be written");
            let mut child = child("postgres::bound::killed::child_pays", home.path(), "");
            until("the child is there", async || {
                home.path().join(PLACE).exists().then_some(())
            })
            .await;
            if step == Step::Ending {
                // Each round a little later than the one before.
                std::thread::sleep(Duration::from_micros(round * 150));
            }
            child.kill();
            fs::remove_file(home.path().join(PLACE)).expect("it was there");
            check(&fixture, step, &name).await;
        }
    }
}

/// Rows and record agree, and the key is done or free; a retry completes it.
async fn check(fixture: &Fixture, step: Step, name: &str) {
    let key = key(name);
    // The server notices by itself that its client has gone.
    let found = until("the end of the transaction", async || {
        let found = word(&fixture.find(&key, &json!(1)).await);
        (found != "in flight").then_some(found)
    })
    .await;
    assert!(
        step.may_leave().contains(&found.as_str()),
        "{name}: {found}"
    );
    let want = match found.as_str() {
        "fresh" => (0, 0),
        "result 7" => (1, 1),
        _ => (0, 1),
    };
    assert_eq!(fixture.counts(&key), want, "{name}");
    if found != "fresh" {
        return;
    }
    fixture
        .transact(
            BindingKind::TokioWithTx,
            End::Commit,
            async |application: &mut dyn Application| {
                let Ok(Begun::Fresh(fresh)) = application.begin(&key, &json!(1)).await else {
                    panic!("{name} is not free any more");
                };
                assert!(application.sql(&pay(&key)).await);
                application.commit(fresh, &json!(8)).await.expect("ours");
            },
        )
        .await;
    assert_eq!(fixture.counts(&key), (1, 1), "{name}");
}
