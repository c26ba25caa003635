//! Requests that the providers' own SDKs sign with new secrets are accepted and
//! identified; changed requests are refused.

use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64, HEXLOWER};
use http::{HeaderMap, HeaderName, HeaderValue};
use onceward_servers::{ProviderRequest, Signed, Signer, Verification};
use onceward_webhooks::{
    Binding, Delivery, Provider, Refusal, SigningKey, Tolerance, identify, sign, verify,
};
use ring::rand::{SecureRandom, SystemRandom};

/// A provider's request, and the expected result.
struct Case {
    /// With the scheme after a slash, if it is not the usual one.
    provider: &'static str,
    secret: fn(&[u8]) -> String,
    body: &'static str,
    /// A replacement for something signed.
    tampering: (&'static str, &'static str),
    /// The beginning of the key, and where nothing more follows, all of it.
    key: &'static str,
    id: Id,
}

/// Whether the signature covers the id. If not, the digest is part of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Id {
    Signed,
    Unsigned,
}

const URL: &str = "https://hooks.example.com/api/v1/webhooks/any/wh_1?a=1&b=%20";
/// The id of the delivery, where it is in a header.
const DELIVERY: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn hex(random: &[u8]) -> String {
    HEXLOWER.encode(random)
}

fn upper_hex(random: &[u8]) -> String {
    hex(random).to_uppercase()
}

fn whsec(random: &[u8]) -> String {
    format!("whsec_{}", BASE64.encode(random))
}

const STRIPE: Case = Case {
    provider: "stripe",
    secret: whsec,
    body: "{\n  \"id\": \"evt_1\",\n  \"object\": \"event\", \"amount\": 100, \"text\": \"caf\u{e9} \\u00e9\"\n}",
    tampering: ("100", "999"),
    key: "stripe-evt_1",
    id: Id::Signed,
};
const STANDARD: Case = Case {
    provider: "standard-webhooks",
    secret: whsec,
    body: r#"{"type":"invoice.paid","amount":100}"#,
    tampering: ("100", "999"),
    key: "standard-webhooks-0f8fad5b-d9cb-469f-a165-70867728950e",
    id: Id::Signed,
};
const SVIX: Case = Case {
    provider: "svix",
    key: "svix-0f8fad5b-d9cb-469f-a165-70867728950e",
    ..STANDARD
};
const TWILIO: Case = Case {
    provider: "twilio",
    secret: hex,
    body: "MessageSid=SM0123456789abcdef0123456789abcdef&MessageStatus=delivered\
           &To=%2B15005550006&Body=caf%C3%A9+%26+%F0%9F%98%80&Empty=&Two=2&Two=1&Two=2",
    tampering: ("delivered", "failed"),
    key: "twilio-SM0123456789abcdef0123456789abcdef.delivered",
    id: Id::Unsigned,
};
const TWILIO_EVENTS: Case = Case {
    provider: "twilio-events",
    body: r#"[{"specversion":"1.0","type":"com.twilio.messaging.message.sent","id":"EZ1","data":{"amount":100}}]"#,
    tampering: ("100", "999"),
    key: "twilio-events-EZ1",
    id: Id::Signed,
    ..TWILIO
};
const SLACK: Case = Case {
    provider: "slack",
    secret: hex,
    body: r#"{"type":"event_callback","event_id":"Ev1","event":{"text":"hello"}}"#,
    tampering: ("hello", "howdy"),
    key: "slack-Ev1",
    id: Id::Signed,
};
const SQUARE: Case = Case {
    provider: "square",
    body: r#"{"merchant_id":"M1","type":"payment.updated","event_id":"13b867cf","amount":100}"#,
    tampering: ("100", "999"),
    key: "square-13b867cf",
    ..SLACK
};
const ADYEN: Case = Case {
    provider: "adyen",
    secret: upper_hex,
    body: r#"{"live":"false","notificationItems":[{"NotificationRequestItem":{
        "additionalData":{"note":"caf\u00e9"},
        "amount":{"value":1130,"currency":"EUR"},"pspReference":"7914073381342284",
        "eventCode":"AUTHORISATION","merchantAccountCode":"Caf\u00e9",
        "merchantReference":"order 1","success":"true"}}]}"#,
    tampering: ("1130", "9130"),
    key: "adyen-7914073381342284.AUTHORISATION.true",
    id: Id::Signed,
};
const ADYEN_PLATFORM: Case = Case {
    provider: "adyen/platform",
    body: r#"{"type":"balancePlatform.transfer.updated","data":{"id":"1W1","amount":100}}"#,
    tampering: ("100", "999"),
    // Of the body: it has no other id.
    key: "adyen-476f407cac0d0a0cfdd56a4e912c8ea5",
    ..ADYEN
};
const GITHUB: Case = Case {
    provider: "github",
    secret: hex,
    body: r#"{"ref":"refs/heads/main","text":"caf\u00e9"}"#,
    tampering: ("main", "evil"),
    key: "github-0f8fad5b-d9cb-469f-a165-70867728950e",
    id: Id::Unsigned,
};
const SHOPIFY: Case = Case {
    provider: "shopify",
    body: r#"{"id":820982911946154508,"note":"caf\u00e9"}"#,
    tampering: ("8209", "8219"),
    key: "shopify-0f8fad5b-d9cb-469f-a165-70867728950e.orders%2Fcreate",
    ..GITHUB
};

/// Signed by each SDK for Python.
const PYTHON: [Case; 10] = [
    STRIPE,
    STANDARD,
    SVIX,
    TWILIO,
    Case {
        provider: "twilio/sha256",
        ..TWILIO
    },
    TWILIO_EVENTS,
    SLACK,
    SQUARE,
    ADYEN,
    ADYEN_PLATFORM,
];
/// Signed by each SDK for Node.js.
const NODE: [Case; 8] = [
    STRIPE,
    STANDARD,
    SVIX,
    TWILIO,
    TWILIO_EVENTS,
    GITHUB,
    SHOPIFY,
    Case {
        provider: "shopify/events",
        ..SHOPIFY
    },
];

impl Case {
    fn provider(&self) -> Provider {
        let (name, scheme) = match self.provider.split_once('/') {
            Some((name, scheme)) => (name, Some(scheme)),
            None => (self.provider, None),
        };
        let usual = Provider::built_in(name).expect("it is built in");
        scheme.map_or(usual.clone(), |scheme| {
            usual.with_scheme(scheme).expect("it has this scheme")
        })
    }

    fn fresh_secret(&self) -> String {
        let mut random = [0; 32];
        SystemRandom::new()
            .fill(&mut random)
            .expect("the system has randomness");
        (self.secret)(&random)
    }

    fn sign(&self, signer: &Signer, secret: &str, timestamp: Option<i64>) -> Signed {
        signer.sign(&ProviderRequest {
            provider: self.provider,
            secret,
            url: URL,
            headers: &[],
            body: self.body.as_bytes(),
            id: Some(DELIVERY),
            timestamp: timestamp.map(|at| at.try_into().expect("it is after 1970")),
        })
    }

    fn tampered(&self, signed: &Signed) -> Signed {
        let text = String::from_utf8(signed.body.clone()).expect("it is text");
        let (from, to) = self.tampering;
        let body = text.replacen(from, to, 1).into_bytes();
        assert_ne!(body, signed.body, "{}: nothing was changed", self.provider);
        Signed {
            body,
            ..signed.clone()
        }
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_secs().cast_signed()
}

fn headers(signed: &Signed) -> HeaderMap {
    let pair = |(name, value): &(String, String)| {
        let name = name.parse::<HeaderName>().expect("a header's name");
        (
            name,
            HeaderValue::from_str(value).expect("a header's value"),
        )
    };
    signed.headers.iter().map(pair).collect()
}

/// The refusal, or the delivered event.
fn receive(
    provider: &Provider,
    signed: &Signed,
    keys: &[SigningKey],
    now: i64,
) -> Result<Delivery, Refusal> {
    let headers = headers(signed);
    let parts = onceward_webhooks::Parts {
        url: &signed.url,
        headers: &headers,
        body: &signed.body,
    };
    let verified = verify(provider, &parts, keys, now, Tolerance::default())?;
    Ok(identify(&verified).expect("what an SDK signs has an id"))
}

fn check(signer: &Signer, case: &Case) {
    let provider = case.provider();
    let key = |secret: &str| {
        provider
            .key(secret)
            .expect("a secret of the provider's form")
    };
    let [secret, other] = [case.fresh_secret(), case.fresh_secret()];
    let (new, old) = (key(&other), key(&secret));
    let only = std::slice::from_ref(&old);
    let name = case.provider;

    let signed = case.sign(signer, &secret, None);
    let delivered = receive(&provider, &signed, only, now());
    check_event(case, &signed, delivered.as_ref().expect(name));

    for rotated in [[new.clone(), old.clone()], [old.clone(), new.clone()]] {
        assert_eq!(
            receive(&provider, &signed, &rotated, now()),
            delivered,
            "{name}"
        );
    }
    let refused = receive(&provider, &signed, &[new], now());
    assert_eq!(refused, Err(Refusal::Signature), "{name}");
    let refused = receive(&provider, &case.tampered(&signed), only, now());
    assert_eq!(refused, Err(Refusal::Signature), "{name}");

    let now = now();
    let at = |signed_at| {
        receive(
            &provider,
            &case.sign(signer, &secret, Some(signed_at)),
            only,
            now,
        )
    };
    if provider.has_time() {
        assert_eq!(at(now - 301), Err(Refusal::TooOld), "{name}");
        assert_eq!(at(now - 300), delivered, "{name}");
        assert_eq!(at(now + 300), delivered, "{name}");
        assert_eq!(at(now + 301), Err(Refusal::TooNew), "{name}");
    } else {
        // It signs no time, so a request stays good.
        assert_eq!(at(now - 301), delivered, "{name}");
    }
}

fn check_event(case: &Case, signed: &Signed, delivery: &Delivery) {
    let name = case.provider;
    let Delivery::Events(events) = delivery else {
        panic!("{name}: {delivery:?} of {signed:?}");
    };
    let [event] = &events[..] else {
        panic!("{name}: not one event: {events:?}");
    };
    match (case.id, event.binding) {
        (Id::Signed, Binding::Signed) => assert_eq!(event.key, case.key),
        (Id::Unsigned, Binding::Unsigned { .. }) => {
            assert!(event.key.starts_with(case.key), "{name}: {}", event.key);
        }
        (id, binding) => panic!("{name}: {id:?}, but {binding:?}"),
    }
}

#[test]
fn signatures_of_python_sdks_are_accepted_and_others_refused() {
    let python = Signer::python();
    PYTHON.iter().for_each(|case| check(&python, case));
}

#[test]
fn signatures_of_node_sdks_are_accepted_and_others_refused() {
    let node = Signer::node();
    NODE.iter().for_each(|case| check(&node, case));
}

/// While a secret is rotated, Stripe and Standard Webhooks sign with both; the
/// receiver may know either one.
#[test]
fn two_signatures_of_a_sender_that_rotates_are_accepted_by_either_key() {
    let node = Signer::node();
    let at = now();
    let cases = [
        (STRIPE, "Stripe-Signature", format!("t={at},"), ","),
        (STANDARD, "webhook-signature", String::new(), " "),
        (SVIX, "svix-signature", String::new(), " "),
    ];
    for (case, header, before, between) in cases {
        let provider = case.provider();
        let secrets = [case.fresh_secret(), case.fresh_secret()];
        let [mut signed, other] = [0, 1].map(|one| case.sign(&node, &secrets[one], Some(at)));
        let other = other.headers.iter().find(|(name, _)| name == header);
        let other = &other.expect("it signs so").1[before.len()..];
        let both = signed.headers.iter_mut().find(|(name, _)| name == header);
        both.expect("it signs so").1 += &format!("{between}{other}");
        for secret in &secrets {
            let key = provider
                .key(secret)
                .expect("a secret of the provider's form");
            let delivered = receive(&provider, &signed, &[key], at).expect(header);
            check_event(&case, &signed, &delivered);
        }
    }
}

#[test]
fn each_provider_that_signs_has_an_sdk_here() {
    let cases = PYTHON.iter().chain(&NODE);
    let with = cases.map(|case| case.provider).collect::<Vec<_>>();
    // Postmark sends a password.
    let without = Provider::BUILT_IN
        .iter()
        .filter(|name| !with.contains(name));
    assert_eq!(without.collect::<Vec<_>>(), [&"postmark"]);
}

#[test]
fn sdks_accept_our_signatures() {
    let secret = STANDARD.fresh_secret();
    let key = STANDARD.provider().key(&secret).expect("a secret");
    let body = "{\"text\":\"caf\u{e9}\"}".as_bytes();
    let timestamp = now();
    let signature = sign(&key, DELIVERY, timestamp, body);
    let timestamp = timestamp.to_string();
    let headers = [
        ("webhook-id", DELIVERY),
        ("webhook-timestamp", &timestamp),
        ("webhook-signature", &signature),
    ];
    for signer in [Signer::python(), Signer::node()] {
        let verify = |body| {
            signer.verify(&ProviderRequest {
                provider: "standard-webhooks",
                secret: &secret,
                url: URL,
                headers: &headers,
                body,
                id: None,
                timestamp: None,
            })
        };
        assert_eq!(verify(body), Verification::Accepted);
        let refused = Verification::Refused("No matching signature found".to_owned());
        assert_eq!(verify(b"{}"), refused);
    }
}
