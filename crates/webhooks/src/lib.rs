//! The webhook providers: a delivery is verified over its raw bytes, then
//! identified.
//!
//! Two functions, in this order: [`verify`] checks a request against the keys of
//! its webhook and returns a [`Verified`] or a [`Refusal`]; [`identify`] takes
//! that proof and returns the [`Delivery`]: a handshake, or events with the key
//! that identifies each. Nothing here reads a clock, a file or a socket.
//!
//! Rules for all providers:
//!
//! * Header syntax, then MAC, then time. Before the MAC only its own input is
//!   parsed (Twilio's parameters, Adyen's items).
//! * One of each signature, time and id header. A header of another family
//!   beside the verified one is refused, so that an upstream never acts on the
//!   unverified one.
//! * Algorithm, family and location of the id are the webhook's configuration
//!   ([`Provider`]), never the request's choice.
//! * All keys are tried and all comparisons take constant time.
//! * An id outside the signature is bound to the signed bytes
//!   ([`Binding::Unsigned`]): a captured request can neither use up the id of a
//!   later delivery nor pass as a new one unnoticed.
//!
//! PayPal is not supported: its signature covers the CRC32 of the body, so an
//! attacker with one captured delivery can change the amounts and the signature
//! still verifies. A safe receiver fetches the event from PayPal by its id, which
//! needs the network.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests use the system's clock and environment"
    )
)]

mod form;
mod identifier;
mod identify;
mod json;
mod key;
mod parts;
mod provider;
mod providers;
mod refusal;
mod sign;
mod time;
mod url;

pub use identify::{
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
