//! GitHub: `X-Hub-Signature-256: sha256=…`, HMAC-SHA256 in hexadecimal over the
//! body.
//!
//! The delivery's id and the event's name are in unsigned headers: the id is bound
//! to the body's bytes, and a ping is recognised by its body.

use data_encoding::HEXLOWER;
use http::HeaderName;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::form::{self, Field};
use crate::identifier::{self, sha256};
use crate::identify::{Delivery, Handshake, Unidentified};
use crate::json;
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;

static SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
static DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");

pub(crate) fn verify<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let signature = parts.one(&SIGNATURE)?;
    parts.at_most_one(&DELIVERY)?;
    let tag = signature
        .strip_prefix("sha256=")
        .and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok());
    if signed_by_any(keys, &[parts.body], tag.as_slice()).into() {
        Ok(Authentic::body())
    } else {
        Err(Refusal::Signature)
    }
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let parts = &verified.parts;
    if is_ping(parts.body) {
        return Ok(Delivery::Handshake(Handshake::Pass));
    }
    match parts.at_most_one(&DELIVERY) {
        Ok(Some(id)) if !id.is_empty() => {
            identifier::one(identifier::unsigned(name, &[id], sha256(&[parts.body])))
        }
        _ => Err(Unidentified::MissingId),
    }
}

#[derive(Deserialize)]
struct Ping {
    zen: Option<IgnoredAny>,
    hook_id: Option<IgnoredAny>,
}

/// Only a ping has both members at its top level; users' content is nested.
fn is_ping(body: &[u8]) -> bool {
    let ping = if json::looks_like_object(body) {
        json::read::<Ping>(body)
    } else {
        match form::field(body, "payload") {
            Field::One(payload) => json::read(payload.as_bytes()),
            Field::Absent | Field::Unclear => return false,
        }
    };
    ping.is_ok_and(|ping| ping.zen.is_some() && ping.hook_id.is_some())
}
