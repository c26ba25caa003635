//! The public keys of an issuer, read from its JWKS document.
//!
//! A key is bound to its algorithms when it is read: its type and curve allow
//! one family, and an `alg` member one of the family. So the header of a token
//! never chooses how a key is used, and symmetric keys are ignored. Signatures
//! are verified by ring, which also refuses RSA keys below 2048 bits.

use std::collections::HashMap;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::Algorithm;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

/// The most keys of one issuer.
pub(super) const KEYS_MAX: usize = 64;
/// The longest key id.
pub(in super::super) const KID_BYTES_MAX: usize = 128;
/// The length of an RSA modulus: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// The keys of one issuer that may verify signatures.
#[derive(Debug, Default)]
pub(in super::super) struct KeySet {
    named: HashMap<String, Vec<PublicKey>>,
    unnamed: Vec<PublicKey>,
}

/// Why a document is not a set of keys.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum KeySetError {
    /// Not the JSON of a JWKS document.
    #[error("the document is not a JWKS document")]
    Malformed(#[source] serde_json::Error),
    /// More keys than the maximum.
    #[error("the document has {0} keys; the maximum is 64")]
    TooMany(usize),
    /// No key can verify a signature.
    #[error("the document has no key that can verify a signature")]
    Empty,
}

impl KeySet {
    /// Reads a document. Keys that are not for verifying or are of an unknown
    /// type are skipped; a document without any other key is an error.
    pub(in super::super) fn parse(document: &[u8]) -> Result<Self, KeySetError> {
        let document: JwksDocument =
            serde_json::from_slice(document).map_err(KeySetError::Malformed)?;
        if document.keys.len() > KEYS_MAX {
            return Err(KeySetError::TooMany(document.keys.len()));
        }
        let mut set = Self::default();
        for jwk in document.keys {
            let Ok(jwk) = Jwk::deserialize(jwk) else {
                continue;
            };
            let Some(key) = PublicKey::read(&jwk) else {
                continue;
            };
            match jwk.kid {
                None => set.unnamed.push(key),
                Some(kid) if kid.len() > KID_BYTES_MAX => {}
                Some(kid) => set.named.entry(kid).or_default().push(key),
            }
        }
        if set.named.is_empty() && set.unnamed.is_empty() {
            return Err(KeySetError::Empty);
        }
        Ok(set)
    }

    /// The key for a token with this header, if exactly one fits. A token
    /// without a key id, or with an id that several keys share, has a key only
    /// if a single one fits its algorithm.
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
    material: KeyMaterial,
    /// The one algorithm that the document allows, if it names one.
    bound: Option<Algorithm>,
}

#[derive(Debug)]
enum KeyMaterial {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    P256(UnparsedPublicKey<Vec<u8>>),
    P384(UnparsedPublicKey<Vec<u8>>),
    Ed25519(UnparsedPublicKey<Vec<u8>>),
}

impl PublicKey {
    /// `None` if it is not a key that verifies signatures.
    fn read(jwk: &Jwk) -> Option<Self> {
        if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        if let Some(operations) = &jwk.key_ops
            && !operations.iter().any(|operation| operation == "verify")
        {
            return None;
        }
        let material = KeyMaterial::read(jwk)?;
        let bound = match &jwk.alg {
            None => None,
            Some(name) => Some(Algorithm::from_str(name).ok()?),
        };
        let key = Self { material, bound };
        // A key whose `alg` does not fit its type verifies nothing.
        bound.is_none_or(|alg| key.fits(alg)).then_some(key)
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.bound.is_none_or(|bound| bound == algorithm) && self.material.fits(algorithm)
    }

    /// Whether the signature was made with this key. `false` also for an
    /// algorithm to which the key is not bound.
    pub(in super::super) fn verifies(
        &self,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        self.fits(algorithm) && self.material.verifies(algorithm, message, signature)
    }
}

impl KeyMaterial {
    fn read(jwk: &Jwk) -> Option<Self> {
        match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let n = number(jwk.n.as_deref()?)?;
                let e = number(jwk.e.as_deref()?)?;
                let good = RSA_BYTES.contains(&n.len());
                good.then_some(Self::Rsa(RsaPublicKeyComponents { n, e }))
            }
            ("EC", Some("P-256")) => {
                let point = point(jwk, 32)?;
                let scheme = &signature::ECDSA_P256_SHA256_FIXED;
                Some(Self::P256(UnparsedPublicKey::new(scheme, point)))
            }
            ("EC", Some("P-384")) => {
                let point = point(jwk, 48)?;
                let scheme = &signature::ECDSA_P384_SHA384_FIXED;
                Some(Self::P384(UnparsedPublicKey::new(scheme, point)))
            }
            ("OKP", Some("Ed25519")) => {
                let x = decode(jwk.x.as_deref()?)?;
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

/// An unsigned number, without the leading zeros that some issuers send.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = decode(text)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Some(bytes[zeros..].to_vec())
}

/// An uncompressed point, its coordinates padded to the curve's length.
fn point(jwk: &Jwk, length: usize) -> Option<Vec<u8>> {
    let mut point = vec![0x04];
    for coordinate in [jwk.x.as_deref()?, jwk.y.as_deref()?] {
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
struct JwksDocument {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
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
