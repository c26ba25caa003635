//! Stripe: `Stripe-Signature: t=…,v1=…[,v1=…]`, HMAC-SHA256 in hexadecimal over
//! `{t}.{body}`.
//!
//! During a rotation there is one `v1` per secret. Other schemes (`v0`) are
//! ignored. The event's id is in the signed body; Stripe renders an event anew for
//! each attempt, so its bytes do not identify it.

use data_encoding::HEXLOWER;
use http::HeaderName;
use serde::Deserialize;

use crate::identifier;
use crate::identify::{Delivery, Unidentified};
use crate::json::{self, Scalar};
use crate::key::{SIGNATURES_MAX, SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;
use crate::time;

static SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");

pub(crate) fn verify<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let malformed = || Refusal::Malformed(SIGNATURE.clone());
    let mut time = None;
    let mut tags = Vec::new();
    let mut signatures = 0;
    for element in parts.one(&SIGNATURE)?.split(',') {
        let (name, value) = element.split_once('=').ok_or_else(malformed)?;
        if name == "t" {
            // Of two, SDKs disagree on which one they use.
            if time.replace(value).is_some() {
                return Err(malformed());
            }
            continue;
        }
        signatures += 1;
        if name == "v1" {
            tags.extend(HEXLOWER.decode(value.as_bytes()));
        }
    }
    if signatures > SIGNATURES_MAX {
        return Err(Refusal::TooManySignatures);
    }
    let time = time.ok_or_else(malformed)?;
    let signed_at = time::seconds(time).ok_or_else(malformed)?;
    if signed_by_any(keys, &[time.as_bytes(), b".", parts.body], &tags).into() {
        Ok(Authentic::body_at(signed_at))
    } else {
        Err(Refusal::Signature)
    }
}

#[derive(Deserialize)]
struct StripeEvent {
    id: Option<Scalar>,
    account: Option<Scalar>,
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let event: StripeEvent = json::read(verified.parts.body)?;
    let id = json::required(&event.id)?;
    identifier::one(match json::required(&event.account) {
        Ok(account) => identifier::signed(name, &[id, account]),
        Err(_) => identifier::signed(name, &[id]),
    })
}
