//! Recently recorded or replayed operations with their replies, in memory: a
//! replay needs neither the file nor the writer.
//!
//! A finished record does not change, so the only possible error is to keep one
//! that was purged. The writer removes it after the purge is durable and before
//! the purge is answered. A reader that read the file before the removal and
//! offers its record after it would put it back; so each offer names the number
//! of removals before the read, and is dropped if there were more since.

use std::sync::{Arc, PoisonError, RwLock};

use onceward_core::identity::Digest;
use onceward_core::record::Record;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::record_size::{RECORD_BYTES, size_in_memory};

/// A cache of finished records.
pub(super) struct HotReplies {
    records: Cache<Digest, Arc<Record>, BySize>,
    removals: RwLock<Removals>,
}

/// How many records were removed so far.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Removals(u64);

impl HotReplies {
    /// A cache for about this many bytes of records and replies.
    pub(super) fn new(bytes_max: u64) -> Self {
        // Most records have a small reply, which about doubles their size.
        let items = bytes_max / (2 * RECORD_BYTES) as u64;
        let items = usize::try_from(items).unwrap_or(usize::MAX);
        Self {
            records: Cache::with_weighter(items, bytes_max, BySize),
            removals: RwLock::new(Removals(0)),
        }
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<Arc<Record>> {
        self.records.get(digest)
    }

    /// Must be called before a read whose result goes to [`HotReplies::offer`].
    pub(super) fn removals(&self) -> Removals {
        *self.removals.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record that a reader read, unless something was removed since.
    pub(super) fn offer(&self, record: &Arc<Record>, before_read: Removals) {
        let removals = self.removals.read().unwrap_or_else(PoisonError::into_inner);
        if *removals == before_read {
            self.records.insert(record.digest, record.clone());
        }
    }

    /// Takes a record that the writer made durable.
    pub(super) fn put(&self, record: Arc<Record>) {
        self.records.insert(record.digest, record);
    }

    /// Removes a record that was purged, reopened or replaced.
    pub(super) fn remove(&self, digest: &Digest) {
        let mut removals = self
            .removals
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        removals.0 += 1;
        self.records.remove(digest);
    }
}

/// Weighs a record by the memory it takes.
#[derive(Clone)]
struct BySize;

impl Weighter<Digest, Arc<Record>> for BySize {
    fn weight(&self, _: &Digest, record: &Arc<Record>) -> u64 {
        size_in_memory(record) as u64
    }
}
