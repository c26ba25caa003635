//! The providers as senders: the form of an event, its id, and its signature.
//!
//! Written from the providers' documentation, independent of the code that
//! verifies, so that an error in one does not cancel out in the other.

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER, HEXUPPER};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::hmac::{self, HMAC_SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA256, HMAC_SHA512};
use serde_json::json;
use sha2::{Digest, Sha256};

/// A provider and one of its schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Stripe,
    GitHub,
    Twilio,
    /// Twilio with a shared key.
    TwilioSharedKey,
    TwilioEvents,
    StandardWebhooks,
    Svix,
    Slack,
    Shopify,
    /// Shopify's newer webhooks.
    ShopifyEvents,
    Square,
    AdyenPayments,
    AdyenPlatform,
    Postmark,
    /// A configured provider: [`Kind::SETTINGS`].
    Acme,
}

/// The identity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// A signed id.
    Signed,
    /// An unsigned id, and the signed bytes.
    Unsigned,
    /// The signed bytes alone.
    Content,
}

/// The amount in the signed part of each event.
const AMOUNT: &str = "1130";
/// As long as the shortest of the providers' own secrets.
const SECRET_BYTES: usize = 24;

impl Kind {
    pub(super) const ALL: [Self; 15] = [
        Self::Stripe,
        Self::GitHub,
        Self::Twilio,
        Self::TwilioSharedKey,
        Self::TwilioEvents,
        Self::StandardWebhooks,
        Self::Svix,
        Self::Slack,
        Self::Shopify,
        Self::ShopifyEvents,
        Self::Square,
        Self::AdyenPayments,
        Self::AdyenPlatform,
        Self::Postmark,
        Self::Acme,
    ];

    /// The settings of a configured provider.
    pub(super) const SETTINGS: &str = r#"
        [webhooks.providers.acme]
        signature_header = "X-Acme-Signature"
        prefix = "v1="
        separator = ","
        algorithm = "sha512"
        encoding = "base64"
        secret = "hex"
        signed = "{header:X-Acme-Shop}|{timestamp}|{body}"
        timestamp = { header = "X-Acme-Time", unit = "ms" }
        id = "json:/event/id"
    "#;

    /// The name in the path and in keys.
    pub(super) fn provider(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::GitHub => "github",
            Self::Twilio | Self::TwilioSharedKey => "twilio",
            Self::TwilioEvents => "twilio-events",
            Self::StandardWebhooks => "standard-webhooks",
            Self::Svix => "svix",
            Self::Slack => "slack",
            Self::Shopify | Self::ShopifyEvents => "shopify",
            Self::Square => "square",
            Self::AdyenPayments | Self::AdyenPlatform => "adyen",
            Self::Postmark => "postmark",
            Self::Acme => "acme",
        }
    }

    /// The scheme to choose, if it is not the provider's default.
    pub(super) fn scheme(self) -> Option<&'static str> {
        match self {
            Self::TwilioSharedKey => Some("sha256"),
            Self::ShopifyEvents => Some("events"),
            Self::AdyenPlatform => Some("platform"),
            _ => None,
        }
    }

    pub(super) fn identity(self) -> Identity {
        match self {
            Self::GitHub | Self::Shopify | Self::ShopifyEvents => Identity::Unsigned,
            Self::AdyenPlatform => Identity::Content,
            _ => Identity::Signed,
        }
    }

    /// Whether signatures have a time.
    pub(super) fn has_time(self) -> bool {
        use Kind::{Acme, Slack, StandardWebhooks, Stripe, Svix};
        matches!(self, Stripe | StandardWebhooks | Svix | Slack | Acme)
    }

    /// Whether the public URL is signed.
    pub(super) fn binds_url(self) -> bool {
        use Kind::{Square, Twilio, TwilioEvents, TwilioSharedKey};
        matches!(self, Twilio | TwilioSharedKey | TwilioEvents | Square)
    }

    /// A fresh secret, as the provider would show it.
    pub(super) fn secret(self) -> String {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).unwrap();
        match self {
            Self::Stripe => format!("whsec_{}", HEXLOWER.encode(&bytes)),
            Self::StandardWebhooks | Self::Svix => format!("whsec_{}", BASE64.encode(&bytes)),
            Self::AdyenPayments | Self::AdyenPlatform => HEXUPPER.encode(&bytes),
            Self::Postmark => format!("shop:{}", HEXLOWER.encode(&bytes)),
            _ => HEXLOWER.encode(&bytes),
        }
    }

    /// The provider's id of its nth event.
    pub(super) fn id(self, number: u32) -> String {
        match self {
            Self::Stripe => format!("evt_{number}"),
            Self::Twilio | Self::TwilioSharedKey => format!("SM{number:032x}"),
            Self::TwilioEvents => format!("EZ{number:032x}"),
            Self::StandardWebhooks | Self::Svix => format!("msg_{number}"),
            Self::Slack => format!("Ev{number:08}"),
            Self::AdyenPayments | Self::AdyenPlatform => format!("7914{number:012}"),
            Self::Acme => format!("ord/{number}"),
            Self::GitHub | Self::Shopify | Self::ShopifyEvents | Self::Square | Self::Postmark => {
                format!("0b989ba4-242f-11e5-81e1-{number:012}")
            }
        }
    }

    /// The part of an event's key after `{provider}-`.
    pub(super) fn identifier(self, id: &str, body: &[u8]) -> String {
        let digest = HEXLOWER.encode(&Sha256::digest(body)[..16]);
        match self {
            Self::GitHub => format!("{id}.{digest}"),
            Self::Shopify => format!("{id}.orders%2Fcreate.{digest}"),
            Self::ShopifyEvents => format!("{id}.Product.{digest}"),
            Self::Twilio | Self::TwilioSharedKey => format!("{id}.delivered"),
            Self::AdyenPayments => format!("{id}.AUTHORISATION.true"),
            Self::AdyenPlatform => digest,
            Self::Postmark => {
                format!("Delivery.{id}.ada%40shop%2Eexample.2026-01-02T03%3A04%3A05Z")
            }
            Self::Acme => id.replace('/', "%2F"),
            _ => id.to_owned(),
        }
    }

    /// An event with a note that is not part of its id.
    pub(super) fn event(self, id: Option<&str>, note: &str, secret: &str) -> String {
        let amount = AMOUNT;
        match self {
            Self::Stripe => json!({
                "id": id,
                "object": "event",
                "data": { "object": { "amount": amount, "note": note } },
            }),
            Self::TwilioEvents => json!([cloud_event(id, note)]),
            Self::Slack => json!({
                "type": "event_callback",
                "event_id": id,
                "event": { "type": "message", "text": note, "amount": amount },
            }),
            Self::Square => json!({
                "merchant_id": "M1",
                "event_id": id,
                "data": { "amount": amount, "note": note },
            }),
            Self::AdyenPayments => return adyen(&[adyen_item(secret, id.unwrap_or(""), note)]),
            Self::Postmark => json!({
                "RecordType": "Delivery",
                "MessageID": id,
                "Recipient": "ada@shop.example",
                "DeliveredAt": "2026-01-02T03:04:05Z",
                "Details": note,
            }),
            Self::Acme => json!({ "event": { "id": id, "note": note }, "amount": amount }),
            Self::Twilio | Self::TwilioSharedKey => {
                let sid = id.map(|id| format!("MessageSid={id}&")).unwrap_or_default();
                let note = utf8_percent_encode(note, NON_ALPHANUMERIC);
                return format!(
                    "AccountSid=AC1&{sid}MessageStatus=delivered&To=%2B49%20170&From=a+b\
                     &Amount={amount}&Body={note}"
                );
            }
            // Their id is in a header, or there is none.
            Self::GitHub
            | Self::StandardWebhooks
            | Self::Svix
            | Self::Shopify
            | Self::ShopifyEvents
            | Self::AdyenPlatform => {
                json!({ "about": id.filter(|_| self == Self::AdyenPlatform), "amount": amount, "note": note })
            }
        }
        .to_string()
    }

    /// Signs a body as the provider does, for a webhook at this URL.
    pub(super) fn sign(self, sealing: &Sealing<'_>) -> Signed {
        let Sealing {
            secret,
            id,
            at,
            body,
            ..
        } = *sealing;
        let text = secret.as_bytes();
        let at = at.to_string();
        let mut query = String::new();
        let mut headers = match self {
            Self::Stripe => {
                let tag = mac(HMAC_SHA256, text, &[at.as_bytes(), b".", body]);
                let signature = format!("t={at},v1={}", HEXLOWER.encode(&tag));
                vec![("stripe-signature", signature)]
            }
            Self::GitHub => {
                let tag = HEXLOWER.encode(&mac(HMAC_SHA256, text, &[body]));
                let mut headers = vec![
                    ("x-hub-signature-256", format!("sha256={tag}")),
                    ("x-github-event", "push".to_owned()),
                ];
                headers.extend(id.map(|id| ("x-github-delivery", id.to_owned())));
                headers
            }
            Self::Twilio => {
                let signed = format!("{}{}", sealing.url, parameters(body));
                let tag = mac(HMAC_SHA1_FOR_LEGACY_USE_ONLY, text, &[signed.as_bytes()]);
                vec![("x-twilio-signature", BASE64.encode(&tag))]
            }
            Self::TwilioSharedKey => {
                let signed = format!("{}{}", sealing.url, parameters(body));
                let tag = mac(HMAC_SHA256, text, &[signed.as_bytes()]);
                let settings = "key=SK1,algorithm=HMAC_SHA256".to_owned();
                vec![
                    ("x-twilio-signature", BASE64.encode(&tag)),
                    ("x-twilio-webhooks-signature-settings", settings),
                ]
            }
            Self::TwilioEvents => {
                query = format!("?bodySHA256={}", HEXLOWER.encode(&Sha256::digest(body)));
                let signed = format!("{}{query}", sealing.url);
                let tag = mac(HMAC_SHA1_FOR_LEGACY_USE_ONLY, text, &[signed.as_bytes()]);
                vec![("x-twilio-signature", BASE64.encode(&tag))]
            }
            Self::StandardWebhooks => {
                let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
                standard(names, secret, id, &at, body)
            }
            Self::Svix => {
                let names = ["svix-id", "svix-timestamp", "svix-signature"];
                standard(names, secret, id, &at, body)
            }
            Self::Slack => {
                let tag = mac(HMAC_SHA256, text, &[b"v0:", at.as_bytes(), b":", body]);
                vec![
                    ("x-slack-request-timestamp", at),
                    ("x-slack-signature", format!("v0={}", HEXLOWER.encode(&tag))),
                ]
            }
            Self::Shopify => {
                let tag = BASE64.encode(&mac(HMAC_SHA256, text, &[body]));
                let mut headers = vec![
                    ("x-shopify-hmac-sha256", tag),
                    ("x-shopify-topic", "orders/create".to_owned()),
                ];
                headers.extend(id.map(|id| ("x-shopify-event-id", id.to_owned())));
                headers
            }
            Self::ShopifyEvents => {
                let tag = BASE64.encode(&mac(HMAC_SHA256, text, &[body]));
                let mut headers = vec![
                    ("shopify-hmac-sha256", tag),
                    ("shopify-topic", "Product".to_owned()),
                ];
                headers.extend(id.map(|id| ("shopify-webhook-id", id.to_owned())));
                headers
            }
            Self::Square => {
                let tag = mac(HMAC_SHA256, text, &[sealing.url.as_bytes(), body]);
                vec![("x-square-hmacsha256-signature", BASE64.encode(&tag))]
            }
            // The signatures are in the body.
            Self::AdyenPayments => Vec::new(),
            Self::AdyenPlatform => {
                let key = HEXUPPER.decode(text).unwrap();
                let tag = BASE64.encode(&mac(HMAC_SHA256, &key, &[body]));
                vec![("hmacsignature", tag)]
            }
            Self::Postmark => vec![("authorization", format!("Basic {}", BASE64.encode(text)))],
            Self::Acme => {
                let (key, ms) = (HEXLOWER.decode(text).unwrap(), format!("{at}007"));
                let tag = mac(HMAC_SHA512, &key, &[b"north|", ms.as_bytes(), b"|", body]);
                vec![
                    ("x-acme-shop", "north".to_owned()),
                    ("x-acme-time", ms),
                    ("x-acme-signature", format!("v1={}", BASE64.encode(&tag))),
                ]
            }
        };
        let content_type = match self {
            Self::Twilio | Self::TwilioSharedKey => "application/x-www-form-urlencoded",
            _ => "application/json",
        };
        headers.push(("content-type", content_type.to_owned()));
        headers.push(("user-agent", format!("{}/1.0", self.provider())));
        Signed {
            query,
            headers,
            body: Bytes::copy_from_slice(body),
        }
    }
}

/// The input of a signature.
#[derive(Clone, Copy)]
pub(super) struct Sealing<'a> {
    pub(super) secret: &'a str,
    /// The webhook's URL, as the provider has it.
    pub(super) url: &'a str,
    /// The id, if it is in a header.
    pub(super) id: Option<&'a str>,
    /// The time, in seconds since 1970.
    pub(super) at: i64,
    pub(super) body: &'a [u8],
}

/// A provider's request.
#[derive(Clone, Debug)]
pub(super) struct Signed {
    /// The provider's suffix to the webhook's URL.
    pub(super) query: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl Signed {
    /// The request with another amount, as an attacker in between would change it.
    pub(super) fn tampered(mut self) -> Self {
        let text = std::str::from_utf8(&self.body).unwrap();
        assert!(text.contains(AMOUNT), "{text}");
        self.body = text.replace(AMOUNT, "9930").into();
        self
    }

    /// The request with a header changed or added.
    pub(super) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(is, _)| *is != name);
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// The tag of a Standard Webhooks signature.
pub(super) fn standard_tag(secret: &str, id: &str, at: &str, body: &[u8]) -> String {
    let key = secret.strip_prefix("whsec_").unwrap();
    let key = BASE64.decode(key.as_bytes()).unwrap();
    let parts = [id.as_bytes(), b".", at.as_bytes(), b".", body];
    format!("v1,{}", BASE64.encode(&mac(HMAC_SHA256, &key, &parts)))
}

/// An element of an array of Event Streams.
pub(super) fn cloud_event(id: Option<&str>, note: &str) -> serde_json::Value {
    json!({
        "specversion": "1.0",
        "type": "com.twilio.messaging.message.delivered",
        "source": "/2010-04-01/Accounts/AC1/Messages/SM1",
        "id": id,
        "data": { "amount": AMOUNT, "note": note },
    })
}

/// A notification of Adyen with these items.
pub(super) fn adyen(items: &[serde_json::Value]) -> String {
    json!({ "live": "false", "notificationItems": items }).to_string()
}

/// An item of a notification with its own signature; the note is not signed.
pub(super) fn adyen_item(secret: &str, reference: &str, note: &str) -> serde_json::Value {
    let signed = format!("{reference}::Acme:order-7:{AMOUNT}:EUR:AUTHORISATION:true");
    let key = HEXUPPER.decode(secret.as_bytes()).unwrap();
    let tag = mac(HMAC_SHA256, &key, &[signed.as_bytes()]);
    json!({ "NotificationRequestItem": {
        "additionalData": { "hmacSignature": BASE64.encode(&tag) },
        "amount": { "currency": "EUR", "value": AMOUNT.parse::<u32>().unwrap() },
        "eventCode": "AUTHORISATION",
        "merchantAccountCode": "Acme",
        "merchantReference": "order-7",
        "pspReference": reference,
        "reason": note,
        "success": "true",
    }})
}

fn standard(
    [id_name, at_name, signature_name]: [&'static str; 3],
    secret: &str,
    id: Option<&str>,
    at: &str,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let tag = standard_tag(secret, id.unwrap_or_default(), at, body);
    let mut headers = vec![(at_name, at.to_owned()), (signature_name, tag)];
    headers.extend(id.map(|id| (id_name, id.to_owned())));
    headers
}

/// The parameters of a form as Twilio signs them: sorted by name, without
/// separators.
fn parameters(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).unwrap();
    let mut pairs: Vec<_> = text
        .split('&')
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            let value = value.replace('+', " ");
            let value = percent_encoding::percent_decode_str(&value);
            (name, value.decode_utf8().unwrap().into_owned())
        })
        .collect();
    pairs.sort();
    pairs
        .into_iter()
        .map(|(name, value)| format!("{name}{value}"))
        .collect()
}

fn mac(algorithm: hmac::Algorithm, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
    for part in parts {
        context.update(part);
    }
    context.sign().as_ref().to_vec()
}
