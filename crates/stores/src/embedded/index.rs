//! The index of a bucket: from the prefix of a digest to rows.
//!
//! An SQLite index would cost a random page write for every operation, because
//! digests have no order, and more so the larger the bucket is. Instead, the newest
//! rows of a bucket are indexed by a tail in memory, and thousands of them at a time
//! are sealed into the file: sorted by prefix into 256 leaves, which are never
//! changed. The tail is rebuilt at the start, so it is kept short.
//!
//! A look-up reads the leaves of its first byte, one per seal. So that these stay few,
//! the leaves of 16 seals are merged into leaves of the next level, which are as long
//! but cover a sixteenth of the prefixes, and 16 of these into the third level. Each
//! seal merges what belongs to a sixteenth of all first bytes, so that no fill takes
//! long. With ten million rows a look-up reads about twenty leaves.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::error::{Error, Result};

/// From this length on the tail is sealed.
pub(super) const TAIL_MAX: usize = 1 << 14;
/// How many leaves of a level are merged into one of the next, in each range of
/// prefixes.
const MERGED: u64 = 16;
/// How many first bytes there are.
const FIRST_BYTES: u64 = 256;
/// A prefix and a row.
const ENTRY_BYTES: usize = 16;

/// The rows of a bucket that are not sealed yet, by prefix.
#[derive(Default)]
pub(super) struct Tail(RwLock<BTreeSet<(u64, u64)>>);

impl Tail {
    /// Adds a row; returns whether it is new. One whose transaction fails does no harm:
    /// it is not found.
    pub(super) fn add(&self, prefix: u64, row: u64) -> bool {
        self.write().insert((prefix, row))
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
        leaves(Level::Sealed, &entries, last)
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

/// A level of leaves. Its leaves' ids are the bits of the prefix that they have in
/// common, then the number of the seal, which is that of the last row in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Sealed,
    Merged,
    MergedTwice,
}

impl Level {
    /// Entries only move to later levels, so a look-up in this order misses none.
    pub(super) const ALL: [Self; 3] = [Self::Sealed, Self::Merged, Self::MergedTwice];

    /// The level that its leaves are merged into.
    fn next(self) -> Option<Self> {
        match self {
            Self::Sealed => Some(Self::Merged),
            Self::Merged => Some(Self::MergedTwice),
            Self::MergedTwice => None,
        }
    }

    /// How many bits of the prefix its leaves have in common.
    fn prefix_bits(self) -> u32 {
        match self {
            Self::Sealed => 8,
            Self::Merged => 12,
            Self::MergedTwice => 16,
        }
    }

    /// How many bits of an id are the number of the seal.
    fn seal_bits(self) -> u32 {
        match self {
            Self::Sealed => 54,
            Self::Merged => 48,
            Self::MergedTwice => 44,
        }
    }

    /// The bits that tell the levels' ids apart.
    fn mark(self) -> u64 {
        match self {
            Self::Sealed => 0,
            Self::Merged => 0b101 << 60,
            Self::MergedTwice => 0b110 << 60,
        }
    }

    fn range(self, prefix: u64) -> u64 {
        prefix >> (64 - self.prefix_bits())
    }

    fn leaf_id(self, prefix: u64, last: u64) -> i64 {
        let seal = last & ((1 << self.seal_bits()) - 1);
        (self.mark() | (self.range(prefix) << self.seal_bits()) | seal).cast_signed()
    }

    /// The first and the last id that a leaf with a prefix between these may have.
    fn ids_between(self, first: u64, last: u64) -> (i64, i64) {
        (self.leaf_id(first, 0), self.leaf_id(last, u64::MAX))
    }

    /// The first and the last id that a leaf with this prefix may have.
    pub(super) fn ids(self, prefix: u64) -> (i64, i64) {
        self.ids_between(prefix, prefix)
    }
}

/// Leaves of a level that may be merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// The first and the last of their ids.
    pub(super) ids: (i64, i64),
    into: Level,
    /// How many there must be.
    pub(super) leaves_min: usize,
}

/// What the seal of this number is to merge, counted for each bucket from any start:
/// level by level, because the first level's leaves go to the next.
pub(super) fn merges(seal: u64) -> impl Iterator<Item = Merge> {
    let bytes = (0..FIRST_BYTES).filter(move |byte| byte % MERGED == seal % MERGED);
    bytes.flat_map(|byte| {
        let (first, last) = (byte << 56, (byte << 56) | (u64::MAX >> 8));
        Level::ALL.into_iter().filter_map(move |level| {
            let ranges = 1 << (level.prefix_bits() - 8);
            Some(Merge {
                ids: level.ids_between(first, last),
                into: level.next()?,
                leaves_min: (ranges * MERGED) as usize,
            })
        })
    })
}

impl Merge {
    /// The leaves of the next level for all these entries.
    pub(super) fn leaves(&self, mut entries: Vec<(u64, u64)>, last: u64) -> Vec<(i64, Vec<u8>)> {
        entries.sort_unstable();
        leaves(self.into, &entries, last)
    }
}

/// The leaves of a level for sorted entries.
fn leaves(level: Level, entries: &[(u64, u64)], last: u64) -> Vec<(i64, Vec<u8>)> {
    let same_leaf = |a: &(u64, u64), b: &(u64, u64)| level.range(a.0) == level.range(b.0);
    entries
        .chunk_by(same_leaf)
        .filter_map(|chunk| Some((level.leaf_id(chunk.first()?.0, last), encode(chunk))))
        .collect()
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
                let (first, last) = Level::Sealed.ids(prefix);
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

    /// A map in place of the table: seals many times, and merges as a fill does.
    #[test]
    fn every_row_is_found_in_few_leaves_after_many_seals() {
        let entropy = onceward_core::entropy::Entropy::seeded(7);
        let mut table: std::collections::BTreeMap<i64, Vec<u8>> = Default::default();
        let mut rows = Vec::new();
        for seal in 0..600 {
            let tail = Tail::default();
            for _ in 0..300 {
                let row = rows.len() as u64 + 1;
                let prefix = entropy.next_u64();
                tail.add(prefix, row);
                rows.push((prefix, row));
            }
            let last = rows.len() as u64;
            table.extend(tail.leaves(last));
            for merge in merges(seal) {
                let (first, until) = merge.ids;
                let ids: Vec<i64> = table.range(first..=until).map(|(id, _)| *id).collect();
                if ids.len() < merge.leaves_min {
                    continue;
                }
                let leaves = ids.iter().filter_map(|id| table.remove(id));
                let entries =
                    leaves.flat_map(|leaf| decode(&leaf).expect("whole").collect::<Vec<_>>());
                let merged = merge.leaves(entries.collect(), last);
                for (id, leaf) in merged {
                    assert!(table.insert(id, leaf).is_none(), "an id is used once");
                }
            }
        }
        for (prefix, row) in rows.iter().step_by(997) {
            let mut read = 0;
            let found = Level::ALL.into_iter().any(|level| {
                let (first, until) = level.ids(*prefix);
                table.range(first..=until).any(|(_, leaf)| {
                    read += 1;
                    let mut entries = decode(leaf).expect("whole");
                    entries.any(|entry| entry == (*prefix, *row))
                })
            });
            assert!(found && read < 70, "{row}: {read} leaves");
        }
        assert!(table.keys().all(|id| *id >= 0));
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
