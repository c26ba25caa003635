//! Attacks with one captured delivery whose id is not signed.

use serde_json::json;

use super::events::check_signed;
use super::signers::{Kind, Signed};
use super::{Hook, fixture, fixture_with};
use crate::harness::{Reply, origin};

const MARK: &str = "idempotency-same-bytes";

/// The header with the unsigned id.
const UNSIGNED: [(Kind, &str); 3] = [
    (Kind::GitHub, "x-github-delivery"),
    (Kind::Shopify, "x-shopify-event-id"),
    (Kind::ShopifyEvents, "shopify-webhook-id"),
];

/// A captured delivery under another id.
fn under(hook: &Hook, sent: &Signed, name: &'static str, number: u32) -> Signed {
    sent.clone().with(name, &hook.kind.id(number))
}

#[tokio::test]
async fn a_captured_delivery_does_not_block_a_later_event() {
    for rule in ["deliver", "refuse"] {
        let fixture = fixture().await;
        for (kind, name) in UNSIGNED {
            let hook = fixture.hook_with(kind, json!({ "same_bytes": rule })).await;
            let caught = hook.event(1);
            fixture.accepted(&hook, &caught).await;
            fixture
                .accepted(&hook, &under(&hook, &caught, name, 2))
                .await;
            let real = hook.event(2);
            let answer = fixture.accepted(&hook, &real).await;
            assert!(!answer.is_replay(), "{kind:?} {rule}");
            let got = fixture.got(&hook).await;
            let arrived = got.iter().filter(|seen| seen.body == real.body).count();
            assert_eq!(arrived, 1, "{kind:?} {rule}");
        }
    }
}

/// A second event with the bytes of the first is delivered; a header says that it
/// may be the first again.
#[tokio::test]
async fn the_same_bytes_under_another_id_are_delivered_and_marked() {
    for (kind, name) in UNSIGNED {
        let fixture = fixture().await;
        let hook = fixture.hook(kind).await;
        let first = hook.event(1);
        // Only the gateway sets this header.
        let first = first.with(MARK, "true");
        let answer = fixture.accepted(&hook, &first).await;
        assert_eq!(answer.header(MARK), "", "{kind:?}");
        let second = under(&hook, &first, name, 2);
        let answer = fixture.accepted(&hook, &second).await;
        assert_eq!(answer.header(MARK), "true", "{kind:?}");
        assert!(!answer.is_replay(), "{kind:?}");
        let got = fixture.got(&hook).await;
        let id = |number: u32| kind.id(number);
        let mut marks: Vec<_> = got
            .iter()
            .map(|seen| (seen.header(name).to_owned(), seen.header(MARK)))
            .collect();
        marks.sort();
        assert_eq!(marks, [(id(1), ""), (id(2), "true")], "{kind:?}");
        let keys: Vec<_> = got
            .iter()
            .map(|seen| seen.header("idempotency-key"))
            .collect();
        assert_ne!(keys[0], keys[1], "{kind:?}");
        let provider = kind.provider();
        let line = "onceward_webhook_same_bytes_total";
        fixture
            .counts(&format!(
                "{line}{{provider=\"{provider}\",answer=\"delivered\"}} 1"
            ))
            .await;
    }
}

/// Configured for the webhook, or for all webhooks.
#[tokio::test]
async fn the_same_bytes_under_another_id_can_be_refused() {
    let more = "[webhooks]\nsame_bytes = \"refuse\"";
    for (more, said) in [("", json!({ "same_bytes": "refuse" })), (more, json!({}))] {
        for (kind, name) in UNSIGNED {
            let fixture = fixture_with(origin(), "", more).await;
            let hook = fixture.hook_with(kind, said.clone()).await;
            let first = hook.event(1);
            fixture.accepted(&hook, &first).await;
            let answer = fixture
                .accepted(&hook, &under(&hook, &first, name, 2))
                .await;
            assert!(answer.is_replay(), "{kind:?}");
            assert_eq!(answer.header(MARK), "true", "{kind:?}");
            // The first is still known by its own id.
            let answer = fixture.accepted(&hook, &first).await;
            assert_eq!(answer.header(MARK), "", "{kind:?}");
            assert_eq!(
                fixture.only(&hook).await.header(name),
                kind.id(1),
                "{kind:?}"
            );
            let provider = kind.provider();
            let line = "onceward_webhook_same_bytes_total";
            fixture
                .counts(&format!(
                    "{line}{{provider=\"{provider}\",answer=\"refused\"}} 1"
                ))
                .await;
        }
    }
}

/// A webhook with `deliver` accepts such events although the configuration refuses
/// them.
#[tokio::test]
async fn a_webhooks_own_setting_beats_the_configuration() {
    let fixture = fixture_with(origin(), "", "[webhooks]\nsame_bytes = \"refuse\"").await;
    let hook = fixture
        .hook_with(Kind::GitHub, json!({ "same_bytes": "deliver" }))
        .await;
    let first = hook.event(1);
    fixture.accepted(&hook, &first).await;
    let second = under(&hook, &first, "x-github-delivery", 2);
    fixture.accepted(&hook, &second).await;
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// Of many concurrent deliveries with the same bytes, each under a different id,
/// one is the first. Until it is recorded the others are asked to retry: the first
/// may still fail.
#[tokio::test]
async fn of_concurrent_deliveries_with_the_same_bytes_one_is_first() {
    let fixture = fixture().await;
    let hook = fixture
        .hook_with(Kind::GitHub, json!({ "same_bytes": "refuse" }))
        .await;
    let first = hook.event(0);
    let requests: Vec<_> = (0..16)
        .map(|number| {
            let sent = under(&hook, &first, "x-github-delivery", number);
            (fixture.request(&hook, &sent).spawn(), sent)
        })
        .collect();
    let mut marked = 0;
    for (answer, sent) in requests {
        let mut answer = answer.await.unwrap();
        while answer.status != 200 {
            assert_eq!(answer.problem(), (503, "in-progress".to_owned()));
            answer = fixture.send(&hook, &sent).await;
        }
        marked += usize::from(answer.header(MARK) == "true");
    }
    assert_eq!(marked, 15);
    fixture.only(&hook).await;
}

/// Bytes are remembered only with a recorded event. An event that exceeded a limit,
/// or that the upstream did not accept, does not block another with its bytes.
#[tokio::test]
async fn bytes_are_remembered_only_with_a_recorded_event() {
    let gated = origin()
        .replying(|_, run| Reply::new(if run == 2 { 500 } else { 200 }, ""))
        .gated();
    let fixture = fixture_with(gated, "", "[limits]\nin_flight_per_tenant = 1").await;
    let sync = json!({ "deliver": "sync", "same_bytes": "refuse" });
    let other = fixture.hook_with(Kind::Stripe, sync.clone()).await;
    let hook = fixture.hook_with(Kind::GitHub, sync).await;
    let busy = fixture.request(&other, &other.event(1)).spawn();
    fixture.called(&other, 1).await;
    let first = hook.event(1);
    let answer = fixture.send(&hook, &first).await;
    assert_eq!(answer.problem(), (429, "too-many-requests".to_owned()));
    for _ in 0..3 {
        fixture.origin.open();
    }
    assert_eq!(busy.await.unwrap().status, 200);
    for (number, status) in [(2, 500), (3, 200)] {
        let sent = under(&hook, &first, "x-github-delivery", number);
        let mut answer = fixture.send(&hook, &sent).await;
        // A slot is freed shortly after its answer is sent.
        while answer.status == 429 {
            answer = fixture.send(&hook, &sent).await;
        }
        let was = (answer.status, answer.header(MARK));
        assert_eq!(was, (status, ""), "{number}: {}", answer.text());
    }
    let answer = fixture
        .accepted(&hook, &under(&hook, &first, "x-github-delivery", 4))
        .await;
    assert_eq!(answer.header(MARK), "true");
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// The bytes of a received event are remembered even if the provider disconnects.
#[tokio::test]
async fn bytes_are_remembered_after_the_provider_disconnects() {
    let fixture = fixture_with(origin().gated(), "", "").await;
    let sync = json!({ "deliver": "sync", "same_bytes": "refuse" });
    let hook = fixture.hook_with(Kind::GitHub, sync).await;
    let first = hook.event(1);
    let gone = fixture.request(&hook, &first).spawn();
    fixture.called(&hook, 1).await;
    gone.abort();
    assert!(gone.await.is_err(), "it was not to be answered yet");
    fixture.origin.open();
    fixture.quiet().await;
    let again = under(&hook, &first, "x-github-delivery", 2);
    let answer = fixture.accepted(&hook, &again).await;
    assert_eq!(answer.header(MARK), "true");
    assert_eq!(fixture.got(&hook).await.len(), 1);
}

/// The message is the same, whatever the token that Twilio does not sign.
#[tokio::test]
async fn twilios_unsigned_token_does_not_make_a_second_message() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Twilio).await;
    for token in ["one", "two"] {
        let sent = hook.event(1).with("i-twilio-idempotency-token", token);
        fixture.accepted(&hook, &sent).await;
    }
    fixture.only(&hook).await;
}

/// Several requests of one call may have identical bytes, for example when the
/// caller presses the same key again; only the unsigned token distinguishes them.
#[tokio::test]
async fn a_twilio_call_is_identified_by_its_token() {
    const TOKEN: &str = "i-twilio-idempotency-token";
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Twilio).await;
    let body = format!("CallSid=CA{:032x}&CallStatus=in-progress&Digits=1", 7);
    let pressed = hook.unsigned(1).body(body).signed();
    for (token, replay) in [("one", false), ("one", true), ("two", false), ("two", true)] {
        let answer = fixture
            .accepted(&hook, &pressed.clone().with(TOKEN, token))
            .await;
        assert_eq!(answer.is_replay(), replay, "{token}");
    }
    let got = fixture.got(&hook).await;
    let marks = got
        .iter()
        .map(|seen| (seen.header(TOKEN), seen.header(MARK)));
    assert_eq!(marks.collect::<Vec<_>>(), [("one", ""), ("two", "true")]);
}

/// Unsigned headers decide nothing: neither the topic's event nor the retry count.
#[tokio::test]
async fn unsigned_headers_do_not_make_a_second_event() {
    let fixture = fixture().await;
    for (kind, name) in [
        (Kind::Slack, "x-slack-retry-num"),
        (Kind::GitHub, "x-github-event"),
        (Kind::Shopify, "x-shopify-shop-domain"),
        (Kind::Stripe, "idempotency-key"),
        (Kind::Square, "x-operation-id"),
    ] {
        let hook = fixture.hook(kind).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        let again = hook.event(1).with(name, "2");
        fixture.accepted(&hook, &again).await;
        fixture.only(&hook).await;
    }
}

/// The gateway's own headers are not accepted from a provider or an attacker.
#[tokio::test]
async fn a_provider_cannot_set_the_gateways_headers() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    let mut sent = hook.event(1);
    for name in [
        "x-tenant-id",
        "x-project-id",
        "x-subject",
        "idempotency-fence",
        "idempotency-key",
        "webhook-id",
        "webhook-signature",
        "x-operation-id",
    ] {
        sent = sent.with(name, "forged");
    }
    fixture.accepted(&hook, &sent).await;
    let seen = fixture.only(&hook).await;
    let values = seen.headers.values();
    let forged: Vec<_> = values.filter(|value| *value == "forged").collect();
    assert!(forged.is_empty(), "{:?}", seen.headers);
}

/// A sender's `Connection` header applies only to the sender's headers, never to
/// the gateway's: the mark of repeated bytes, the tenant, or the signature.
#[tokio::test]
async fn connection_cannot_remove_the_gateways_headers() {
    const SAID: [&str; 8] = [
        MARK,
        "idempotency-fence",
        "x-operation-id",
        "x-tenant-id",
        "x-project-id",
        "x-subject",
        "x-forwarded-host",
        "webhook-id",
    ];
    let silence = [&SAID[..], &["webhook-timestamp", "webhook-signature"]].concat();
    let silence = silence.join(", ");
    let fixture = fixture().await;
    for deliver in ["async", "sync"] {
        let hook = fixture
            .hook_with(
                Kind::GitHub,
                json!({ "deliver": deliver, "path": format!("/{deliver}") }),
            )
            .await;
        let caught = hook.event(1);
        fixture.accepted(&hook, &caught).await;
        fixture.only(&hook).await;
        let again = under(&hook, &caught, "x-github-delivery", 2);
        fixture
            .accepted(&hook, &again.with("connection", &silence))
            .await;
        let got = fixture.got(&hook).await;
        assert_eq!(got.len(), 2, "{deliver}");
        assert_eq!(got[1].header(MARK), "true", "{deliver}");
        for name in SAID {
            assert_ne!(got[1].header(name), "", "{deliver}: {name}");
        }
        check_signed(&hook, &got[1]);
    }
}

#[tokio::test]
async fn connection_cannot_remove_the_signature_of_a_trial() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::GitHub).await;
    let ping = json!({ "zen": "Keep it logically awesome.", "hook_id": 7 }).to_string();
    let silence = "webhook-id, webhook-timestamp, webhook-signature, x-tenant-id";
    let ping = hook.unsigned(1).body(ping).signed();
    fixture
        .accepted(&hook, &ping.with("connection", silence))
        .await;
    let seen = fixture.only(&hook).await;
    assert_eq!(seen.header("x-tenant-id"), "acme");
    check_signed(&hook, &seen);
}
