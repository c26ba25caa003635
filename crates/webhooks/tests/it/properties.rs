//! Properties of all requests: nothing panics, no changed request is accepted, no
//! two identifiers have one key.

use http::{HeaderMap, HeaderName, HeaderValue};
use onceward_webhooks::{Delivery, Parts, Provider, SigningKey, Tolerance, identify, verify};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::request::{
    NOW, Request, acme, adyen, adyen_item, adyen_platform, github, one_of_each, postmark, shopify,
    slack, square, standard, stripe, twilio_body,
};

const NAMES: [&str; 22] = [
    "authorization",
    "content-type",
    "hmacsignature",
    "i-twilio-idempotency-token",
    "shopify-hmac-sha256",
    "stripe-signature",
    "svix-id",
    "svix-signature",
    "svix-timestamp",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-acme-signature",
    "x-acme-time",
    "x-github-delivery",
    "x-hub-signature-256",
    "x-shopify-hmac-sha256",
    "x-slack-request-timestamp",
    "x-slack-signature",
    "x-square-hmacsha256-signature",
    "x-twilio-signature",
    "x-twilio-webhooks-signature-settings",
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        "(t=[0-9]{0,13},)?(v[01]a?[=,][0-9a-zA-Z+/=]{0,90}[ ,]?){0,12}"
            .prop_map(String::into_bytes),
        "(sha256=|v0=|Basic |algorithm=)?[0-9a-zA-Z+/=:,]{0,70}".prop_map(String::into_bytes),
        "[0-9]{0,16}".prop_map(String::into_bytes),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        "(payload|trigger_id|MessageSid|CallSid|ssl_check|id)=[%a-zA-Z0-9{}\"+&=]{0,60}"
            .prop_map(String::into_bytes),
        r#"[\[{]{0,3}("(id|type|event_id|zen|hook_id|MessageID|view|data|notificationItems)":?("[a-z_\\u0-9.]{0,20}"|[0-9.e-]{1,30}|null|\{\}|\[\]),?){0,4}[\]}]{0,3}"#
            .prop_map(String::into_bytes),
        Just([b'['].repeat(100_000)),
    ]
}

fn providers() -> Vec<(Provider, SigningKey)> {
    let mut all: Vec<_> = one_of_each()
        .into_iter()
        .map(|(.., r)| (r.provider.clone(), r.key()))
        .collect();
    let adyen = adyen(&[]);
    all.push((adyen.provider.clone(), adyen.key()));
    all
}

proptest! {
    #[test]
    fn any_unsigned_request_is_refused_without_a_panic(
        url in "(https?://)?[a-z:@\\[\\]?#/=&%0-9]{0,60}",
        headers in proptest::collection::vec((0..NAMES.len(), value()), 0..8),
        body in body(),
        now in any::<i64>(),
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                map.append(HeaderName::from_static(NAMES[name]), value);
            }
        }
        let parts = Parts { url: &url, headers: &map, body: &body };
        for (provider, key) in providers() {
            let verdict = verify(&provider, &parts, &[key], now, Tolerance::Off);
            prop_assert!(verdict.is_err(), "{}", provider.name());
        }
    }

    #[test]
    fn any_signed_request_is_handled_without_a_panic(body in body()) {
        let requests = [
            stripe(body.clone()),
            github("g-1", body.clone()),
            twilio_body("twilio", body.clone()),
            twilio_body("twilio-events", body.clone()),
            standard("webhook", "m", NOW, body.clone()),
            slack(body.clone()),
            shopify("webhooks", "s-1", "t", body.clone()),
            square(body.clone()),
            adyen_platform(body.clone()),
            postmark(body.clone()),
            acme(body),
        ];
        for request in requests {
            // Every request has a key or a reason for its refusal.
            match request.identify() {
                Ok(Delivery::Events(events)) => {
                    prop_assert!(!events.is_empty());
                    for event in events {
                        prop_assert!(is_key(&event.key), "{}", event.key);
                    }
                }
                Ok(Delivery::Handshake(_)) => {}
                Err(why) => prop_assert!(!why.reason().is_empty()),
            }
        }
    }

    #[test]
    fn no_bit_of_a_request_can_be_changed(
        which in any::<Index>(),
        at in any::<Index>(),
        bit in 0..8u32,
        place in 0..3usize,
    ) {
        let mut requests = one_of_each();
        let (name, signature, mut request) = requests.swap_remove(which.index(requests.len()));
        let flip = |bytes: &mut [u8], from: usize| {
            let at = from + at.index(bytes.len() - from);
            bytes[at] ^= 1 << bit;
        };
        let whole = request.event_key();
        match place {
            0 => {
                prop_assume!(name != "postmark");
                flip(&mut request.body, 0);
            }
            1 => {
                let times = ["webhook-timestamp", "svix-timestamp", "x-slack-request-timestamp", "x-acme-time"];
                let time = times.into_iter().find(|time| request.headers.contains_key(*time));
                let header = time.unwrap_or(signature);
                prop_assume!(flip_header(&mut request, header, flip));
            }
            _ => prop_assume!(flip_header(&mut request, signature, flip)),
        }
        let parts = request.parts();
        let keys = [request.key()];
        if let Ok(verified) = verify(&request.provider, &parts, &keys, NOW, Tolerance::Off) {
            // A form may be written in two ways: `%2b` is `%2B`.
            prop_assert!(name.starts_with("twilio") && place == 0, "{name}");
            let Ok(Delivery::Events(events)) = identify(&verified) else {
                return Err(TestCaseError::fail("not events"));
            };
            prop_assert_eq!(&events[0].key, &whole);
        }
    }

    #[test]
    fn no_bit_of_an_adyen_items_identity_can_be_changed(at in any::<Index>(), bit in 0..8u32) {
        let good = adyen(&[adyen_item("8835", "CAPTURE")]);
        let mut changed = good.clone();
        let at = at.index(changed.body.len());
        changed.body[at] ^= 1 << bit;
        if changed.verify().is_ok() {
            prop_assert_eq!(changed.event_key(), good.event_key());
        }
    }

    #[test]
    fn no_two_identifiers_make_one_key(
        one in (id(), proptest::option::of(id())),
        other in (id(), proptest::option::of(id())),
    ) {
        let key = |(id, account): &(String, Option<String>)| {
            stripe(serde_json::json!({ "id": id, "account": account }).to_string()).event_key()
        };
        let (key_of_one, key_of_other) = (key(&one), key(&other));
        prop_assert!(is_key(&key_of_one), "{}", key_of_one);
        prop_assert_eq!(one == other, key_of_one == key_of_other);
    }
}

/// Texts that could be confused: separators, escapes, other scripts, long ones.
fn id() -> impl Strategy<Value = String> {
    prop_oneof!["[a.%2E-]{1,6}", "\\PC{1,8}", "[a.]{250,260}", "\u{0}{1,3}"]
}

fn is_key(key: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._~-%".contains(&b);
    (1..=255).contains(&key.len()) && key.bytes().all(allowed)
}

/// False: the change makes no header.
fn flip_header(request: &mut Request, name: &'static str, flip: impl Fn(&mut [u8], usize)) -> bool {
    let mut value = request.headers[name].as_bytes().to_vec();
    // The case of a scheme's name means nothing.
    flip(
        &mut value,
        if name == "authorization" {
            "Basic ".len()
        } else {
            0
        },
    );
    match HeaderValue::from_bytes(&value) {
        Ok(value) => {
            request.headers.insert(name, value);
            true
        }
        Err(_) => false,
    }
}
