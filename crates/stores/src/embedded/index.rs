//! The index of a bucket: from the prefix of a digest to rows.
//!
//! An SQLite index would cost a random page write for every operation, because
//! digests have no order, and more so the larger the bucket is. Instead, the newest
//! rows of a bucket are indexed by a tail in memory, and thousands of them at a time
//! are sealed into the file: sorted by prefix into 256 leaves, which are never
//! rewritten. A look-up reads the leaves of its first byte, one per seal. The tail is
//! rebuilt at the start, so it is kept short.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::error::{Error, Result};

/// From this length on the tail is sealed.
const TAIL_MAX: usize = 1 << 14;
/// Leaf ids are the first byte of the prefix, then the number of the seal,
/// which is that of the last row in it.
const SEAL_BITS: u32 = 54;
/// A prefix and a row.
const ENTRY_BYTES: usize = 16;

/// The rows of a bucket that are not sealed yet, by prefix.
#[derive(Default)]
pub(super) struct Tail(RwLock<BTreeSet<(u64, u64)>>);

impl Tail {
    /// Adds a row. One whose transaction fails does no harm: it is not found.
    pub(super) fn add(&self, prefix: u64, row: u64) {
        self.write().insert((prefix, row));
    }

    /// The rows with this prefix.
    pub(super) fn rows(&self, prefix: u64) -> Vec<u64> {
        let entries = self.read();
        let alike = entries.range((prefix, 0)..=(prefix, u64::MAX));
        alike.map(|(_, row)| *row).collect()
    }

    /// Whether there is anything to seal.
    pub(super) fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Whether it is time to seal.
    pub(super) fn is_long(&self) -> bool {
        self.read().len() >= TAIL_MAX
    }

    /// The leaves for all rows of now, of which `last` is the newest.
    pub(super) fn leaves(&self, last: u64) -> Vec<(i64, Vec<u8>)> {
        let entries: Vec<_> = self.read().iter().copied().collect();
        let same_leaf = |a: &(u64, u64), b: &(u64, u64)| first_byte(a.0) == first_byte(b.0);
        entries
            .chunk_by(same_leaf)
            .filter_map(|chunk| Some((leaf_id(chunk.first()?.0, last), encode(chunk))))
            .collect()
    }

    /// Forgets the rows up to `last`: they are sealed.
    pub(super) fn forget(&self, last: u64) {
        self.write().retain(|(_, row)| *row > last);
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeSet<(u64, u64)>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeSet<(u64, u64)>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first and the last id that a leaf with this prefix may have.
pub(super) fn leaf_ids(prefix: u64) -> (i64, i64) {
    let first = leaf_id(prefix, 0);
    (first, first + ((1 << SEAL_BITS) - 1))
}

fn leaf_id(prefix: u64, last: u64) -> i64 {
    ((first_byte(prefix) << SEAL_BITS) | last).cast_signed()
}

fn first_byte(prefix: u64) -> u64 {
    prefix >> 56
}

/// The entries one after the other, and a checksum: a damaged leaf must not
/// make a record absent.
fn encode(entries: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES + 4);
    for (prefix, row) in entries {
        bytes.extend(prefix.to_be_bytes());
        bytes.extend(row.to_be_bytes());
    }
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    bytes
}

/// The prefixes and rows of a leaf.
pub(super) fn decode(bytes: &[u8]) -> Result<impl Iterator<Item = (u64, u64)>> {
    let (entries, sum) = bytes.split_last_chunk().ok_or(Error::Index)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    // Empty leaves are never written, and the checksum of one equals that of zeros.
    let is_whole = rest.is_empty() && !entries.is_empty();
    let sum_is = crc32fast::hash(entries.as_flattened());
    if !is_whole || sum_is != u32::from_be_bytes(*sum) {
        return Err(Error::Index);
    }
    Ok(entries.iter().map(|entry| {
        let both = u128::from_be_bytes(*entry);
        ((both >> 64) as u64, both as u64)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_hold_every_row_under_the_first_byte_of_its_prefix() {
        let tail = Tail::default();
        let rows = [
            (7_u64 << 56, 1),
            ((7 << 56) + 1, 2),
            (u64::MAX, 3),
            (7 << 56, 4),
        ];
        for (prefix, row) in rows {
            tail.add(prefix, row);
        }
        let mut found = Vec::new();
        for (id, bytes) in tail.leaves(4) {
            for (prefix, row) in decode(&bytes).expect("whole") {
                let (first, last) = leaf_ids(prefix);
                assert!((first..=last).contains(&id));
                found.push((prefix, row));
            }
        }
        found.sort_by_key(|(_, row)| *row);
        assert_eq!(found, rows);
        assert_eq!(tail.rows(7 << 56), [1, 4]);
        tail.forget(3);
        assert_eq!(tail.rows(7 << 56), [4]);
    }

    #[test]
    fn damaged_leaf_is_refused() {
        let good = encode(&[(1, 2), (3, 4)]);
        for place in 0..good.len() {
            let mut bad = good.clone();
            bad[place] ^= 1;
            assert!(decode(&bad).is_err(), "byte {place}");
            assert!(decode(&good[..place]).is_err(), "cut at {place}");
        }
    }
}
