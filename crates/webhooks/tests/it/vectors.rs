//! Vectors made with the providers' own SDKs, each with its expected result.

use data_encoding::BASE64;
use onceward_webhooks::{
    Binding, Delivery, Event, Provider, Tolerance, Unidentified, identify, verify,
};
use serde_json::Value;

use crate::request::{Request, sha256_hex};

const VECTORS: &str = include_str!("../vectors/webhooks.json");

struct Vector {
    id: String,
    expect: String,
    request: Request,
    secrets: Vec<String>,
    now: i64,
    dedup_key: Option<String>,
    pair: Option<(String, String)>,
}

/// All of them but PayPal's, which is no provider here.
fn vectors() -> Vec<Vector> {
    let file: Value = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let all = file["vectors"].as_array().expect("there are vectors");
    assert_eq!(all.len(), 66);
    all.iter()
        .filter(|vector| vector["provider"] != "paypal")
        .map(vector)
        .collect()
}

fn vector(value: &Value) -> Vector {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let id = text(&value["id"]).expect("an id");
    let given = &value["request"];
    let secrets: Vec<String> = value["secrets"]
        .as_array()
        .expect("secrets")
        .iter()
        .filter_map(text)
        .collect();
    let body = BASE64.decode(given["body_b64"].as_str().expect("a body").as_bytes());
    let provider = provider(value["provider"].as_str().expect("a provider"), &id);
    let mut request = Request::new(&provider, &secrets[0], body.expect("base64"));
    request.url = text(&value["configured_notification_url"])
        .or_else(|| text(&given["url"]))
        .expect("a URL");
    for (name, value) in given["headers"].as_object().expect("headers") {
        request = request.and(name, value.as_str().expect("a header's value"));
    }
    Vector {
        expect: text(&value["expect"]).expect("a verdict"),
        now: value["now_unix"].as_i64().unwrap_or(0),
        dedup_key: text(&value["dedup_key"]),
        pair: text(&value["pair_with"]).zip(text(&value["pair_expect"])),
        id,
        request,
        secrets,
    }
}

/// The schemes are the webhook's configuration, so the vectors' names choose.
fn provider(name: &str, id: &str) -> Provider {
    let provider = Provider::built_in(name).expect("a built-in provider");
    match id {
        "twilio-sharedkey-hmac-sha256" => provider.with_scheme("sha256").expect("a scheme"),
        "adyen-banking-header" => provider.with_scheme("platform").expect("a scheme"),
        _ => provider,
    }
}

/// None: refused.
fn outcome(vector: &Vector) -> Option<Result<Delivery, Unidentified>> {
    let Request { provider, .. } = &vector.request;
    let keys: Vec<_> = vector
        .secrets
        .iter()
        .map(|secret| provider.key(secret).expect("a secret"))
        .collect();
    let parts = vector.request.parts();
    let verified = verify(provider, &parts, &keys, vector.now, Tolerance::default()).ok()?;
    Some(identify(&verified))
}

fn only_event(vector: &Vector) -> Event {
    match outcome(vector) {
        Some(Ok(Delivery::Events(mut events))) if events.len() == 1 => events.remove(0),
        other => panic!("{}: {other:?}", vector.id),
    }
}

#[test]
fn every_vector_has_its_expected_result() {
    for vector in vectors() {
        let outcome = outcome(&vector);
        match vector.expect.as_str() {
            "accept" | "accept-signature" => assert!(outcome.is_some(), "{}", vector.id),
            "reject" => assert!(outcome.is_none(), "{}: {outcome:?}", vector.id),
            // The signature is right, the body is not text.
            "no-panic" => assert!(
                matches!(outcome, Some(Err(_))),
                "{}: {outcome:?}",
                vector.id
            ),
            other => panic!("{}: an unknown verdict {other}", vector.id),
        }
    }
}

#[test]
fn every_accepted_vector_with_a_dedup_key_has_it_in_its_key() {
    let mut seen = 0;
    for vector in vectors()
        .iter()
        .filter(|vector| vector.expect.starts_with("accept"))
    {
        let Some(dedup_key) = &vector.dedup_key else {
            continue;
        };
        seen += 1;
        let event = only_event(vector);
        let name = vector.request.provider.name();
        let parts = dedup_key
            .strip_prefix("trigger_id:")
            .unwrap_or(dedup_key)
            .split('|');
        let parts: Vec<String> = parts
            .map(|part| {
                part.replace('.', "%2E")
                    .replace('/', "%2F")
                    .replace('@', "%40")
                    .to_owned()
            })
            .collect();
        let want = format!("{name}-{}", parts.join("."));
        match name {
            // Bound to the signed bytes.
            "github" | "shopify" => {
                let digest = sha256_hex(&vector.request.body);
                assert_eq!(
                    event.key,
                    format!("{want}.{}", &digest[..32]),
                    "{}",
                    vector.id
                );
            }
            "twilio" => assert!(event.key.starts_with(&format!("{want}.")), "{}", event.key),
            // And the time.
            "postmark" => {
                assert_eq!(event.key, format!("{want}.2025-10-09T08%3A53%3A20Z"));
            }
            _ => assert_eq!(event.key, want, "{}", vector.id),
        }
    }
    assert_eq!(seen, 20);
}

#[test]
fn every_pair_is_recognised_as_duplicate_or_new() {
    let all = vectors();
    let mut seen = 0;
    for vector in &all {
        let Some((first, expect)) = &vector.pair else {
            continue;
        };
        seen += 1;
        let first = all
            .iter()
            .find(|other| other.id == *first)
            .expect("the first of the pair");
        let (first, second) = (only_event(first), only_event(vector));
        match expect.as_str() {
            "duplicate" => assert_eq!(first.key, second.key, "{}", vector.id),
            "flag-as-replay" => {
                assert_ne!(first.key, second.key, "{}", vector.id);
                assert!(
                    matches!(first.binding, Binding::Unsigned { .. }),
                    "{}",
                    vector.id
                );
                assert_eq!(first.binding, second.binding, "{}", vector.id);
            }
            other => panic!("{}: an unknown expectation {other}", vector.id),
        }
    }
    assert_eq!(seen, 4);
}

#[test]
fn no_pinned_algorithm_accepts_a_request_that_names_another() {
    let all = vectors();
    let vector = all
        .iter()
        .find(|vector| vector.id == "twilio-sharedkey-unknown-alg");
    let mut request = vector.expect("the vector").request.clone();
    for scheme in ["sha1", "sha256"] {
        request.provider = request.provider.with_scheme(scheme).expect("a scheme");
        assert_eq!(
            request.verify().expect_err("refused").reason(),
            "algorithm",
            "{scheme}"
        );
    }
}

#[test]
fn paypal_is_no_provider() {
    assert!(Provider::built_in("paypal").is_none());
}

#[test]
fn an_event_cut_short_by_the_url_boundary_is_refused() {
    let all = vectors();
    let vector = all
        .iter()
        .find(|vector| vector.id == "square-url-body-boundary");
    assert_eq!(
        outcome(vector.expect("the vector")),
        Some(Err(Unidentified::MalformedBody))
    );
}
