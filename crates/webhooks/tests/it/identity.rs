//! The identity of a verified request.

use onceward_webhooks::{Binding, Delivery, Handshake, Unidentified};
use rstest::rstest;

use crate::request::{
    CALL, MESSAGE, NOW, Request, adyen, adyen_item, adyen_platform, github, postmark, sha256_hex,
    shopify, slack, square, standard, stripe, stripe_at, twilio, twilio_body,
};

fn form(pairs: &str) -> Request {
    slack(pairs)
}

#[rstest]
#[case::stripe(stripe(r#"{"id":"evt_1","type":"x"}"#), "stripe-evt_1")]
#[case::stripe_connect(stripe(r#"{"id":"evt_1","account":"acct_1"}"#), "stripe-evt_1.acct_1")]
#[case::stripe_no_account(stripe(r#"{"id":"evt_1","account":null}"#), "stripe-evt_1")]
#[case::standard(standard("webhook", "msg_1", NOW, ""), "standard-webhooks-msg_1")]
#[case::standard_odd(
    standard("webhook", "a b.c/d", NOW, ""),
    "standard-webhooks-a%20b%2Ec%2Fd"
)]
#[case::svix(standard("svix", "msg_1", NOW, "{}"), "svix-msg_1")]
#[case::slack_event(slack(r#"{"type":"event_callback","event_id":"Ev1"}"#), "slack-Ev1")]
#[case::slack_command(form("command=%2Fx&trigger_id=1.2.ab"), "slack-1%2E2%2Eab")]
#[case::slack_interaction(
    form("payload=%7B%22type%22%3A%22block_actions%22%2C%22trigger_id%22%3A%221.2%22%7D"),
    "slack-1%2E2"
)]
#[case::slack_view_closed(
    form(r#"payload={"type":"view_closed","view":{"id":"V1"}}"#),
    "slack-view_closed.V1"
)]
#[case::slack_dialog(
    form(r#"payload={"type":"dialog_submission","callback_id":"c","action_ts":"1.5"}"#),
    "slack-dialog_submission.c.1%2E5"
)]
#[case::slack_rate_limit(
    slack(
        r#"{"type":"app_rate_limited","team_id":"T","api_app_id":"A","minute_rate_limited":15}"#
    ),
    "slack-app_rate_limited.T.A.15"
)]
#[case::square(square(r#"{"event_id":"e-1"}"#), "square-e-1")]
#[case::adyen(adyen(&[adyen_item("88", "CAPTURE")]), "adyen-88.CAPTURE.true")]
#[case::postmark_inbound(postmark(r#"{"MessageID":"m-1"}"#), "postmark-m-1")]
#[case::postmark_bounce(
    postmark(r#"{"RecordType":"Bounce","ID":42,"MessageID":"m","Email":"a@b","BouncedAt":"t"}"#),
    "postmark-Bounce.m.a%40b.42.t"
)]
#[case::postmark_click(
    postmark(r#"{"RecordType":"Click","MessageID":"m","Recipient":"r","ReceivedAt":"t","OriginalLink":"u"}"#),
    "postmark-Click.m.r.t.u"
)]
#[case::twilio_events(twilio_body("twilio-events", r#"[{"id":"EZ1"}]"#), "twilio-events-EZ1")]
fn the_signed_id_is_the_key(#[case] request: Request, #[case] key: &str) {
    let events = request.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].key, key);
    assert_eq!(events[0].binding, Binding::Signed);
}

#[test]
fn an_event_rendered_anew_is_the_same_event() {
    let first = stripe_at(NOW - 5, r#"{"id":"evt_1","pending_webhooks":2}"#);
    let second = stripe_at(NOW, r#"{"id": "evt_1", "pending_webhooks": 1}"#);
    assert_eq!(first.event_key(), second.event_key());
}

#[test]
fn an_unsigned_id_is_one_with_the_signed_bytes() {
    let digest = sha256_hex(b"{}");
    let id = "72d3162e-cc78-11e3-81ab-4c9367dc0958";
    assert_eq!(
        github(id, "{}").event_key(),
        format!("github-{id}.{}", &digest[..32])
    );
    assert_eq!(
        shopify("webhooks", "e-1", "orders/create", "{}").event_key(),
        format!("shopify-e-1.orders%2Fcreate.{}", &digest[..32])
    );
    assert_eq!(
        shopify("events", "w-1", "Product", "{}").event_key(),
        format!("shopify-w-1.Product.{}", &digest[..32])
    );
}

#[test]
fn a_captured_request_uses_up_no_id_and_is_a_duplicate() {
    let captured = github("captured", r#"{"ref":"main"}"#);
    let [first] = &captured.events()[..] else {
        panic!("one event")
    };
    // Under the id of a later delivery, which is still a different event.
    let burnt = captured.clone().with("x-github-delivery", "to-come");
    let real = github("to-come", r#"{"ref":"next"}"#);
    assert_ne!(burnt.event_key(), real.event_key());
    // Under a new id: recognised by its bytes.
    let [again] = &burnt.events()[..] else {
        panic!("one event")
    };
    assert_ne!(first.key, again.key);
    assert_eq!(first.binding, again.binding);
    let Binding::Unsigned { bytes } = first.binding else {
        panic!("nothing signs the id")
    };
    assert_eq!(
        data_encoding::HEXLOWER.encode(&bytes),
        sha256_hex(&captured.body)
    );
}

#[test]
fn a_message_is_identified_by_sid_and_status_with_any_token() {
    let token = "i-twilio-idempotency-token";
    let sent = |extra| {
        twilio(&[
            ("A", extra),
            ("MessageSid", MESSAGE),
            ("MessageStatus", "sent"),
        ])
        .with(token, extra)
    };
    assert_eq!(sent("1").event_key(), format!("twilio-{MESSAGE}.sent"));
    assert_eq!(sent("2").event_key(), sent("1").event_key());
    let received = twilio(&[("SmsSid", MESSAGE), ("SmsStatus", "received")]);
    assert_eq!(received.event_key(), format!("twilio-{MESSAGE}.received"));
    let delivered = twilio(&[("MessageSid", MESSAGE), ("MessageStatus", "delivered")]);
    assert_ne!(delivered.event_key(), sent("1").event_key());
}

#[test]
fn requests_of_a_call_are_identified_by_their_parameters_and_token() {
    let token = "i-twilio-idempotency-token";
    let pressed = |digit| {
        twilio(&[
            ("CallSid", CALL),
            ("CallStatus", "in-progress"),
            ("Digits", digit),
        ])
    };
    let key = pressed("1").event_key();
    assert!(
        key.starts_with(&format!("twilio-{CALL}.in-progress.")),
        "{key}"
    );
    assert_eq!(pressed("1").event_key(), key);
    assert_ne!(pressed("2").event_key(), key);
    // The same digit pressed again is a new request; its retry is not.
    let again = pressed("1").with(token, "t-2");
    assert_ne!(again.event_key(), key);
    assert_eq!(
        pressed("1").with(token, "t-2").event_key(),
        again.event_key()
    );
    // A request with a removed or replaced token is recognised by its signed text.
    assert_eq!(pressed("1").events()[0].binding, again.events()[0].binding);
}

#[test]
fn a_request_without_an_id_is_identified_by_its_bytes() {
    for make in [
        |body| twilio_body("twilio", body),
        |body: &'static str| adyen_platform(body),
    ] {
        let request = make(r#"{"data":{"id":"BA1"}}"#);
        let name = request.provider.name().to_owned();
        let want = format!("{name}-{}", &sha256_hex(&request.body)[..32]);
        assert_eq!(request.event_key(), want);
        assert_eq!(request.events()[0].binding, Binding::Signed);
        assert_ne!(make("{}").event_key(), want);
    }
}

#[rstest]
#[case::stripe(stripe("{}"), Unidentified::MissingId)]
#[case::stripe_empty(stripe(r#"{"id":""}"#), Unidentified::MissingId)]
#[case::stripe_null(stripe(r#"{"id":null}"#), Unidentified::MissingId)]
#[case::stripe_object(stripe(r#"{"id":{}}"#), Unidentified::MalformedBody)]
#[case::stripe_twice(stripe(r#"{"id":"a","id":"b"}"#), Unidentified::MalformedBody)]
#[case::stripe_not_json(stripe("id"), Unidentified::MalformedBody)]
#[case::stripe_more_follows(stripe(r#"{"id":"a"}{}"#), Unidentified::MalformedBody)]
#[case::github(github("1", "{}").without("x-github-delivery"), Unidentified::MissingId)]
#[case::github_empty(github("", "{}"), Unidentified::MissingId)]
#[case::shopify(shopify("webhooks", "", "t", "{}"), Unidentified::MissingId)]
#[case::shopify_topic(shopify("webhooks", "1", "t", "{}").without("x-shopify-topic"), Unidentified::MissingId)]
#[case::twilio(twilio(&[("A", "b")]), Unidentified::MissingId)]
#[case::twilio_account(twilio(&[("AccountSid", MESSAGE)]), Unidentified::MissingId)]
#[case::twilio_events(
    twilio_body("twilio-events", r#"[{"id":"1"},{}]"#),
    Unidentified::MissingId
)]
#[case::twilio_events_none(twilio_body("twilio-events", "[]"), Unidentified::MissingId)]
#[case::twilio_events_one(twilio_body("twilio-events", "{}"), Unidentified::MalformedBody)]
#[case::slack(slack(r#"{"type":"event_callback"}"#), Unidentified::MissingId)]
#[case::slack_form(slack("a=b"), Unidentified::MissingId)]
#[case::slack_options(
    slack(r#"payload={"type":"block_suggestion"}"#),
    Unidentified::MissingId
)]
#[case::slack_two(slack("trigger_id=1&trigger_id=2"), Unidentified::RepeatedId)]
#[case::slack_both(slack("trigger_id=1&payload={}"), Unidentified::RepeatedId)]
#[case::square(square("{}"), Unidentified::MissingId)]
#[case::postmark(postmark("{}"), Unidentified::MissingId)]
#[case::adyen(adyen(&[adyen_item("", "CAPTURE")]), Unidentified::MissingId)]
fn without_an_id_nothing_is_made_up(#[case] request: Request, #[case] why: Unidentified) {
    assert_eq!(request.identify(), Err(why));
}

const PING: &str = r#"{"zen":"Keep it logically awesome.","hook_id":1,"hook":{}}"#;

#[rstest]
#[case::github_ping(github("1", PING))]
#[case::github_ping_as_form(github("1", "payload=%7B%22zen%22%3A%22z%22%2C%22hook_id%22%3A1%7D"))]
#[case::github_ping_under_another_name(github("1", PING).with("x-github-event", "push"))]
#[case::event_streams_test(twilio_body(
    "twilio-events",
    r#"[{"id":"AC1","type":"com.twilio.eventstreams.test-event"}]"#
))]
#[case::adyen_test(adyen(&[adyen_item("test_AUTHORISATION_1", "AUTHORISATION")]))]
fn a_trial_is_passed_on(#[case] request: Request) {
    assert_eq!(request.identify(), Ok(Delivery::Handshake(Handshake::Pass)));
}

#[rstest]
#[case::the_header_is_not_signed(github("1", "{}").with("x-github-event", "ping"))]
#[case::half(github("1", r#"{"zen":"z"}"#))]
#[case::deeper(github("1", r#"{"client_payload":{"zen":"z","hook_id":1}}"#))]
#[case::not_json(github("1", "Hello, World!"))]
#[case::slack_deeper(slack(
    r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"url_verification","challenge":"c"}}"#
))]
#[case::adyen_reference(adyen(&[adyen_item("tests", "CAPTURE")]))]
fn what_only_looks_like_a_trial_is_an_event(#[case] request: Request) {
    assert_eq!(request.events().len(), 1);
}

#[test]
fn slacks_challenge_is_answered() {
    let answer = |body: &[u8]| {
        Ok(Delivery::Handshake(Handshake::Answer {
            content_type: "text/plain",
            body: body.to_vec(),
        }))
    };
    let asked = slack(r#"{"token":"z","challenge":"3eZ\u0062","type":"url_verification"}"#);
    assert_eq!(asked.identify(), answer(b"3eZb"));
    assert_eq!(slack("ssl_check=1&token=z").identify(), answer(b""));
    let silent = slack(r#"{"type":"url_verification"}"#);
    assert_eq!(silent.identify(), Err(Unidentified::MissingId));
}

#[test]
fn a_key_too_long_is_a_hash() {
    let prefix = "standard-webhooks-";
    let longest = "x".repeat(255 - prefix.len());
    assert_eq!(
        standard("webhook", &longest, NOW, "").event_key(),
        format!("{prefix}{longest}")
    );
    let longer = format!("{longest}x");
    let want = format!("{prefix}{}", sha256_hex(longer.as_bytes()));
    assert_eq!(standard("webhook", &longer, NOW, "").event_key(), want);
    // The length of the encoded form counts.
    let id = "/".repeat(100);
    let digest = sha256_hex(b"{}");
    let identifier = format!("{}.{}", "%2F".repeat(100), &digest[..32]);
    let want = format!("github-{}", sha256_hex(identifier.as_bytes()));
    assert_eq!(github(&id, "{}").event_key(), want);
}
