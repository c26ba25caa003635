//! The steps of the store, as the writer takes them.
//!
//! Each step looks an operation up, applies the rules of `core`, and records the
//! effects: in the batch of the log, and in the state by which the next step judges. A
//! step reads all it needs before its first effect, so that a step that fails has none.
//! Nothing is durable before [`Steps::commit`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{
    Added, Changed, Claim, ClaimRequest, Collection, Due, Enqueued, Force, Resolution, Stats,
};
use onceward_core::wire;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::Shared;
use super::bucket::Age;
use super::effect::{
    DocumentChange, Effect, Finished, FinishedRequest, Opened, OpenedRequest, Unkept,
};
use super::error::{Error, Result};
use super::finished::{self, FinishedOperation};
use super::log::Log;
use super::open_operations::OpenOperation;
use super::overlay::{OverlaidState, UnfilledOperation, UnfilledRequest};
use super::sql;
use super::state::{Changes, State as StoreState};
use crate::checksum::unseal;
use crate::lookup::Lookup;

/// How many numbers are reserved at a time, so that the mark in the log is written
/// rarely.
const NUMBERS_RESERVED: u64 = 1 << 16;

/// The store's state in the writer.
pub(super) struct Steps {
    pub(super) log: Log,
    pub(super) state: StoreState,
    /// Reads the database beside the filler.
    db: Connection,
    shared: Arc<Shared>,
    /// The last number that was assigned.
    last_number: u64,
    after_commit: Vec<AfterCommit>,
    /// The time of the last batch.
    pub(super) latest: Timestamp,
}

/// Effects that follow once the batch is durable.
enum AfterCommit {
    /// Keeps a finished record at hand for replays.
    Cache(Arc<Record>),
    /// Removes a record from the cache.
    Evict(Digest),
    /// Wakes the waiters of the operation.
    Notify(Digest),
}

/// A known operation and where it is stored.
enum Known {
    Open(OpenOperation),
    Unfilled(Arc<UnfilledOperation>),
    Filled(FinishedOperation),
}

impl Known {
    fn record(&self) -> &Arc<Record> {
        match self {
            Self::Open(operation) => &operation.record,
            Self::Unfilled(operation) => &operation.record,
            Self::Filled(found) => &found.record,
        }
    }

    /// Where the operation is kept, if it is finished.
    fn place(&self) -> Option<Unkept> {
        match self {
            Self::Open(_) => None,
            Self::Unfilled(operation) => Some(operation.place()),
            Self::Filled(found) => Some(Unkept {
                digest: found.record.digest,
                row: found.row,
                end: found.bucket.end,
                replied: found.replied,
            }),
        }
    }
}

/// Where a step may look an operation up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Everywhere.
    Database,
    /// In memory: the caller found it absent from the database, and nothing was filled
    /// since.
    Memory,
}

impl Steps {
    /// The steps over an opened store. Every number that is reserved may have been
    /// assigned.
    pub(super) fn new(log: Log, state: StoreState, db: Connection, shared: Arc<Shared>) -> Self {
        Self {
            log,
            last_number: state.reserved,
            state,
            db,
            shared,
            after_commit: Vec::new(),
            latest: Timestamp::default(),
        }
    }

    /// Makes all steps since the last commit durable, then acts on them. Where the disk
    /// has no room ([`Error::Full`]), they wait for the next commit.
    pub(super) fn commit(&mut self) -> Result<()> {
        if self.log.is_empty() {
            return Ok(());
        }
        let now = self.now();
        self.log.commit(now)?;
        self.latest = now;
        for after_commit in self.after_commit.drain(..) {
            match after_commit {
                AfterCommit::Cache(record) => self.shared.hot_replies.put(record),
                AfterCommit::Evict(digest) => self.shared.hot_replies.remove(&digest),
                AfterCommit::Notify(digest) => self.shared.notifier.notify(&digest),
            }
        }
        Ok(())
    }

    /// Whether something since the last commit waits to be durable. An answer may
    /// depend on it.
    pub(super) fn waits_for_commit(&self) -> bool {
        !self.log.is_empty()
    }

    /// What the database lacks; everything is durable.
    pub(super) fn take_changes(&mut self) -> Changes {
        let mut changes = self.state.take_changes(self.log.last(), self.latest);
        changes.wants_checkpoint = self.log.wants_checkpoint();
        changes
    }

    /// Records an effect.
    pub(super) fn record(&mut self, effect: Effect) {
        self.log.push(&effect);
        self.state.take(effect);
    }

    /// The next number: a fence, and the position of a change in listings.
    fn next_number(&mut self) -> u64 {
        if self.last_number >= self.state.reserved {
            self.record(Effect::Numbers(self.last_number + NUMBERS_RESERVED));
        }
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn claim(&mut self, ask: &ClaimRequest, reach: Reach) -> Result<Claim> {
        let now = self.now();
        let known = self.look_up_within(Lookup::Digest(ask.digest), reach)?;
        if let Some(claim) = answer(known.as_ref(), ask, now) {
            return Ok(claim);
        }
        let mut record = ask.to_record_after(known.as_ref().map(|known| &**known.record()), now);
        let row = self.next_number();
        record.grant(Fence(row), ask.attempt, now);
        let grant = record.as_grant();
        self.put_open(known.as_ref(), row, record, None);
        Ok(Claim::Granted(grant))
    }

    pub(super) fn withdraw(&mut self, digest: Digest, attempt: Attempt) -> Result<()> {
        let known = self.look_up(Lookup::Digest(digest))?;
        if let Some(known) = known.filter(|known| is_own(known.record(), attempt)) {
            let fence = known.record().fence;
            self.settle_known(&known, fence, &Settlement::Released, None)?;
        }
        Ok(())
    }

    pub(super) fn renew(&mut self, digest: Digest, fence: Fence) -> Result<Settled> {
        let now = self.now();
        let Some(Known::Open(operation)) = self.look_up(Lookup::Digest(digest))? else {
            return Ok(Settled::Stale);
        };
        let mut record = Record::clone(&operation.record);
        let renewed = record.renew(fence, now);
        if renewed == Settled::Done {
            self.rewrite(&operation, record);
        }
        Ok(renewed)
    }

    pub(super) fn settle(
        &mut self,
        digest: Digest,
        fence: Fence,
        settlement: &Settlement,
        reply: Option<Bytes>,
    ) -> Result<Settled> {
        match self.look_up(Lookup::Digest(digest))? {
            Some(known) => self.settle_known(&known, fence, settlement, reply),
            None => Ok(Settled::Stale),
        }
    }

    fn settle_known(
        &mut self,
        known: &Known,
        fence: Fence,
        settlement: &Settlement,
        reply: Option<Bytes>,
    ) -> Result<Settled> {
        let now = self.now();
        let mut record = Record::clone(known.record());
        let settled = record.settle(fence, settlement, now);
        // A repeated settlement changes nothing, so nothing is written.
        if settled.is_recorded() && record.state != known.record().state {
            let digest = record.digest;
            self.put(known, record, reply)?;
            self.after_commit.push(AfterCommit::Notify(digest));
        }
        Ok(settled)
    }

    pub(super) fn get(&mut self, lookup: Lookup) -> Result<Option<Arc<Record>>> {
        let now = self.now();
        let known = self.look_up(lookup)?;
        Ok(known.and_then(|known| known.record().seen_at(now)))
    }

    /// The operation, or its trace.
    pub(super) fn show(&mut self, id: OperationId) -> Result<Option<Arc<Record>>> {
        let now = self.now();
        let known = self.look_up(Lookup::Id(id))?;
        Ok(known.and_then(|known| known.record().shown_at(now)))
    }

    /// Notes a replay: the operation moves to the bucket of its new expiry.
    pub(super) fn touch(&mut self, digest: Digest) -> Result<()> {
        let now = self.now();
        let known = self.look_up(Lookup::Digest(digest))?;
        let Some(known) = known.filter(|known| known.record().wants_touch(now)) else {
            return Ok(());
        };
        let Some(place) = known.place() else {
            return Ok(());
        };
        let mut record = Record::clone(known.record());
        record.touch(now);
        let reply = match &record.answer {
            Some(Answer::Kept(reply)) => Some(wire::encode_reply(reply).into()),
            _ => None,
        };
        let request = match self.request_of(&known)? {
            Some(body) => FinishedRequest::Body(body),
            None => FinishedRequest::None,
        };
        let row = self.next_number();
        let record = Arc::new(record);
        self.unkeep(place);
        self.record(Effect::Finished(Finished::new(
            row,
            record.clone(),
            reply,
            request,
        )));
        self.after_commit.push(AfterCommit::Cache(record));
        Ok(())
    }

    pub(super) fn enqueue(
        &mut self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued> {
        let now = self.now();
        let known = self.look_up(Lookup::Digest(ask.digest))?;
        if let Some(claim) = answer(known.as_ref(), ask, now) {
            return Ok(Enqueued::Known(claim));
        }
        let mut record = ask.to_record_after(known.as_ref().map(|known| &**known.record()), now);
        record.enqueue(now.plus(after));
        let id = record.id;
        let row = self.next_number();
        let request = OpenedRequest {
            row,
            body: Some(request),
        };
        self.put_open(known.as_ref(), row, record, Some(request));
        Ok(Enqueued::Accepted(id))
    }

    pub(super) fn due(&mut self, limit: usize) -> Result<Vec<Due>> {
        let now = self.now();
        let mut given = Vec::new();
        for operation in self.state.open.due(now, limit) {
            match self.deliver(&operation, now) {
                Ok(due) => given.push(due),
                Err(error) if error.is_damage() => {
                    tracing::error!(%error, "queued operation is damaged; it is not delivered");
                    self.state.open.set_aside(&operation);
                }
                // What was given before must not be lost with this error.
                Err(error) if given.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(given)
    }

    fn deliver(&mut self, operation: &OpenOperation, now: Timestamp) -> Result<Due> {
        let request = self.read_request(operation)?;
        let row = self.next_number();
        let mut record = Record::clone(&operation.record);
        record.grant(Fence(row), record.attempt, now);
        let record = self.move_open(operation, row, record);
        Ok(Due {
            grant: record.as_grant(),
            record,
            request,
        })
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.state.open.next_due()
    }

    pub(super) fn purge(&mut self, id: OperationId, force: Force) -> Result<Changed> {
        self.change(id, |steps, known, state, _| {
            if state == State::Running && force == Force::No {
                return Ok(Changed::Refused(state));
            }
            steps.forget(known);
            Ok(Changed::Done)
        })
    }

    pub(super) fn resolve(
        &mut self,
        id: OperationId,
        meant: Option<Fence>,
        word: &Resolution,
        reply: Option<Bytes>,
    ) -> Result<Changed> {
        self.change(id, |steps, known, state, now| {
            if state != State::Unknown {
                return Ok(Changed::Refused(state));
            }
            if meant.is_some_and(|meant| meant != known.record().fence) {
                return Ok(Changed::Refused(state));
            }
            let mut record = Record::clone(known.record());
            record.resolve(Fence(steps.next_number()), word, now);
            steps.put(known, record, reply)?;
            Ok(Changed::Done)
        })
    }

    pub(super) fn resume(&mut self, id: OperationId) -> Result<Changed> {
        self.change(id, |steps, known, state, now| {
            if state != State::Paused {
                return Ok(Changed::Refused(state));
            }
            let mut record = Record::clone(known.record());
            record.resume(now);
            steps.put(known, record, None)?;
            Ok(Changed::Done)
        })
    }

    pub(super) fn redeliver(&mut self, id: OperationId) -> Result<Changed> {
        self.change(id, |steps, known, _, now| {
            let mut record = Record::clone(known.record());
            let changed = record.redeliver(Fence(steps.next_number()), now);
            if changed == Changed::Done {
                if let Known::Open(operation) = known {
                    steps.read_request(operation)?;
                }
                steps.put(known, record, None)?;
            }
            Ok(changed)
        })
    }

    /// Changes an operation that is not over, or its trace, for an operator.
    fn change(
        &mut self,
        id: OperationId,
        act: impl FnOnce(&mut Self, &Known, State, Timestamp) -> Result<Changed>,
    ) -> Result<Changed> {
        let now = self.now();
        let known = self.look_up(Lookup::Id(id))?;
        let Some(known) = known else {
            return Ok(Changed::Absent);
        };
        let Some(state) = known.record().shown_state_at(now) else {
            return Ok(Changed::Absent);
        };
        let changed = act(self, &known, state, now)?;
        if changed == Changed::Done {
            let digest = known.record().digest;
            self.after_commit.push(AfterCommit::Notify(digest));
        }
        Ok(changed)
    }

    /// Writes or, without a body, removes a document.
    pub(super) fn put_document(&mut self, sheet: Collection, name: String, body: Option<Bytes>) {
        self.record(Effect::Document(DocumentChange { sheet, name, body }));
    }

    pub(super) fn add_document(
        &mut self,
        sheet: Collection,
        name: String,
        body: Bytes,
    ) -> Result<Added> {
        let is_known = match self.state.overlay.document(sheet, &name) {
            Some(body) => body.is_some(),
            None => self.reads_document(sheet, &name)?,
        };
        if is_known {
            return Ok(Added::Known);
        }
        self.put_document(sheet, name, Some(body));
        Ok(Added::Done)
    }

    fn reads_document(&self, sheet: Collection, name: &str) -> Result<bool> {
        let mut statement = self.db.prepare_cached(sql::DOCUMENT_READ)?;
        Ok(statement.exists(params![sheet.as_str(), name.as_bytes()])?)
    }

    /// Forgets released operations that are over; returns how many.
    pub(super) fn sweep_released(&mut self, limit: usize) -> usize {
        let over = self.state.open.over(self.now(), limit);
        for digest in &over {
            self.record(Effect::Closed(*digest));
        }
        over.len()
    }

    /// The counts that are in memory: without the bytes, and with everything in
    /// buckets that are partly over. What finished since the last fill counts, perhaps
    /// twice while it is being filled.
    pub(super) fn stats(&self) -> Stats {
        let now = self.now();
        let mut stats = Stats::default();
        for operation in self.state.open.iter() {
            if let Some(state) = operation.record.state_at(now) {
                stats.count(state);
            }
        }
        let kept = self.shared.buckets.operations();
        let rows = kept
            .values()
            .filter(|bucket| bucket.age(now) != Age::Over)
            .map(|bucket| bucket.tally().rows);
        let unfilled = self.state.overlay.finished();
        let unfilled = unfilled.filter(|operation| !operation.end.is_past(now));
        stats.operations += rows.sum::<u64>() + unfilled.count() as u64;
        stats
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn look_up(&self, lookup: Lookup) -> Result<Option<Known>> {
        self.look_up_within(lookup, Reach::Database)
    }

    /// Open operations, then the overlay, then the database.
    fn look_up_within(&self, lookup: Lookup, reach: Reach) -> Result<Option<Known>> {
        let open = match lookup {
            Lookup::Digest(digest) => self.state.open.get(&digest)?,
            Lookup::Id(id) => self.state.open.find(id)?,
        };
        if let Some(operation) = open {
            return Ok(Some(Known::Open(operation.clone())));
        }
        let unfilled = match lookup {
            Lookup::Digest(digest) => match self.state.overlay.get(&digest) {
                OverlaidState::Finished(operation) => Some(operation),
                OverlaidState::Gone => return Ok(None),
                OverlaidState::Unknown => None,
            },
            Lookup::Id(id) => self.state.overlay.find(id),
        };
        if let Some(operation) = unfilled {
            return Ok(Some(Known::Unfilled(operation.clone())));
        }
        if reach == Reach::Memory {
            return Ok(None);
        }
        let now = self.now();
        let found = finished::find(&self.db, &self.shared.buckets, lookup, now)?;
        // What the overlay knows of the key is newer than a row that was found by its id.
        let counts = |found: &FinishedOperation| {
            let overlaid = self.state.overlay.get(&found.record.digest);
            matches!(overlaid, OverlaidState::Unknown)
        };
        Ok(found.filter(counts).map(Known::Filled))
    }

    /// The sealed request of a finished operation, from memory or from the database.
    fn request_of(&self, known: &Known) -> Result<Option<Bytes>> {
        match known {
            Known::Open(_) => Ok(None),
            Known::Filled(found) => self.kept_request(found.row, &known.place()),
            Known::Unfilled(operation) => match &operation.request {
                UnfilledRequest::None => Ok(None),
                UnfilledRequest::Body(body) => Ok(Some(body.clone())),
                // The fill under way may have moved it to its operation.
                UnfilledRequest::InFile(row) => match self.stored_request(*row)? {
                    Some(body) => Ok(Some(body)),
                    None => self.kept_request(operation.row, &known.place()),
                },
            },
        }
    }

    /// A request beside its finished operation.
    fn kept_request(&self, row: u64, place: &Option<Unkept>) -> Result<Option<Bytes>> {
        let Some(place) = place else {
            return Ok(None);
        };
        let buckets = &self.shared.buckets;
        let bucket = match place.replied {
            Some(end) => {
                let bucket = buckets.reply(end);
                bucket.map(|bucket| (bucket.request.clone(), bucket.table.clone()))
            }
            None => {
                let operations = buckets.operations();
                let bucket = operations.get(&place.end);
                bucket.map(|bucket| (bucket.request.clone(), bucket.table.clone()))
            }
        };
        match bucket {
            Some((read, table)) => {
                finished::unless_swept(&self.db, &table, self.read_body(&read, row))
            }
            None => Ok(None),
        }
    }

    /// A request of an open operation that the database has.
    fn stored_request(&self, row: u64) -> Result<Option<Bytes>> {
        self.read_body(sql::REQUEST_READ, row)
    }

    fn read_body(&self, read: &str, row: u64) -> Result<Option<Bytes>> {
        let mut statement = self.db.prepare_cached(read).map_err(Error::from_read)?;
        let body: Option<Option<Vec<u8>>> = statement
            .query_row([row.cast_signed()], |row| row.get(0))
            .optional()
            .map_err(Error::from_read)?;
        Ok(body.flatten().map(Bytes::from))
    }

    /// The request of a queued operation. A missing one is damage of this operation
    /// alone.
    fn read_request(&self, operation: &OpenOperation) -> Result<Bytes> {
        let request = operation.request.as_ref().ok_or(Error::NoRequest)?;
        let sealed = match &request.body {
            Some(body) => Some(body.clone()),
            None => self.stored_request(request.row)?,
        };
        Ok(unseal(sealed.ok_or(Error::NoRequest)?)?)
    }

    /// Writes the new record of a known operation.
    fn put(&mut self, known: &Known, record: Record, reply: Option<Bytes>) -> Result<()> {
        match (record.state, known) {
            (State::Completed | State::Failed, Known::Open(operation)) => {
                self.finish(operation, record, reply);
            }
            (_, Known::Open(operation)) => {
                let row = self.next_number();
                self.move_open(operation, row, record);
            }
            (_, Known::Unfilled(_) | Known::Filled(_)) => self.reopen(known, record)?,
        }
        Ok(())
    }

    /// Writes an open operation. A finished record that is over stays until its
    /// bucket is dropped; a trace is deleted, because this operation replaces it.
    fn put_open(
        &mut self,
        known: Option<&Known>,
        row: u64,
        record: Record,
        request: Option<OpenedRequest>,
    ) {
        let now = self.now();
        let trace = known.filter(|known| known.record().shown_state_at(now).is_some());
        if let Some(place) = trace.and_then(Known::place) {
            self.unkeep(place);
        }
        self.record(Effect::Opened(Opened {
            row,
            record: Arc::new(record),
            request,
        }));
    }

    /// Writes an open operation under a new number; its request stays.
    fn move_open(&mut self, operation: &OpenOperation, row: u64, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        let request = operation.request.as_ref();
        self.record(Effect::Opened(Opened {
            row,
            record: record.clone(),
            request: request.map(|request| OpenedRequest {
                row: request.row,
                body: None,
            }),
        }));
        record
    }

    /// Writes an open operation in its row; its position in listings stays.
    pub(super) fn rewrite(&mut self, operation: &OpenOperation, record: Record) {
        self.move_open(operation, operation.row, record);
    }

    /// From open to finished.
    fn finish(&mut self, operation: &OpenOperation, record: Record, reply: Option<Bytes>) {
        let row = self.next_number();
        let record = Arc::new(record);
        let request = match operation.request {
            Some(_) => FinishedRequest::AsOpen,
            None => FinishedRequest::None,
        };
        let finished = Finished::new(row, record.clone(), reply, request);
        self.record(Effect::Finished(finished));
        self.after_commit.push(AfterCommit::Cache(record));
    }

    /// From finished back to open: a reply that was marked as not kept broke off,
    /// or a delivered event is delivered again.
    fn reopen(&mut self, known: &Known, record: Record) -> Result<()> {
        let request = self.request_of(known)?;
        if record.delivered {
            unseal(request.clone().ok_or(Error::NoRequest)?)?;
        }
        if let Some(place) = known.place() {
            self.unkeep(place);
        }
        let row = self.next_number();
        self.record(Effect::Opened(Opened {
            row,
            record: Arc::new(record),
            request: request.map(|body| OpenedRequest {
                row,
                body: Some(body),
            }),
        }));
        Ok(())
    }

    fn forget(&mut self, known: &Known) {
        match known.place() {
            None => self.record(Effect::Closed(known.record().digest)),
            Some(place) => self.unkeep(place),
        }
    }

    /// A finished operation is no longer kept.
    fn unkeep(&mut self, place: Unkept) {
        self.record(Effect::Unkept(place));
        self.after_commit.push(AfterCommit::Evict(place.digest));
    }
}

/// Whether this attempt made the claim. A delivery is the gateway's own.
fn is_own(record: &Record, attempt: Attempt) -> bool {
    record.attempt == attempt && !record.delivered
}

/// The answer to a claim that is not to be granted anew.
fn answer(known: Option<&Known>, ask: &ClaimRequest, now: Timestamp) -> Option<Claim> {
    Claim::on(known?.record(), ask, now)
}
