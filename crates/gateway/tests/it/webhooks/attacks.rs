//! What somebody can do who has caught one delivery whose id is not signed.

use serde_json::json;

use super::events::check_signed;
use super::signers::{Kind, Signed};
use super::{Hook, fixture, fixture_with};
use crate::harness::{Reply, origin};

const MARK: &str = "idempotency-same-bytes";

/// The header that has the id, where nothing signs it.
const UNSIGNED: [(Kind, &str); 3] = [
    (Kind::GitHub, "x-github-delivery"),
    (Kind::Shopify, "x-shopify-event-id"),
    (Kind::ShopifyEvents, "shopify-webhook-id"),
];

/// A delivery as it was, under the id of another.
fn under(hook: &Hook, sent: &Signed, name: &'static str, number: u32) -> Signed {
    sent.clone().with(name, &hook.kind.id(number))
}

#[tokio::test]
async fn a_caught_delivery_does_not_block_one_that_is_to_come() {
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
            let told = fixture.accepted(&hook, &real).await;
            assert!(!told.is_replay(), "{kind:?} {rule}");
            let got = fixture.got(&hook).await;
            let arrived = got.iter().filter(|seen| seen.body == real.body).count();
            assert_eq!(arrived, 1, "{kind:?} {rule}");
        }
    }
}

/// A second event that looks like the first arrives; whoever gets it is told
/// that it may be the first again.
#[tokio::test]
async fn the_same_bytes_under_another_id_are_delivered_and_marked() {
    for (kind, name) in UNSIGNED {
        let fixture = fixture().await;
        let hook = fixture.hook(kind).await;
        let first = hook.event(1);
        // Nobody but us says so.
        let first = first.with(MARK, "true");
        let told = fixture.accepted(&hook, &first).await;
        assert_eq!(told.header(MARK), "", "{kind:?}");
        let second = under(&hook, &first, name, 2);
        let told = fixture.accepted(&hook, &second).await;
        assert_eq!(told.header(MARK), "true", "{kind:?}");
        assert!(!told.is_replay(), "{kind:?}");
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

/// By the webhook's own word, or by that of the configuration.
#[tokio::test]
async fn the_same_bytes_under_another_id_can_be_refused() {
    let more = "[webhooks]\nsame_bytes = \"refuse\"";
    for (more, said) in [("", json!({ "same_bytes": "refuse" })), (more, json!({}))] {
        for (kind, name) in UNSIGNED {
            let fixture = fixture_with(origin(), "", more).await;
            let hook = fixture.hook_with(kind, said.clone()).await;
            let first = hook.event(1);
            fixture.accepted(&hook, &first).await;
            let told = fixture
                .accepted(&hook, &under(&hook, &first, name, 2))
                .await;
            assert!(told.is_replay(), "{kind:?}");
            assert_eq!(told.header(MARK), "true", "{kind:?}");
            // The first is still known by its own id.
            let told = fixture.accepted(&hook, &first).await;
            assert_eq!(told.header(MARK), "", "{kind:?}");
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

/// A webhook that says `deliver` has its way where the configuration refuses.
#[tokio::test]
async fn a_webhooks_own_word_comes_first() {
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

/// Of many at once with the same bytes, each under an id of its own, one is the
/// first. Until it is on record the others are asked to come again: it may yet
/// be that they are all there is.
#[tokio::test]
async fn of_the_same_bytes_at_once_one_is_the_first() {
    let fixture = fixture().await;
    let hook = fixture
        .hook_with(Kind::GitHub, json!({ "same_bytes": "refuse" }))
        .await;
    let first = hook.event(0);
    let asks: Vec<_> = (0..16)
        .map(|number| {
            let sent = under(&hook, &first, "x-github-delivery", number);
            (fixture.ask(&hook, &sent).spawn(), sent)
        })
        .collect();
    let mut marked = 0;
    for (told, sent) in asks {
        let mut told = told.await.unwrap();
        while told.status != 200 {
            assert_eq!(told.problem(), (503, "in-progress".to_owned()));
            told = fixture.send(&hook, &sent).await;
        }
        marked += usize::from(told.header(MARK) == "true");
    }
    assert_eq!(marked, 15);
    fixture.only(&hook).await;
}

/// Bytes are known when their event is. One that there was no room for, or that
/// the upstream did not take, is no reason to keep away another with its bytes.
#[tokio::test]
async fn bytes_whose_event_is_not_on_record_are_not_known() {
    let gated = origin()
        .replying(|_, run| Reply::new(if run == 2 { 500 } else { 200 }, ""))
        .gated();
    let fixture = fixture_with(gated, "", "[limits]\nin_flight_per_tenant = 1").await;
    let sync = json!({ "deliver": "sync", "same_bytes": "refuse" });
    let other = fixture.hook_with(Kind::Stripe, sync.clone()).await;
    let hook = fixture.hook_with(Kind::GitHub, sync).await;
    let busy = fixture.ask(&other, &other.event(1)).spawn();
    fixture.called(&other, 1).await;
    let first = hook.event(1);
    let told = fixture.send(&hook, &first).await;
    assert_eq!(told.problem(), (429, "too-many-requests".to_owned()));
    for _ in 0..3 {
        fixture.origin.open();
    }
    assert_eq!(busy.await.unwrap().status, 200);
    for (number, status) in [(2, 500), (3, 200)] {
        let sent = under(&hook, &first, "x-github-delivery", number);
        let mut told = fixture.send(&hook, &sent).await;
        // A place is free a little after its answer is out.
        while told.status == 429 {
            told = fixture.send(&hook, &sent).await;
        }
        let was = (told.status, told.header(MARK));
        assert_eq!(was, (status, ""), "{number}: {}", told.text());
    }
    let told = fixture
        .accepted(&hook, &under(&hook, &first, "x-github-delivery", 4))
        .await;
    assert_eq!(told.header(MARK), "true");
    assert_eq!(fixture.got(&hook).await.len(), 2);
}

/// Whether or not the provider waits for the end, what arrived is known by its
/// bytes.
#[tokio::test]
async fn bytes_are_remembered_of_a_provider_that_hangs_up() {
    let fixture = fixture_with(origin().gated(), "", "").await;
    let sync = json!({ "deliver": "sync", "same_bytes": "refuse" });
    let hook = fixture.hook_with(Kind::GitHub, sync).await;
    let first = hook.event(1);
    let gone = fixture.ask(&hook, &first).spawn();
    fixture.called(&hook, 1).await;
    gone.abort();
    assert!(gone.await.is_err(), "it was not to be answered yet");
    fixture.origin.open();
    fixture.quiet().await;
    let again = under(&hook, &first, "x-github-delivery", 2);
    let told = fixture.accepted(&hook, &again).await;
    assert_eq!(told.header(MARK), "true");
    assert_eq!(fixture.got(&hook).await.len(), 1);
}

/// The message is the same, whatever the token says that Twilio does not sign.
#[tokio::test]
async fn twilios_token_makes_no_second_message() {
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Twilio).await;
    for token in ["one", "two"] {
        let sent = hook.event(1).with("i-twilio-idempotency-token", token);
        fixture.accepted(&hook, &sent).await;
    }
    fixture.only(&hook).await;
}

/// Of a call many requests may be alike to the byte, as when the caller presses
/// the same key again; what tells them apart is the token, which is not signed.
#[tokio::test]
async fn a_call_is_known_by_its_token() {
    const TOKEN: &str = "i-twilio-idempotency-token";
    let fixture = fixture().await;
    let hook = fixture.hook(Kind::Twilio).await;
    let body = format!("CallSid=CA{:032x}&CallStatus=in-progress&Digits=1", 7);
    let pressed = hook.unsigned(1).body(body).signed();
    for (token, replay) in [("one", false), ("one", true), ("two", false), ("two", true)] {
        let told = fixture
            .accepted(&hook, &pressed.clone().with(TOKEN, token))
            .await;
        assert_eq!(told.is_replay(), replay, "{token}");
    }
    let got = fixture.got(&hook).await;
    let marks = got
        .iter()
        .map(|seen| (seen.header(TOKEN), seen.header(MARK)));
    assert_eq!(marks.collect::<Vec<_>>(), [("one", ""), ("two", "true")]);
}

/// What is said beside the signature decides nothing: not the topic's event,
/// not who retries.
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

/// What only the gateway says is not taken from a provider, nor from whoever
/// speaks as one.
#[tokio::test]
async fn nobody_speaks_for_the_gateway() {
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

/// What the sender says of its connection is taken from what it sent, and from
/// nothing that we say: neither the mark of bytes that came before, nor who it
/// is for, nor our signature.
#[tokio::test]
async fn nobody_silences_the_gateway() {
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
async fn nobody_silences_the_signature_of_a_trial() {
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
