//! The answer to a resent event, by the state of the event.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::signers::Kind;
use super::{Fixture, Hook, PATIENT, fixture_with};
use crate::harness::fixture::answering;
use crate::harness::{Answer, OriginBuilder, Reply, origin};

/// An origin that refuses its first event for good, then gives these answers.
pub(super) fn refusing_first(then: &'static [u16]) -> OriginBuilder {
    origin().replying(|_, run| match run {
        1 => refusal("no such order"),
        _ => Reply::new(then[(run - 1).min(then.len()) - 1], format!("run {run}")),
    })
}

/// An answer that ends the delivery of an event: it failed for good.
pub(super) fn refusal(body: &str) -> Reply {
    Reply::new(422, body.to_owned()).header("idempotency-outcome", "permanent")
}

/// A webhook before this origin, whose first event was sent.
async fn sent(origin: OriginBuilder, class: &str) -> (Fixture, Hook) {
    let fixture = fixture_with(origin, class, "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    (fixture, hook)
}

/// Status, `Idempotency-Status` and replay mark of the provider's answer.
fn seen_by_provider(answer: &Answer) -> (u16, &str, bool) {
    let status = answer.header("idempotency-status");
    (answer.status, status, answer.is_replay())
}

#[tokio::test]
async fn a_duplicate_of_a_delivered_event_is_acknowledged() {
    let (fixture, hook) = sent(origin(), "").await;
    fixture.is(&hook, "completed").await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "completed", true));
    fixture.only(&hook).await;
}

/// The upstream's answer to a delivery is not returned to the provider.
#[tokio::test]
async fn a_duplicate_of_a_failed_event_is_acknowledged() {
    let (fixture, hook) = sent(refusing_first(&[200]), "").await;
    let shown = fixture.is(&hook, "failed").await;
    assert_eq!(shown["original_status"], 422);
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "failed", true));
    assert_eq!(again.text(), "");
    fixture.only(&hook).await;
}

#[tokio::test]
async fn a_duplicate_of_an_event_under_way_is_accepted() {
    let (fixture, hook) = sent(origin().gated(), "").await;
    fixture.called(&hook, 1).await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "processing", false));
    fixture.origin.open();
    fixture.only(&hook).await;
}

#[tokio::test]
async fn a_duplicate_of_a_retrying_event_is_accepted() {
    let class = "backoff = { first = \"1h\", max = \"1h\" }";
    let (fixture, hook) = sent(answering(&[500]), class).await;
    fixture.called(&hook, 1).await;
    fixture.is(&hook, "queued").await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "processing", false));
    assert_eq!(fixture.came(&hook).len(), 1);
}

/// The upstream may have done its work before it closed the connection: by default
/// the gateway retries, with the same key and a higher fence.
#[tokio::test]
async fn a_lost_delivery_is_retried_with_a_higher_fence() {
    let (fixture, hook) = sent(origin().hanging_up(), PATIENT).await;
    fixture.called(&hook, 3).await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "processing", false));
    let came = fixture.came(&hook);
    let name = hook.name(1, &came[0].body);
    let mut last = 0;
    for seen in came {
        assert_eq!(seen.header("idempotency-key"), name);
        let fence = seen.header("idempotency-fence").parse::<u64>().unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[tokio::test]
async fn a_duplicate_of_a_held_unknown_event_is_acknowledged() {
    let (fixture, hook) = sent(origin().hanging_up(), "on_unknown = \"hold\"").await;
    fixture.is(&hook, "unknown").await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "unknown", false));
    fixture.only(&hook).await;
}

#[tokio::test]
async fn a_duplicate_of_a_paused_event_is_acknowledged() {
    let (fixture, hook) = sent(answering(&[500]), "max_attempts = 3").await;
    let shown = fixture.is(&hook, "paused").await;
    assert_eq!(shown["attempts"], 3);
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "paused", false));
    assert_eq!(fixture.got(&hook).await.len(), 3);
}

/// After an event was killed, the provider may send it again.
#[tokio::test]
async fn a_duplicate_of_a_killed_event_is_queued_again() {
    let class = "max_attempts = 2\non_exhausted = \"kill\"";
    let (fixture, hook) = sent(answering(&[500, 503, 200]), class).await;
    fixture.called(&hook, 2).await;
    fixture.quiet().await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "processing", false));
    assert_eq!(fixture.got(&hook).await.len(), 3);
    let fences: Vec<u64> = fixture
        .came(&hook)
        .iter()
        .map(|seen| seen.header("idempotency-fence").parse().unwrap())
        .collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// While the upstream's answer is pending.
#[tokio::test]
async fn a_sync_duplicate_of_an_event_under_way_is_refused() {
    let fixture = fixture_with(origin().gated(), "", "").await;
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "deliver": "sync" }))
        .await;
    let first = fixture.request(&hook, &hook.event(1)).spawn();
    fixture.called(&hook, 1).await;
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(again.problem(), (503, "in-progress".to_owned()));
    assert!(again.header("retry-after").parse::<u64>().unwrap() >= 1);
    fixture.origin.open();
    assert_eq!(first.await.unwrap().status, 200);
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(seen_by_provider(&again), (200, "completed", true));
    fixture.only(&hook).await;
}

#[tokio::test]
async fn a_sync_duplicate_of_a_released_event_runs_again() {
    let fixture = fixture_with(answering(&[500, 201]), "", "").await;
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "deliver": "sync" }))
        .await;
    let first = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(
        (seen_by_provider(&first), first.text()),
        ((500, "released", false), "run 1")
    );
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(
        (seen_by_provider(&again), again.text()),
        ((201, "completed", false), "run 2")
    );
    let last = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(
        (seen_by_provider(&last), last.text()),
        ((201, "completed", true), "run 2")
    );
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// The first answer is the upstream's. A provider would resend a failed event for
/// days, so later answers acknowledge it.
#[tokio::test]
async fn a_sync_duplicate_of_a_failed_event_is_acknowledged() {
    let refusing = origin().replying(|_, run| refusal(&format!("run {run}")));
    let fixture = fixture_with(refusing, "", "").await;
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "deliver": "sync" }))
        .await;
    let first = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(
        (seen_by_provider(&first), first.text()),
        ((422, "failed", false), "run 1")
    );
    let again = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!(
        (seen_by_provider(&again), again.text()),
        ((200, "failed", true), "")
    );
    fixture.only(&hook).await;
}

#[tokio::test]
async fn a_sync_duplicate_of_an_unknown_event_follows_on_unknown() {
    for (class, second) in [("", 504), ("on_unknown = \"hold\"", 409)] {
        let fixture = fixture_with(origin().hanging_up(), class, "").await;
        let hook = fixture
            .hook_with(Kind::Stripe, json!({ "deliver": "sync" }))
            .await;
        let first = fixture.send(&hook, &hook.event(1)).await;
        assert_eq!(
            first.problem(),
            (504, "outcome-unknown".to_owned()),
            "{class}"
        );
        let again = fixture.send(&hook, &hook.event(1)).await;
        assert_eq!(
            again.problem(),
            (second, "outcome-unknown".to_owned()),
            "{class}"
        );
        let runs = if second == 504 { 2 } else { 1 };
        assert_eq!(fixture.got(&hook).await.len(), runs, "{class}");
    }
}

/// Many events, each sent many times and concurrently, while the upstream fails at
/// times: the upstream accepts each exactly once.
#[tokio::test]
async fn concurrent_duplicates_are_delivered_once() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let stumbling = origin().replying(|_, _| {
        let status = match RUNS.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => 503,
            _ => 200,
        };
        Reply::new(status, "")
    });
    let fixture = fixture_with(stumbling, "", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    let requests: Vec<_> = (0..120)
        .map(|number| fixture.request(&hook, &hook.event(number % 20)).spawn())
        .collect();
    for answer in requests {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    fixture.quiet().await;
    let operations = fixture.of(&hook).await;
    assert_eq!(operations.len(), 20);
    for operation in &operations {
        assert_eq!(operation["state"], "completed", "{operation}");
    }
    let attempts = operations
        .iter()
        .map(|one| one["attempts"].as_u64().unwrap());
    let attempts: u64 = attempts.sum();
    assert_eq!(fixture.came(&hook).len() as u64, attempts);
}
