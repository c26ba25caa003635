//! The providers, and their properties besides their signatures.

use std::sync::Arc;

use data_encoding::{BASE64, HEXLOWER};
use ring::hmac;
use thiserror::Error;

use crate::key::{SecretEncoding, SecretError, SigningKey};
use crate::providers::adyen::AdyenScheme;
use crate::providers::generic::Generic;
use crate::providers::shopify::ShopifyFamily;
use crate::providers::twilio::TwilioAlgorithm;

/// The provider of a webhook, with its signature scheme. It comes from the
/// configuration or the registry, never from a request.
#[derive(Clone, Debug)]
pub enum Provider {
    /// Stripe.
    Stripe,
    /// GitHub.
    GitHub,
    /// Twilio messaging and voice.
    Twilio(TwilioAlgorithm),
    /// Twilio Event Streams.
    TwilioEvents,
    /// Any sender that follows Standard Webhooks.
    StandardWebhooks,
    /// Standard Webhooks with the header names of Svix.
    Svix,
    /// Slack: events, commands and interactions.
    Slack,
    /// Shopify.
    Shopify(ShopifyFamily),
    /// Square.
    Square,
    /// Adyen.
    Adyen(AdyenScheme),
    /// Postmark, which signs nothing and sends a password.
    Postmark,
    /// A provider from the configuration.
    Generic(Arc<Generic>),
}

/// The content of a 200 to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The content type, when there is a body.
    pub content_type: Option<&'static str>,
    /// The body.
    pub body: &'static str,
}

/// A scheme that the provider does not have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the provider has no such scheme; it has: {}", if .known.is_empty() { "none to choose".to_owned() } else { .known.join(", ") })]
pub struct UnknownScheme {
    /// The provider's schemes, the default first.
    pub known: &'static [&'static str],
}

impl Provider {
    /// The names of the providers that need no configuration.
    pub const BUILT_IN: [&str; 11] = [
        "stripe",
        "github",
        "twilio",
        "twilio-events",
        "standard-webhooks",
        "svix",
        "slack",
        "shopify",
        "square",
        "adyen",
        "postmark",
    ];

    /// The provider of a name, with its default scheme.
    pub fn built_in(name: &str) -> Option<Self> {
        Some(match name {
            "stripe" => Self::Stripe,
            "github" => Self::GitHub,
            "twilio" => Self::Twilio(TwilioAlgorithm::Sha1),
            "twilio-events" => Self::TwilioEvents,
            "standard-webhooks" => Self::StandardWebhooks,
            "svix" => Self::Svix,
            "slack" => Self::Slack,
            "shopify" => Self::Shopify(ShopifyFamily::Webhooks),
            "square" => Self::Square,
            "adyen" => Self::Adyen(AdyenScheme::Payments),
            "postmark" => Self::Postmark,
            _ => return None,
        })
    }

    /// The schemes of this provider, the default first; empty if it has only one.
    pub fn schemes(&self) -> &'static [&'static str] {
        match self {
            Self::Twilio(_) => &["sha1", "sha256"],
            Self::Shopify(_) => &["webhooks", "events"],
            Self::Adyen(_) => &["payments", "platform"],
            _ => &[],
        }
    }

    /// The same provider with one of its [`schemes`](Self::schemes).
    pub fn with_scheme(&self, scheme: &str) -> Result<Self, UnknownScheme> {
        Ok(match (self, scheme) {
            (Self::Twilio(_), "sha1") => Self::Twilio(TwilioAlgorithm::Sha1),
            (Self::Twilio(_), "sha256") => Self::Twilio(TwilioAlgorithm::Sha256),
            (Self::Shopify(_), "webhooks") => Self::Shopify(ShopifyFamily::Webhooks),
            (Self::Shopify(_), "events") => Self::Shopify(ShopifyFamily::Events),
            (Self::Adyen(_), "payments") => Self::Adyen(AdyenScheme::Payments),
            (Self::Adyen(_), "platform") => Self::Adyen(AdyenScheme::Platform),
            _ => {
                return Err(UnknownScheme {
                    known: self.schemes(),
                });
            }
        })
    }

    /// The name, as in the path and in keys.
    pub fn name(&self) -> &str {
        match self {
            Self::Stripe => "stripe",
            Self::GitHub => "github",
            Self::Twilio(_) => "twilio",
            Self::TwilioEvents => "twilio-events",
            Self::StandardWebhooks => "standard-webhooks",
            Self::Svix => "svix",
            Self::Slack => "slack",
            Self::Shopify(_) => "shopify",
            Self::Square => "square",
            Self::Adyen(_) => "adyen",
            Self::Postmark => "postmark",
            Self::Generic(generic) => generic.name(),
        }
    }

    /// Parses a secret, as the provider shows it, to a key.
    pub fn key(&self, secret: &str) -> Result<SigningKey, SecretError> {
        let bytes = self.secret_encoding().decode(secret)?;
        Ok(SigningKey::new(self.algorithm(), &bytes))
    }

    /// A new secret of 256 bits in the provider's form; none if the provider
    /// generates its secrets itself.
    pub fn generate(&self, random: &[u8; 32]) -> Option<String> {
        match self {
            Self::Stripe
            | Self::Twilio(_)
            | Self::TwilioEvents
            | Self::Slack
            | Self::Shopify(_)
            | Self::Square
            | Self::Adyen(_) => None,
            Self::GitHub => Some(HEXLOWER.encode(random)),
            Self::StandardWebhooks | Self::Svix => Some(format!("whsec_{}", BASE64.encode(random))),
            // It becomes part of a URL: hexadecimal needs no escaping there.
            Self::Postmark => Some(format!("postmark:{}", HEXLOWER.encode(random))),
            Self::Generic(generic) => Some(match generic.secret_encoding() {
                SecretEncoding::Base64 => BASE64.encode(random),
                SecretEncoding::Text | SecretEncoding::Hex | SecretEncoding::Credentials => {
                    HEXLOWER.encode(random)
                }
            }),
        }
    }

    /// Whether signatures cover a time, to which the tolerance applies.
    pub fn has_time(&self) -> bool {
        match self {
            Self::Stripe | Self::StandardWebhooks | Self::Svix | Self::Slack => true,
            Self::Generic(generic) => generic.has_time(),
            _ => false,
        }
    }

    /// The content of a 200 to this provider.
    pub fn acknowledgement(&self) -> Acknowledgement {
        match self {
            Self::Twilio(_) => Acknowledgement {
                content_type: Some("text/xml"),
                body: "<Response/>",
            },
            Self::Adyen(_) => Acknowledgement {
                content_type: Some("text/plain"),
                body: "[accepted]",
            },
            _ => Acknowledgement {
                content_type: None,
                body: "",
            },
        }
    }

    /// Whether the provider needs the upstream's answer, as for the next step of a
    /// phone call.
    pub fn sync_by_default(&self) -> bool {
        matches!(self, Self::Twilio(_))
    }

    /// Whether signatures cover the URL, so that the public one must be known.
    pub fn binds_url(&self) -> bool {
        match self {
            Self::Twilio(_) | Self::TwilioEvents | Self::Square => true,
            Self::Generic(generic) => generic.binds_url(),
            _ => false,
        }
    }

    fn secret_encoding(&self) -> SecretEncoding {
        match self {
            // Stripe's begin with `whsec_` too, but are not base64.
            Self::Stripe
            | Self::GitHub
            | Self::Twilio(_)
            | Self::TwilioEvents
            | Self::Slack
            | Self::Shopify(_)
            | Self::Square => SecretEncoding::Text,
            Self::StandardWebhooks | Self::Svix => SecretEncoding::Base64,
            Self::Adyen(_) => SecretEncoding::Hex,
            Self::Postmark => SecretEncoding::Credentials,
            Self::Generic(generic) => generic.secret_encoding(),
        }
    }

    fn algorithm(&self) -> hmac::Algorithm {
        match self {
            Self::Twilio(algorithm) => algorithm.hmac(),
            Self::TwilioEvents => TwilioAlgorithm::Sha1.hmac(),
            Self::Generic(generic) => generic.algorithm(),
            _ => hmac::HMAC_SHA256,
        }
    }
}
