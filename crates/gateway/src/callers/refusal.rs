//! Why a caller is refused: one text for the client, another for the log.
//!
//! The client's text says what an honest client can do: send a credential, get
//! a new one, set the clock. Only the log says which check failed and whether a
//! key's id exists.

use onceward_core::caller::CallerError;
use onceward_http::problem::{Code, Problem};

/// The `Retry-After` of refusals that pass by themselves, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    /// The request has no credential.
    #[error("no credential was sent")]
    Missing,
    /// The credential is not accepted.
    #[error("{0}")]
    Refused(Refusal),
    /// The caller is authenticated and may not use the route.
    #[error("{0}")]
    Forbidden(Prohibition),
    /// Unkey says that the key's own rate limit is used up.
    #[error("the key's own rate limit is used up")]
    TooMany,
    /// The issuer, Unkey or OpenBao does not answer, so the credential can be
    /// neither accepted nor refused.
    #[error("the credential cannot be verified now")]
    Unavailable,
}

/// Why a credential is not accepted. The texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Two kinds of credentials in one request.
    #[error("more than one credential was sent")]
    Several,
    /// One header in several lines.
    #[error("the credential's header was sent more than once")]
    Repeated,
    /// Not `Authorization: Bearer`.
    #[error("the scheme of Authorization is not Bearer")]
    Scheme,
    /// Longer than the maximum.
    #[error("the credential is too long")]
    TooLong,
    /// Not in the form of such a credential.
    #[error("the credential is malformed: {0}")]
    Malformed(&'static str),
    /// No part of the configuration accepts such a credential.
    #[error("such credentials are not accepted here: {0}")]
    NotTaken(&'static str),
    /// No API key has this id.
    #[error("there is no such API key")]
    UnknownKey,
    /// The id exists and the secret is wrong.
    #[error("the API key's secret is wrong")]
    WrongSecret,
    /// An operator has revoked the key.
    #[error("the API key is revoked")]
    Revoked,
    /// The key or token has expired.
    #[error("the credential has expired")]
    Expired,
    /// The token is valid only later.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// No configured issuer has this name.
    #[error("the token's issuer is not configured")]
    Issuer,
    /// The token is for another audience.
    #[error("the token's audience is not the configured one")]
    Audience,
    /// The algorithm is not configured for the issuer.
    #[error("the token's algorithm is not allowed for its issuer")]
    Algorithm,
    /// The token requires extensions; the gateway supports none.
    #[error("the token has critical extensions")]
    Critical,
    /// No key of the issuer fits the token.
    #[error("the issuer has no key for the token")]
    NoKey,
    /// The signature was not made with the key.
    #[error("the signature is wrong")]
    Signature,
    /// A claim is missing or has the wrong type.
    #[error("the claim for {0} is missing or of the wrong type")]
    Claim(&'static str),
    /// The names in the credential are not allowed.
    #[error("the credential does not name a caller: {0}")]
    Caller(CallerError),
    /// Signed too long ago, or in the future.
    #[error("the signature's time is too far from the gateway's clock")]
    Time,
    /// Unkey answers that the key is not valid.
    #[error("Unkey answers that the key is not valid: {0}")]
    Unkey(UnkeyCode),
}

/// Unkey's code for a key that is not valid. Undocumented codes are one variant:
/// they come from outside and would go into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnkeyCode {
    /// The key does not exist, or not for this root key.
    #[error("NOT_FOUND")]
    NotFound,
    /// The key is disabled.
    #[error("DISABLED")]
    Disabled,
    /// The key has expired.
    #[error("EXPIRED")]
    Expired,
    /// A code that is not in Unkey's documentation.
    #[error("undocumented code")]
    Other,
}

/// Why an authenticated caller may not use a route. The texts are for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Prohibition {
    /// The route has the scope `project`, and the caller has no project.
    #[error("the caller has no project, and the route requires one")]
    NoProject,
    /// The route does not allow this authentication method.
    #[error("the route does not allow this authentication method")]
    KnownBy,
    /// The route does not allow this subject.
    #[error("the route does not allow this subject")]
    Subject,
    /// A scope is missing.
    #[error("the caller lacks a scope that the route requires")]
    Scope,
    /// Unkey answers that the key lacks permissions or has no credits left.
    #[error("Unkey answers that the key may not be used")]
    Unkey,
}

impl From<Refusal> for AuthError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Prohibition> for AuthError {
    fn from(prohibition: Prohibition) -> Self {
        Self::Forbidden(prohibition)
    }
}

impl AuthError {
    /// The problem that the client receives.
    pub(crate) fn problem(&self) -> Problem {
        match self {
            Self::Missing => Problem::new(
                Code::Unauthenticated,
                "Send a credential in Authorization: Bearer, or in X-Api-Key.",
            ),
            Self::Refused(refusal) => Problem::new(Code::Unauthenticated, refusal.detail()),
            Self::Forbidden(prohibition) => Problem::new(Code::Forbidden, prohibition.detail()),
            Self::TooMany => Problem::new(
                Code::TooManyRequests,
                "The key's rate limit is used up. Send the same request again later.",
            )
            .with_retry_after(RETRY_AFTER_S),
            Self::Unavailable => Problem::new(
                Code::AuthUnavailable,
                "The credential cannot be verified now. Nothing was forwarded; send the same request again.",
            )
            .with_retry_after(RETRY_AFTER_S),
        }
    }
}

impl Refusal {
    /// The client's text.
    fn detail(&self) -> &'static str {
        match self {
            Self::Several | Self::Repeated => "Send exactly one credential.",
            Self::Scheme => "Authorization must begin with Bearer.",
            Self::TooLong | Self::Malformed(_) => "The credential is malformed.",
            Self::Expired => "The credential has expired.",
            Self::NotYetValid => "The credential is not valid yet.",
            Self::Time => "The signature's time is too far from the gateway's clock.",
            Self::NotTaken(_)
            | Self::UnknownKey
            | Self::WrongSecret
            | Self::Revoked
            | Self::Issuer
            | Self::Audience
            | Self::Algorithm
            | Self::Critical
            | Self::NoKey
            | Self::Signature
            | Self::Claim(_)
            | Self::Caller(_)
            | Self::Unkey(_) => "The credential is not accepted.",
        }
    }
}

impl Prohibition {
    /// The client's text.
    fn detail(self) -> &'static str {
        match self {
            Self::NoProject => "This needs a credential that belongs to a project.",
            Self::KnownBy | Self::Subject | Self::Scope | Self::Unkey => {
                "The caller may not do this."
            }
        }
    }
}
