//! A webhook of the gateway from the side of the provider: its path and its signatures.
//!
//! It signs as Stripe does: the id of an event is in its body, and the signature covers the body and
//! a time. Every event is signed by itself, because every event has other bytes. A load generator
//! that cannot sign takes the signatures of the first events from a file.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use ring::hmac;

/// The name of the provider in the gateway.
pub(super) const PROVIDER: &str = "stripe";
/// An event with a blank id, which the sample upstream takes for a payment.
pub(super) const EVENT: &str = r#"{"id":"evt_00000000-0000-0000-0000-000000000000","object":"event","type":"charge.succeeded","amount":4200,"currency":"EUR"}"#;
/// The digits of a signature.
pub(super) const SIGNATURE_BYTES: usize = 64;
pub(super) const SIGNATURE_BLANK: &str =
    "0000000000000000000000000000000000000000000000000000000000000000";

/// The path for events, and the key that signs them.
pub(super) struct Webhook {
    path: String,
    key: hmac::Key,
}

/// Without the key.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Webhook").field(&self.path).finish()
    }
}

/// When an event was signed: seconds since 1970 in decimal digits.
pub(super) struct SigningTime(pub(super) String);

impl SigningTime {
    pub(super) fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        SigningTime(since_1970.unwrap_or_default().as_secs().to_string())
    }

    /// The line in a request's head, with a blank signature.
    pub(super) fn signature_header(&self) -> String {
        format!("Stripe-Signature: t={},v1={SIGNATURE_BLANK}\r\n", self.0)
    }
}

impl Webhook {
    pub(super) fn new(id: &str, secret: &str) -> Self {
        Webhook {
            path: format!("/api/v1/webhooks/{PROVIDER}/{id}"),
            key: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The signature of an event in hexadecimal digits.
    pub(super) fn sign(&self, time: &SigningTime, body: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut signed = hmac::Context::with_key(&self.key);
        signed.update(time.0.as_bytes());
        signed.update(b".");
        signed.update(body);
        let mut digits = [0; SIGNATURE_BYTES];
        HEXLOWER.encode_mut(signed.sign().as_ref(), &mut digits);
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with `printf %s "1760000000.$EVENT" | openssl dgst -sha256 -hmac secret`.
    #[test]
    fn an_event_is_signed_as_stripe_signs_it() {
        let webhook = Webhook::new("wh_1", "secret");
        let signature = webhook.sign(&SigningTime("1760000000".into()), EVENT.as_bytes());
        let expected = "d6b379799b42cfb97df60e7c6152433f6a74aa4962234348dc2371fe9275e665";
        assert_eq!(String::from_utf8_lossy(&signature), expected);
        assert_eq!(webhook.path(), "/api/v1/webhooks/stripe/wh_1");
        assert_eq!(SIGNATURE_BLANK.len(), SIGNATURE_BYTES);
    }
}
