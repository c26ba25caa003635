//! All open operations in memory: queued, running, released, unknown and paused. A
//! claim never reads the file for them.
//!
//! This state is ahead of the file by one transaction. It keeps the previous value
//! of each changed entry and restores it if the transaction fails.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Record, State};

use super::error::{Error, Result};

/// An open operation.
#[derive(Clone)]
pub(super) struct OpenOperation {
    /// Its row: the number of its last change.
    pub(super) row: u64,
    /// The row of its request, if the gateway delivers it.
    pub(super) request: Option<u64>,
    /// The record.
    pub(super) record: Arc<Record>,
}

/// The open operations.
#[derive(Default)]
pub(super) struct OpenOperations {
    entries: BTreeMap<Digest, OpenOperation>,
    /// Deliveries by due time, then by row.
    due: BTreeSet<(Timestamp, u64, Digest)>,
    /// Released operations by the time until which they are shown.
    released: BTreeSet<(Timestamp, Digest)>,
    /// The previous values of the entries that the transaction changed.
    before: HashMap<Digest, Option<OpenOperation>>,
    /// The prefixes of operations whose record cannot be read.
    damaged: HashSet<u64>,
}

impl OpenOperations {
    /// The open operation, if it is one.
    pub(super) fn get(&self, digest: &Digest) -> Result<Option<&OpenOperation>> {
        self.check(digest.prefix())?;
        Ok(self.entries.get(digest))
    }

    /// The open operation with this id, if it is one.
    pub(super) fn find(&self, id: OperationId) -> Result<Option<&OpenOperation>> {
        self.check(id.prefix())?;
        let mut least = [0; 32];
        least[..8].copy_from_slice(&id.prefix().to_be_bytes());
        let alike = self.entries.range(Digest::from_bytes(least)..);
        Ok(alike
            .take_while(|(digest, _)| digest.prefix() == id.prefix())
            .map(|(_, operation)| operation)
            .find(|operation| operation.record.id == id))
    }

    fn check(&self, prefix: u64) -> Result<()> {
        if !self.damaged.is_empty() && self.damaged.contains(&prefix) {
            return Err(Error::Lost);
        }
        Ok(())
    }

    /// All open operations.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OpenOperation> {
        self.entries.values()
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
    pub(super) fn over(&self, now: Timestamp, limit: usize) -> Vec<OpenOperation> {
        self.released
            .iter()
            .take_while(|(until, _)| *until <= now)
            .take(limit)
            .filter_map(|(_, digest)| self.entries.get(digest).cloned())
            .collect()
    }

    /// Inserts or replaces an operation.
    pub(super) fn put(&mut self, operation: OpenOperation) {
        let digest = operation.record.digest;
        let before = self.set(digest, Some(operation));
        self.before.entry(digest).or_insert(before);
    }

    /// Removes an operation.
    pub(super) fn take(&mut self, digest: &Digest) {
        let before = self.set(*digest, None);
        self.before.entry(*digest).or_insert(before);
    }

    /// Marks an operation whose record cannot be read.
    pub(super) fn mark_damaged(&mut self, prefix: u64) {
        self.damaged.insert(prefix);
    }

    /// Whether the open transaction changed this operation.
    pub(super) fn is_changed(&self, digest: &Digest) -> bool {
        self.before.contains_key(digest)
    }

    /// Whether the open transaction changed anything.
    pub(super) fn has_changes(&self) -> bool {
        !self.before.is_empty()
    }

    /// The transaction is durable.
    pub(super) fn keep(&mut self) {
        self.before.clear();
    }

    /// The transaction failed: all is as it was before it.
    pub(super) fn undo(&mut self) {
        for (digest, before) in std::mem::take(&mut self.before) {
            self.set(digest, before);
        }
    }

    fn set(&mut self, digest: Digest, operation: Option<OpenOperation>) -> Option<OpenOperation> {
        let before = self.entries.remove(&digest);
        if let Some(before) = &before {
            self.unindex(before);
        }
        if let Some(operation) = operation {
            self.index(&operation);
            self.entries.insert(digest, operation);
        }
        before
    }

    fn index(&mut self, operation: &OpenOperation) {
        if let Some(due) = operation.record.due_at() {
            self.due
                .insert((due, operation.row, operation.record.digest));
        }
        if operation.record.state == State::Released {
            self.released
                .insert((operation.record.until, operation.record.digest));
        }
    }

    fn unindex(&mut self, operation: &OpenOperation) {
        if let Some(due) = operation.record.due_at() {
            self.due
                .remove(&(due, operation.row, operation.record.digest));
        }
        if operation.record.state == State::Released {
            self.released
                .remove(&(operation.record.until, operation.record.digest));
        }
    }
}
