//! A custom store: operations in memory, every change in a journal on disk, synced
//! before it is acknowledged.
//!
//! The rules are not here: `Claim::on` answers a claim by a record, and the methods
//! of `Record` apply settlements. A store keeps records, issues rising numbers, and
//! makes each step atomic. The conformance suite checks it.
//!
//! Steps block for the length of a sync: this is a store for a small process.

mod file;
mod inspect;
mod queue;
mod registry;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::{Clock, Timestamp};
use onceward_core::identity::{Digest, OperationId};
use onceward_core::notifier::Notifier;
use onceward_core::record::{Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{Claim, ClaimRequest, Store, StoreError};

use self::file::{Journal, Line};

/// A store in a file.
pub struct JournalStore {
    clock: Arc<dyn Clock>,
    shelf: Mutex<Shelf>,
    notifier: Notifier,
}

impl fmt::Debug for JournalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalStore").finish_non_exhaustive()
    }
}

/// The content of the store.
struct Shelf {
    entries: HashMap<Digest, Entry>,
    documents: BTreeMap<(String, String), Bytes>,
    /// The last number used: a fence, or the position of a change in listings.
    last: u64,
    journal: Journal,
}

#[derive(Clone)]
struct Entry {
    record: Arc<Record>,
    request: Bytes,
    changed: u64,
}

impl JournalStore {
    /// Opens the store in this file, or creates it.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written, or is not a journal of this store.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (journal, lines) = Journal::open(path)?;
        let mut shelf = Shelf {
            entries: HashMap::new(),
            documents: BTreeMap::new(),
            last: 0,
            journal,
        };
        for line in lines {
            shelf.apply(line);
        }
        shelf.compact()?;
        Ok(Self {
            clock,
            shelf: Mutex::new(shelf),
            notifier: Notifier::default(),
        })
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // The content of memory was written to the journal before.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn record(&self, digest: &Digest) -> Option<&Arc<Record>> {
        self.entries.get(digest).map(|entry| &entry.record)
    }

    fn find(&self, id: OperationId) -> Option<&Arc<Record>> {
        let mut records = self.entries.values().map(|entry| &entry.record);
        records.find(|record| record.id == id)
    }

    /// The answer to a claim; `None` where the key is free.
    fn known(&self, ask: &ClaimRequest, now: Timestamp) -> Option<Claim> {
        Claim::on(self.record(&ask.digest)?, ask, now)
    }

    /// The record of a new claim, after the one that exists.
    fn begun(&self, ask: &ClaimRequest, now: Timestamp) -> Record {
        ask.to_record_after(self.record(&ask.digest).map(Arc::as_ref), now)
    }

    /// The change that replaces a record; its request stays.
    fn put(&mut self, record: Record) -> Line {
        let request = self.entries.get(&record.digest);
        let request = request.map(|entry| entry.request.clone());
        self.put_with(record, request.unwrap_or_default())
    }

    fn put_with(&mut self, record: Record, request: Bytes) -> Line {
        Line::Put(Entry {
            record: Arc::new(record),
            request,
            changed: self.next(),
        })
    }

    fn forget(&self, digest: Digest) -> Line {
        Line::Forget {
            digest,
            last: self.last,
        }
    }

    /// Makes changes durable, then visible.
    fn write(&mut self, lines: Vec<Line>) -> Result<(), StoreError> {
        let written = self.journal.append(&lines);
        written.map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        for line in lines {
            self.apply(line);
        }
        Ok(())
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Put(entry) => {
                self.last = self.last.max(entry.changed);
                self.entries.insert(entry.record.digest, entry);
            }
            Line::Forget { digest, last } => {
                self.last = self.last.max(last);
                self.entries.remove(&digest);
            }
            Line::Document { place, document } => {
                self.documents.insert(place, document);
            }
            Line::NoDocument { place } => {
                self.documents.remove(&place);
            }
        }
    }

    /// Rewrites the journal without expired operations.
    fn compact(&mut self) -> io::Result<()> {
        // A number that was used is never used again.
        let mut lines = vec![Line::Forget {
            digest: Digest::from_bytes([0; 32]),
            last: self.last,
        }];
        lines.extend(self.entries.values().cloned().map(Line::Put));
        let documents = self.documents.iter();
        lines.extend(documents.map(|(place, document)| Line::Document {
            place: place.clone(),
            document: document.clone(),
        }));
        self.journal.replace(&lines)
    }
}

#[async_trait]
impl Store for JournalStore {
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        if let Some(claim) = shelf.known(ask, now) {
            return Ok(claim);
        }
        let mut record = shelf.begun(ask, now);
        record.grant(Fence(shelf.next()), ask.attempt, now);
        let grant = record.as_grant();
        let line = shelf.put(record);
        shelf.write(vec![line])?;
        Ok(Claim::Granted(grant))
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        let held = self
            .shelf()
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
        let mut shelf = self.shelf();
        let Some(mut entry) = shelf.entries.get(digest).cloned() else {
            return Ok(Settled::Stale);
        };
        let renewed = Arc::make_mut(&mut entry.record).renew(fence, now);
        if renewed == Settled::Done {
            // Its position in listings stays.
            shelf.write(vec![Line::Put(entry)])?;
        }
        Ok(renewed)
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        let Some(before) = shelf.record(digest).cloned() else {
            return Ok(Settled::Stale);
        };
        let mut record = Record::clone(&before);
        let settled = record.settle(fence, &settlement, now);
        if record != *before {
            let line = shelf.put(record);
            shelf.write(vec![line])?;
        }
        drop(shelf);
        self.notifier.notify(digest);
        Ok(settled)
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        let now = self.clock.now();
        Ok(self.shelf().record(digest).and_then(|one| one.seen_at(now)))
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let now = self.clock.now();
        Ok(self.shelf().find(id).and_then(|one| one.seen_at(now)))
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut shelf = self.shelf();
        let Some(record) = shelf.record(digest).filter(|one| one.wants_touch(now)) else {
            return Ok(());
        };
        let mut record = Record::clone(record);
        record.touch(now);
        let line = shelf.put(record);
        shelf.write(vec![line])
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        // Subscribes before reading, so that no notification is missed.
        let subscription = self.notifier.listen(digest);
        let record = self.get(digest).await?;
        let runs = |one: Arc<Record>| matches!(one.state, State::Running | State::Queued);
        if record.is_some_and(runs) {
            subscription.notified_within(limit).await;
        }
        Ok(())
    }
}
