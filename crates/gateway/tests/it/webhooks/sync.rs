//! Events that are forwarded within the provider's request: the provider gets the
//! upstream's answer.

use serde_json::json;

use super::signers::Kind;
use super::{Fixture, fixture_with, settings};
use crate::harness::{Reply, Reserved, configured_to, origin};

const TWIML: &str = "<Response><Say>Hello</Say></Response>";

/// Twilio acts on the answer, so a resend gets the same answer.
#[tokio::test]
async fn twilio_gets_the_upstreams_answer_and_the_same_on_a_resend() {
    let fixture = fixture_with(
        origin()
            .reply(200, TWIML)
            .header("content-type", "text/xml"),
        "",
        "",
    )
    .await;
    let hook = fixture.hook(Kind::Twilio).await;
    let first = fixture.accepted(&hook, &hook.event(1)).await;
    let again = fixture.accepted(&hook, &hook.event(1)).await;
    for answer in [&first, &again] {
        assert_eq!(
            (answer.header("content-type"), answer.text()),
            ("text/xml", TWIML)
        );
        assert_eq!(answer.header("idempotency-status"), "completed");
        assert!(!answer.header("x-operation-id").is_empty());
    }
    assert_eq!((first.is_replay(), again.is_replay()), (false, true));
    fixture.only(&hook).await;
}

#[tokio::test]
async fn every_provider_can_get_the_upstreams_answer() {
    let fixture = fixture_with(
        origin().replying(|seen, _| Reply::new(202, seen.target.clone())),
        "",
        "",
    )
    .await;
    for kind in Kind::ALL {
        let hook = fixture.hook_with(kind, json!({ "deliver": "sync" })).await;
        let sent = hook.event(1);
        for replay in [false, true] {
            let answer = fixture.send(&hook, &sent).await;
            assert_eq!(
                (answer.status, answer.text()),
                (202, &*hook.path),
                "{kind:?}"
            );
            assert_eq!(answer.is_replay(), replay, "{kind:?}");
        }
        let seen = fixture.only(&hook).await;
        assert_eq!(seen.body, sent.body, "{kind:?}");
        assert_eq!(
            seen.header("idempotency-key"),
            hook.name(1, &sent.body),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn an_unreachable_upstream_is_reported_and_the_resend_is_delivered() {
    let reserved = Reserved::new();
    let gateway = configured_to(&reserved.url(), &settings("", ""))
        .run()
        .await;
    let away = Fixture {
        // An upstream that is never reached.
        origin: origin().run().await,
        gateway,
    };
    let hook = away
        .hook_with(Kind::Stripe, json!({ "deliver": "sync" }))
        .await;
    let answer = away.send(&hook, &hook.event(1)).await;
    assert_eq!(answer.problem(), (502, "upstream-unreachable".to_owned()));
    let fixture = Fixture {
        origin: origin().run_at(reserved),
        gateway: away.gateway,
    };
    let answer = fixture.accepted(&hook, &hook.event(1)).await;
    assert!(!answer.is_replay());
    fixture.only(&hook).await;
}

/// Only a 2xx, or the upstream's own word, ends an event. Everything else is the
/// provider's answer, and the event is delivered again when the provider sends it
/// again.
#[tokio::test]
async fn an_event_that_is_not_accepted_is_delivered_when_it_comes_again() {
    for class in ["", "on_unknown = \"hold\"", "on_error = \"keep\""] {
        // Each event is sent twice, and the first answer is its path.
        let stumbling = origin().replying(|seen, run| match run % 2 {
            1 => Reply::new(seen.target[1..].parse().unwrap(), "not yet"),
            _ => Reply::new(200, "taken"),
        });
        let fixture = fixture_with(stumbling, class, "").await;
        for status in [302, 400, 404, 409, 410, 422, 501, 503] {
            let more = json!({ "deliver": "sync", "path": format!("/{status}") });
            let hook = fixture.hook_with(Kind::Stripe, more).await;
            let first = fixture.send(&hook, &hook.event(1)).await;
            assert_eq!((first.status, first.text()), (status, "not yet"), "{class}");
            assert_eq!(first.header("idempotency-status"), "released", "{status}");
            let again = fixture.accepted(&hook, &hook.event(1)).await;
            assert_eq!((again.text(), again.is_replay()), ("taken", false));
            let last = fixture.accepted(&hook, &hook.event(1)).await;
            assert_eq!((last.text(), last.is_replay()), ("taken", true));
            assert_eq!(fixture.got(&hook).await.len(), 2, "{class} {status}");
        }
    }
}

/// A handler may act and then fail. The class decides whether its event runs again;
/// the class `webhook` says that it does.
#[tokio::test]
async fn a_server_error_goes_by_the_class() {
    let runs_of = |class: &'static str, status: u16| async move {
        let failing = origin().replying(move |_, run| match run {
            1 => Reply::new(status, "charged, then failed"),
            _ => Reply::new(200, "charged"),
        });
        let fixture = fixture_with(failing, class, "").await;
        let sync = json!({ "deliver": "sync" });
        let hook = fixture.hook_with(Kind::Stripe, sync).await;
        let first = fixture.send(&hook, &hook.event(1)).await;
        let again = fixture.send(&hook, &hook.event(1)).await;
        ((first.status, again.status), fixture.origin.runs())
    };
    let financial = "on_error = \"unknown\"\non_unknown = \"hold\"";
    for status in [500, 502, 504] {
        assert_eq!(runs_of("", status).await, ((status, 200), 2));
        assert_eq!(runs_of(financial, status).await, ((status, 409), 1));
    }
    // A duplicate of an event that failed for good is acknowledged.
    assert_eq!(runs_of("on_error = \"keep\"", 500).await, ((500, 200), 1));
}

/// A provider resends only what is not answered 2xx.
#[tokio::test]
async fn a_success_called_transient_is_not_acknowledged() {
    let unready = origin().replying(|_, run| match run {
        1 => Reply::new(200, "later").header("idempotency-outcome", "transient"),
        _ => Reply::new(200, "taken"),
    });
    let fixture = fixture_with(unready, "", "").await;
    let sync = json!({ "deliver": "sync" });
    let hook = fixture.hook_with(Kind::Stripe, sync).await;
    let first = fixture.send(&hook, &hook.event(1)).await;
    assert_eq!((first.status, first.text()), (503, "later"));
    let again = fixture.accepted(&hook, &hook.event(1)).await;
    assert_eq!((again.text(), again.is_replay()), ("taken", false));
}

/// A mistyped path loses nothing: after the correction the provider's own retry
/// arrives.
#[tokio::test]
async fn after_a_corrected_path_the_providers_retry_arrives() {
    let routed = origin().replying(|seen, _| match seen.target.as_str() {
        "/hooks/stripe" => Reply::new(200, "taken"),
        _ => Reply::new(404, "no such page"),
    });
    let fixture = fixture_with(routed, "", "").await;
    let mistyped = json!({ "deliver": "sync", "path": "/hoks/stripe" });
    let hook = fixture.hook_with(Kind::Stripe, mistyped).await;
    for _ in 0..3 {
        let told = fixture.send(&hook, &hook.event(1)).await;
        assert_eq!((told.status, told.text()), (404, "no such page"));
    }
    let update = format!("/admin/v1/webhooks/{}/update", hook.id);
    let corrected = json!({ "path": "/hooks/stripe", "why": "mistyped" });
    fixture.operate(&update, corrected).await;
    let told = fixture.accepted(&hook, &hook.event(1)).await;
    assert_eq!((told.text(), told.is_replay()), ("taken", false));
    assert_eq!(fixture.came(&hook).len(), 3, "at the mistyped path");
    assert_eq!(fixture.origin.runs(), 4);
}

/// A forwarded event completes after its provider has disconnected, and a resend
/// gets the recorded answer.
#[tokio::test]
async fn a_provider_that_disconnects_does_not_cancel_its_event() {
    let fixture = fixture_with(origin().reply(200, TWIML).gated(), "", "").await;
    let hook = fixture.hook(Kind::Twilio).await;
    let first = fixture.request(&hook, &hook.event(1)).spawn();
    fixture.called(&hook, 1).await;
    first.abort();
    fixture.origin.open();
    fixture.is(&hook, "completed").await;
    let again = fixture.accepted(&hook, &hook.event(1)).await;
    assert_eq!((again.text(), again.is_replay()), (TWIML, true));
    fixture.only(&hook).await;
}
