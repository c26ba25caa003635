//! Twilio Event Streams: the signature is over the URL, whose `bodySHA256` binds
//! the body: an array of CloudEvents, each with its id.

use serde::Deserialize;

use crate::identifier;
use crate::identify::{Batch, Delivery, EventBody, Handshake, ITEMS_MAX, Unidentified};
use crate::json::{self, Elements, Scalar};
use crate::key::SigningKey;
use crate::parts::{Authentic, Parts, Verified};
use crate::providers::twilio::{self, TwilioAlgorithm};
use crate::refusal::Refusal;

/// The test event of a sink. Its id is the account's, so it repeats.
const TEST_EVENT: &str = "com.twilio.eventstreams.test-event";

pub(crate) fn verify<'a>(parts: &Parts<'a>, keys: &[SigningKey]) -> Result<Authentic<'a>, Refusal> {
    twilio::verify_body(TwilioAlgorithm::Sha1, parts, keys)
}

#[derive(Deserialize)]
struct CloudEvent {
    id: Option<Scalar>,
    #[serde(rename = "type")]
    kind: Option<Scalar>,
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let Elements(elements) = json::read(verified.parts.body)?;
    if elements.len() > ITEMS_MAX {
        return Err(Unidentified::TooManyItems);
    }
    let mut batch = Batch::default();
    for element in &elements {
        let cloud_event: CloudEvent = json::read(element.get().as_bytes())?;
        if matches!(&cloud_event.kind, Some(Scalar(kind)) if kind == TEST_EVENT) {
            continue;
        }
        let event = identifier::signed(name, &[json::required(&cloud_event.id)?]);
        batch.add(event, || match elements.len() {
            1 => EventBody::Whole,
            _ => EventBody::Part(format!("[{}]", element.get()).into_bytes()),
        });
    }
    let events = batch.into_events();
    match (elements.is_empty(), events.is_empty()) {
        (true, _) => Err(Unidentified::MissingId),
        (false, true) => Ok(Delivery::Handshake(Handshake::Pass)),
        (false, false) => Ok(Delivery::Events(events)),
    }
}
