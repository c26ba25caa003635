//! Our own signature on what the gateway delivers: a provider's has gone stale
//! by the time a late delivery arrives.

use data_encoding::BASE64;

use crate::key::SigningKey;

/// The value of a `webhook-signature` header of Standard Webhooks (`v1,…`) over
/// the id, the time in seconds and the body. The key is one of
/// [`crate::Provider::StandardWebhooks`].
///
/// An id with a part of digits only between or after full stops is refused by
/// our own [`crate::verify`]: it could be read as the time.
pub fn sign(key: &SigningKey, id: &str, timestamp: i64, body: &[u8]) -> String {
    let timestamp = timestamp.to_string();
    let tag = key.tag(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
    format!("v1,{}", BASE64.encode(tag.as_ref()))
}
