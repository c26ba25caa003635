//! Secrets at rest, sealed with a key that is derived from the gateway's own.
//!
//! AES-256-GCM with a random nonce. The webhook and the secret's number are
//! authenticated with the text, so that an attacker who can write to the store
//! cannot give one webhook the secret of another.

use data_encoding::BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use secrecy::{ExposeSecret, SecretString};

use crate::secrets::gateway_key::GatewayKey;
use crate::secrets::random::random_bytes;

/// The purpose of the derived key; its number changes with the algorithm.
const PURPOSE: &[u8] = b"onceward.webhook-seal.1";

/// Seals and unseals secrets.
pub(super) struct SecretSealer(LessSafeKey);

/// What a sealed text is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealContext<'a> {
    /// The version of the document that contains it.
    pub(super) version: u32,
    /// The webhook's id.
    pub(super) webhook: &'a str,
    /// The secret's number, which no other secret of the webhook ever had.
    pub(super) serial: u32,
}

/// A sealed text cannot be unsealed. All causes are one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sealed secret cannot be opened: it was changed, or sealed with another key")]
pub(crate) struct UnsealError;

impl SecretSealer {
    pub(super) fn new(secret: &GatewayKey) -> Self {
        let key = secret.hash_for(PURPOSE, &[]);
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("an HMAC has the length of the key");
        Self(LessSafeKey::new(key))
    }

    /// Seals a text, so that it may be stored anywhere.
    pub(super) fn seal(
        &self,
        context: SealContext<'_>,
        text: &SecretString,
    ) -> Result<String, getrandom::Error> {
        let nonce = random_bytes::<NONCE_LEN>()?;
        let mut bytes = text.expose_secret().as_bytes().to_vec();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        self.0
            .seal_in_place_append_tag(nonce_used, context.aad(), &mut bytes)
            .expect("a secret is far shorter than what one nonce may seal");
        let mut sealed = nonce.to_vec();
        sealed.append(&mut bytes);
        Ok(BASE64.encode(&sealed))
    }

    /// Unseals a text that was sealed in this context.
    pub(super) fn unseal(
        &self,
        context: SealContext<'_>,
        sealed: &str,
    ) -> Result<SecretString, UnsealError> {
        let bytes = BASE64.decode(sealed.as_bytes()).map_err(|_| UnsealError)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(UnsealError)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut sealed = sealed.to_vec();
        let opened = self.0.open_in_place(nonce, context.aad(), &mut sealed);
        let opened = opened.map_err(|_| UnsealError)?;
        let text = std::str::from_utf8(opened).map_err(|_| UnsealError)?;
        Ok(SecretString::from(text))
    }
}

impl SealContext<'_> {
    /// Numbers of fixed length come first, so no two contexts have the same bytes.
    fn aad(self) -> Aad<Vec<u8>> {
        let mut bytes = Vec::with_capacity(8 + self.webhook.len());
        bytes.extend(self.version.to_be_bytes());
        bytes.extend(self.serial.to_be_bytes());
        bytes.extend(self.webhook.as_bytes());
        Aad::from(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: SealContext<'_> = SealContext {
        version: 1,
        webhook: "wh_a",
        serial: 0,
    };

    fn sealer() -> SecretSealer {
        SecretSealer::new(&GatewayKey::given(&"a key of sixteen or more".into()))
    }

    fn open(
        sealer: &SecretSealer,
        context: SealContext<'_>,
        sealed: &str,
    ) -> Result<String, UnsealError> {
        let opened = sealer.unseal(context, sealed);
        opened.map(|text| text.expose_secret().to_owned())
    }

    #[test]
    fn a_sealed_secret_opens_in_its_own_context_only() {
        let (sealer, text) = (sealer(), SecretString::from("whsec_canary"));
        let sealed = sealer.seal(CONTEXT, &text).expect("random bytes");
        assert!(!sealed.contains("canary"));
        assert_eq!(
            open(&sealer, CONTEXT, &sealed).as_deref(),
            Ok("whsec_canary")
        );
        for other in [
            SealContext {
                webhook: "wh_b",
                ..CONTEXT
            },
            SealContext {
                serial: 1,
                ..CONTEXT
            },
            SealContext {
                version: 2,
                ..CONTEXT
            },
        ] {
            assert_eq!(open(&sealer, other, &sealed), Err(UnsealError), "{other:?}");
        }
        let another = SecretSealer::new(&GatewayKey::given(&"another key of sixteen".into()));
        assert_eq!(open(&another, CONTEXT, &sealed), Err(UnsealError));
    }

    #[test]
    fn no_changed_byte_opens() {
        let (sealer, text) = (sealer(), SecretString::from("whsec_canary"));
        let sealed = sealer.seal(CONTEXT, &text).expect("random bytes");
        let bytes = BASE64.decode(sealed.as_bytes()).expect("base64");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = BASE64.encode(&changed);
            assert_eq!(
                open(&sealer, CONTEXT, &changed),
                Err(UnsealError),
                "byte {at}"
            );
        }
        for short in [0, 1, NONCE_LEN, bytes.len() - 1] {
            let cut = BASE64.encode(&bytes[..short]);
            assert_eq!(
                open(&sealer, CONTEXT, &cut),
                Err(UnsealError),
                "{short} bytes"
            );
        }
        assert_eq!(open(&sealer, CONTEXT, "not base64"), Err(UnsealError));
    }

    #[test]
    fn sealing_twice_gives_different_texts() {
        let (sealer, text) = (sealer(), SecretString::from("whsec_canary"));
        let one = sealer.seal(CONTEXT, &text).expect("random bytes");
        let other = sealer.seal(CONTEXT, &text).expect("random bytes");
        assert_ne!(one, other);
    }
}
