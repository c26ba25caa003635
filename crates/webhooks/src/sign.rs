//! The gateway's own signature on deliveries: a provider's has gone stale by the
//! time of a late delivery.

use data_encoding::BASE64;

use crate::key::SigningKey;

/// The value of a `webhook-signature` header of Standard Webhooks (`v1,…`) over
/// the id, the time in seconds and the body. The key is one of
/// [`crate::Provider::StandardWebhooks`].
///
/// [`crate::verify`] refuses an id in which a part after a full stop has digits
/// only: it could be read as the time.
pub fn sign(key: &SigningKey, id: &str, timestamp: i64, body: &[u8]) -> String {
    let timestamp = timestamp.to_string();
    let tag = key.tag(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
    format!("v1,{}", BASE64.encode(tag.as_ref()))
}
