//! The public keys of an issuer, as its JWKS document says them.
//!
//! A key is bound to what it may verify when it is read: its type and curve
//! leave one family of algorithms, and an `alg` member one of them. So the
//! header of a token never chooses how a key is used, and a symmetric key in
//! the document is no key at all. Verification is ring's, which also refuses
//! RSA keys below 2048 bits.

use std::collections::HashMap;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::Algorithm;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

/// The most keys of one issuer.
pub(super) const KEYS_MAX: usize = 64;
/// The longest name of a key.
pub(in super::super) const KID_BYTES_MAX: usize = 128;
/// RSA keys of 2048 bits to 8192.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// The keys of one issuer that may verify signatures.
#[derive(Debug, Default)]
pub(in super::super) struct KeySet {
    named: HashMap<String, Vec<PublicKey>>,
    unnamed: Vec<PublicKey>,
}

/// Why a document is not a set of keys.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum SetError {
    /// Not the JSON that it should be.
    #[error("it is not a JWKS document")]
    Malformed(#[source] serde_json::Error),
    /// More keys than any issuer has.
    #[error("it holds {0} keys where at most 64 are right")]
    TooMany(usize),
    /// Nothing in it can verify a signature.
    #[error("it holds no key that can verify a signature")]
    Empty,
}

impl KeySet {
    /// Reads a document. Keys that are not for verifying, or that are of a kind
    /// we do not know, are passed over; a set without any other is none.
    pub(in super::super) fn parse(document: &[u8]) -> Result<Self, SetError> {
        let document: Document = serde_json::from_slice(document).map_err(SetError::Malformed)?;
        if document.keys.len() > KEYS_MAX {
            return Err(SetError::TooMany(document.keys.len()));
        }
        let mut set = Self::default();
        for raw in document.keys {
            let Ok(raw) = Raw::deserialize(raw) else {
                continue;
            };
            let Some(key) = PublicKey::read(&raw) else {
                continue;
            };
            match raw.kid {
                None => set.unnamed.push(key),
                Some(kid) if kid.len() > KID_BYTES_MAX => {}
                Some(kid) => set.named.entry(kid).or_default().push(key),
            }
        }
        if set.named.is_empty() && set.unnamed.is_empty() {
            return Err(SetError::Empty);
        }
        Ok(set)
    }

    /// The key for a token with such a header. A token that names no key gets
    /// one only where there is no choice; so does one whose key's name is there
    /// twice.
    pub(in super::super) fn find(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Option<&PublicKey> {
        match kid {
            Some(kid) => only(self.named.get(kid)?.iter(), algorithm),
            None => {
                let all = self.named.values().flatten().chain(&self.unnamed);
                only(all, algorithm)
            }
        }
    }
}

fn only<'a>(
    keys: impl Iterator<Item = &'a PublicKey>,
    algorithm: Algorithm,
) -> Option<&'a PublicKey> {
    let mut fitting = keys.filter(|key| key.fits(algorithm));
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

/// A key that may verify signatures of one family of algorithms.
#[derive(Debug)]
pub(in super::super) struct PublicKey {
    material: Material,
    /// The one algorithm that the document allows, if it names one.
    bound: Option<Algorithm>,
}

#[derive(Debug)]
enum Material {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    P256(UnparsedPublicKey<Vec<u8>>),
    P384(UnparsedPublicKey<Vec<u8>>),
    Ed25519(UnparsedPublicKey<Vec<u8>>),
}

impl PublicKey {
    /// `None` for what is not a key that verifies signatures.
    fn read(raw: &Raw) -> Option<Self> {
        if raw.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        if let Some(operations) = &raw.key_ops
            && !operations.iter().any(|operation| operation == "verify")
        {
            return None;
        }
        let material = Material::read(raw)?;
        let bound = match &raw.alg {
            None => None,
            Some(name) => Some(Algorithm::from_str(name).ok()?),
        };
        let key = Self { material, bound };
        // An `alg` that its own type cannot have makes a key useless.
        bound.is_none_or(|alg| key.fits(alg)).then_some(key)
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.bound.is_none_or(|bound| bound == algorithm) && self.material.fits(algorithm)
    }

    /// Whether the signature is this key's. `false` also for an algorithm that
    /// is not the key's.
    pub(in super::super) fn verifies(
        &self,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        self.fits(algorithm) && self.material.verifies(algorithm, message, signature)
    }
}

impl Material {
    fn read(raw: &Raw) -> Option<Self> {
        match (raw.kty.as_str(), raw.crv.as_deref()) {
            ("RSA", _) => {
                let n = number(raw.n.as_deref()?)?;
                let e = number(raw.e.as_deref()?)?;
                let good = RSA_BYTES.contains(&n.len());
                good.then_some(Self::Rsa(RsaPublicKeyComponents { n, e }))
            }
            ("EC", Some("P-256")) => {
                let point = point(raw, 32)?;
                let scheme = &signature::ECDSA_P256_SHA256_FIXED;
                Some(Self::P256(UnparsedPublicKey::new(scheme, point)))
            }
            ("EC", Some("P-384")) => {
                let point = point(raw, 48)?;
                let scheme = &signature::ECDSA_P384_SHA384_FIXED;
                Some(Self::P384(UnparsedPublicKey::new(scheme, point)))
            }
            ("OKP", Some("Ed25519")) => {
                let x = decode(raw.x.as_deref()?)?;
                let scheme = &signature::ED25519;
                (x.len() == 32).then(|| Self::Ed25519(UnparsedPublicKey::new(scheme, x)))
            }
            _ => None,
        }
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Rsa(_) => rsa_scheme(algorithm).is_some(),
            Self::P256(_) => algorithm == Algorithm::ES256,
            Self::P384(_) => algorithm == Algorithm::ES384,
            Self::Ed25519(_) => algorithm == Algorithm::EdDSA,
        }
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa(key) => rsa_scheme(algorithm)
                .is_some_and(|scheme| key.verify(scheme, message, signature).is_ok()),
            Self::P256(key) | Self::P384(key) | Self::Ed25519(key) => {
                key.verify(message, signature).is_ok()
            }
        }
    }
}

fn rsa_scheme(algorithm: Algorithm) -> Option<&'static signature::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

/// An unsigned number, without the zeros that some issuers put before it.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = decode(text)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Some(bytes[zeros..].to_vec())
}

/// An uncompressed point, its coordinates filled up to the curve's length.
fn point(raw: &Raw, length: usize) -> Option<Vec<u8>> {
    let mut point = vec![0x04];
    for coordinate in [raw.x.as_deref()?, raw.y.as_deref()?] {
        let bytes = number(coordinate)?;
        let missing = length.checked_sub(bytes.len())?;
        point.extend(std::iter::repeat_n(0, missing));
        point.extend(bytes);
    }
    Some(point)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64URL_NOPAD.decode(text.as_bytes()).ok()
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Raw {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}
