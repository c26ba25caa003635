//! The webhook providers: a delivery is verified over its raw bytes, then
//! identified.
//!
//! Two functions, in this order: [`verify`] looks at a request and the keys of
//! the webhook it came to and gives a [`Verified`] or a [`Refusal`];
//! [`identify`] takes that proof and gives the [`Delivery`]: a handshake, or
//! events with the key each is remembered by. Nothing here reads a clock, a
//! file or a socket.
//!
//! What is the same for all providers:
//!
//! * Header shape, then MAC, then time. Nothing is parsed before the MAC but
//!   what the MAC is made of (Twilio's parameters, Adyen's items).
//! * One of each signature, time and id header. A header of another family
//!   beside the verified one is refused, so nobody verifies one and acts on
//!   the other.
//! * Algorithm, family and the place of the id are the webhook's configuration
//!   ([`Provider`]), never the request's choice.
//! * All keys are tried and all comparisons take constant time.
//! * An id outside the signature is bound to the signed bytes
//!   ([`Binding::Unsigned`]): one captured request can neither burn the id of
//!   a delivery to come nor pass for a new one unnoticed.
//!
//! PayPal is not among the providers: its signature covers the CRC32 of the
//! body, so anybody holding one delivery can put other amounts into it and the
//! signature still holds. A safe receiver asks PayPal for the event by its id,
//! which is a call over the network and not a verification.

mod delivery;
mod form;
mod identifier;
mod json;
mod key;
mod parts;
mod provider;
mod providers;
mod refusal;
mod sign;
mod time;
mod url;

pub use delivery::{
    BESIDE_BYTES_MAX, Binding, Delivery, Event, EventBody, Handshake, ITEMS_MAX, Unidentified,
    identify,
};
pub use key::{KEYS_MAX, SIGNATURES_MAX, SecretError, SigningKey};
pub use parts::{Parts, Verified, verify};
pub use provider::{Acknowledgement, Provider, UnknownScheme};
pub use providers::adyen::AdyenScheme;
pub use providers::generic::{Generic, GenericMistake, GenericSettings, GenericTimestamp};
pub use providers::shopify::ShopifyFamily;
pub use providers::twilio::TwilioAlgorithm;
pub use refusal::Refusal;
pub use sign::sign;
pub use time::Tolerance;
