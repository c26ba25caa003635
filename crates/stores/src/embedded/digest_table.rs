//! A hash table of operations by digest, in which an operation is also found by its
//! id: both begin with the same eight bytes, and these are hashed.

use hashbrown::DefaultHashBuilder;
use hashbrown::hash_table::{Entry, HashTable};
use onceward_core::identity::Digest;
use std::hash::BuildHasher as _;

/// What belongs to one operation.
pub(super) trait ByDigest {
    fn digest(&self) -> &Digest;
}

/// Values by digest.
pub(super) struct DigestTable<V> {
    values: HashTable<V>,
    /// Random: callers choose keys, and so their digests.
    hasher: DefaultHashBuilder,
}

impl<V> Default for DigestTable<V> {
    fn default() -> Self {
        Self {
            values: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<V: ByDigest> DigestTable<V> {
    pub(super) fn get(&self, digest: &Digest) -> Option<&V> {
        self.find(digest.prefix(), |value| value.digest() == digest)
    }

    pub(super) fn get_mut(&mut self, digest: &Digest) -> Option<&mut V> {
        let hash = self.hasher.hash_one(digest.prefix());
        self.values.find_mut(hash, |value| value.digest() == digest)
    }

    /// The value with this prefix that is meant; prefixes may collide.
    pub(super) fn find(&self, prefix: u64, is_meant: impl FnMut(&V) -> bool) -> Option<&V> {
        self.values.find(self.hasher.hash_one(prefix), is_meant)
    }

    /// Puts a value in place of the one with its digest, which is returned.
    pub(super) fn insert(&mut self, value: V) -> Option<V> {
        let hasher = &self.hasher;
        let hash = hasher.hash_one(value.digest().prefix());
        let entry = self.values.entry(
            hash,
            |other| other.digest() == value.digest(),
            |other| hasher.hash_one(other.digest().prefix()),
        );
        match entry {
            Entry::Occupied(mut entry) => Some(std::mem::replace(entry.get_mut(), value)),
            Entry::Vacant(entry) => {
                entry.insert(value);
                None
            }
        }
    }

    pub(super) fn remove(&mut self, digest: &Digest) -> Option<V> {
        self.remove_if(digest, |_| true)
    }

    /// Removes the value if it is still the one that is meant.
    pub(super) fn remove_if(
        &mut self,
        digest: &Digest,
        is_meant: impl Fn(&V) -> bool,
    ) -> Option<V> {
        let hash = self.hasher.hash_one(digest.prefix());
        let found = self
            .values
            .find_entry(hash, |value| value.digest() == digest && is_meant(value));
        found.ok().map(|entry| entry.remove().0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        self.values.iter()
    }
}
