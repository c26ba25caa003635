//! The effect of the origin's answer on the key: keep, release or unknown.

use rstest::rstest;

use crate::harness::{Answer, Origin, Reply, Running, gateway, origin};

/// The observed result of the second of two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Replayed,
    Ran,
    Refused,
}

#[rstest]
#[case::success(&[200, 201, 202, 204, 206], "completed", Second::Replayed)]
#[case::redirection(&[301, 303, 304, 307], "completed", Second::Replayed)]
#[case::refusal(&[400, 402, 404, 405, 410, 412, 415, 422, 428, 451], "failed", Second::Replayed)]
#[case::try_again(&[401, 403, 407, 408, 409, 423, 425, 429], "released", Second::Ran)]
#[case::server_error(&[500, 501, 503, 505, 507], "released", Second::Ran)]
#[case::between(&[502, 504], "unknown", Second::Refused)]
#[tokio::test]
async fn the_status_decides(#[case] statuses: &[u16], #[case] word: &str, #[case] want: Second) {
    let origin = origin()
        .replying(|seen, run| reply(&seen.target, run))
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    for status in statuses {
        let first = gateway.post(&format!("/{status}"), "k").send().await;
        assert_eq!(
            (first.status, first.is_replay()),
            (*status, false),
            "the answer passes"
        );
        assert_eq!(first.header("idempotency-status"), word, "{status}");
        let expires = first.header("idempotency-expires");
        assert_eq!(expires.is_empty(), want != Second::Replayed, "{status}");
        assert_eq!(second(&origin, &gateway, *status).await, want, "{status}");
    }
}

#[rstest]
#[case::kept("permanent", 503, Second::Replayed)]
#[case::kept_from_between("permanent", 504, Second::Replayed)]
#[case::released("transient", 200, Second::Ran)]
#[case::released_refusal("Transient", 404, Second::Ran)]
#[case::another_word("perhaps", 200, Second::Replayed)]
#[tokio::test]
async fn idempotency_outcome_beats_the_status(
    #[case] word: &'static str,
    #[case] status: u16,
    #[case] want: Second,
) {
    let origin = origin()
        .reply(status, "")
        .header("idempotency-outcome", word)
        .run()
        .await;
    let gateway = gateway(&origin).run().await;
    let first = gateway.post(&format!("/{status}"), "k").send().await;
    assert_eq!(first.status, status);
    assert_eq!(
        first.header("idempotency-outcome"),
        "",
        "it is not passed on"
    );
    assert_eq!(second(&origin, &gateway, status).await, want);
}

/// Answers `/{status}` with that status and the number of the run.
fn reply(target: &str, run: usize) -> Reply {
    let status = target.trim_start_matches('/').parse().unwrap();
    let body = match status {
        204 | 304 => String::new(),
        _ => format!("run {run}"),
    };
    Reply::new(status, body)
}

/// Sends the second request.
async fn second(origin: &Origin, gateway: &Running, status: u16) -> Second {
    let before = origin.runs();
    let answer: Answer = gateway.post(&format!("/{status}"), "k").send().await;
    match (answer.is_replay(), origin.runs() - before) {
        (true, 0) if answer.status == status => Second::Replayed,
        (false, 1) if answer.status == status => Second::Ran,
        (false, 0) if answer.problem() == (409, "outcome-unknown".to_owned()) => Second::Refused,
        other => panic!("{other:?}: {answer:?}"),
    }
}
