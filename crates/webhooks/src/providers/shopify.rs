//! Shopify: HMAC-SHA256 in base64 over the body.
//!
//! Webhooks have it in `X-Shopify-Hmac-Sha256`, the newer Events in
//! `Shopify-Hmac-Sha256`; the configuration says which of them a webhook gets.
//! Id, topic and shop are in unsigned headers, so id and topic are bound to the
//! body's bytes. Each subscription gets an event once: the topic is part of its
//! identity.

use data_encoding::BASE64;
use http::HeaderName;

use crate::identifier::{self, sha256};
use crate::identify::{Delivery, Unidentified};
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;

/// Which of Shopify's two kinds of delivery a webhook gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShopifyFamily {
    /// Webhooks, with `X-Shopify-…` headers.
    #[default]
    Webhooks,
    /// Events, with `Shopify-…` headers.
    Events,
}

static X_HMAC: HeaderName = HeaderName::from_static("x-shopify-hmac-sha256");
static X_EVENT_ID: HeaderName = HeaderName::from_static("x-shopify-event-id");
static X_TOPIC: HeaderName = HeaderName::from_static("x-shopify-topic");
static HMAC: HeaderName = HeaderName::from_static("shopify-hmac-sha256");
static WEBHOOK_ID: HeaderName = HeaderName::from_static("shopify-webhook-id");
static TOPIC: HeaderName = HeaderName::from_static("shopify-topic");

impl ShopifyFamily {
    fn hmac(self) -> &'static HeaderName {
        match self {
            Self::Webhooks => &X_HMAC,
            Self::Events => &HMAC,
        }
    }

    fn id(self) -> &'static HeaderName {
        match self {
            Self::Webhooks => &X_EVENT_ID,
            Self::Events => &WEBHOOK_ID,
        }
    }

    fn topic(self) -> &'static HeaderName {
        match self {
            Self::Webhooks => &X_TOPIC,
            Self::Events => &TOPIC,
        }
    }

    fn headers(self) -> [&'static HeaderName; 3] {
        [self.hmac(), self.id(), self.topic()]
    }
}

pub(crate) fn verify<'a>(
    family: ShopifyFamily,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    check_shape(parts)?;
    let signature = parts.one(family.hmac())?;
    let tag = BASE64.decode(signature.as_bytes()).ok();
    if signed_by_any(keys, &[parts.body], tag.as_slice()).into() {
        Ok(Authentic::body())
    } else {
        Err(Refusal::Signature)
    }
}

/// Checks both families, whichever is the webhook's: the answer to a malformed
/// request must not reveal which webhooks exist.
fn check_shape(parts: &Parts<'_>) -> Result<(), Refusal> {
    let (webhooks, events) = (ShopifyFamily::Webhooks, ShopifyFamily::Events);
    for header in webhooks.headers().into_iter().chain(events.headers()) {
        parts.at_most_one(header)?;
    }
    match parts.none(&webhooks.headers()) {
        Ok(()) => Ok(()),
        Err(_) => parts.none(&events.headers()),
    }
}

pub(crate) fn identify(
    family: ShopifyFamily,
    name: &str,
    verified: &Verified<'_>,
) -> Result<Delivery, Unidentified> {
    let parts = &verified.parts;
    let present = |header| match parts.at_most_one(header) {
        Ok(Some(value)) if !value.is_empty() => Ok(value),
        _ => Err(Unidentified::MissingId),
    };
    let (id, topic) = (present(family.id())?, present(family.topic())?);
    identifier::one(identifier::unsigned(
        name,
        &[id, topic],
        sha256(&[parts.body]),
    ))
}
