//! The credential of a request: exactly one, in one header line.
//!
//! With two credentials the gateway and the upstream could each use a different
//! one, so they are refused, as is a header in two lines. The form of a
//! credential decides which verifier receives it; no other verifier sees it.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName};

use super::refusal::{AuthError, Refusal};

/// The longest credential, in bytes.
pub(super) const CREDENTIAL_BYTES_MAX: usize = 8 * 1024;

/// The prefix of the gateway's own API keys.
pub(super) const API_KEY_PREFIX: &str = "ow_";

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The header of the scheduler's signature.
pub(super) const SCHEDULE_SIGNATURE: HeaderName = HeaderName::from_static("x-schedule-signature");

/// A credential, by its verifier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Credential<'a> {
    /// An API key of this gateway.
    ApiKey(&'a str),
    /// An issuer's token.
    Token(&'a str),
    /// A key of a key service (Unkey).
    ForeignKey(&'a str),
    /// The scheduler's signature.
    Schedule(&'a str),
}

/// Reads the one credential of a request.
pub(super) fn read(headers: &HeaderMap) -> Result<Credential<'_>, AuthError> {
    let authorization = one_line(headers, &AUTHORIZATION)?;
    let api_key = one_line(headers, &API_KEY)?;
    let schedule = one_line(headers, &SCHEDULE_SIGNATURE)?;
    let credential = match (authorization, api_key, schedule) {
        (None, None, None) => return Err(AuthError::Missing),
        (Some(line), None, None) => by_look(bearer(line)?),
        (None, Some(line), None) => match by_look(line) {
            Credential::Token(_) => return Err(Refusal::NotTaken("a token in X-Api-Key").into()),
            credential => credential,
        },
        (None, None, Some(line)) => return Ok(Credential::Schedule(line)),
        _ => return Err(Refusal::Several.into()),
    };
    match credential {
        Credential::ApiKey(text) | Credential::Token(text) | Credential::ForeignKey(text)
            if !is_token68(text) =>
        {
            Err(Refusal::Malformed("characters").into())
        }
        credential => Ok(credential),
    }
}

fn one_line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(Refusal::Repeated);
    }
    if line.len() > CREDENTIAL_BYTES_MAX {
        return Err(Refusal::TooLong);
    }
    let line = line.to_str();
    line.map(Some).map_err(|_| Refusal::Malformed("characters"))
}

/// The text after `Bearer` and its blanks.
fn bearer(line: &str) -> Result<&str, Refusal> {
    let (scheme, rest) = line.split_once(' ').ok_or(Refusal::Scheme)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Refusal::Scheme);
    }
    Ok(rest.trim_start_matches(' '))
}

/// Tokens contain dots and keys do not, so that no token is ever sent to Unkey.
fn by_look(text: &str) -> Credential<'_> {
    if text.starts_with(API_KEY_PREFIX) {
        Credential::ApiKey(text)
    } else if text.contains('.') {
        Credential::Token(text)
    } else {
        Credential::ForeignKey(text)
    }
}

/// The characters that RFC 6750 allows after `Bearer`. A comma is not among
/// them, so that two lines joined by a proxy are not one credential.
fn is_token68(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    !body.is_empty() && body.bytes().all(good)
}
