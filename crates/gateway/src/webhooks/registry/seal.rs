//! Secrets at rest: sealed with a key that is made of the gateway's own.
//!
//! AES-256-GCM with a random nonce. What a text is sealed for (which webhook,
//! which of its secrets) is authenticated with it, so that who can write to the
//! store cannot give one webhook the secret of another.

use data_encoding::BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use secrecy::{ExposeSecret, SecretString};

use crate::secrets::gateway_key::Secret;

/// What the key is for; its number changes with the way of sealing.
const PURPOSE: &[u8] = b"onceward.webhook-seal.1";

/// Seals and opens.
pub(super) struct Seal(LessSafeKey);

/// What a text is sealed for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label<'a> {
    /// The version of the document that it stands in.
    pub(super) version: u32,
    /// Whose secret it is.
    pub(super) webhook: &'a str,
    /// Which of its secrets: a number that no other ever had.
    pub(super) serial: u32,
}

/// Why a sealed text does not open. Which of the two is nobody's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sealed secret does not open: it was changed, or sealed with another key")]
pub(crate) struct Broken;

impl Seal {
    pub(super) fn new(secret: &Secret) -> Self {
        let key = secret.hash_for(PURPOSE, &[]);
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("an HMAC has the length of the key");
        Self(LessSafeKey::new(key))
    }

    /// The text as it may be kept anywhere.
    pub(super) fn seal(
        &self,
        label: Label<'_>,
        text: &SecretString,
    ) -> Result<String, getrandom::Error> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce)?;
        let mut bytes = text.expose_secret().as_bytes().to_vec();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        self.0
            .seal_in_place_append_tag(nonce_used, label.aad(), &mut bytes)
            .expect("a secret is far shorter than what one nonce may seal");
        let mut sealed = nonce.to_vec();
        sealed.append(&mut bytes);
        Ok(BASE64.encode(&sealed))
    }

    /// The text that was sealed for this.
    pub(super) fn open(&self, label: Label<'_>, sealed: &str) -> Result<SecretString, Broken> {
        let bytes = BASE64.decode(sealed.as_bytes()).map_err(|_| Broken)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(Broken)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut sealed = sealed.to_vec();
        let opened = self.0.open_in_place(nonce, label.aad(), &mut sealed);
        let opened = opened.map_err(|_| Broken)?;
        let text = std::str::from_utf8(opened).map_err(|_| Broken)?;
        Ok(SecretString::from(text))
    }
}

impl Label<'_> {
    /// Numbers of fixed length come first, so no two labels are the same bytes.
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

    const LABEL: Label<'_> = Label {
        version: 1,
        webhook: "wh_a",
        serial: 0,
    };

    fn seal() -> Seal {
        Seal::new(&Secret::given(&"a key of sixteen or more".into()))
    }

    fn open(seal: &Seal, label: Label<'_>, sealed: &str) -> Result<String, Broken> {
        let opened = seal.open(label, sealed);
        opened.map(|text| text.expose_secret().to_owned())
    }

    #[test]
    fn what_was_sealed_opens_for_the_same_and_nothing_else() {
        let (seal, text) = (seal(), SecretString::from("whsec_canary"));
        let sealed = seal.seal(LABEL, &text).expect("random bytes");
        assert!(!sealed.contains("canary"));
        assert_eq!(open(&seal, LABEL, &sealed).as_deref(), Ok("whsec_canary"));
        for other in [
            Label {
                webhook: "wh_b",
                ..LABEL
            },
            Label { serial: 1, ..LABEL },
            Label {
                version: 2,
                ..LABEL
            },
        ] {
            assert_eq!(open(&seal, other, &sealed), Err(Broken), "{other:?}");
        }
        let another = Seal::new(&Secret::given(&"another key of sixteen".into()));
        assert_eq!(open(&another, LABEL, &sealed), Err(Broken));
    }

    #[test]
    fn no_changed_byte_opens() {
        let (seal, text) = (seal(), SecretString::from("whsec_canary"));
        let sealed = seal.seal(LABEL, &text).expect("random bytes");
        let bytes = BASE64.decode(sealed.as_bytes()).expect("base64");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = BASE64.encode(&changed);
            assert_eq!(open(&seal, LABEL, &changed), Err(Broken), "byte {at}");
        }
        for short in [0, 1, NONCE_LEN, bytes.len() - 1] {
            let cut = BASE64.encode(&bytes[..short]);
            assert_eq!(open(&seal, LABEL, &cut), Err(Broken), "{short} bytes");
        }
        assert_eq!(open(&seal, LABEL, "not base64"), Err(Broken));
    }

    #[test]
    fn the_same_secret_is_never_sealed_alike() {
        let (seal, text) = (seal(), SecretString::from("whsec_canary"));
        let one = seal.seal(LABEL, &text).expect("random bytes");
        let other = seal.seal(LABEL, &text).expect("random bytes");
        assert_ne!(one, other);
    }
}
