//! Slack: `X-Slack-Signature: v0=…`, HMAC-SHA256 in hexadecimal over
//! `v0:{time}:{body}`.
//!
//! The id is in the signed body: an event's `event_id`; the `trigger_id` of a
//! command or interaction; of interactions without one, a dialog's `action_ts` or
//! a closed view's id. A rate limit is reported once a minute. A request for
//! options has no id and is not identified: it is a question, not an event.

use data_encoding::HEXLOWER;
use http::HeaderName;
use serde::Deserialize;

use crate::form::{self, Field};
use crate::identifier;
use crate::identify::{Delivery, Event, Handshake, Unidentified};
use crate::json::{self, Scalar};
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::refusal::Refusal;
use crate::time;

static SIGNATURE: HeaderName = HeaderName::from_static("x-slack-signature");
static TIMESTAMP: HeaderName = HeaderName::from_static("x-slack-request-timestamp");

pub(crate) fn verify<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    let signature = parts.one(&SIGNATURE)?;
    let timestamp = parts.one(&TIMESTAMP)?;
    let signed_at =
        time::seconds(timestamp).ok_or_else(|| Refusal::Malformed(TIMESTAMP.clone()))?;
    let tag = signature
        .strip_prefix("v0=")
        .and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok());
    let pieces = [b"v0:", timestamp.as_bytes(), b":", parts.body];
    if signed_by_any(keys, &pieces, tag.as_slice()).into() {
        Ok(Authentic::body_at(signed_at))
    } else {
        Err(Refusal::Signature)
    }
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let body = verified.parts.body;
    if json::looks_like_object(body) {
        return event(name, json::read(body)?);
    }
    // Slack checks a command's URL now and then.
    if let Field::One(_) = form::field(body, "ssl_check") {
        return Ok(Delivery::Handshake(Handshake::Answer {
            content_type: "text/plain",
            body: Vec::new(),
        }));
    }
    match (
        form::field(body, "payload"),
        form::field(body, "trigger_id"),
    ) {
        (Field::One(payload), Field::Absent) => {
            identifier::one(interaction(name, &json::read(payload.as_bytes())?)?)
        }
        (Field::Absent, Field::One(trigger)) if !trigger.is_empty() => {
            identifier::one(identifier::signed(name, &[&trigger]))
        }
        (Field::Absent, Field::Absent | Field::One(_)) => Err(Unidentified::MissingId),
        _ => Err(Unidentified::RepeatedId),
    }
}

#[derive(Deserialize)]
struct Outer {
    #[serde(rename = "type")]
    kind: Option<Scalar>,
    challenge: Option<Scalar>,
    event_id: Option<Scalar>,
    team_id: Option<Scalar>,
    api_app_id: Option<Scalar>,
    minute_rate_limited: Option<Scalar>,
}

fn event(name: &str, outer: Outer) -> Result<Delivery, Unidentified> {
    match json::required(&outer.kind)? {
        "url_verification" => {
            let challenge = outer.challenge.ok_or(Unidentified::MissingId)?;
            Ok(Delivery::Handshake(Handshake::Answer {
                content_type: "text/plain",
                body: challenge.0.into_bytes(),
            }))
        }
        kind @ "app_rate_limited" => {
            let team = json::required(&outer.team_id)?;
            let app = json::required(&outer.api_app_id)?;
            let minute = json::required(&outer.minute_rate_limited)?;
            identifier::one(identifier::signed(name, &[kind, team, app, minute]))
        }
        _ => identifier::one(identifier::signed(
            name,
            &[json::required(&outer.event_id)?],
        )),
    }
}

#[derive(Deserialize)]
struct Interaction {
    #[serde(rename = "type")]
    kind: Option<Scalar>,
    trigger_id: Option<Scalar>,
    callback_id: Option<Scalar>,
    action_ts: Option<Scalar>,
    view: Option<View>,
}

#[derive(Deserialize)]
struct View {
    id: Option<Scalar>,
}

fn interaction(name: &str, interaction: &Interaction) -> Result<Event, Unidentified> {
    if let Ok(trigger) = json::required(&interaction.trigger_id) {
        return Ok(identifier::signed(name, &[trigger]));
    }
    match (json::required(&interaction.kind)?, &interaction.view) {
        (kind @ "view_closed", Some(view)) => {
            Ok(identifier::signed(name, &[kind, json::required(&view.id)?]))
        }
        (kind @ ("dialog_submission" | "dialog_cancellation"), _) => {
            let callback = json::required(&interaction.callback_id)?;
            let at = json::required(&interaction.action_ts)?;
            Ok(identifier::signed(name, &[kind, callback, at]))
        }
        _ => Err(Unidentified::MissingId),
    }
}
