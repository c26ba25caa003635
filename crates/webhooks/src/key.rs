//! The keys of a webhook, and the comparison of their MACs with a request's.

use std::fmt;

use data_encoding::{BASE64, BASE64_NOPAD, HEXLOWER_PERMISSIVE};
use ring::hmac;
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;

/// The most keys of a webhook: two during a rotation, and some for a rotation
/// that went wrong.
pub const KEYS_MAX: usize = 5;

/// The most signatures of one request.
pub const SIGNATURES_MAX: usize = 10;

/// A parsed secret, to verify or sign with. It cannot be read back, and `Debug`
/// does not show it.
#[derive(Clone)]
pub struct SigningKey {
    key: hmac::Key,
    /// The MAC of the secret under itself, to compare with the secret that a
    /// request shows (basic authentication).
    proof: hmac::Tag,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

impl SigningKey {
    pub(crate) fn new(algorithm: hmac::Algorithm, secret: &[u8]) -> Self {
        let key = hmac::Key::new(algorithm, secret);
        let proof = hmac::sign(&key, secret);
        Self { key, proof }
    }

    /// The MAC over the pieces, one after the other.
    pub(crate) fn tag(&self, pieces: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        for piece in pieces {
            context.update(piece);
        }
        context.sign()
    }
}

/// Whether any key made any of the tags over the pieces. Every pair is compared,
/// so that the time does not reveal which one matched.
pub(crate) fn signed_by_any(keys: &[SigningKey], pieces: &[&[u8]], tags: &[Vec<u8>]) -> Choice {
    let mut found = Choice::from(0);
    for key in keys {
        let made = key.tag(pieces);
        for tag in tags {
            found |= made.as_ref().ct_eq(tag);
        }
    }
    found
}

/// Whether the secret is that of any key. MACs are compared, so that the time
/// reveals neither content nor length.
pub(crate) fn known_by_any(keys: &[SigningKey], secret: &[u8]) -> Choice {
    let mut found = Choice::from(0);
    for key in keys {
        found |= key.tag(&[secret]).as_ref().ct_eq(key.proof.as_ref());
    }
    found
}

/// Why the text of a secret is not valid. It says what would be right, and never
/// shows the text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretError {
    /// Nothing was given.
    #[error("the secret is empty")]
    Empty,
    /// It begins or ends with white space, such as the line end of a file.
    #[error("the secret begins or ends with white space")]
    Surrounded,
    /// Not base64.
    #[error("the secret must be base64, with or without `whsec_` before it")]
    NotBase64,
    /// Not hexadecimal digits.
    #[error("the secret must be hexadecimal digits, an even number of them")]
    NotHex,
    /// Not a name and a password.
    #[error("the secret must be `user:password`")]
    NotCredentials,
    /// A key of the asymmetric scheme.
    #[error("the secret must be a symmetric one (`whsec_…`); `whsk_…` and `whpk_…` are not")]
    Asymmetric,
}

/// How the text of a secret encodes its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretEncoding {
    Text,
    Base64,
    Hex,
    /// `user:password`, which is compared, not signed with.
    Credentials,
}

impl SecretEncoding {
    pub(crate) fn decode(self, secret: &str) -> Result<Vec<u8>, SecretError> {
        if secret.is_empty() {
            return Err(SecretError::Empty);
        }
        if secret.trim() != secret {
            return Err(SecretError::Surrounded);
        }
        let bytes = match self {
            Self::Text => secret.as_bytes().to_vec(),
            Self::Base64 => base64(secret)?,
            Self::Hex => HEXLOWER_PERMISSIVE
                .decode(secret.as_bytes())
                .map_err(|_| SecretError::NotHex)?,
            Self::Credentials => match secret.split_once(':') {
                Some((user, password)) if !user.is_empty() && !password.is_empty() => {
                    secret.as_bytes().to_vec()
                }
                _ => return Err(SecretError::NotCredentials),
            },
        };
        if bytes.is_empty() {
            Err(SecretError::Empty)
        } else {
            Ok(bytes)
        }
    }
}

fn base64(secret: &str) -> Result<Vec<u8>, SecretError> {
    if secret.starts_with("whsk_") || secret.starts_with("whpk_") {
        return Err(SecretError::Asymmetric);
    }
    let text = secret.strip_prefix("whsec_").unwrap_or(secret).as_bytes();
    BASE64
        .decode(text)
        .or_else(|_| BASE64_NOPAD.decode(text))
        .map_err(|_| SecretError::NotBase64)
}
