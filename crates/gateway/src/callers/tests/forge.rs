//! Makes keys and tokens, valid and forged.

use data_encoding::{BASE64, BASE64URL_NOPAD};
use ring::rand::SystemRandom;
use ring::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RsaKeyPair,
};
use serde_json::{Value, json};

use super::{AUDIENCE, ISSUER, NOW_S};

/// A key pair for these tests only: ring generates no RSA keys.
const RSA: &str = include_str!("rsa-for-tests.b64");

/// An issuer's private key.
pub(crate) enum Signer {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair, &'static str),
    Ed(Ed25519KeyPair),
}

impl Signer {
    pub(crate) fn rsa() -> Self {
        let text: String = RSA.split_whitespace().collect();
        let der = BASE64.decode(text.as_bytes()).expect("base64");
        Self::Rsa(RsaKeyPair::from_pkcs8(&der).expect("a key"))
    }

    pub(crate) fn p256() -> Self {
        Self::ec(&signature::ECDSA_P256_SHA256_FIXED_SIGNING, "P-256")
    }

    pub(crate) fn p384() -> Self {
        Self::ec(&signature::ECDSA_P384_SHA384_FIXED_SIGNING, "P-384")
    }

    fn ec(scheme: &'static EcdsaSigningAlgorithm, curve: &'static str) -> Self {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(scheme, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(scheme, der.as_ref(), &random);
        Self::Ec(pair.expect("a key"), curve)
    }

    pub(crate) fn ed25519() -> Self {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Self::Ed(Ed25519KeyPair::from_pkcs8(der.as_ref()).expect("a key"))
    }

    /// The public key as a JWK.
    pub(crate) fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Rsa(pair) => {
                let public = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                let (n, e) = (encode(&public.n), encode(&public.e));
                json!({"kty": "RSA", "kid": kid, "use": "sig", "n": n, "e": e})
            }
            Self::Ec(pair, curve) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "crv": curve, "kid": kid, "x": encode(x), "y": encode(y)})
            }
            Self::Ed(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x})
            }
        }
    }

    /// The public key as bytes that a verifier may mistake for a secret.
    pub(crate) fn public_bytes(&self) -> Vec<u8> {
        match self {
            Self::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Self::Ec(pair, _) => pair.public_key().as_ref().to_vec(),
            Self::Ed(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    fn sign(&self, alg: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                let padding: &dyn signature::RsaEncoding = match alg {
                    "PS256" => &signature::RSA_PSS_SHA256,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut signed = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &random, message, &mut signed)
                    .expect("signed");
                signed
            }
            Self::Ec(pair, _) => pair
                .sign(&random, message)
                .expect("signed")
                .as_ref()
                .to_vec(),
            Self::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with the given header and claims, whatever algorithm fits this key.
    pub(crate) fn token(&self, header: &Value, claims: &Value) -> String {
        self.token_of_texts(&header.to_string(), &claims.to_string())
    }

    /// Like [`Self::token`], from text that need not be JSON.
    pub(crate) fn token_of_texts(&self, header: &str, claims: &str) -> String {
        let message = format!(
            "{}.{}",
            encode(header.as_bytes()),
            encode(claims.as_bytes())
        );
        let alg = if header.contains("PS256") {
            "PS256"
        } else {
            ""
        };
        let signed = self.sign(alg, message.as_bytes());
        format!("{message}.{}", encode(&signed))
    }
}

/// A document with keys.
pub(crate) fn jwks(keys: &[Value]) -> Value {
    json!({ "keys": keys })
}

/// The claims of a valid token.
pub(crate) fn claims() -> Value {
    json!({
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "u-1",
        "tenant_id": "acme",
        "project_id": "shop",
        "scope": "pay refund",
        "iat": NOW_S - 60,
        "nbf": NOW_S - 60,
        "exp": NOW_S + 600,
    })
}

/// The claims with a member changed.
pub(crate) fn claims_with(member: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[member] = value;
    claims
}

/// The claims without a member.
pub(crate) fn claims_without(member: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().expect("an object").remove(member);
    claims
}

pub(crate) fn header(alg: &str, kid: &str) -> Value {
    json!({ "alg": alg, "typ": "JWT", "kid": kid })
}

/// A token signed with a well-known secret.
pub(crate) fn with_secret(secret: &[u8], header: &Value, claims: &Value) -> String {
    let message = format!(
        "{}.{}",
        encode(header.to_string().as_bytes()),
        encode(claims.to_string().as_bytes())
    );
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let signed = ring::hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", encode(signed.as_ref()))
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}
