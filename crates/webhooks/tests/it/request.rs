//! Requests as the providers make them: signed here by the providers' own
//! descriptions, not by the code under test.

use std::sync::Arc;

use data_encoding::{BASE64, HEXLOWER};
use http::{HeaderMap, HeaderName, HeaderValue};
use onceward_webhooks::{
    Delivery, Event, Generic, GenericSettings, Parts, Provider, Refusal, SigningKey, Tolerance,
    Unidentified, identify, verify,
};
use ring::{digest, hmac};

pub(crate) const NOW: i64 = 1_760_000_000;

/// A request and the secret it is signed with.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) provider: Provider,
    pub(crate) secret: String,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(provider: &Provider, secret: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            provider: provider.clone(),
            secret: secret.to_owned(),
            url: "https://hooks.example.com/api/v1/webhooks/x/wh_1".to_owned(),
            headers: HeaderMap::new(),
            body: body.into(),
        }
    }

    /// Sets a header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers
            .insert(header(name), HeaderValue::from_str(value).expect("a value"));
        self
    }

    /// Adds another line of a header.
    pub(crate) fn and(mut self, name: &str, value: &str) -> Self {
        self.headers
            .append(header(name), HeaderValue::from_str(value).expect("a value"));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.remove(header(name));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn key(&self) -> SigningKey {
        self.provider.key(&self.secret).expect("a secret")
    }

    pub(crate) fn verify(&self) -> Result<(), Refusal> {
        self.verify_with(&[self.key()], NOW, Tolerance::default())
    }

    pub(crate) fn verify_with(
        &self,
        keys: &[SigningKey],
        now: i64,
        tolerance: Tolerance,
    ) -> Result<(), Refusal> {
        verify(&self.provider, &self.parts(), keys, now, tolerance).map(|_| ())
    }

    pub(crate) fn identify(&self) -> Result<Delivery, Unidentified> {
        let parts = self.parts();
        let keys = [self.key()];
        let verified = verify(&self.provider, &parts, &keys, NOW, Tolerance::default());
        identify(&verified.expect("an authentic request"))
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        match self.identify() {
            Ok(Delivery::Events(events)) => events,
            other => panic!("not events: {other:?}"),
        }
    }

    /// The key of its one event.
    pub(crate) fn event_key(&self) -> String {
        let [event] = &self.events()[..] else {
            panic!("not one event")
        };
        event.key.clone()
    }

    pub(crate) fn parts(&self) -> Parts<'_> {
        Parts {
            url: &self.url,
            headers: &self.headers,
            body: &self.body,
        }
    }
}

fn header(name: &str) -> HeaderName {
    HeaderName::from_bytes(name.as_bytes()).expect("a header's name")
}

pub(crate) fn provider(name: &str) -> Provider {
    Provider::built_in(name).expect("a built-in provider")
}

fn mac(algorithm: hmac::Algorithm, secret: &[u8], content: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(algorithm, secret), content)
        .as_ref()
        .to_vec()
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn concat(pieces: &[&[u8]]) -> Vec<u8> {
    pieces.concat()
}

pub(crate) fn stripe(body: impl Into<Vec<u8>>) -> Request {
    stripe_at(NOW, body)
}

pub(crate) fn stripe_at(at: i64, body: impl Into<Vec<u8>>) -> Request {
    let request = Request::new(&provider("stripe"), "whsec_c3RyaXBl", body);
    let content = concat(&[at.to_string().as_bytes(), b".", &request.body]);
    let tag = HEXLOWER.encode(&mac(hmac::HMAC_SHA256, b"whsec_c3RyaXBl", &content));
    request.with("stripe-signature", &format!("t={at},v1={tag}"))
}

pub(crate) fn github(id: &str, body: impl Into<Vec<u8>>) -> Request {
    let request = Request::new(&provider("github"), "octocat", body);
    let tag = HEXLOWER.encode(&mac(hmac::HMAC_SHA256, b"octocat", &request.body));
    request
        .with("x-hub-signature-256", &format!("sha256={tag}"))
        .with("x-github-delivery", id)
}

/// Parameters in the order of their names, as they are signed.
pub(crate) fn twilio(parameters: &[(&str, &str)]) -> Request {
    twilio_by("sha1", parameters)
}

pub(crate) fn twilio_by(scheme: &str, parameters: &[(&str, &str)]) -> Request {
    let body: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", encode(value)))
        .collect();
    let provider = provider("twilio").with_scheme(scheme).expect("a scheme");
    let request = Request::new(&provider, "token", body.join("&"));
    let mut content = request.url.clone();
    for (name, value) in parameters {
        content.push_str(name);
        content.push_str(value);
    }
    let algorithm = match scheme {
        "sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        _ => hmac::HMAC_SHA256,
    };
    request
        .with(
            "x-twilio-signature",
            &BASE64.encode(&mac(algorithm, b"token", content.as_bytes())),
        )
        .with("content-type", "application/x-www-form-urlencoded")
}

fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// A body that is bound by its digest in the URL.
pub(crate) fn twilio_body(name: &str, body: impl Into<Vec<u8>>) -> Request {
    let mut request = Request::new(&provider(name), "token", body);
    request.url = format!("{}?bodySHA256={}", request.url, sha256_hex(&request.body));
    let tag = mac(
        hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        b"token",
        request.url.as_bytes(),
    );
    request
        .with("x-twilio-signature", &BASE64.encode(&tag))
        .with("content-type", "application/json")
}

pub(crate) fn standard(family: &str, id: &str, at: i64, body: impl Into<Vec<u8>>) -> Request {
    let name = if family == "svix" {
        "svix"
    } else {
        "standard-webhooks"
    };
    let request = Request::new(&provider(name), "whsec_c3RhbmRhcmQ=", body);
    let content = concat(&[
        id.as_bytes(),
        b".",
        at.to_string().as_bytes(),
        b".",
        &request.body,
    ]);
    let tag = BASE64.encode(&mac(hmac::HMAC_SHA256, b"standard", &content));
    request
        .with(&format!("{family}-id"), id)
        .with(&format!("{family}-timestamp"), &at.to_string())
        .with(&format!("{family}-signature"), &format!("v1,{tag}"))
}

pub(crate) fn slack(body: impl Into<Vec<u8>>) -> Request {
    let request = Request::new(&provider("slack"), "slacker", body);
    let content = concat(&[b"v0:", NOW.to_string().as_bytes(), b":", &request.body]);
    let tag = HEXLOWER.encode(&mac(hmac::HMAC_SHA256, b"slacker", &content));
    request
        .with("x-slack-request-timestamp", &NOW.to_string())
        .with("x-slack-signature", &format!("v0={tag}"))
}

/// By `webhooks` or `events`.
pub(crate) fn shopify(scheme: &str, id: &str, topic: &str, body: impl Into<Vec<u8>>) -> Request {
    let provider = provider("shopify").with_scheme(scheme).expect("a scheme");
    let request = Request::new(&provider, "client", body);
    let tag = BASE64.encode(&mac(hmac::HMAC_SHA256, b"client", &request.body));
    match scheme {
        "webhooks" => request
            .with("x-shopify-hmac-sha256", &tag)
            .with("x-shopify-event-id", id)
            .with("x-shopify-topic", topic),
        _ => request
            .with("shopify-hmac-sha256", &tag)
            .with("shopify-webhook-id", id)
            .with("shopify-topic", topic),
    }
}

pub(crate) fn square(body: impl Into<Vec<u8>>) -> Request {
    let request = Request::new(&provider("square"), "squared", body);
    let content = concat(&[request.url.as_bytes(), &request.body]);
    let tag = BASE64.encode(&mac(hmac::HMAC_SHA256, b"squared", &content));
    request.with("x-square-hmacsha256-signature", &tag)
}

pub(crate) const ADYEN_SECRET: &str = "44782DEF547AAA06C910C43932B1EB0C";

/// An item of an Adyen payments webhook, signed.
pub(crate) fn adyen_item(reference: &str, event_code: &str) -> String {
    let content = format!("{reference}::Shop:order-1:1130:EUR:{event_code}:true");
    let tag = adyen_tag(content.as_bytes());
    format!(
        r#"{{"NotificationRequestItem": {{"additionalData":{{"hmacSignature":"{tag}"}},"amount":{{"value":1130,"currency":"EUR"}},"pspReference":"{reference}","eventCode":"{event_code}","eventDate":"2019-05-06T17:15:34.121+02:00","merchantAccountCode":"Shop","merchantReference":"order-1","success":"true"}}}}"#
    )
}

/// An item with the required members only.
pub(crate) fn adyen_item_least(reference: &str) -> String {
    let tag = adyen_tag(format!("{reference}::::::C:").as_bytes());
    format!(
        r#"{{"NotificationRequestItem":{{"additionalData":{{"hmacSignature":"{tag}"}},"pspReference":{reference},"eventCode":"C"}}}}"#
    )
}

fn adyen_tag(content: &[u8]) -> String {
    let secret = HEXLOWER
        .decode(ADYEN_SECRET.to_lowercase().as_bytes())
        .expect("hexadecimal");
    BASE64.encode(&mac(hmac::HMAC_SHA256, &secret, content))
}

pub(crate) fn adyen(items: &[String]) -> Request {
    let body = format!(
        r#"{{"live":"false","notificationItems":[{}]}}"#,
        items.join(" , ")
    );
    Request::new(&provider("adyen"), ADYEN_SECRET, body)
}

pub(crate) fn adyen_platform(body: impl Into<Vec<u8>>) -> Request {
    let provider = provider("adyen").with_scheme("platform").expect("a scheme");
    let request = Request::new(&provider, ADYEN_SECRET, body);
    let tag = adyen_tag(&request.body);
    request.with("hmacsignature", &tag)
}

pub(crate) fn postmark(body: impl Into<Vec<u8>>) -> Request {
    Request::new(&provider("postmark"), "user:pass:word", body).with(
        "authorization",
        &format!("Basic {}", BASE64.encode(b"user:pass:word")),
    )
}

pub(crate) fn generic_provider(settings: &GenericSettings) -> Provider {
    Provider::Generic(Arc::new(Generic::new(settings).expect("right settings")))
}

/// Acme: base64 of HMAC-SHA512 over the body and a time, several signatures.
pub(crate) fn acme(body: impl Into<Vec<u8>>) -> Request {
    let provider = generic_provider(&GenericSettings {
        name: "acme".to_owned(),
        signature_header: "x-acme-signature".to_owned(),
        prefix: "s=".to_owned(),
        separator: Some(";".to_owned()),
        algorithm: "sha512".to_owned(),
        encoding: "base64".to_owned(),
        secret: "hex".to_owned(),
        signed: "{timestamp}|{body}".to_owned(),
        timestamp: Some(onceward_webhooks::GenericTimestamp {
            header: "x-acme-time".to_owned(),
            unit: "ms".to_owned(),
        }),
        id: "json:/data/id".to_owned(),
    });
    let request = Request::new(&provider, "c0ffee", body);
    let time = format!("{NOW}123");
    let content = concat(&[time.as_bytes(), b"|", &request.body]);
    let tag = BASE64.encode(&mac(hmac::HMAC_SHA512, &[0xc0, 0xff, 0xee], &content));
    request
        .with("x-acme-signature", &format!("s={tag}"))
        .with("x-acme-time", &time)
}

pub(crate) const MESSAGE: &str = "SM0123456789abcdef0123456789abcdef";
pub(crate) const CALL: &str = "CA0123456789abcdef0123456789abcdef";

/// One good request of each provider and scheme, by its name, its signature
/// header and whether all of its body is signed.
pub(crate) fn one_of_each() -> Vec<(&'static str, &'static str, Request)> {
    let message = [
        ("From", "+1 415"),
        ("MessageSid", MESSAGE),
        ("MessageStatus", "sent"),
    ];
    vec![
        ("stripe", "stripe-signature", stripe(r#"{"id":"evt_1"}"#)),
        (
            "github",
            "x-hub-signature-256",
            github("g-1", r#"{"ref":"main"}"#),
        ),
        ("twilio", "x-twilio-signature", twilio(&message)),
        (
            "twilio-sha256",
            "x-twilio-signature",
            twilio_by("sha256", &message),
        ),
        (
            "twilio-body",
            "x-twilio-signature",
            twilio_body("twilio", r#"{"a":1}"#),
        ),
        (
            "twilio-events",
            "x-twilio-signature",
            twilio_body("twilio-events", r#"[{"id":"EZ1","type":"t"}]"#),
        ),
        (
            "standard-webhooks",
            "webhook-signature",
            standard("webhook", "msg_1", NOW, "{}"),
        ),
        (
            "svix",
            "svix-signature",
            standard("svix", "msg_1", NOW, "{}"),
        ),
        (
            "slack",
            "x-slack-signature",
            slack(r#"{"type":"event_callback","event_id":"Ev1"}"#),
        ),
        (
            "shopify",
            "x-shopify-hmac-sha256",
            shopify("webhooks", "s-1", "orders/create", "{}"),
        ),
        (
            "shopify-events",
            "shopify-hmac-sha256",
            shopify("events", "s-1", "Product", "{}"),
        ),
        (
            "square",
            "x-square-hmacsha256-signature",
            square(r#"{"event_id":"sq-1"}"#),
        ),
        (
            "adyen-platform",
            "hmacsignature",
            adyen_platform(r#"{"type":"x"}"#),
        ),
        (
            "postmark",
            "authorization",
            postmark(r#"{"MessageID":"m-1"}"#),
        ),
        ("acme", "x-acme-signature", acme(r#"{"data":{"id":"a-1"}}"#)),
    ]
}
