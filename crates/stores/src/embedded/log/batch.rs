//! A batch: the entries that one sync makes durable.
//!
//! It begins at a block and takes whole blocks, so that no write ever touches a block
//! with acknowledged entries. Its checksum is over the salt of its segment's use, its
//! epoch, sequence, time, length and payload.

use bytes::{BufMut as _, Bytes};
use onceward_core::clock::Timestamp;

use super::segment::{BLOCK_BYTES, SegmentHeader};

const MAGIC: u32 = 0x6261_7463;
/// Magic, checksum, epoch, sequence, time, length.
pub(super) const HEADER_BYTES: usize = 4 + 4 + 8 + 8 + 8 + 4;

/// A batch as it was read.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) sequence: u64,
    pub(super) time: Timestamp,
    pub(super) payload: Bytes,
    /// How much of the segment it takes.
    pub(super) bytes: usize,
}

/// Completes a batch whose payload stands behind room for the header.
pub(super) fn seal(buffer: &mut Vec<u8>, header: &SegmentHeader, sequence: u64, now: Timestamp) {
    let length = buffer.len() - HEADER_BYTES;
    let mut head = Vec::with_capacity(HEADER_BYTES);
    head.put_u32(MAGIC);
    head.put_u32(0);
    head.put_u64(header.epoch);
    head.put_u64(sequence);
    head.put_u64(now.unix_ms());
    // The log's longest batch is far below 4 GiB.
    head.put_u32(length as u32);
    buffer[..HEADER_BYTES].copy_from_slice(&head);
    let sum = checksum(header, &buffer[8..]);
    buffer[4..8].copy_from_slice(&sum.to_be_bytes());
    buffer.resize(buffer.len().next_multiple_of(BLOCK_BYTES), 0);
}

/// The batch at this place of a segment; `None` if there is no whole one.
pub(super) fn read(content: &Bytes, offset: usize, header: &SegmentHeader) -> Option<Batch> {
    let head = content.get(offset..offset + HEADER_BYTES)?;
    let word = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_be_bytes(head.get(at..at + 8)?.try_into().ok()?));
    if word(0)? != MAGIC || long(8)? != header.epoch {
        return None;
    }
    let length = word(32)? as usize;
    let end = offset.checked_add(HEADER_BYTES)?.checked_add(length)?;
    let summed = content.get(offset + 8..end)?;
    if checksum(header, summed) != word(4)? {
        return None;
    }
    Some(Batch {
        sequence: long(16)?,
        time: Timestamp::from_unix_ms(long(24)?),
        payload: content.slice(offset + HEADER_BYTES..end),
        bytes: (HEADER_BYTES + length).next_multiple_of(BLOCK_BYTES),
    })
}

fn checksum(header: &SegmentHeader, content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header.salt.to_be_bytes()), content)
}

#[cfg(test)]
mod tests {
    use super::super::segment::LogIdentity;
    use super::*;

    fn header(salt: u64) -> SegmentHeader {
        SegmentHeader {
            identity: LogIdentity(1),
            epoch: 5,
            salt,
            first: 1,
        }
    }

    fn sealed(payload: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; HEADER_BYTES];
        buffer.extend_from_slice(payload);
        seal(&mut buffer, &header(9), 77, Timestamp::from_unix_ms(123));
        buffer
    }

    #[test]
    fn a_batch_is_read_back_under_its_own_use_of_the_segment_only() {
        let long = vec![7; 2 * BLOCK_BYTES];
        for payload in [&b""[..], b"entries", &long] {
            let bytes = sealed(payload);
            assert_eq!(bytes.len() % BLOCK_BYTES, 0);
            let content = Bytes::from(bytes);
            let batch = read(&content, 0, &header(9)).expect("whole");
            assert_eq!(batch.payload, payload);
            assert_eq!((batch.sequence, batch.time.unix_ms()), (77, 123));
            assert_eq!(batch.bytes, content.len());
            assert!(read(&content, 0, &header(8)).is_none(), "another salt");
            let mut later = header(9);
            later.epoch += 1;
            assert!(read(&content, 0, &later).is_none(), "another epoch");
        }
    }

    #[test]
    fn a_damaged_or_cut_batch_is_not_read() {
        let good = sealed(b"entries of a batch");
        let used = HEADER_BYTES + 18;
        for place in 0..used {
            let mut bad = good.clone();
            bad[place] ^= 1;
            assert!(read(&bad.into(), 0, &header(9)).is_none(), "byte {place}");
            let cut = Bytes::copy_from_slice(&good[..place]);
            assert!(read(&cut, 0, &header(9)).is_none(), "cut at {place}");
        }
    }
}
