//! Retries: upstreams that fail, are unreachable, slow, or no longer configured;
//! and gateways that stop in between.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::{ManualClock, Timestamp};
use onceward_gateway::Drained;
use serde_json::json;
use tempfile::TempDir;

use super::signers::Kind;
use super::{Fixture, Hook, PATIENT, fixture_at, fixture_with, settings};
use crate::harness::fixture::answering;
use crate::harness::{Reply, Reserved, Seen, configured, configured_to, origin, until};

#[tokio::test]
async fn a_failed_delivery_is_retried() {
    let fixture = fixture_with(answering(&[500, 429, 502, 504, 200]), "", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let shown = fixture.is(&hook, "completed").await;
    assert_eq!(shown["attempts"], 5);
    let got = fixture.got(&hook).await;
    assert_eq!(got.len(), 5);
    let mut fences = Vec::new();
    for seen in &got {
        assert_eq!(seen.header("idempotency-key"), hook.name(1, &seen.body));
        assert_eq!(seen.body, got[0].body);
        fences.push(seen.header("idempotency-fence").parse::<u64>().unwrap());
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    let deliveries = "onceward_webhook_deliveries_total{upstream=\"origin\"";
    for counted in ["\"requeued\"} 4", "\"completed\"} 1"] {
        fixture
            .gateway
            .shows(&format!("{deliveries},outcome={counted}"))
            .await;
    }
}

/// A mistyped path is corrected by an operator: events that were queued before
/// the correction arrive at the corrected path.
#[tokio::test]
async fn a_corrected_path_applies_to_queued_events() {
    let routed = || {
        origin().replying(|seen, _| match seen.target.as_str() {
            "/hooks/stripe" => Reply::new(200, ""),
            _ => Reply::new(404, "no such page"),
        })
    };
    let path = |path: &str| settings(PATIENT, &format!("[webhooks]\npath = \"{path}\"\n"));
    let origin = routed().run().await;
    let gateway = configured(&origin, &path("/hoks/{provider}")).run().await;
    let fixture = Fixture { origin, gateway };
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "path": null }))
        .await;
    for number in 1..=5 {
        fixture.accepted(&hook, &hook.event(number)).await;
    }
    until(async || fixture.origin.runs() >= 10).await;
    for shown in fixture.of(&hook).await {
        assert!(
            shown["state"] == "queued" || shown["state"] == "running",
            "{shown}"
        );
    }
    let url = fixture.origin.url();
    let corrected = path("/hooks/{provider}");
    fixture.gateway.reload(&url, &corrected).await.unwrap();
    let hook = Hook {
        path: "/hooks/stripe".to_owned(),
        ..hook
    };
    check_each_once(&fixture, &hook, 5).await;
}

/// The same for a webhook with its own path.
#[tokio::test]
async fn an_updated_webhook_redirects_its_queued_events() {
    let routed = origin().replying(|seen, _| match seen.target.as_str() {
        "/hooks/stripe" => Reply::new(200, ""),
        _ => Reply::new(404, "no such page"),
    });
    let fixture = fixture_with(routed, PATIENT, "").await;
    let hook = mistyped_hook(&fixture).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.called(&hook, 2).await;
    let corrected = correct(&fixture, &hook).await;
    fixture.is(&hook, "completed").await;
    check_each_once(&fixture, &corrected, 1).await;
}

/// A path that is wrong for an hour loses nothing: the events that came meanwhile
/// are counted, and each arrives once after the correction.
#[tokio::test]
async fn after_an_hour_of_a_wrong_path_every_event_arrives() {
    let (fixture, clock) = mistyped_fixture("").await;
    let hook = mistyped_hook(&fixture).await;
    let ten_minutes = Duration::from_secs(10 * 60);
    fixture.accepted(&hook, &hook.event(1)).await;
    attempted(&fixture, &hook, "queued", 1).await;
    for number in 2..=7 {
        // All earlier events are due, because their backoff is shorter, and each
        // new event makes the courier look at the queue.
        clock.advance(ten_minutes);
        fixture.accepted(&hook, &hook.event(number)).await;
        attempted(&fixture, &hook, "queued", (1..=number).sum()).await;
    }
    fixture.gateway.shows("onceward_queued 7").await;
    let corrected = correct(&fixture, &hook).await;
    clock.advance(ten_minutes);
    fixture.accepted(&hook, &hook.event(8)).await;
    check_each_once(&fixture, &corrected, 8).await;
    assert_eq!(fixture.came(&hook).len(), 28, "at the mistyped path");
    for shown in fixture.of(&hook).await {
        assert_eq!(shown["state"], "completed", "{shown}");
    }
    fixture.gateway.shows("onceward_queued 0").await;
}

/// The same until no attempt is left: the events are paused and counted, other
/// webhooks are served meanwhile, and after the correction an operator resumes or
/// redelivers the events.
#[tokio::test]
async fn events_that_a_wrong_path_paused_arrive_after_the_correction() {
    let (fixture, clock) = mistyped_fixture("max_attempts = 3").await;
    let hook = mistyped_hook(&fixture).await;
    let more = json!({ "path": "/hooks/other" });
    let other = fixture.hook_with(Kind::Stripe, more).await;
    for number in 1..=4 {
        fixture.accepted(&hook, &hook.event(number)).await;
    }
    for (attempt, state) in [(1, "queued"), (2, "queued"), (3, "paused")] {
        attempted(&fixture, &hook, state, 4 * attempt).await;
        clock.advance(Duration::from_secs(60 * 60));
        // It lets the courier look at the queue.
        fixture.accepted(&other, &other.event(attempt)).await;
        fixture.called(&other, attempt as usize).await;
    }
    fixture.gateway.shows("onceward_paused 4").await;
    let corrected = correct(&fixture, &hook).await;
    let why = json!({ "why": "the path is corrected" });
    for (shown, verb) in fixture
        .of(&hook)
        .await
        .iter()
        .zip(["resume", "redeliver"].iter().cycle())
    {
        let id = shown["operation_id"].as_str().unwrap();
        let path = format!("/admin/v1/operations/{id}/{verb}");
        fixture.operate(&path, why.clone()).await;
    }
    check_each_once(&fixture, &corrected, 4).await;
    assert_eq!(fixture.came(&hook).len(), 12, "at the mistyped path");
    fixture.gateway.shows("onceward_paused 0").await;
}

/// A gateway with a clock of the test's, before an origin that knows two paths.
async fn mistyped_fixture(class: &str) -> (Fixture, Arc<ManualClock>) {
    let routed = origin().replying(|seen, _| match seen.target.as_str() {
        "/hooks/stripe" | "/hooks/other" => Reply::new(200, ""),
        _ => Reply::new(404, "no such page"),
    });
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_790_000_000_000)));
    let origin = routed.run().await;
    // The backoff of the class as it is built in.
    let class = format!("backoff = {{ first = \"1s\", max = \"1h\" }}\n{class}");
    let gateway = configured(&origin, &settings(&class, "")).clock(clock.clone());
    let gateway = gateway.run().await;
    (Fixture { origin, gateway }, clock)
}

async fn mistyped_hook(fixture: &Fixture) -> Hook {
    let mistyped = json!({ "path": "/hoks/stripe" });
    fixture.hook_with(Kind::Stripe, mistyped).await
}

/// Corrects the path of a webhook, and gives the webhook as it is then.
async fn correct(fixture: &Fixture, hook: &Hook) -> Hook {
    let update = format!("/admin/v1/webhooks/{}/update", hook.id);
    let corrected = json!({ "path": "/hooks/stripe", "why": "mistyped" });
    fixture.operate(&update, corrected).await;
    Hook {
        path: "/hooks/stripe".to_owned(),
        ..hook.clone()
    }
}

/// Waits until all events of a webhook are in this state, after so many attempts
/// together.
async fn attempted(fixture: &Fixture, hook: &Hook, state: &str, attempts: u32) {
    until(async || {
        let events = fixture.of(hook).await;
        let made = events.iter().map(|one| one["attempts"].as_u64().unwrap());
        let made: u64 = made.sum();
        made == u64::from(attempts) && events.iter().all(|one| one["state"] == state)
    })
    .await;
}

/// An event that no attempt delivers is paused, not lost: after the correction an
/// operator resumes it.
#[tokio::test]
async fn a_paused_event_is_delivered_after_the_correction() {
    for verb in ["resume", "redeliver"] {
        let fixture = fixture_with(answering(&[404, 404, 200]), "max_attempts = 2", "").await;
        let hook = fixture.hook(Kind::Stripe).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        let paused = fixture.is(&hook, "paused").await;
        fixture.gateway.shows("onceward_paused 1").await;
        let id = paused["operation_id"].as_str().unwrap();
        let path = format!("/admin/v1/operations/{id}/{verb}");
        fixture
            .operate(&path, json!({ "why": "the path is right now" }))
            .await;
        fixture.is(&hook, "completed").await;
    }
}

/// The upstream's `Idempotency-Outcome` beats its status.
#[tokio::test]
async fn idempotency_outcome_decides_whether_a_delivery_is_retried() {
    for (status, said, attempts, state) in [
        (500, "permanent", 1, "failed"),
        (404, "transient", 2, "completed"),
        (404, "permanent", 1, "failed"),
        (200, "transient", 2, "completed"),
    ] {
        let origin = origin().replying(move |_, run| match run {
            1 => Reply::new(status, "").header("idempotency-outcome", said),
            _ => Reply::new(200, ""),
        });
        let fixture = fixture_with(origin, "", "").await;
        let hook = fixture.hook(Kind::Stripe).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        let shown = fixture.is(&hook, state).await;
        assert_eq!(shown["attempts"], attempts, "{said}");
        assert_eq!(fixture.got(&hook).await.len(), attempts, "{said}");
    }
}

/// An answer too large to keep is a valid answer, and the gateway does not wait for
/// its end.
#[tokio::test]
async fn an_answer_too_large_to_keep_completes_the_delivery() {
    for (status, state) in [(200, "completed"), (422, "failed")] {
        let large = "a".repeat(3 << 20);
        let origin = origin().reply(status, large.clone());
        let origin = origin.header("idempotency-outcome", "permanent");
        let fixture = fixture_with(origin, "", "").await;
        let hook = fixture.hook(Kind::Stripe).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        let shown = fixture.is(&hook, state).await;
        assert_eq!(shown["original_status"], status);
        let again = fixture.accepted(&hook, &hook.event(1)).await;
        assert!(again.is_replay(), "{status}");
        assert_eq!(again.header("idempotency-status"), state);
        fixture.only(&hook).await;

        let said = json!({ "deliver": "sync", "path": "/sync" });
        let hook = fixture.hook_with(Kind::Stripe, said).await;
        let first = fixture.send(&hook, &hook.event(1)).await;
        assert_eq!((first.status, first.text()), (status, &*large));
        let again = fixture.accepted(&hook, &hook.event(1)).await;
        assert!(again.is_replay(), "{status}");
        assert_eq!(again.header("idempotency-status"), state);
        fixture.only(&hook).await;
    }
}

/// The reconciliation service is asked about a lost delivery. An event that did not
/// run is delivered again by itself, because its provider has an acknowledgement.
#[tokio::test]
async fn a_lost_delivery_is_reconciled() {
    let ran = json!({ "outcome": "ran", "reply": { "status": 200, "headers": {}, "body": "" } });
    for (word, state, times) in [
        (ran, "completed", 1),
        (json!({ "outcome": "not_run" }), "completed", 2),
        (json!({ "outcome": "unsure" }), "unknown", 1),
    ] {
        let who_knows = origin().reply(200, word.to_string());
        let who_knows = who_knows
            .header("content-type", "application/json")
            .run()
            .await;
        let class = format!(
            "on_unknown = \"reconcile\"\nreconcile_url = \"{}/asked\"",
            who_knows.url()
        );
        let fixture = fixture_with(origin().hanging_up_once(), &class, "").await;
        let hook = fixture.hook(Kind::Stripe).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        who_knows.called(1).await;
        fixture.is(&hook, state).await;
        assert_eq!(fixture.got(&hook).await.len(), times, "{word}");
    }
}

/// An event that an operator resolves as not run is delivered again.
#[tokio::test]
async fn an_event_resolved_as_not_run_is_delivered_again() {
    let fixture = fixture_with(origin().hanging_up_once(), "on_unknown = \"hold\"", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let shown = fixture.is(&hook, "unknown").await;
    let id = shown["operation_id"].as_str().unwrap();
    let path = format!("/admin/v1/operations/{id}/resolve");
    fixture
        .operate(&path, json!({ "outcome": "not_run", "why": "a test" }))
        .await;
    fixture.is(&hook, "completed").await;
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// Sends the same events to the same webhook while the upstream is unreachable and
/// after.
async fn away_then_back(directory: Option<TempDir>) {
    let reserved = Reserved::new();
    let url = reserved.url();
    let start = || match &directory {
        Some(directory) => configured_to(&url, &settings(PATIENT, "")).directory(directory.path()),
        None => configured_to(&url, &settings(PATIENT, "")),
    };
    let away = Fixture {
        // A reconciliation service that is never asked.
        origin: origin().run().await,
        gateway: start().run().await,
    };
    let hook = away.hook(Kind::Stripe).await;
    for number in 1..=10 {
        let answer = away.accepted(&hook, &hook.event(number)).await;
        assert_eq!(answer.header("idempotency-status"), "processing");
    }
    let tried = |line: &str| {
        line.starts_with(
            "onceward_webhook_deliveries_total{upstream=\"origin\",outcome=\"requeued\"}",
        )
    };
    until(async || away.gateway.metrics().await.lines().any(tried)).await;
    let gateway = match directory {
        None => away.gateway,
        Some(_) => {
            away.gateway.drain().await;
            start().run().await
        }
    };
    let origin = origin().run_at(reserved);
    let fixture = Fixture { origin, gateway };
    check_each_once(&fixture, &hook, 10).await;
}

/// Checks that every event was delivered once, under its own key.
async fn check_each_once(fixture: &Fixture, hook: &Hook, most: u32) {
    let mut names: Vec<_> = fixture
        .got(hook)
        .await
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    names.sort();
    let mut want: Vec<_> = (1..=most).map(|number| hook.name(number, &[])).collect();
    want.sort();
    assert_eq!(names, want);
}

#[tokio::test]
async fn events_wait_for_an_unreachable_upstream() {
    away_then_back(None).await;
}

#[tokio::test]
async fn queued_events_survive_a_restart() {
    away_then_back(Some(TempDir::new().unwrap())).await;
}

/// Delivered events are not delivered again by the next gateway.
#[tokio::test]
async fn delivered_events_are_not_delivered_again_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let fixture = fixture_at(origin().run().await, directory.path()).await;
    let hook = fixture.hook(Kind::GitHub).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.is(&hook, "completed").await;
    let Fixture { origin, gateway } = fixture;
    gateway.drain().await;
    let fixture = fixture_at(origin, directory.path()).await;
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    assert!(answer.is_replay());
    fixture.accepted(&hook, &hook.event(2)).await;
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// A stopping gateway waits for deliveries under way only up to a limit. An
/// abandoned delivery may have arrived: the next gateway sends it again, with the
/// same key and a higher fence.
#[tokio::test]
async fn a_delivery_abandoned_at_shutdown_is_retried_after_the_restart() {
    let directory = TempDir::new().unwrap();
    let fixture = fixture_at(origin().gated().run().await, directory.path()).await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    fixture.called(&hook, 1).await;
    let Fixture { origin, gateway } = fixture;
    let drained = gateway.drain_within(Duration::from_millis(50)).await;
    assert_eq!(drained, Drained::Cut { running: 1 });
    let fixture = fixture_at(origin, directory.path()).await;
    fixture.called(&hook, 2).await;
    for _ in 0..2 {
        fixture.origin.open();
    }
    let got = fixture.got(&hook).await;
    let [first, second] = got.as_slice() else {
        panic!("{got:?}");
    };
    let fence = |seen: &Seen| seen.header("idempotency-fence").parse::<u64>().unwrap();
    assert_eq!(
        first.header("idempotency-key"),
        second.header("idempotency-key")
    );
    assert!(fence(first) < fence(second));
}

/// However many events wait for an upstream that does not answer, providers are
/// acknowledged and other upstreams get their events.
#[tokio::test]
async fn a_slow_upstream_does_not_delay_others() {
    let (slow, quick) = (origin().gated().run().await, origin().run().await);
    let more = format!(
        "[upstreams.slow]\nurl = \"{}\"\n\
         [webhooks]\ndeliveries = 3\ndeliveries_per_upstream = 2\n",
        slow.url()
    );
    let gateway = configured(&quick, &settings("", &more)).run().await;
    let fixture = Fixture {
        origin: quick,
        gateway,
    };
    let said = json!({ "upstream": "slow", "path": "/slow" });
    let to_slow = fixture.hook_with(Kind::Stripe, said).await;
    let to_quick = fixture.hook(Kind::Stripe).await;
    for number in 1..=20 {
        fixture.accepted(&to_slow, &to_slow.event(number)).await;
    }
    slow.called(2).await;
    for number in 1..=20 {
        fixture.accepted(&to_quick, &to_quick.event(number)).await;
    }
    fixture.called(&to_quick, 20).await;
    assert_eq!(slow.runs(), 2, "its share, and no more");
}

/// Events beyond an upstream's share wait, without counting as attempts.
#[tokio::test]
async fn deferred_events_are_delivered_without_counting_as_attempts() {
    let more = "[webhooks]\ndeliveries_per_upstream = 1";
    let fixture = fixture_with(origin().gated(), "max_attempts = 1", more).await;
    let hook = fixture.hook(Kind::Stripe).await;
    for number in 1..=2 {
        fixture.accepted(&hook, &hook.event(number)).await;
    }
    fixture.called(&hook, 1).await;
    fixture.origin.open();
    fixture.origin.open();
    check_each_once(&fixture, &hook, 2).await;
}

/// A configuration that removes the upstream of a webhook is refused.
#[tokio::test]
async fn a_configuration_without_a_webhooks_upstream_is_refused() {
    let second = origin().run().await;
    let more = format!("[upstreams.second]\nurl = \"{}\"\n", second.url());
    let fixture = fixture_with(origin(), "", &more).await;
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "upstream": "second" }))
        .await;
    let url = fixture.origin.url();
    let refused = fixture
        .gateway
        .reload(&url, &settings("", ""))
        .await
        .unwrap_err();
    assert!(refused.contains(&hook.id), "{refused}");
    fixture.accepted(&hook, &hook.event(1)).await;
    second.called(1).await;
}

#[tokio::test]
async fn events_wait_for_an_upstream_that_is_configured_again() {
    let reserved = Reserved::new();
    let text = |url: &str| settings(PATIENT, &format!("[upstreams.second]\nurl = \"{url}\"\n"));
    let first = origin().run().await;
    let fixture = Fixture {
        gateway: configured(&first, &text(&reserved.url())).run().await,
        origin: first,
    };
    let hook = fixture
        .hook_with(Kind::Stripe, json!({ "upstream": "second" }))
        .await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let delete = format!("/admin/v1/webhooks/{}/delete", hook.id);
    fixture.operate(&delete, json!({ "why": "a test" })).await;
    let url = fixture.origin.url();
    fixture
        .gateway
        .reload(&url, &settings(PATIENT, ""))
        .await
        .unwrap();
    let second = origin().run_at(reserved);
    let attempts = async || fixture.of(&hook).await[0]["attempts"].as_u64().unwrap();
    let before = attempts().await;
    until(async || attempts().await >= before + 2).await;
    assert_eq!(second.runs(), 0, "nobody says where it is");
    fixture
        .gateway
        .reload(&url, &text(&second.url()))
        .await
        .unwrap();
    second.called(1).await;
    let seen = second.only();
    assert_eq!(seen.header("idempotency-key"), hook.name(1, &seen.body));
    fixture.is(&hook, "completed").await;
    assert_eq!(fixture.origin.runs(), 0);
}

/// An event keeps its recorded destination: deleting its webhook does not delete
/// the event.
#[tokio::test]
async fn an_event_outlives_its_webhook() {
    let fixture = fixture_with(answering(&[503, 503, 503, 200]), "", "").await;
    let hook = fixture.hook(Kind::Stripe).await;
    fixture.accepted(&hook, &hook.event(1)).await;
    let delete = format!("/admin/v1/webhooks/{}/delete", hook.id);
    fixture.operate(&delete, json!({ "why": "a test" })).await;
    fixture.is(&hook, "completed").await;
    assert_eq!(fixture.got(&hook).await.len(), 4);
}
