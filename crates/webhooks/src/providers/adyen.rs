//! Adyen: HMAC-SHA256 in base64 with a key in hexadecimal.
//!
//! Payments sign each item of the body by itself, over eight of its fields joined
//! by colons; the signature is in the item. Every item is verified. An item is
//! refused if colons within its fields could move the boundaries of the fields
//! that identify it. The other members of an item are unsigned, and so are the
//! members beside the items; these are limited, since each item of several is
//! delivered with all of them.
//!
//! Platform webhooks (banking, management) sign the whole body in the header
//! `HmacSignature`. They have no event id: they name an object that changes,
//! sometimes twice within the second of their timestamp. So they are identified by
//! the body's bytes, which a retry repeats.

use std::fmt;

use data_encoding::BASE64;
use http::HeaderName;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use subtle::Choice;

use crate::identifier::{self, sha256};
use crate::identify::{
    BESIDE_BYTES_MAX, Batch, Delivery, EventBody, Handshake, ITEMS_MAX, Unidentified,
};
use crate::json::{self, Elements, Scalar};
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Evidence, Parts, Verified};
use crate::refusal::Refusal;

/// Adyen's two signature schemes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdyenScheme {
    /// Payments: a signature in each item.
    #[default]
    Payments,
    /// Banking and management: a signature in a header.
    Platform,
}

static SIGNATURE: HeaderName = HeaderName::from_static("hmacsignature");

pub(crate) fn verify<'a>(
    scheme: AdyenScheme,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    match scheme {
        AdyenScheme::Payments => verify_items(parts, keys),
        AdyenScheme::Platform => verify_body(parts, keys),
    }
}

fn verify_body<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let tag = BASE64.decode(parts.one(&SIGNATURE)?.as_bytes()).ok();
    if signed_by_any(keys, &[parts.body], tag.as_slice()).into() {
        Ok(Authentic::body())
    } else {
        Err(Refusal::Signature)
    }
}

fn verify_items<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let notification: Notification<'a> =
        json::read(parts.body).map_err(|_| Refusal::MalformedBody)?;
    if notification.items.is_empty() {
        return Err(Refusal::Signature);
    }
    if notification.items.len() > ITEMS_MAX {
        return Err(Refusal::TooManyItems);
    }
    if !notification
        .items
        .iter()
        .all(|(_, item)| item.has_clear_boundaries())
    {
        return Err(Refusal::MalformedBody);
    }
    let mut all = Choice::from(1);
    for (_, item) in &notification.items {
        let tag = item
            .additional_data
            .as_ref()
            .and_then(|data| BASE64.decode(text(&data.hmac_signature).as_bytes()).ok());
        all &= signed_by_any(keys, &item.pieces(), tag.as_slice());
    }
    if all.into() {
        Ok(Authentic {
            evidence: Evidence::Items(notification),
            signed_at: None,
        })
    } else {
        Err(Refusal::Signature)
    }
}

/// The body of a payments webhook: its items, each with its bytes, and the members
/// beside them.
pub(crate) struct Notification<'a> {
    items: Vec<(&'a RawValue, Item)>,
    beside: Beside,
}

/// The members beside the items.
enum Beside {
    /// The members, each followed by a comma.
    Members(String),
    /// More than [`BESIDE_BYTES_MAX`].
    TooMuch,
}

#[derive(Deserialize)]
struct Wrapper {
    #[serde(rename = "NotificationRequestItem")]
    item: Item,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    psp_reference: Option<Scalar>,
    original_reference: Option<Scalar>,
    merchant_account_code: Option<Scalar>,
    merchant_reference: Option<Scalar>,
    amount: Option<Amount>,
    event_code: Option<Scalar>,
    success: Option<Scalar>,
    additional_data: Option<AdditionalData>,
}

#[derive(Deserialize)]
struct Amount {
    value: Option<Scalar>,
    currency: Option<Scalar>,
}

#[derive(Deserialize)]
struct AdditionalData {
    #[serde(rename = "hmacSignature")]
    hmac_signature: Option<Scalar>,
}

fn text(value: &Option<Scalar>) -> &str {
    value.as_ref().map_or("", |Scalar(text)| text)
}

impl Item {
    fn pieces(&self) -> [&[u8]; 15] {
        let amount = self.amount.as_ref();
        [
            text(&self.psp_reference),
            ":",
            text(&self.original_reference),
            ":",
            text(&self.merchant_account_code),
            ":",
            text(&self.merchant_reference),
            ":",
            amount.map_or("", |amount| text(&amount.value)),
            ":",
            amount.map_or("", |amount| text(&amount.currency)),
            ":",
            text(&self.event_code),
            ":",
            text(&self.success),
        ]
        .map(str::as_bytes)
    }

    /// The first and the last two fields identify an item. If neither they nor
    /// their neighbours contain a colon, colons elsewhere cannot change the
    /// identity or the amount.
    fn has_clear_boundaries(&self) -> bool {
        let amount = self.amount.as_ref();
        [
            text(&self.psp_reference),
            text(&self.original_reference),
            amount.map_or("", |amount| text(&amount.value)),
            amount.map_or("", |amount| text(&amount.currency)),
            text(&self.event_code),
            text(&self.success),
        ]
        .iter()
        .all(|text| !text.contains(':'))
    }

    /// Test notifications have a reference of this form.
    fn is_test(&self) -> bool {
        let reference = text(&self.psp_reference).to_ascii_lowercase();
        reference.starts_with("test_") || reference.starts_with("testnotification_")
    }
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let Evidence::Items(notification) = &verified.evidence else {
        return identifier::one(identifier::by_content(name, sha256(&[verified.parts.body])));
    };
    // The body of a single item is not changed.
    let beside = match (&notification.items[..], &notification.beside) {
        ([_], _) => None,
        (_, Beside::Members(members)) => Some(members),
        (_, Beside::TooMuch) => return Err(Unidentified::MalformedBody),
    };
    let mut batch = Batch::default();
    for (raw, item) in notification
        .items
        .iter()
        .filter(|(_, item)| !item.is_test())
    {
        let parts = [
            text(&item.psp_reference),
            text(&item.event_code),
            text(&item.success),
        ];
        if parts[0].is_empty() || parts[1].is_empty() {
            return Err(Unidentified::MissingId);
        }
        batch.add(identifier::signed(name, &parts), || match beside {
            None => EventBody::Whole,
            Some(members) => EventBody::Part(
                format!("{{{members}\"notificationItems\":[{}]}}", raw.get()).into_bytes(),
            ),
        });
    }
    let events = batch.into_events();
    if events.is_empty() {
        return Ok(Delivery::Handshake(Handshake::Pass));
    }
    Ok(Delivery::Events(events))
}

impl Beside {
    /// Adds a member.
    fn and(self, name: &str, value: &RawValue) -> Self {
        let Self::Members(mut members) = self else {
            return Self::TooMuch;
        };
        let name = serde_json::Value::from(name);
        members.push_str(&format!("{name}:{},", value.get()));
        match members.len() <= BESIDE_BYTES_MAX {
            true => Self::Members(members),
            false => Self::TooMuch,
        }
    }
}

impl<'de> Deserialize<'de> for Notification<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Notification<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with notificationItems")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut raw_items: Option<Elements<'de>> = None;
        let mut beside = Beside::Members(String::new());
        while let Some(name) = map.next_key::<String>()? {
            if name != "notificationItems" {
                beside = beside.and(&name, map.next_value()?);
            } else if raw_items.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom("a name came twice"));
            }
        }
        let mut items = Vec::new();
        for raw in raw_items.unwrap_or_default().0 {
            let wrapper: Wrapper = serde_json::from_str(raw.get()).map_err(A::Error::custom)?;
            items.push((raw, wrapper.item));
        }
        Ok(Notification { items, beside })
    }
}
