//! Why a request is refused.
//!
//! The texts are for logs and metrics: they name headers, never their values.

use http::HeaderName;
use thiserror::Error;

/// Why [`crate::verify`] did not accept a request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The webhook has no key to verify with.
    #[error("the webhook has no secret")]
    NoKey,
    /// A header that the provider always sends is missing.
    #[error("the header `{0}` is missing")]
    Missing(HeaderName),
    /// A header that decides something is repeated.
    #[error("the header `{0}` is repeated")]
    Repeated(HeaderName),
    /// A header does not have the provider's form.
    #[error("the header `{0}` is malformed")]
    Malformed(HeaderName),
    /// The request has headers of two families.
    #[error("the header `{0}` belongs to another family")]
    Mixed(HeaderName),
    /// More signatures than [`crate::SIGNATURES_MAX`].
    #[error("there are more than {} signatures", crate::SIGNATURES_MAX)]
    TooManySignatures,
    /// The body does not have the form that the provider signs.
    #[error("the body does not have the form that the provider signs")]
    MalformedBody,
    /// The URL has a query, whose end the signature does not mark.
    #[error("the URL has a query that cannot be separated from the other signed parts")]
    MalformedUrl,
    /// The body has more elements than [`crate::ITEMS_MAX`].
    #[error("the body has more than {} elements", crate::ITEMS_MAX)]
    TooManyItems,
    /// The request names another algorithm than the webhook's.
    #[error("the request names another algorithm than the webhook's")]
    Algorithm,
    /// The signature does not cover the body.
    #[error("the signature does not cover the body")]
    UnsignedBody,
    /// No signature matches the webhook's keys.
    #[error("no signature matches")]
    Signature,
    /// Signed longer ago than the tolerance.
    #[error("signed too long ago")]
    TooOld,
    /// Signed further in the future than the tolerance.
    #[error("signed too far in the future")]
    TooNew,
}

impl Refusal {
    /// One of a few fixed words, for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoKey => "no-key",
            Self::Missing(_) => "missing-header",
            Self::Repeated(_) => "repeated-header",
            Self::Malformed(_) => "malformed",
            Self::Mixed(_) => "mixed-families",
            Self::TooManySignatures => "too-many-signatures",
            Self::MalformedBody => "malformed-body",
            Self::MalformedUrl => "malformed-url",
            Self::TooManyItems => "too-many-items",
            Self::Algorithm => "algorithm",
            Self::UnsignedBody => "unsigned-body",
            Self::Signature => "signature",
            Self::TooOld => "too-old",
            Self::TooNew => "too-new",
        }
    }

    /// Whether the request is malformed, as opposed to well-formed and not
    /// authentic.
    pub fn is_shape(&self) -> bool {
        match self {
            Self::Repeated(_)
            | Self::Malformed(_)
            | Self::Mixed(_)
            | Self::TooManySignatures
            | Self::MalformedBody
            | Self::MalformedUrl
            | Self::TooManyItems => true,
            Self::NoKey
            | Self::Missing(_)
            | Self::Algorithm
            | Self::UnsignedBody
            | Self::Signature
            | Self::TooOld
            | Self::TooNew => false,
        }
    }
}
