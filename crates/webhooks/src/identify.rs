//! Identifies the events of a verified request: their ids, and handshakes.

use std::collections::HashSet;

use thiserror::Error;

use crate::parts::Verified;
use crate::provider::Provider;
use crate::providers::{
    adyen, generic, github, postmark, shopify, slack, square, standard, stripe, twilio,
    twilio_events,
};

/// The most elements of a batch.
pub const ITEMS_MAX: usize = 1000;

/// The most bytes beside the elements of a batch. Each element is delivered with
/// all of them, and they may be unsigned: this limit keeps all parts together
/// below ten times the body.
pub const BESIDE_BYTES_MAX: usize = 1024;

/// The content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The provider tests the connection; it is not an event.
    Handshake(Handshake),
    /// Events: never empty, and no two have the same key.
    Events(Vec<Event>),
}

/// How a handshake is answered. It is never recorded: a second one must not look
/// like a duplicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Answered with this, and not forwarded.
    Answer {
        /// The answer's content type.
        content_type: &'static str,
        /// The answer's body.
        body: Vec<u8>,
    },
    /// Forwarded; the upstream's answer is the answer.
    Pass,
}

/// One event of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `{provider}-{identifier}`: the event's key.
    pub key: String,
    /// Whether the signature covers the identifier.
    pub binding: Binding,
    /// The event's part of the request's body.
    pub body: EventBody,
}

/// Whether the signature covers an event's identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// It does: the same identifier is the same event, with any bytes.
    Signed,
    /// It does not, or not reliably: an attacker with a captured delivery can send
    /// it again under another key, which `bytes` detects. The same identifier with
    /// other bytes is another event: the key ends in their digest (except for most
    /// Twilio messages, where only the boundaries are unsigned).
    Unsigned {
        /// The SHA-256 of the signed bytes.
        bytes: [u8; 32],
    },
}

/// An event's part of the request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventBody {
    /// All of it.
    Whole,
    /// One element of a batch, its bytes unchanged, in the batch's envelope.
    Part(Vec<u8>),
}

/// Why a verified request could not be identified.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unidentified {
    /// The body is not what the provider sends.
    #[error("the body does not have the provider's form")]
    MalformedBody,
    /// The provider's id is missing.
    #[error("the provider's id is missing")]
    MissingId,
    /// The id occurs more than once.
    #[error("the id occurs more than once")]
    RepeatedId,
    /// More elements than [`ITEMS_MAX`].
    #[error("the body has more than {ITEMS_MAX} elements")]
    TooManyItems,
}

impl Unidentified {
    /// One of a few fixed words, for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::MalformedBody => "malformed-body",
            Self::MissingId => "missing-id",
            Self::RepeatedId => "repeated-id",
            Self::TooManyItems => "too-many-items",
        }
    }
}

/// Identifies what a verified request delivers.
pub fn identify(verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let name = verified.provider.name();
    match verified.provider {
        Provider::Stripe => stripe::identify(name, verified),
        Provider::GitHub => github::identify(name, verified),
        Provider::Twilio(_) => twilio::identify(name, verified),
        Provider::TwilioEvents => twilio_events::identify(name, verified),
        Provider::StandardWebhooks => standard::identify(&standard::WEBHOOK, name, verified),
        Provider::Svix => standard::identify(&standard::SVIX, name, verified),
        Provider::Slack => slack::identify(name, verified),
        Provider::Shopify(family) => shopify::identify(*family, name, verified),
        Provider::Square => square::identify(name, verified),
        Provider::Adyen(_) => adyen::identify(name, verified),
        Provider::Postmark => postmark::identify(name, verified),
        Provider::Generic(generic) => generic::identify(generic, verified),
    }
}

/// The events of a batch. A repeated event is delivered once, in its first form.
#[derive(Default)]
pub(crate) struct Batch {
    events: Vec<Event>,
    keys: HashSet<String>,
}

impl Batch {
    /// Adds an event, unless its key is present. Only then its body is built: a
    /// thousand copies of one event must not cost a thousand bodies.
    pub(crate) fn add(&mut self, mut event: Event, body: impl FnOnce() -> EventBody) {
        if self.keys.insert(event.key.clone()) {
            event.body = body();
            self.events.push(event);
        }
    }

    pub(crate) fn into_events(self) -> Vec<Event> {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_event_costs_no_body() {
        let event = |key: &str| Event {
            key: key.to_owned(),
            binding: Binding::Signed,
            body: EventBody::Whole,
        };
        let (mut batch, mut made) = (Batch::default(), 0);
        for key in ["a", "b", "a", "a"] {
            batch.add(event(key), || {
                made += 1;
                EventBody::Part(vec![made])
            });
        }
        assert_eq!(made, 2);
        let bodies = batch.into_events().into_iter().map(|event| event.body);
        let want = [EventBody::Part(vec![1]), EventBody::Part(vec![2])];
        assert!(bodies.eq(want));
    }
}
