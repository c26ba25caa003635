//! The keys that a bucket may contain, in memory: a new key is claimed without
//! reading the file.
//!
//! A Bloom filter in blocks of one cache line, with one bit per key in each of its
//! eight words: at 16 bits per key, about one absent key in a thousand is taken for
//! present. It grows by generations, each four times as large as the previous one,
//! and bits are only ever set, so readers need no lock. The prefix of a SHA-256 is
//! random enough to need no further hash.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The keys of a first generation.
const KEYS_MIN: usize = 1 << 14;
/// Room for 16 Ki × (4^12 − 1) / 3 keys: more than rows fit into a file.
const GENERATIONS: usize = 12;
/// A block is one cache line of eight words for 32 keys.
const KEYS_PER_BLOCK: usize = 32;

/// Odd numbers that spread a prefix differently over each word of its block.
const SPREAD: [u64; 8] = [
    0x47b6_137b_4497_4d91,
    0x8824_ad5b_a2b7_289d,
    0x7054_95c7_2df1_424b,
    0x9efc_4947_5c6b_fb31,
    0x2df1_424b_9efc_4947,
    0x5c6b_fb31_47b6_137b,
    0x4497_4d91_8824_ad5b,
    0xa2b7_289d_7054_95c7,
];

type Block = [AtomicU64; 8];

/// The keys that a bucket may hold.
pub(super) struct Filter {
    first_keys: usize,
    generations: [OnceLock<Box<[Block]>>; GENERATIONS],
    keys: AtomicUsize,
    complete: AtomicBool,
}

impl Filter {
    /// The filter of a bucket that has nothing in it.
    pub(super) fn empty() -> Self {
        let filter = Self::unread(0);
        filter.complete();
        filter
    }

    /// The filter of a bucket with so many rows that were not read yet. It
    /// takes every key for present until [`Filter::complete`].
    pub(super) fn unread(rows: u64) -> Self {
        let rows = usize::try_from(rows).unwrap_or(KEYS_MIN);
        Self {
            first_keys: rows.next_power_of_two().max(KEYS_MIN),
            generations: Default::default(),
            keys: AtomicUsize::new(0),
            complete: AtomicBool::new(false),
        }
    }

    /// All rows of the bucket were added.
    pub(super) fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    /// Whether all rows of the bucket were added.
    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Adds a key.
    pub(super) fn add(&self, prefix: u64) {
        let (index, keys) = self.generation_of(self.keys.fetch_add(1, Ordering::Relaxed));
        let Some(generation) = self.generations.get(index) else {
            // Full beyond any file: every key is taken for present from now on.
            self.complete.store(false, Ordering::Release);
            return;
        };
        let blocks = generation.get_or_init(|| new_blocks(keys / KEYS_PER_BLOCK));
        let Some(block) = block_of(blocks, prefix) else {
            return;
        };
        for (word, bit) in block.iter().zip(bits(prefix)) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// How many keys were added.
    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Whether the bucket may hold this key; a no is certain.
    pub(super) fn may_hold(&self, prefix: u64) -> bool {
        !self.is_complete()
            || self
                .generations
                .iter()
                .map_while(OnceLock::get)
                .filter_map(|blocks| block_of(blocks, prefix))
                .any(|block| {
                    let mut words = block.iter().zip(bits(prefix));
                    words.all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
                })
    }

    /// The generation that takes the key after so many, and its size in keys.
    fn generation_of(&self, keys: usize) -> (usize, usize) {
        let mut size = self.first_keys;
        let mut end = size;
        let mut index = 0;
        while keys >= end && index < GENERATIONS {
            size = size.saturating_mul(4);
            end = end.saturating_add(size);
            index += 1;
        }
        (index, size)
    }
}

fn new_blocks(count: usize) -> Box<[Block]> {
    (0..count).map(|_| Block::default()).collect()
}

/// The block of a key, by the upper half of its prefix.
fn block_of(blocks: &[Block], prefix: u64) -> Option<&Block> {
    let place = (u128::from(prefix) * blocks.len() as u128) >> 64;
    blocks.get(place as usize)
}

/// One bit in each word, by the lower half of the prefix.
fn bits(prefix: u64) -> impl Iterator<Item = u64> {
    let low = prefix & 0xffff_ffff;
    SPREAD
        .iter()
        .map(move |spread| 1 << (low.wrapping_mul(*spread) >> 58))
}

#[cfg(test)]
mod tests {
    use onceward_core::entropy::Entropy;

    use super::*;

    #[test]
    fn a_filter_holds_every_added_prefix_and_few_others() {
        let filter = Filter::empty();
        let entropy = Entropy::seeded(7);
        let keys: Vec<u64> = (0..100_000).map(|_| entropy.next_u64()).collect();
        for key in &keys {
            filter.add(*key);
        }
        assert!(keys.iter().all(|key| filter.may_hold(*key)));
        let wrong = (0..100_000)
            .filter(|_| filter.may_hold(entropy.next_u64()))
            .count();
        assert!(
            wrong < 400,
            "{wrong} of 100000 absent keys taken for present"
        );
    }

    #[test]
    fn an_unread_filter_denies_nothing() {
        let filter = Filter::unread(10);
        assert!(filter.may_hold(1));
        filter.complete();
        assert!(!filter.may_hold(1));
    }
}
