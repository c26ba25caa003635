//! The key of an event: `{provider}-{identifier}`.
//!
//! The identifier's parts are percent-encoded, full stops included, and joined by
//! full stops, so that different parts never give the same key. An identifier that
//! is too long for a key is hashed.

use data_encoding::HEXLOWER;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest;

use crate::identify::{Binding, Delivery, Event, EventBody, Unidentified};

/// The longest key of the contract.
const KEY_CHARS_MAX: usize = 255;

const OTHER: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'~').remove(b'-');

/// SHA-256 over the pieces, one after the other.
pub(crate) fn sha256(pieces: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for piece in pieces {
        context.update(piece);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

/// An event whose identifier is signed.
pub(crate) fn signed(provider: &str, parts: &[&str]) -> Event {
    Event {
        key: key(provider, parts.iter().map(|part| encode(part))),
        binding: Binding::Signed,
        body: EventBody::Whole,
    }
}

/// An event that is identified by the digest of the signed bytes.
pub(crate) fn by_content(provider: &str, bytes: [u8; 32]) -> Event {
    signed(provider, &[&short(&bytes)])
}

/// An event whose identifier is not signed: the digest of the signed bytes joins it.
pub(crate) fn unsigned(provider: &str, parts: &[&str], bytes: [u8; 32]) -> Event {
    let parts = parts.iter().map(|part| encode(part)).chain([short(&bytes)]);
    Event {
        key: key(provider, parts),
        binding: Binding::Unsigned { bytes },
        body: EventBody::Whole,
    }
}

/// One event, the whole body.
pub(crate) fn one(event: Event) -> Result<Delivery, Unidentified> {
    Ok(Delivery::Events(vec![event]))
}

/// The first 128 bits of a digest, as they appear in a key.
fn short(bytes: &[u8; 32]) -> String {
    HEXLOWER.encode(&bytes[..16])
}

fn encode(part: &str) -> String {
    utf8_percent_encode(part, OTHER).to_string()
}

fn key(provider: &str, parts: impl Iterator<Item = String>) -> String {
    let identifier = parts.collect::<Vec<_>>().join(".");
    if provider.len() + 1 + identifier.len() <= KEY_CHARS_MAX {
        return format!("{provider}-{identifier}");
    }
    let hash = HEXLOWER.encode(&sha256(&[identifier.as_bytes()]));
    format!("{provider}-{hash}")
}
