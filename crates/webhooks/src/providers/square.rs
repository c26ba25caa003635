//! Square: `x-square-hmacsha256-signature`, HMAC-SHA256 in base64 over the URL
//! and the body.
//!
//! Nothing separates the two, so the URL must come from the configuration, not
//! from the request. The id is in the body.

use data_encoding::BASE64;
use http::HeaderName;
use serde::Deserialize;
use subtle::Choice;

use crate::identifier;
use crate::identify::{Delivery, Unidentified};
use crate::json::{self, Scalar};
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;
use crate::url;

static SIGNATURE: HeaderName = HeaderName::from_static("x-square-hmacsha256-signature");

pub(crate) fn verify<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let tag = BASE64.decode(parts.one(&SIGNATURE)?.as_bytes()).ok();
    let mut found = Choice::from(0);
    for url in url::spellings(parts.url) {
        found |= signed_by_any(keys, &[url.as_bytes(), parts.body], tag.as_slice());
    }
    if found.into() {
        Ok(Authentic::body())
    } else {
        Err(Refusal::Signature)
    }
}

#[derive(Deserialize)]
struct SquareEvent {
    event_id: Option<Scalar>,
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let event: SquareEvent = json::read(verified.parts.body)?;
    identifier::one(identifier::signed(
        name,
        &[json::required(&event.event_id)?],
    ))
}
