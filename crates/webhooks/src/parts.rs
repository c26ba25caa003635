//! The verified parts of a request, and the proof of verification.

use std::fmt;

use http::{HeaderMap, HeaderName};

use crate::key::{KEYS_MAX, SigningKey};
use crate::provider::Provider;
use crate::providers::{
    adyen, generic, github, postmark, shopify, slack, square, standard, stripe, twilio,
    twilio_events,
};
use crate::refusal::Refusal;
use crate::time::Tolerance;

/// The parts of a request that signatures cover.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The gateway's public URL with the received path and query. Host and scheme
    /// never come from the request.
    pub url: &'a str,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The received bytes of the body.
    pub body: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The one value of a header.
    pub(crate) fn one(&self, name: &HeaderName) -> Result<&'a str, Refusal> {
        self.at_most_one(name)?
            .ok_or_else(|| Refusal::Missing(name.clone()))
    }

    /// The value of a header that may be absent, but not repeated.
    pub(crate) fn at_most_one(&self, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
        let mut values = self.headers.get_all(name).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(Refusal::Repeated(name.clone()));
        }
        value
            .to_str()
            .map(Some)
            .map_err(|_| Refusal::Malformed(name.clone()))
    }

    /// Refuses the request if it has any of these headers.
    pub(crate) fn none(&self, names: &[&HeaderName]) -> Result<(), Refusal> {
        match names.iter().find(|name| self.headers.contains_key(**name)) {
            Some(name) => Err(Refusal::Mixed((*name).clone())),
            None => Ok(()),
        }
    }
}

/// The proof that a request is a provider's. Only [`verify`] creates one.
pub struct Verified<'a> {
    pub(crate) provider: &'a Provider,
    pub(crate) parts: Parts<'a>,
    pub(crate) evidence: Evidence<'a>,
}

impl fmt::Debug for Verified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified")
            .field("provider", &self.provider.name())
            .finish_non_exhaustive()
    }
}

/// The signed content, parsed where verification had to parse it.
pub(crate) enum Evidence<'a> {
    /// The body's bytes.
    Body,
    /// Twilio's URL and parameters.
    Form(twilio::Form<'a>),
    /// Adyen's items, each by itself.
    Items(adyen::Notification<'a>),
}

/// An authentic request, whose time is not checked yet.
pub(crate) struct Authentic<'a> {
    pub(crate) evidence: Evidence<'a>,
    pub(crate) signed_at: Option<i64>,
}

impl Authentic<'_> {
    /// The signature covers the body, and no time.
    pub(crate) fn body() -> Self {
        Self {
            evidence: Evidence::Body,
            signed_at: None,
        }
    }

    /// The signature covers the body and a time.
    pub(crate) fn body_at(signed_at: i64) -> Self {
        Self {
            evidence: Evidence::Body,
            signed_at: Some(signed_at),
        }
    }
}

/// Verifies that a request is the provider's, with any of the first [`KEYS_MAX`]
/// keys, and that its signed time is within the tolerance of `now` (seconds since
/// 1970). Without a key nothing is accepted.
pub fn verify<'a>(
    provider: &'a Provider,
    parts: &Parts<'a>,
    keys: &[SigningKey],
    now: i64,
    tolerance: Tolerance,
) -> Result<Verified<'a>, Refusal> {
    if keys.is_empty() {
        return Err(Refusal::NoKey);
    }
    let keys = keys.get(..KEYS_MAX).unwrap_or(keys);
    let parts = *parts;
    let authentic = match provider {
        Provider::Stripe => stripe::verify(&parts, keys),
        Provider::GitHub => github::verify(&parts, keys),
        Provider::Twilio(algorithm) => twilio::verify(*algorithm, &parts, keys),
        Provider::TwilioEvents => twilio_events::verify(&parts, keys),
        Provider::StandardWebhooks => standard::verify(&standard::WEBHOOK, &parts, keys),
        Provider::Svix => standard::verify(&standard::SVIX, &parts, keys),
        Provider::Slack => slack::verify(&parts, keys),
        Provider::Shopify(family) => shopify::verify(*family, &parts, keys),
        Provider::Square => square::verify(&parts, keys),
        Provider::Adyen(scheme) => adyen::verify(*scheme, &parts, keys),
        Provider::Postmark => postmark::verify(&parts, keys),
        Provider::Generic(generic) => generic::verify(generic, &parts, keys),
    }?;
    // After the MAC: only the provider learns that its clock is wrong.
    if let Some(signed_at) = authentic.signed_at {
        tolerance.check(signed_at, now)?;
    }
    Ok(Verified {
        provider,
        parts,
        evidence: authentic.evidence,
    })
}
