//! The store in memory: the model that every other store is compared with, and
//! a store for tests and trials. It forgets everything when the process ends.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::{Clock, Timestamp};
use crate::identity::{Digest, OperationId};
use crate::notifier::Notifier;
use crate::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use crate::store::{
    Added, Changed, Claim, ClaimRequest, Collection, Cursor, Due, Enqueued, Filter, Force, Inspect,
    PAGE_MAX, Page, PageRequest, Queue, Registry, Resolution, SortOrder, Stats, Store, StoreError,
};

/// A store in memory. Every rule is a method of [`Record`].
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    operations: Mutex<Operations>,
    documents: Mutex<HashMap<Collection, Documents>>,
    notifier: Notifier,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = self.operations().by_digest.len();
        f.debug_struct("MemoryStore")
            .field("operations", &operations)
            .finish_non_exhaustive()
    }
}

type Documents = BTreeMap<String, Bytes>;

#[derive(Default)]
struct Operations {
    by_digest: HashMap<Digest, StoredOperation>,
    /// The last number given: a fence, or the position of a change in listings.
    last: u64,
}

struct StoredOperation {
    record: Arc<Record>,
    request: Bytes,
    changed: u64,
}

impl MemoryStore {
    /// An empty store with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            operations: Mutex::default(),
            documents: Mutex::default(),
            notifier: Notifier::default(),
        }
    }

    fn operations(&self) -> MutexGuard<'_, Operations> {
        // Every step leaves the map consistent, also one that panicked before it wrote.
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the documents of a collection.
    fn with_collection<T>(
        &self,
        collection: Collection,
        act: impl FnOnce(&mut Documents) -> T,
    ) -> T {
        let documents = self.documents.lock();
        let mut documents = documents.unwrap_or_else(PoisonError::into_inner);
        act(documents.entry(collection).or_default())
    }

    /// Ends every lease now, as a restart of a store that one process owns: its
    /// holders no longer exist.
    #[cfg(feature = "conformance")]
    pub(crate) fn end_leases(&self) {
        let now = self.clock.now();
        self.operations().by_digest.retain(|_, entry| {
            if entry.record.state != State::Running {
                return true;
            }
            let after = entry.record.without_holder(now).map(Arc::new);
            after.map(|record| entry.record = record).is_some()
        });
    }

    /// Changes a record, or its trace, by id, as an operator.
    fn change(
        &self,
        id: OperationId,
        act: impl FnOnce(&mut Operations, Digest, State, Timestamp) -> Changed,
    ) -> Changed {
        let now = self.clock.now();
        let mut operations = self.operations();
        let found = operations
            .find(id)
            .map(|record| (record.digest, record.shown_state_at(now)));
        let Some((digest, Some(state))) = found else {
            return Changed::Absent;
        };
        let changed = act(&mut operations, digest, state, now);
        drop(operations);
        self.notifier.notify(&digest);
        changed
    }
}

impl Operations {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn record(&self, digest: &Digest) -> Option<&Arc<Record>> {
        self.by_digest.get(digest).map(|entry| &entry.record)
    }

    fn find(&self, id: OperationId) -> Option<&Arc<Record>> {
        let mut records = self.by_digest.values().map(|entry| &entry.record);
        records.find(|record| record.id == id)
    }

    /// The answer to a claim that is not granted anew.
    fn known(&self, ask: &ClaimRequest, now: Timestamp) -> Option<Claim> {
        Claim::on(self.record(&ask.digest)?, ask, now)
    }

    fn write(&mut self, record: Record) {
        let changed = self.next();
        match self.by_digest.get_mut(&record.digest) {
            Some(entry) => {
                entry.record = Arc::new(record);
                entry.changed = changed;
            }
            None => {
                let entry = StoredOperation {
                    request: Bytes::new(),
                    changed,
                    record: Arc::new(record),
                };
                self.by_digest.insert(entry.record.digest, entry);
            }
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        if let Some(claim) = operations.known(ask, now) {
            return Ok(claim);
        }
        let mut record = ask.to_record_after(operations.record(&ask.digest).map(Arc::as_ref), now);
        let fence = Fence(operations.next());
        record.grant(fence, ask.attempt, now);
        let grant = record.as_grant();
        operations.write(record);
        Ok(Claim::Granted(grant))
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        let held = self
            .operations()
            .record(digest)
            .filter(|record| record.attempt == attempt && !record.delivered)
            .map(|record| record.fence);
        if let Some(fence) = held {
            self.settle(digest, fence, Settlement::Released).await?;
        }
        Ok(())
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        let Some(entry) = operations.by_digest.get_mut(digest) else {
            return Ok(Settled::Stale);
        };
        let mut record = Record::clone(&entry.record);
        let renewed = record.renew(fence, now);
        entry.record = Arc::new(record);
        Ok(renewed)
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        let Some(before) = operations.record(digest) else {
            return Ok(Settled::Stale);
        };
        let mut record = Record::clone(before);
        let settled = record.settle(fence, &settlement, now);
        // A repeated settlement changes nothing, nor the position in listings.
        if record != **before {
            operations.write(record);
        }
        drop(operations);
        self.notifier.notify(digest);
        Ok(settled)
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        let now = self.clock.now();
        Ok(self
            .operations()
            .record(digest)
            .and_then(|r| r.seen_at(now)))
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let now = self.clock.now();
        Ok(self.operations().find(id).and_then(|r| r.seen_at(now)))
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        if let Some(record) = operations.record(digest).filter(|r| r.wants_touch(now)) {
            let mut record = Record::clone(record);
            record.touch(now);
            operations.write(record);
        }
        Ok(())
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        let subscription = self.notifier.listen(digest);
        let runs = self
            .get(digest)
            .await?
            .is_some_and(|record| matches!(record.state, State::Running | State::Queued));
        if runs {
            subscription.notified_within(limit).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Queue for MemoryStore {
    async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        if let Some(claim) = operations.known(ask, now) {
            return Ok(Enqueued::Known(claim));
        }
        let mut record = ask.to_record_after(operations.record(&ask.digest).map(Arc::as_ref), now);
        record.enqueue(now.plus(after));
        let id = record.id;
        operations.write(record);
        if let Some(entry) = operations.by_digest.get_mut(&ask.digest) {
            entry.request = request;
        }
        Ok(Enqueued::Accepted(id))
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        let mut due: Vec<_> = operations
            .by_digest
            .values()
            .filter(|entry| entry.record.is_due(now))
            .map(|entry| (entry.record.until, entry.changed, entry.record.digest))
            .collect();
        due.sort_unstable();
        let mut granted = Vec::new();
        for (_, _, digest) in due.into_iter().take(limit) {
            let fence = Fence(operations.next());
            let Some(record) = operations.record(&digest) else {
                continue;
            };
            let mut record = Record::clone(record);
            record.grant(fence, record.attempt, now);
            operations.write(record.clone());
            let request = operations
                .by_digest
                .get(&digest)
                .map(|entry| entry.request.clone());
            granted.push(Due {
                grant: record.as_grant(),
                record: Arc::new(record),
                request: request.unwrap_or_default(),
            });
        }
        Ok(granted)
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let operations = self.operations();
        let records = operations.by_digest.values().map(|entry| &entry.record);
        Ok(records.filter_map(|record| record.due_at()).min())
    }
}

#[async_trait]
impl Inspect for MemoryStore {
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError> {
        let now = self.clock.now();
        let operations = self.operations();
        let mut found: Vec<_> = operations
            .by_digest
            .values()
            .filter(|entry| page.after.is_none_or(|after| entry.changed < after.0))
            .filter_map(|entry| Some((entry.changed, entry.record.shown_at(now)?)))
            .filter(|(_, record)| filter.matches(record))
            .collect();
        found.sort_unstable_by_key(|(changed, _)| std::cmp::Reverse(*changed));
        let limit = page.limit.min(PAGE_MAX);
        let more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().map(|(changed, _)| Cursor(*changed));
        Ok(Page {
            next: last.filter(|_| more),
            records: found.into_iter().map(|(_, record)| record).collect(),
        })
    }

    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let now = self.clock.now();
        Ok(self.operations().find(id).and_then(|r| r.shown_at(now)))
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        Ok(self.change(id, |operations, digest, state, _| {
            if state == State::Running && force == Force::No {
                return Changed::Refused(state);
            }
            operations.by_digest.remove(&digest);
            Changed::Done
        }))
    }

    async fn resolve(
        &self,
        id: OperationId,
        meant: Option<Fence>,
        word: Resolution,
    ) -> Result<Changed, StoreError> {
        Ok(self.change(id, |operations, digest, state, now| {
            if state != State::Unknown {
                return Changed::Refused(state);
            }
            let record = operations.record(&digest);
            if record.is_some_and(|record| meant.is_some_and(|meant| meant != record.fence)) {
                return Changed::Refused(state);
            }
            let fence = Fence(operations.next());
            if let Some(record) = operations.record(&digest) {
                let mut record = Record::clone(record);
                record.resolve(fence, &word, now);
                operations.write(record);
            }
            Changed::Done
        }))
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        Ok(self.change(id, |operations, digest, state, now| {
            if state != State::Paused {
                return Changed::Refused(state);
            }
            if let Some(record) = operations.record(&digest) {
                let mut record = Record::clone(record);
                record.resume(now);
                operations.write(record);
            }
            Changed::Done
        }))
    }

    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError> {
        Ok(self.change(id, |operations, digest, _, now| {
            let fence = Fence(operations.next());
            let Some(record) = operations.record(&digest) else {
                return Changed::Absent;
            };
            let mut record = Record::clone(record);
            let changed = record.redeliver(fence, now);
            if changed == Changed::Done {
                operations.write(record);
            }
            changed
        }))
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let now = self.clock.now();
        let mut operations = self.operations();
        let over: Vec<_> = operations
            .by_digest
            .values()
            .filter(|entry| entry.record.is_over(now))
            .map(|entry| entry.record.digest)
            .take(limit)
            .collect();
        for digest in &over {
            operations.by_digest.remove(digest);
        }
        for entry in operations.by_digest.values_mut() {
            if entry.record.is_overdue(now) {
                Arc::make_mut(&mut entry.record).expire();
                entry.request = Bytes::new();
            }
        }
        Ok(over.len())
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let now = self.clock.now();
        let operations = self.operations();
        let mut stats = Stats::default();
        for entry in operations.by_digest.values() {
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

#[async_trait]
impl Registry for MemoryStore {
    async fn put(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<(), StoreError> {
        self.with_collection(collection, |documents| {
            documents.insert(name.into(), document)
        });
        Ok(())
    }

    async fn add(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        Ok(self.with_collection(collection, |documents| {
            if documents.contains_key(name) {
                return Added::Known;
            }
            documents.insert(name.into(), document);
            Added::Done
        }))
    }

    async fn read(&self, collection: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(self.with_collection(collection, |documents| documents.get(name).cloned()))
    }

    async fn remove(&self, collection: Collection, name: &str) -> Result<(), StoreError> {
        self.with_collection(collection, |documents| documents.remove(name));
        Ok(())
    }

    async fn documents(
        &self,
        collection: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let limit = limit.min(PAGE_MAX);
        let own = |(name, document): (&String, &Bytes)| (name.clone(), document.clone());
        Ok(self.with_collection(collection, |documents| match order {
            SortOrder::Ascending => {
                let rest = documents.range::<str, _>((after, Bound::Unbounded));
                rest.take(limit).map(own).collect()
            }
            SortOrder::Descending => {
                let rest = documents.range::<str, _>((Bound::Unbounded, after));
                rest.rev().take(limit).map(own).collect()
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::AfterLoss;
    use crate::clock::ManualClock;
    use crate::record::Reply;
    use crate::record::tests::{LEASE, START, record};

    /// An operation of its own, by number.
    fn ask(number: u64) -> ClaimRequest {
        let record = record(State::Running, AfterLoss::Hold);
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        let digest = Digest::from_bytes(digest);
        ClaimRequest {
            digest,
            identity: record.identity,
            fingerprint: record.fingerprint,
            terms: record.terms,
            attempt: Attempt(1),
            id: OperationId::new(&digest, 1),
        }
    }

    fn store() -> (MemoryStore, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(START));
        (MemoryStore::new(clock.clone()), clock)
    }

    async fn fence(store: &MemoryStore, ask: &ClaimRequest) -> Fence {
        match store.claim(ask).await {
            Ok(Claim::Granted(grant)) => grant.fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    #[tokio::test]
    async fn sweep_takes_no_more_than_its_limit() {
        let (store, clock) = store();
        for number in 0..5 {
            let ask = ask(number);
            let fence = fence(&store, &ask).await;
            let settled = store.settle(&ask.digest, fence, Settlement::Released).await;
            assert_eq!(settled.ok(), Some(Settled::Done));
        }
        assert_eq!(store.sweep(10).await.ok(), Some(0), "nothing is over yet");
        clock.advance(LEASE);
        for taken in [2, 2, 1, 0] {
            assert_eq!(store.sweep(2).await.ok(), Some(taken));
        }
    }

    #[tokio::test]
    async fn bytes_are_those_of_the_replies() {
        let (store, _) = store();
        let ask = ask(1);
        let fence = fence(&store, &ask).await;
        let reply = Reply {
            status: 200,
            headers: Vec::new(),
            body: Bytes::from_static(b"seven!!"),
            trailers: Vec::new(),
        };
        let word = Settlement::Completed(Answer::Kept(Arc::new(reply)));
        let settled = store.settle(&ask.digest, fence, word).await;
        assert!(settled.is_ok_and(Settled::is_recorded));
        assert_eq!(store.stats().await.map(|stats| stats.bytes).ok(), Some(7));
    }

    #[tokio::test]
    async fn page_ends_where_the_next_begins() {
        let (store, _) = store();
        for number in 0..4 {
            fence(&store, &ask(number)).await;
        }
        let ask = PageRequest::first(4);
        let page = store.list(&Filter::default(), ask).await.expect("a page");
        assert_eq!(
            (page.records.len(), page.next),
            (4, None),
            "a full page may be the last"
        );
    }
}
