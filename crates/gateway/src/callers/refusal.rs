//! Why a caller is not let in: one text for the client, another for the log.
//!
//! The client learns what an honest one needs to help itself: send a
//! credential, get a new one, set the clock. Which check failed, and whether a
//! key's id exists at all, stands only in the log.

use onceward_core::caller::CallerError;
use onceward_http::problem::{Code, Problem};

/// How soon a client may ask again when callers cannot be verified.
const RETRY_AFTER_S: u64 = 1;

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    /// There is no credential.
    #[error("no credential was sent")]
    Missing,
    /// There is one, and it makes nobody known.
    #[error("{0}")]
    Refused(Refusal),
    /// The caller is known and may not do this.
    #[error("{0}")]
    Forbidden(Prohibition),
    /// The caller is known and asks too often, by the word of who knows it.
    #[error("the key's own rate limit is used up")]
    TooMany,
    /// Whoever knows callers does not answer. Nobody is let in on a guess.
    #[error("the credential cannot be verified now")]
    Unavailable,
}

/// Why a credential makes nobody known. The words are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Two kinds of credentials at once.
    #[error("more than one credential was sent")]
    Several,
    /// One header came in several lines.
    #[error("the credential's header came more than once")]
    Repeated,
    /// Not `Authorization: Bearer`.
    #[error("Authorization has another scheme than Bearer")]
    Scheme,
    /// Longer than any credential may be.
    #[error("the credential is too long")]
    TooLong,
    /// Not of the form that it should have.
    #[error("the credential is malformed: {0}")]
    Malformed(&'static str),
    /// Nothing is configured that takes such a credential.
    #[error("such credentials are not taken here: {0}")]
    NotTaken(&'static str),
    /// No key of ours has this id.
    #[error("there is no such API key")]
    UnknownKey,
    /// The id is right and the secret is not.
    #[error("the API key's secret is wrong")]
    WrongSecret,
    /// It was taken back.
    #[error("the API key is revoked")]
    Revoked,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not come.
    #[error("it is not valid yet")]
    NotYetValid,
    /// Nobody configured is called that.
    #[error("the token's issuer is not one of ours")]
    Issuer,
    /// The token is for somebody else.
    #[error("the token's audience is not ours")]
    Audience,
    /// The issuer's tokens may not be signed with that.
    #[error("the token's algorithm is not one of its issuer's")]
    Algorithm,
    /// The token demands what we do not understand.
    #[error("the token has critical extensions")]
    Critical,
    /// The issuer has no such key.
    #[error("the issuer has no key for the token")]
    NoKey,
    /// The signature is not the key's.
    #[error("the signature is wrong")]
    Signature,
    /// A claim is missing or not what it should be.
    #[error("the claim for {0} is missing or of the wrong type")]
    Claim(&'static str),
    /// What it says does not name a caller.
    #[error("it does not name a caller: {0}")]
    Caller(CallerError),
    /// Signed too long ago, or in the future.
    #[error("the signature's time is too far from ours")]
    Time,
    /// Unkey says no.
    #[error("Unkey does not know it as valid: {0}")]
    Unkey(UnkeyCode),
}

/// What Unkey says of a key that is not valid. Its unknown words are one here,
/// since they come from outside and go into logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnkeyCode {
    /// There is none, or not for us.
    #[error("NOT_FOUND")]
    NotFound,
    /// Somebody switched it off.
    #[error("DISABLED")]
    Disabled,
    /// Its time is over.
    #[error("EXPIRED")]
    Expired,
    /// A word that was not documented when this was written.
    #[error("a code that is not known here")]
    Other,
}

/// Why a known caller may not do this. The words are for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Prohibition {
    /// The route is a project's, and the caller has none.
    #[error("the caller has no project, and the route belongs to projects")]
    NoProject,
    /// The route takes callers that are known in another way.
    #[error("the route does not take callers known in this way")]
    KnownBy,
    /// The route takes other subjects.
    #[error("the route does not take this subject")]
    Subject,
    /// A scope is missing.
    #[error("the caller lacks a scope that the route demands")]
    Scope,
    /// Unkey says that the key may not, or has nothing left.
    #[error("Unkey says that the key may not be used")]
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
    /// The answer to the client.
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
    /// What the client is told.
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
    /// What the client is told.
    fn detail(self) -> &'static str {
        match self {
            Self::NoProject => "This needs a credential that belongs to a project.",
            Self::KnownBy | Self::Subject | Self::Scope | Self::Unkey => {
                "The caller may not do this."
            }
        }
    }
}
