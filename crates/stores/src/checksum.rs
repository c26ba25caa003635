//! Bytes stored with a checksum: they are read back unchanged, or reported as
//! damaged.

use bytes::{BufMut as _, Bytes};
use onceward_core::wire::WireError;

/// The bytes, followed by their checksum.
pub(crate) fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(bytes.len() + 4);
    sealed.extend_from_slice(bytes);
    sealed.put_u32(crc32fast::hash(bytes));
    sealed
}

/// The bytes without their checksum, if it is right.
pub(crate) fn unseal(sealed: impl Into<Bytes>) -> Result<Bytes, WireError> {
    let mut sealed = sealed.into();
    let (content, sum) = sealed.split_last_chunk().ok_or(WireError::Checksum)?;
    if crc32fast::hash(content) != u32::from_be_bytes(*sum) {
        return Err(WireError::Checksum);
    }
    let length = content.len();
    sealed.truncate(length);
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_are_opened_whole_or_not_at_all() {
        let sealed = seal(b"request");
        assert_eq!(
            unseal(sealed.clone()).ok().as_deref(),
            Some(&b"request"[..])
        );
        for place in 0..sealed.len() {
            let mut flipped = sealed.clone();
            flipped[place] ^= 1;
            assert!(unseal(flipped).is_err());
        }
        assert!(unseal(Vec::new()).is_err());
    }
}
