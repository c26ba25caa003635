//! Standard Webhooks, and Svix by other header names: `v1,…` in base64,
//! HMAC-SHA256 over `{id}.{time}.{body}`.
//!
//! Signatures of other versions are ignored: `v1a` is asymmetric, and a `v1`
//! signature under that label must not count. The id is signed.

use data_encoding::BASE64;
use http::HeaderName;

use crate::identifier;
use crate::identify::{Delivery, Unidentified};
use crate::key::{SIGNATURES_MAX, SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;
use crate::time;

/// One of the two families of headers.
pub(crate) struct Family {
    id: HeaderName,
    timestamp: HeaderName,
    signature: HeaderName,
    other: [HeaderName; 3],
}

pub(crate) static WEBHOOK: Family = Family {
    id: HeaderName::from_static("webhook-id"),
    timestamp: HeaderName::from_static("webhook-timestamp"),
    signature: HeaderName::from_static("webhook-signature"),
    other: [
        HeaderName::from_static("svix-id"),
        HeaderName::from_static("svix-timestamp"),
        HeaderName::from_static("svix-signature"),
    ],
};

pub(crate) static SVIX: Family = Family {
    id: HeaderName::from_static("svix-id"),
    timestamp: HeaderName::from_static("svix-timestamp"),
    signature: HeaderName::from_static("svix-signature"),
    other: [
        HeaderName::from_static("webhook-id"),
        HeaderName::from_static("webhook-timestamp"),
        HeaderName::from_static("webhook-signature"),
    ],
};

pub(crate) fn verify<'a>(
    family: &Family,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    parts.none(&family.other.each_ref())?;
    let id = parts.one(&family.id)?;
    let timestamp = parts.one(&family.timestamp)?;
    let signature = parts.one(&family.signature)?;
    let signed_at =
        time::seconds(timestamp).ok_or_else(|| Refusal::Malformed(family.timestamp.clone()))?;
    // If the id contained a time, `a.1.…` could be the id `a` at time 1, or the id
    // `a.1` at another time.
    if id.is_empty()
        || id
            .split('.')
            .skip(1)
            .any(|part| time::seconds(part).is_some())
    {
        return Err(Refusal::Malformed(family.id.clone()));
    }
    let mut tags = Vec::new();
    for (at, element) in signature.split(' ').enumerate() {
        if at == SIGNATURES_MAX {
            return Err(Refusal::TooManySignatures);
        }
        let (version, tag) = element
            .split_once(',')
            .ok_or_else(|| Refusal::Malformed(family.signature.clone()))?;
        if version == "v1" {
            tags.extend(BASE64.decode(tag.as_bytes()));
        }
    }
    let pieces = [id.as_bytes(), b".", timestamp.as_bytes(), b".", parts.body];
    if signed_by_any(keys, &pieces, &tags).into() {
        Ok(Authentic::body_at(signed_at))
    } else {
        Err(Refusal::Signature)
    }
}

pub(crate) fn identify(
    family: &Family,
    name: &str,
    verified: &Verified<'_>,
) -> Result<Delivery, Unidentified> {
    let id = verified
        .parts
        .one(&family.id)
        .map_err(|_| Unidentified::MissingId)?;
    identifier::one(identifier::signed(name, &[id]))
}
