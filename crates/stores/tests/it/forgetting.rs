//! The memory of recent replies on real servers: when an operator's change is answered,
//! no process that shares the store gives the earlier reply. And the runtimes from which
//! a store is used, which do not drive its connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::conformance::{Restart, Trial, differential, run_all};
use onceward_core::record::{Answer, Settlement, State};
use onceward_core::store::{Changed, Claim, ClaimRequest, Enqueued, Force, Resolution};
use onceward_servers::{Postgres, Redis};
use onceward_stores::{Opened, Settings, open};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{ask, clock, complete, completed, reply, retry, settle};

/// Two processes that share a store.
struct Two {
    ours: Opened,
    theirs: Opened,
}

async fn two(settings: &Settings) -> Two {
    let handle = || async {
        let opened = open(settings.clone(), clock()).await;
        opened.unwrap_or_else(|error| panic!("the store opens: {error}"))
    };
    Two {
        ours: handle().await,
        theirs: handle().await,
    }
}

/// With the period of production.
fn remembering(mut settings: Settings) -> Settings {
    settings.reply_memory = Settings::at("").reply_memory;
    assert!(!settings.reply_memory.is_zero());
    settings
}

async fn claim(store: &Opened, ask: &ClaimRequest) -> Claim {
    let claim = store.store.claim(&retry(ask)).await;
    claim.expect("the store answers")
}

/// Lets a process read a finished reply, which it may give again for a while.
async fn read(store: &Opened, number: u64) {
    match claim(store, &ask(number)).await {
        Claim::Finished(record) => {
            assert_eq!(record.answer, Some(Answer::Kept(reply(number))));
        }
        other => panic!("not finished: {other:?}"),
    }
}

async fn changes_are_true_everywhere(two: Two) {
    let Two { ours, theirs } = two;
    // Purged: the key is free for everyone.
    complete(&*ours.store, 1).await;
    read(&theirs, 1).await;
    let purged = ours.inspect.purge(ask(1).id, Force::No).await;
    assert_eq!(purged.expect("the store answers"), Changed::Done);
    let Claim::Granted(grant) = claim(&theirs, &ask(1)).await else {
        panic!("a purged reply is given");
    };
    // Resolved: the reply that the operator named is everyone's.
    settle(&*theirs.store, &grant, Settlement::Lost).await;
    let ran = Resolution::Ran(reply(2));
    let resolved = ours.inspect.resolve(grant.id, None, ran).await;
    assert_eq!(resolved.expect("the store answers"), Changed::Done);
    match claim(&theirs, &ask(1)).await {
        Claim::Finished(record) => assert_eq!(record.answer, Some(Answer::Kept(reply(2)))),
        other => panic!("not resolved: {other:?}"),
    }
    // Redelivered: it is queued for everyone.
    let event = ask(3);
    let request = Bytes::from_static(b"event");
    let enqueued = ours.queue.enqueue(&event, request, Duration::ZERO).await;
    assert!(matches!(enqueued, Ok(Enqueued::Accepted(_))));
    let due = ours.queue.due(1).await.expect("the store answers");
    let due = due.first().expect("it is due");
    settle(&*ours.store, &due.grant, completed(3)).await;
    read(&theirs, 3).await;
    let redelivered = ours.inspect.redeliver(event.id).await;
    assert_eq!(redelivered.expect("the store answers"), Changed::Done);
    match claim(&theirs, &event).await {
        Claim::Busy(record) => assert_eq!(record.state, State::Queued),
        other => panic!("a withdrawn reply is given: {other:?}"),
    }
}

/// Short enough for suites with many changes; long enough for claims in a row.
const SHORT: Duration = Duration::from_millis(5);

mod postgres {
    use super::*;
    use crate::fixture::postgres::{server, settings, trial};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answered_changes_are_true_for_every_process() {
        let postgres = server().await;
        let settings = remembering(settings(&postgres.url()));
        changes_are_true_everywhere(two(&settings).await).await;
    }

    fn short(postgres: &Postgres) -> Settings {
        let mut settings = settings(&postgres.url());
        settings.reply_memory = SHORT;
        settings
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn store_with_memory_keeps_every_promise() {
        let postgres = server().await;
        run_all(async || trial(&short(&postgres), clock()).await).await;
    }

    #[test]
    fn store_with_memory_equals_the_model() {
        let runtime = Runtime::new().expect("a runtime");
        let postgres = runtime.block_on(server());
        differential(8, Restart::KeepsLeases, || {
            let settings = short(&postgres);
            async move |clock| trial(&settings, clock).await
        });
    }

    #[test]
    fn runtimes_that_use_the_store_may_end() {
        let opener = Runtime::new().expect("a runtime");
        let postgres = opener.block_on(server());
        let url = postgres.url();
        let opened = opener.block_on(open(settings(&url), clock()));
        let opened = opened.expect("the store opens");
        used_from_ending_runtimes(&opened, || {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE application_name = 'onceward'";
            postgres.sql("postgres", end);
        });
    }
}

mod redis {
    use super::*;
    use crate::fixture::redis::{open_with_time, settings};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answered_changes_are_true_for_every_process() {
        let server = Redis::start();
        let settings = remembering(settings(&server.url()));
        changes_are_true_everywhere(two(&settings).await).await;
    }

    fn short(server: &Redis) -> Settings {
        let mut settings = settings(&server.url());
        settings.reply_memory = SHORT;
        settings
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn store_with_memory_keeps_every_promise() {
        let server = Redis::start();
        run_all(async || {
            let clock = clock();
            Trial::new(open_with_time(&short(&server), clock.clone()).await, clock)
        })
        .await;
    }

    #[test]
    fn store_with_memory_equals_the_model() {
        let server = Redis::start();
        differential(24, Restart::KeepsLeases, || {
            let settings = short(&server);
            async move |clock: Arc<_>| {
                Trial::new(open_with_time(&settings, Arc::clone(&clock)).await, clock)
            }
        });
    }

    #[test]
    fn runtimes_that_use_the_store_may_end() {
        let opener = Runtime::new().expect("a runtime");
        let server = Redis::start();
        let opened = opener.block_on(open(settings(&server.url()), clock()));
        let opened = opened.expect("the store opens");
        used_from_ending_runtimes(&opened, || {
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        });
    }
}

/// Uses a store from one runtime after the other. Each replaces the connections of the
/// one before, and ends.
fn used_from_ending_runtimes(opened: &Opened, end_connections: impl Fn()) {
    for number in 0..3 {
        let user = Builder::new_current_thread().enable_all().build();
        let user = user.expect("a runtime");
        user.block_on(async {
            // The first steps may meet connections that were ended.
            let claimed = crate::fixture::until("the store answers again", async || {
                opened.store.claim(&ask(number)).await.ok()
            });
            let Claim::Granted(grant) = claimed.await else {
                panic!("a new key is not granted");
            };
            settle(&*opened.store, &grant, completed(number)).await;
            read(opened, number).await;
        });
        drop(user);
        let user = Builder::new_current_thread().enable_all().build();
        let user = user.expect("a runtime");
        // What the ended runtime used is still driven.
        user.block_on(read(opened, number));
        end_connections();
    }
}
