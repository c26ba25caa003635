//! Postmark: nothing is signed; the webhook's URL holds a name and a password,
//! which come as basic authentication.
//!
//! The password authenticates Postmark, so the body counts as signed. Events have
//! no id: it is made of the members that distinguish them, and of their time if
//! they have one.

use data_encoding::BASE64;
use http::header::AUTHORIZATION;
use serde::Deserialize;

use crate::identifier;
use crate::identify::{Delivery, Unidentified};
use crate::json::{self, Scalar};
use crate::key::{SigningKey, known_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;

pub(crate) fn verify<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let authorization = parts.one(&AUTHORIZATION)?;
    let (scheme, credentials) = authorization
        .split_once(' ')
        .ok_or(Refusal::Malformed(AUTHORIZATION))?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(Refusal::Signature);
    }
    let credentials = BASE64.decode(credentials.trim_start_matches(' ').as_bytes());
    let credentials = credentials.map_err(|_| Refusal::Malformed(AUTHORIZATION))?;
    if known_by_any(keys, &credentials).into() {
        Ok(Authentic::body())
    } else {
        Err(Refusal::Signature)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PostmarkRecord {
    record_type: Option<Scalar>,
    #[serde(rename = "MessageID")]
    message_id: Option<Scalar>,
    recipient: Option<Scalar>,
    email: Option<Scalar>,
    #[serde(rename = "ID")]
    id: Option<Scalar>,
    delivered_at: Option<Scalar>,
    received_at: Option<Scalar>,
    bounced_at: Option<Scalar>,
    changed_at: Option<Scalar>,
    original_link: Option<Scalar>,
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let record: PostmarkRecord = json::read(verified.parts.body)?;
    let message = json::required(&record.message_id)?;
    // An inbound message has no record type.
    let Ok(kind) = json::required(&record.record_type) else {
        return identifier::one(identifier::signed(name, &[message]));
    };
    let text = |value: &Option<Scalar>| value.as_ref().map(|Scalar(text)| text.clone());
    let recipient = text(&record.recipient).or_else(|| text(&record.email));
    let mut parts = vec![
        kind.to_owned(),
        message.to_owned(),
        recipient.unwrap_or_default(),
    ];
    // There can be many opens or clicks; a bounce has an id.
    parts.extend(
        [
            &record.id,
            &record.delivered_at,
            &record.received_at,
            &record.bounced_at,
            &record.changed_at,
            &record.original_link,
        ]
        .into_iter()
        .filter_map(text),
    );
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    identifier::one(identifier::signed(name, &parts))
}
