//! The crash sweep: the process dies at every step of a request, is restarted on the same directory,
//! and the same request is sent twice more.
//!
//! If the claim was not durable, the key is free and the request runs. If the reply was durable, it
//! is replayed. Between the two the outcome is unknown and the request does not run again, even
//! where this test can see that nothing was sent.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rstest::rstest;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::fixture::BODY;
use crate::fixture::client::Response;
use crate::fixture::gateway::{Gateway, GatewayCommand, gateway};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin, origin_choosing};

/// How the process dies while it serves the request.
enum Death {
    /// By itself, at a fail point.
    At(&'static str),
    /// Killed while the service works on the request.
    WhileTheServiceWorks,
    /// Killed when half of the service's response was sent.
    InTheMiddleOfTheReply,
}
use Death::{At, InTheMiddleOfTheReply, WhileTheServiceWorks};

/// The expected state after the restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// No record, and nothing was sent: it runs now.
    Free,
    /// Released by a first run that did nothing: it runs now.
    Released,
    /// It may have run; it does not run again.
    Unknown,
    /// The reply is stored.
    Completed,
}
use Found::{Completed, Free, Released, Unknown};

const PAY: Behaviour = Behaviour::PAY;
const REFUSE: Behaviour = Behaviour::Refuse;

#[rstest]
#[case::before_the_claim(At("before-claim=return"), PAY, 0, Free)]
#[case::before_the_claim_is_durable(At("store-before-commit=return"), PAY, 0, Free)]
#[case::when_the_claim_is_durable_and_not_acknowledged(
    At("store-after-commit=return"),
    PAY,
    0,
    Unknown
)]
#[case::after_the_claim(At("after-claim=return"), PAY, 0, Unknown)]
#[case::before_connecting(At("before-connect=return"), PAY, 0, Unknown)]
#[case::while_the_service_works(WhileTheServiceWorks, Behaviour::Hold, 1, Unknown)]
#[case::after_the_request_is_sent(At("after-sent=return"), PAY, 1, Unknown)]
#[case::in_the_middle_of_the_reply(InTheMiddleOfTheReply, Behaviour::Half, 1, Unknown)]
#[case::before_the_record(At("before-record=return"), PAY, 1, Unknown)]
#[case::before_the_reply_is_durable(At("store-before-commit=1*off->return"), PAY, 1, Unknown)]
#[case::when_the_reply_is_durable_and_not_acknowledged(
    At("store-after-commit=1*off->return"),
    PAY,
    1,
    Completed
)]
#[case::after_the_record(At("after-record=return"), PAY, 1, Completed)]
#[case::before_answering(At("before-answer=return"), PAY, 1, Completed)]
#[case::before_the_release_is_durable(At("store-before-commit=1*off->return"), REFUSE, 1, Unknown)]
#[case::after_the_release(At("after-record=return"), REFUSE, 1, Released)]
#[tokio::test]
async fn a_crash_at_any_point_runs_nothing_twice(
    #[case] death: Death,
    #[case] behaviour: Behaviour,
    #[case] sent: usize,
    #[case] found: Found,
) {
    let directory = tempfile::tempdir().unwrap();
    let order = Sequence::default();
    let origin = origin_choosing(order, move |key, times| match (key, times) {
        (CRASHED, 1) => behaviour,
        _ => PAY,
    })
    .await;
    let plan = gateway(&origin, directory.path());

    let healthy = plan.run().await;
    let acknowledged = healthy.post(EARLIER, BODY).await.unwrap();
    assert_eq!(acknowledged.status, 201);
    healthy.kill().await;

    die(&death, plan.clone(), &origin).await;
    assert_eq!(
        origin.runs_of(CRASHED).len(),
        sent,
        "runs before the restart"
    );

    let restarted = plan.run().await;
    assert_eq!(restarted.state(CRASHED).await.as_deref(), found.state());
    let first = restarted.post(CRASHED, BODY).await.unwrap();
    let second = restarted.post(CRASHED, BODY).await.unwrap();
    check_answers(found, &origin, &first, &second);
    let runs_more = usize::from(matches!(found, Free | Released));
    check_ledger(&origin, sent + runs_more);
    check_earlier(&restarted, &acknowledged).await;
    restarted.kill().await;

    let once_more = plan.run().await;
    let third = once_more.post(CRASHED, BODY).await.unwrap();
    assert_eq!(third.kept(), second.kept(), "after another restart");
    check_earlier(&once_more, &acknowledged).await;
    check_ledger(&origin, sent + runs_more);
}

#[tokio::test]
async fn killed_at_any_moment_of_its_first_start_it_starts_again() {
    let origin = origin(PAY).await;
    // Longer than a start, in steps shorter than any part of it.
    for after in (0..120).step_by(4).map(Duration::from_millis) {
        let directory = tempfile::tempdir().unwrap();
        let plan = gateway(&origin, directory.path());
        let starting = plan.start();
        sleep(after).await;
        starting.kill().await;
        let key = format!("after-{}", after.as_millis());
        let answer = plan.run().await.post(&key, BODY).await.unwrap();
        assert_eq!(answer.status, 201, "killed after {after:?}");
    }
}

/// The key of an operation that was acknowledged before the crash.
const EARLIER: &str = "earlier";
/// The key of the operation during which the process dies.
const CRASHED: &str = "crashed";

impl Found {
    /// The state by recovery.
    fn state(self) -> Option<&'static str> {
        match self {
            Free => None,
            Released => Some("released"),
            Unknown => Some("unknown"),
            Completed => Some("completed"),
        }
    }
}

/// Starts a gateway and sends the request, during which the gateway dies without a response.
async fn die(death: &Death, plan: GatewayCommand, origin: &Origin) {
    let (plan, signal) = match death {
        At(point) => (plan.failing(point), Signal::ABORT),
        WhileTheServiceWorks | InTheMiddleOfTheReply => (plan, Signal::KILL),
    };
    let doomed = plan.run().await;
    let asked = doomed.spawn_post(CRASHED, BODY);
    // The service has answered the earlier operation already.
    match death {
        At(_) => {}
        WhileTheServiceWorks => origin.called(2).await,
        InTheMiddleOfTheReply => origin.answered(2).await,
    }
    if signal == Signal::KILL {
        doomed.signal(signal);
    }
    let (status, log) = doomed.ended().await;
    assert_eq!(status.signal(), Some(signal.as_raw()), "{log:?}");
    let answer = asked.await.unwrap();
    assert!(
        answer.is_err(),
        "it was answered before it died: {answer:?}"
    );
}

fn check_answers(found: Found, origin: &Origin, first: &Response, second: &Response) {
    match found {
        Free | Released => {
            assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
            assert!(second.is_replay(), "{second:?}");
            assert_eq!(second.kept(), first.kept());
        }
        Unknown => {
            for answer in [first, second] {
                assert_eq!(
                    (answer.status, answer.code().as_str()),
                    (409, "outcome-unknown")
                );
                assert_eq!(answer.header("idempotency-status"), "unknown");
            }
        }
        Completed => {
            let reply = &origin.runs_of(CRASHED)[0].reply;
            assert_eq!((first.status, first.body.as_ref()), (201, reply.as_bytes()));
            let parts: Vec<_> = first.headers.get_all("x-part").iter().collect();
            assert_eq!(parts, ["one", "two"]);
            assert!(first.is_replay() && second.is_replay());
            assert_eq!(second.kept(), first.kept());
        }
    }
}

/// At most one run per grant: every fence is higher than the one before.
fn check_ledger(origin: &Origin, runs: usize) {
    let ledger = origin.runs_of(CRASHED);
    assert_eq!(ledger.len(), runs, "{ledger:?}");
    assert!(
        ledger.is_sorted_by(|one, next| one.fence < next.fence),
        "{ledger:?}"
    );
    assert!(ledger.iter().all(|run| run.body == BODY), "{ledger:?}");
}

/// A reply that was acknowledged before the crash is replayed byte for byte.
async fn check_earlier(gateway: &Gateway, acknowledged: &Response) {
    let again = gateway.post(EARLIER, BODY).await.unwrap();
    assert!(again.is_replay());
    assert_eq!(again.kept(), acknowledged.kept());
    let expires = |answer: &Response| answer.header("idempotency-expires").to_owned();
    assert_eq!(expires(&again), expires(acknowledged));
    assert_eq!(gateway.state(EARLIER).await.as_deref(), Some("completed"));
}
