//! All open operations in memory: queued, running, released, unknown and paused. A
//! claim never reads the file for them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Record, State};

use super::digest_table::{ByDigest, DigestTable};
use super::error::{Error, Result};

/// An open operation.
#[derive(Clone, Debug)]
pub(super) struct OpenOperation {
    /// Its row: the number of its last change.
    pub(super) row: u64,
    /// The record.
    pub(super) record: Arc<Record>,
    /// Its request, if the gateway delivers it.
    pub(super) request: Option<StoredRequest>,
    /// The row in which the database has it, or will have it when the fill under way
    /// is done.
    pub(super) filled_row: Option<u64>,
    /// Whether the next fill is to write it.
    pub(super) is_changed: bool,
}

/// The request of an open operation.
#[derive(Clone, Debug)]
pub(super) struct StoredRequest {
    pub(super) row: u64,
    /// Sealed; `None` once the database has it.
    pub(super) body: Option<Bytes>,
    /// Whether the database has it, or will have it when the fill under way is done.
    pub(super) is_filled: bool,
}

impl ByDigest for OpenOperation {
    fn digest(&self) -> &Digest {
        &self.record.digest
    }
}

/// The open operations.
#[derive(Default)]
pub(super) struct OpenOperations {
    entries: DigestTable<OpenOperation>,
    /// Deliveries by due time, then by row.
    due: BTreeSet<(Timestamp, u64, Digest)>,
    /// Released operations by the time until which they are shown.
    released: BTreeSet<(Timestamp, Digest)>,
    /// The prefixes of operations whose record cannot be read.
    damaged: HashSet<u64>,
    running: usize,
}

impl OpenOperations {
    /// The open operation, if it is one.
    pub(super) fn get(&self, digest: &Digest) -> Result<Option<&OpenOperation>> {
        self.check(digest.prefix())?;
        Ok(self.entries.get(digest))
    }

    /// The same, to note what the database has of it.
    pub(super) fn get_mut(&mut self, digest: &Digest) -> Option<&mut OpenOperation> {
        self.entries.get_mut(digest)
    }

    /// The open operation with this id, if it is one.
    pub(super) fn find(&self, id: OperationId) -> Result<Option<&OpenOperation>> {
        self.check(id.prefix())?;
        let has_id = |operation: &OpenOperation| operation.record.id == id;
        Ok(self.entries.find(id.prefix(), has_id))
    }

    fn check(&self, prefix: u64) -> Result<()> {
        if !self.damaged.is_empty() && self.damaged.contains(&prefix) {
            return Err(Error::Lost);
        }
        Ok(())
    }

    /// All open operations.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OpenOperation> {
        self.entries.iter()
    }

    /// How many run, and so will be settled.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// When the next delivery is due.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _, _)| *due)
    }

    /// The deliveries that are due now, oldest first.
    pub(super) fn due(&self, now: Timestamp, limit: usize) -> Vec<OpenOperation> {
        self.due
            .iter()
            .take_while(|(due, _, _)| *due <= now)
            .take(limit)
            .filter_map(|(_, _, digest)| self.entries.get(digest).cloned())
            .collect()
    }

    /// Removes a delivery that is not possible from the due ones, so that it is not
    /// tried for ever. It stays queued, visible to operators.
    pub(super) fn set_aside(&mut self, operation: &OpenOperation) {
        if let Some(due) = operation.record.due_at() {
            self.due
                .remove(&(due, operation.row, operation.record.digest));
        }
    }

    /// Released operations that are over, oldest first.
    pub(super) fn over(&self, now: Timestamp, limit: usize) -> Vec<Digest> {
        self.released
            .iter()
            .take_while(|(until, _)| *until <= now)
            .take(limit)
            .map(|(_, digest)| *digest)
            .collect()
    }

    /// Inserts an operation, or replaces the one with its digest.
    pub(super) fn put(&mut self, operation: OpenOperation) -> Option<OpenOperation> {
        let place = Place::of(&operation);
        let before = self.entries.insert(operation);
        // In this order: both may have the same place.
        if let Some(before) = &before {
            self.unindex(Place::of(before));
        }
        self.index(place);
        before
    }

    /// Removes an operation.
    pub(super) fn take(&mut self, digest: &Digest) -> Option<OpenOperation> {
        let before = self.entries.remove(digest)?;
        self.unindex(Place::of(&before));
        Some(before)
    }

    /// Marks an operation whose record cannot be read.
    pub(super) fn mark_damaged(&mut self, prefix: u64) {
        self.damaged.insert(prefix);
    }

    fn index(&mut self, place: Place) {
        self.due.extend(place.due);
        self.released.extend(place.released);
        self.running += usize::from(place.is_running);
    }

    fn unindex(&mut self, place: Place) {
        if let Some(due) = place.due {
            self.due.remove(&due);
        }
        if let Some(released) = place.released {
            self.released.remove(&released);
        }
        self.running -= usize::from(place.is_running);
    }
}

/// Where an operation is listed besides its digest.
#[derive(Clone, Copy)]
struct Place {
    due: Option<(Timestamp, u64, Digest)>,
    released: Option<(Timestamp, Digest)>,
    is_running: bool,
}

impl Place {
    fn of(operation: &OpenOperation) -> Self {
        let record = &operation.record;
        let due = record.due_at();
        Self {
            due: due.map(|due| (due, operation.row, record.digest)),
            released: (record.state == State::Released).then_some((record.until, record.digest)),
            is_running: record.state == State::Running,
        }
    }
}
