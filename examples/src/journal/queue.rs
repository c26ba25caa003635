//! Queued work.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::record::{Fence, Record};
use onceward_core::store::{ClaimRequest, Due, Enqueued, Queue, StoreError};

use super::JournalStore;

#[async_trait]
impl Queue for JournalStore {
    async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        if let Some(claim) = shelf.known(ask, now) {
            return Ok(Enqueued::Known(claim));
        }
        let mut record = shelf.begun(ask, now);
        record.enqueue(now.plus(after));
        let id = record.id;
        let line = shelf.put_with(record, request);
        shelf.write(vec![line])?;
        Ok(Enqueued::Accepted(id))
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        let entries = shelf.entries.values();
        let mut due: Vec<_> = entries
            .filter(|one| one.record.is_due(now))
            .cloned()
            .collect();
        due.sort_unstable_by_key(|one| (one.record.until, one.changed));
        due.truncate(limit);
        let (mut lines, mut granted) = (Vec::new(), Vec::new());
        for entry in due {
            let mut record = Record::clone(&entry.record);
            record.grant(Fence(shelf.next()), record.attempt, now);
            granted.push(Due {
                grant: record.as_grant(),
                record: Arc::new(record.clone()),
                request: entry.request,
            });
            lines.push(shelf.put(record));
        }
        shelf.write(lines)?;
        Ok(granted)
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let shelf = self.shelf();
        let due = shelf.entries.values().filter_map(|one| one.record.due_at());
        Ok(due.min())
    }
}
