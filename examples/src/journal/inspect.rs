//! Listings, and changes by operators.

use std::cmp::Reverse;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use onceward_core::record::{Answer, Fence, Record, State};
use onceward_core::store::{
    Changed, Cursor, Filter, Force, Inspect, PAGE_MAX, Page, PageRequest, Resolution, Stats,
    StoreError,
};

use super::file::Line;
use super::{JournalStore, Shelf};

impl JournalStore {
    /// Lets an operator change an operation or its trace.
    fn change(
        &self,
        id: OperationId,
        act: impl FnOnce(&mut Shelf, Record, State, Timestamp) -> Result<Line, Changed>,
    ) -> Result<Changed, StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        let found = shelf.find(id).cloned();
        let Some((record, state)) = found.and_then(|one| {
            let state = one.shown_state_at(now)?;
            Some((Arc::unwrap_or_clone(one), state))
        }) else {
            return Ok(Changed::Absent);
        };
        let digest = record.digest;
        match act(&mut shelf, record, state, now) {
            Ok(line) => shelf.write(vec![line])?,
            Err(refused) => return Ok(refused),
        }
        drop(shelf);
        self.notifier.notify(&digest);
        Ok(Changed::Done)
    }
}

#[async_trait]
impl Inspect for JournalStore {
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError> {
        let now = self.clock.now();
        let shelf = self.shelf();
        let entries = shelf.entries.values();
        let mut found: Vec<_> = entries
            .filter(|one| page.after.is_none_or(|after| one.changed < after.0))
            .filter_map(|one| Some((one.changed, one.record.shown_at(now)?)))
            .filter(|(_, record)| filter.matches(record))
            .collect();
        found.sort_unstable_by_key(|(changed, _)| Reverse(*changed));
        let limit = page.limit.min(PAGE_MAX);
        let is_last = found.len() <= limit;
        found.truncate(limit);
        let last = found.last().map(|(changed, _)| Cursor(*changed));
        Ok(Page {
            next: last.filter(|_| !is_last),
            records: found.into_iter().map(|(_, record)| record).collect(),
        })
    }

    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let now = self.clock.now();
        Ok(self.shelf().find(id).and_then(|one| one.shown_at(now)))
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        self.change(id, |shelf, record, state, _| {
            if state == State::Running && force == Force::No {
                return Err(Changed::Refused(state));
            }
            // The next fence is higher, so the earlier holder is stale.
            Ok(shelf.forget(record.digest))
        })
    }

    async fn resolve(
        &self,
        id: OperationId,
        meant: Option<Fence>,
        word: Resolution,
    ) -> Result<Changed, StoreError> {
        self.change(id, |shelf, mut record, state, now| {
            let is_meant = meant.is_none_or(|meant| meant == record.fence);
            if state != State::Unknown || !is_meant {
                return Err(Changed::Refused(state));
            }
            record.resolve(Fence(shelf.next()), &word, now);
            Ok(shelf.put(record))
        })
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.change(id, |shelf, mut record, state, now| {
            if state != State::Paused {
                return Err(Changed::Refused(state));
            }
            record.resume(now);
            Ok(shelf.put(record))
        })
    }

    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.change(id, |shelf, mut record, _, now| {
            match record.redeliver(Fence(shelf.next()), now) {
                Changed::Done => Ok(shelf.put(record)),
                refused => Err(refused),
            }
        })
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        let entries = shelf.entries.values();
        let over = entries.filter(|one| one.record.is_over(now)).take(limit);
        let mut lines: Vec<_> = over.map(|one| shelf.forget(one.record.digest)).collect();
        let swept = lines.len();
        for entry in shelf.entries.values() {
            if entry.record.is_overdue(now) && !entry.record.is_over(now) {
                let mut entry = entry.clone();
                Arc::make_mut(&mut entry.record).expire();
                entry.request = Bytes::new();
                lines.push(Line::Put(entry));
            }
        }
        shelf.write(lines)?;
        Ok(swept)
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let now = self.clock.now();
        let shelf = self.shelf();
        let mut stats = Stats::default();
        for entry in shelf.entries.values() {
            if let Some(state) = entry.record.state_at(now) {
                stats.count(state);
            }
            if let Some(Answer::Kept(reply)) = &entry.record.answer {
                stats.bytes += reply.body.len() as u64;
            }
        }
        Ok(stats)
    }
}
