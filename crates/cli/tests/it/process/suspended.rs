//! A gateway that is suspended for longer than its lease and then continues.
//!
//! The embedded store has one process, so nothing else can be granted meanwhile. The conformance
//! suite of `core` shows for every store that a stale fence changes nothing after another grant.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::time::sleep;

use crate::fixture::BODY;
use crate::fixture::gateway::gateway;
use crate::fixture::origin::{Behaviour, origin};

/// The shortest lease: it must not be shorter than the upstream's timeout.
const LEASE: Duration = Duration::from_millis(1000);

#[tokio::test]
async fn stopped_for_longer_than_its_lease_it_runs_nothing_twice() {
    let origin = origin(Behaviour::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path())
        .option("--lease-ms", LEASE.as_millis().to_string())
        .option("--upstream-timeout-ms", LEASE.as_millis().to_string())
        .run()
        .await;
    let first = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    gateway.signal(Signal::STOP);
    let second = gateway.spawn_post("k", BODY);
    // A lease runs out by time alone.
    sleep(LEASE * 2).await;
    origin.open();
    assert_eq!(origin.runs().len(), 1);
    gateway.signal(Signal::CONT);

    // The answer and the upstream's timeout occur at the same time; either may be handled first.
    // The answer to the first caller then applies to all.
    let first = first.await.unwrap().unwrap();
    let second = second.await.unwrap().unwrap();
    let third = gateway.post("k", BODY).await.unwrap();
    match first.status {
        201 => {
            assert!(third.is_replay(), "{third:?}");
            assert_eq!(third.kept(), first.kept());
            // It was sent between the end of the lease and the record, or later.
            assert!(
                second.kept() == first.kept() || second.code() == "outcome-unknown",
                "{second:?}"
            );
        }
        504 => {
            assert_eq!(first.code(), "outcome-unknown");
            assert_eq!((second.status, second.code()), (409, first.code()));
            assert_eq!((third.status, third.code()), (409, first.code()));
        }
        _ => panic!("{first:?}"),
    }
    assert_eq!(origin.runs().len(), 1);
}

#[tokio::test]
async fn stopped_between_answer_and_record_it_still_records() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    // The pause at the fail point makes sure that the process is stopped there.
    let at_record = Duration::from_secs(2);
    let plan = gateway(&origin, directory.path())
        .option("--lease-ms", LEASE.as_millis().to_string())
        .option("--upstream-timeout-ms", LEASE.as_millis().to_string());
    let gateway = plan
        .clone()
        .failing(&format!("before-record=1*sleep({})", at_record.as_millis()))
        .run()
        .await;
    let first = gateway.spawn_post("k", BODY);
    origin.answered(1).await;
    let answered = Instant::now();
    // Time to read the answer, which cannot be observed from outside.
    sleep(at_record / 4).await;
    gateway.signal(Signal::STOP);
    assert!(!first.is_finished());
    sleep(LEASE * 3).await;
    gateway.signal(Signal::CONT);

    let first = first.await.unwrap().unwrap();
    assert!(answered.elapsed() > LEASE * 3);
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "completed")
    );
    let again = gateway.post("k", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), first.kept());
    gateway.kill().await;
    let restarted = plan.run().await;
    let again = restarted.post("k", BODY).await.unwrap();
    assert_eq!(again.kept(), first.kept());
    assert_eq!(origin.runs().len(), 1);
}
