//! A webhook of the gateway from the side of the provider: its path and its signature.
//!
//! It signs as GitHub does, because GitHub's delivery id is in a header outside of the signature:
//! the body is signed once, and load generators that cannot sign send new events all the same.

use std::fmt;

use data_encoding::HEXLOWER;
use ring::hmac;

/// The name of the provider in the gateway.
pub(super) const PROVIDER: &str = "github";
pub(super) const EVENT: &str =
    r#"{"action":"created","amount":4200,"currency":"EUR","sender":{"id":7}}"#;
/// The header with the id of an event.
pub(super) const ID_HEADER: &str = "X-GitHub-Delivery";

/// The path for events, and the signature of all of them.
pub(super) struct Webhook {
    path: String,
    signature: String,
}

/// Without the signature.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Webhook").field(&self.path).finish()
    }
}

impl Webhook {
    pub(super) fn new(id: &str, secret: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, EVENT.as_bytes());
        Webhook {
            path: format!("/api/v1/webhooks/{PROVIDER}/{id}"),
            signature: HEXLOWER.encode(tag.as_ref()),
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The line of the signature in a request's head.
    pub(super) fn signature_header(&self) -> String {
        format!("X-Hub-Signature-256: sha256={}\r\n", self.signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with `printf %s "$EVENT" | openssl dgst -sha256 -hmac secret`.
    #[test]
    fn an_event_is_signed_as_github_signs_it() {
        let webhook = Webhook::new("wh_1", "secret");
        let expected = "X-Hub-Signature-256: sha256=4616bc824458cedb9de348ecefa874ce3450c6abb5cd7f42e3f170505a3f13d3\r\n";
        assert_eq!(webhook.signature_header(), expected);
        assert_eq!(webhook.path(), "/api/v1/webhooks/github/wh_1");
    }
}
