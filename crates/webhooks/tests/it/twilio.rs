//! Twilio signs a URL and parameters without separators. An attacker who chooses
//! one value of a signed text and sees its signature can split the text in other
//! places. Such a request must neither be accepted as another event nor use up the
//! id of one.

use data_encoding::BASE64;
use onceward_webhooks::{Binding, Event};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::hmac;
use rstest::rstest;

use crate::request::{MESSAGE, Request, provider, sha256_hex};

const VICTIM: &str = "SMc3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3";
const ACCOUNT: &str = "AC00000000000000000000000000000000";
const URL: &str = "https://hooks.example.com/api/v1/webhooks/twilio/wh_1";

/// A signed text and its signature.
struct Signed {
    text: String,
    tag: String,
}

impl Signed {
    fn new(url: &str, parameters: &[(&str, &str)]) -> Self {
        assert!(parameters.is_sorted());
        let parameters = parameters.iter().flat_map(|(name, value)| [*name, *value]);
        let text: String = std::iter::once(url).chain(parameters).collect();
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"token");
        let tag = BASE64.encode(hmac::sign(&key, text.as_bytes()).as_ref());
        Self { text, tag }
    }

    fn request(&self, url: &str, content_type: &str, body: impl Into<Vec<u8>>) -> Request {
        let mut request = Request::new(&provider("twilio"), "token", body)
            .with("x-twilio-signature", &self.tag)
            .with("content-type", content_type);
        request.url = url.to_owned();
        request
    }

    /// The text, split at these places.
    fn form(&self, url: &str, parameters: &[(&str, &str)]) -> Request {
        assert_eq!(self.text, Self::new(url, parameters).text);
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let body: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        self.request(url, "application/x-www-form-urlencoded", body.join("&"))
    }
}

fn form(url: &str, parameters: &[(&str, &str)]) -> Request {
    Signed::new(url, parameters).form(url, parameters)
}

fn event(request: &Request) -> Event {
    let [event] = &request.events()[..] else {
        panic!("not one event")
    };
    event.clone()
}

/// A received message whose text an attacker wrote.
fn received(text: &str) -> Vec<(&str, &str)> {
    vec![
        ("AccountSid", ACCOUNT),
        ("Body", text),
        ("From", "+1"),
        ("MessageSid", MESSAGE),
        ("SmsMessageSid", MESSAGE),
        ("SmsSid", MESSAGE),
        ("SmsStatus", "received"),
    ]
}

const FORGED: &str = r#"{"forged":"yes"}"#;

/// Parameters of which an attacker wrote one, with the forged body's digest.
#[rstest]
#[case::within("Body", "hi&bodySHA256={digest}&z=", &["AccountSid", "MessageSid"])]
#[case::at_the_end("z", "&bodySHA256={digest}", &["AccountSid", "CallSid"])]
#[case::all_there_is("Body", "hi&bodySHA256={digest}", &[])]
fn a_forms_text_in_the_url_vouches_for_no_body(
    #[case] name: &str,
    #[case] value: &str,
    #[case] others: &[&str],
) {
    let value = value.replace("{digest}", &sha256_hex(FORGED.as_bytes()));
    let mut parameters: Vec<_> = others.iter().map(|other| (*other, MESSAGE)).collect();
    parameters.push((name, &value));
    parameters.sort_unstable();
    let signed = Signed::new(&format!("{URL}?x=1"), &parameters);
    for content_type in ["application/json", "application/x-www-form-urlencoded"] {
        let forged = signed.request(&signed.text, content_type, FORGED);
        let refusal = forged.verify().expect_err("refused");
        assert_eq!(refusal.reason(), "unsigned-body");
    }
}

#[rstest]
#[case::alone("", "", &["twilio", "twilio-events"])]
#[case::appended("x=1&", "", &["twilio-events"])]
#[case::not_last("", "&x=1", &[])]
#[case::two("bodySHA256=00&", "", &[])]
#[case::two_spelt("body%53HA256=00&", "", &[])]
fn a_bodys_digest_is_what_twilio_appends(
    #[case] before: &str,
    #[case] after: &str,
    #[case] believed: &[&str],
) {
    let digest = sha256_hex(b"[]");
    let url = |digest: &str| format!("{URL}?{before}bodySHA256={digest}{after}");
    for name in ["twilio", "twilio-events"] {
        let verify = |url: &str| {
            let mut request = Signed::new(url, &[]).request(url, "application/json", "[]");
            request.provider = provider(name);
            request.verify()
        };
        assert_eq!(verify(&url(&digest)).is_ok(), believed.contains(&name));
        for other in [&digest.to_uppercase(), &digest[1..], ""] {
            assert!(verify(&url(other)).is_err(), "{name} {other}");
        }
    }
}

#[test]
fn a_messages_text_does_not_use_up_anothers_status() {
    let text = format!("MessageSid{VICTIM}MessageStatusdeliveredZ");
    let own = [
        ("AccountSid", ACCOUNT),
        ("Body", &text),
        ("From", "+1"),
        ("MessageSid", MESSAGE),
        ("MessageStatus", "received"),
    ];
    let rest = format!("+1MessageSid{MESSAGE}MessageStatusreceived");
    let account = format!("{ACCOUNT}Body");
    let moved = [
        ("AccountSid", account.as_str()),
        ("MessageSid", VICTIM),
        ("MessageStatus", "delivered"),
        ("ZFrom", &rest),
    ];
    let forged = event(&Signed::new(URL, &own).form(URL, &moved));
    let own = event(&form(URL, &own));
    let victims = event(&form(
        URL,
        &[
            ("AccountSid", ACCOUNT),
            ("MessageSid", VICTIM),
            ("MessageStatus", "delivered"),
        ],
    ));
    assert_eq!(victims.key, format!("twilio-{VICTIM}.delivered"));
    assert_ne!(forged.key, victims.key);
    // It is recognised as a duplicate of the same signed bytes.
    assert_eq!(forged.binding, own.binding);
}

/// For every split, the text of an attacker does not result in the victim's key.
/// The text begins with a parameter's name, which moves into the URL.
#[rstest]
#[case::own_sid_is_in_a_strange_name(
    "Body",
    &[
        ("SmsSid", VICTIM),
        ("SmsStatus", "delivered"),
        ("ZMessageSid", MESSAGE),
    ]
)]
#[case::own_sid_is_in_another_of_the_names(
    "Body",
    &[
        ("MessageSid", VICTIM),
        ("MessageStatus", "delivered"),
        ("SmsMessageSid", MESSAGE),
    ]
)]
#[case::own_sid_has_a_name_twice(
    "Body",
    &[
        ("MessageSid", VICTIM),
        ("MessageStatus", "delivered"),
        ("SmsMessageSid", MESSAGE),
        ("SmsMessageSid", VICTIM),
    ]
)]
// Parameters of a call, a room and a conversation, where a client may choose the
// last one.
#[case::own_sid_is_in_the_url(
    "CallSidCA0123456789abcdef0123456789abcdefz",
    &[("MessageSid", VICTIM), ("MessageStatus", "delivered")]
)]
fn a_moved_boundary_reaches_no_other_message(
    #[case] into_url: &str,
    #[case] moved: &[(&str, &str)],
) {
    let url = format!("{URL}?x=1{into_url}");
    let signed = Signed::new(&url, moved);
    let key = event(&signed.form(&url, moved)).key;
    let digest = &sha256_hex(signed.text.as_bytes())[..32];
    assert_eq!(key, format!("twilio-{VICTIM}.delivered.{digest}"));
}

#[rstest]
#[case::sid(&[("MessageSid", MESSAGE), ("MessageStatus", "sent"), ("SmsSid", VICTIM)])]
#[case::status(&[("MessageSid", MESSAGE), ("MessageStatus", "sent"), ("SmsStatus", "failed")])]
fn names_that_disagree_are_not_the_id(#[case] parameters: &[(&str, &str)]) {
    let key = event(&form(URL, parameters)).key;
    assert!(key.starts_with(&format!("twilio-{MESSAGE}.sent.")), "{key}");
}

#[test]
fn a_message_that_speaks_of_sids_is_known_over_its_retries() {
    let plain = event(&form(URL, &received("hello")));
    assert_eq!(plain.key, format!("twilio-{MESSAGE}.received"));
    for text in ["MessageSid", "Sid", "SmsStatus", "CallSid?"] {
        let own = received(text);
        let (first, retry) = (
            form(URL, &own).with("i-twilio-idempotency-token", "1"),
            form(URL, &own).with("i-twilio-idempotency-token", "2"),
        );
        let key = event(&first).key;
        assert!(key.starts_with(&format!("{}.", plain.key)), "{key}");
        assert_eq!(event(&retry), event(&first));
        assert!(matches!(event(&first).binding, Binding::Unsigned { .. }));
    }
    // An unknown parameter changes nothing.
    for text in ["Status of my order?", "side", "messagesid"] {
        assert_eq!(event(&form(URL, &received(text))).key, plain.key);
    }
}
