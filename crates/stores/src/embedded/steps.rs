//! The steps of the store, as the writer runs them.
//!
//! Each step looks an operation up, applies the rules of `core`, and writes the
//! result. Nothing is durable before [`Steps::commit`]; [`Steps::roll_back`] undoes
//! everything since the last commit.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{
    Added, Changed, Claim, ClaimRequest, Collection, Due, Enqueued, Force, Resolution, Stats,
};
use onceward_core::wire;

use super::Shared;
use super::bucket::Age;
use super::error::Result;
use super::finished::{self, FinishedOperation};
use super::open_operations::{OpenOperation, OpenOperations};
use super::transaction::Transaction;
use crate::lookup::Lookup;

/// The store's state in the writer.
pub(super) struct Steps {
    pub(super) transaction: Transaction,
    pub(super) open_operations: OpenOperations,
    shared: Arc<Shared>,
    after_commit: Vec<AfterCommit>,
    /// Whether the present step read or wrote something that is not durable yet.
    waits_for_commit: bool,
    /// When the time was last noted in the file.
    noted_at: Timestamp,
}

/// How far the noted time may lag behind while something is written.
const TIME_NOTE_INTERVAL: Duration = Duration::from_secs(10);

/// Effects that follow once the transaction is durable.
enum AfterCommit {
    /// Keeps a finished record at hand for replays.
    Cache(Arc<Record>),
    /// Removes a record from the cache.
    Evict(Digest),
    /// Wakes the waiters of the operation.
    Notify(Digest),
}

/// A known operation and where it is stored.
#[derive(Clone)]
enum Known {
    Open(OpenOperation),
    Finished(FinishedOperation),
}

impl Known {
    fn record(&self) -> &Arc<Record> {
        match self {
            Self::Open(operation) => &operation.record,
            Self::Finished(found) => &found.record,
        }
    }
}

/// The result of one slice of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepSlice {
    /// How many operations it reclaimed.
    pub(super) operations: usize,
    /// How many rows that took; nothing was left to do when zero.
    pub(super) rows: usize,
}

impl Steps {
    /// The steps over an opened file.
    pub(super) fn new(
        transaction: Transaction,
        open_operations: OpenOperations,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            transaction,
            open_operations,
            shared,
            after_commit: Vec::new(),
            waits_for_commit: false,
            noted_at: Timestamp::default(),
        }
    }

    /// Merges the log into the file.
    pub(super) fn close(self) -> Result<()> {
        let now = self.now();
        self.transaction.close(now)
    }

    /// Begins a step; [`Steps::waits_for_commit`] is called after it.
    pub(super) fn begin_step(&mut self) {
        self.waits_for_commit = false;
    }

    /// Whether the answer to the present step must wait for the commit.
    pub(super) fn waits_for_commit(&self) -> bool {
        self.waits_for_commit
    }

    /// Makes all steps since the last commit durable, then acts on them.
    pub(super) fn commit(&mut self) -> Result<()> {
        let committed = self.note_time().and_then(|()| self.transaction.commit());
        if let Err(error) = committed {
            self.roll_back();
            return Err(error);
        }
        self.open_operations.keep();
        for after_commit in self.after_commit.drain(..) {
            match after_commit {
                AfterCommit::Cache(record) => self.shared.hot_replies.put(record),
                AfterCommit::Evict(digest) => self.shared.hot_replies.remove(&digest),
                AfterCommit::Notify(digest) => self.shared.notifier.notify(&digest),
            }
        }
        Ok(())
    }

    /// Notes the time in the file now and then, together with other writes.
    fn note_time(&mut self) -> Result<()> {
        let now = self.now();
        if self.transaction.has_changes() && now.since(self.noted_at) >= TIME_NOTE_INTERVAL {
            self.transaction.note_time(now)?;
            self.noted_at = now;
        }
        Ok(())
    }

    /// Undoes all steps since the last commit.
    pub(super) fn roll_back(&mut self) {
        self.transaction.roll_back();
        self.open_operations.undo();
        self.after_commit.clear();
    }

    pub(super) fn claim(&mut self, ask: &ClaimRequest) -> Result<Claim> {
        let now = self.now();
        let known = self.look_up(Lookup::Digest(ask.digest))?;
        if let Some(claim) = answer(known.as_ref(), ask, now) {
            return Ok(claim);
        }
        let mut record = ask.to_record_after(known.as_ref().map(|known| &**known.record()), now);
        let row = self.transaction.next()?;
        record.grant(Fence(row), ask.attempt, now);
        let grant = record.as_grant();
        self.put_open(known, row, record, None)?;
        Ok(Claim::Granted(grant))
    }

    pub(super) fn withdraw(&mut self, digest: Digest, attempt: Attempt) -> Result<()> {
        let known = self.look_up(Lookup::Digest(digest))?;
        if let Some(known) = known.filter(|known| is_own(known.record(), attempt)) {
            let fence = known.record().fence;
            self.settle_known(known, fence, &Settlement::Released, None)?;
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
            self.rewrite(&operation, record)?;
        }
        Ok(renewed)
    }

    pub(super) fn settle(
        &mut self,
        digest: Digest,
        fence: Fence,
        settlement: &Settlement,
        reply: Option<&[u8]>,
    ) -> Result<Settled> {
        match self.look_up(Lookup::Digest(digest))? {
            Some(known) => self.settle_known(known, fence, settlement, reply),
            None => Ok(Settled::Stale),
        }
    }

    fn settle_known(
        &mut self,
        known: Known,
        fence: Fence,
        settlement: &Settlement,
        reply: Option<&[u8]>,
    ) -> Result<Settled> {
        let now = self.now();
        let mut record = Record::clone(known.record());
        let settled = record.settle(fence, settlement, now);
        // A repeated settlement changes nothing, so nothing is written.
        if settled.is_recorded() && record.state != known.record().state {
            self.after_commit.push(AfterCommit::Notify(record.digest));
            self.put(known, record, reply)?;
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
        let Some(Known::Finished(found)) = self.look_up(Lookup::Digest(digest))? else {
            return Ok(());
        };
        if !found.record.wants_touch(now) {
            return Ok(());
        }
        self.waits_for_commit = true;
        let mut record = Record::clone(&found.record);
        record.touch(now);
        let reply = match &record.answer {
            Some(Answer::Kept(reply)) => Some(wire::encode_reply(reply)),
            _ => None,
        };
        let row = self.transaction.next()?;
        let request = self.transaction.restore_request(&found, row)?;
        self.forget(&Known::Finished(found))?;
        let record = Arc::new(record);
        self.transaction
            .insert_finished(row, &record, reply.as_deref(), request)?;
        if let Some(request) = request {
            self.transaction.delete_request(request)?;
        }
        self.after_commit.push(AfterCommit::Cache(record));
        Ok(())
    }

    pub(super) fn enqueue(
        &mut self,
        ask: &ClaimRequest,
        request: &[u8],
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
        let row = self.transaction.next()?;
        self.transaction.insert_request(row, request)?;
        self.put_open(known, row, record, Some(row))?;
        Ok(Enqueued::Accepted(id))
    }

    pub(super) fn due(&mut self, limit: usize) -> Result<Vec<Due>> {
        let now = self.now();
        self.depend_on_all();
        let mut given = Vec::new();
        for operation in self.open_operations.due(now, limit) {
            match self.deliver(&operation, now) {
                Ok(due) => given.push(due),
                Err(error) if error.is_damage() => {
                    tracing::error!(%error, "queued operation is damaged; it is not delivered");
                    self.open_operations.set_aside(&operation);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(given)
    }

    fn deliver(&mut self, operation: &OpenOperation, now: Timestamp) -> Result<Due> {
        let request = self.transaction.read_request(operation.request)?;
        let row = self.transaction.next()?;
        let mut record = Record::clone(&operation.record);
        record.grant(Fence(row), record.attempt, now);
        let record = self.move_open(operation, row, record, operation.request)?;
        Ok(Due {
            grant: record.as_grant(),
            record,
            request,
        })
    }

    pub(super) fn next_due(&mut self) -> Option<Timestamp> {
        self.depend_on_all();
        self.open_operations.next_due()
    }

    pub(super) fn purge(&mut self, id: OperationId, force: Force) -> Result<Changed> {
        self.change(id, |steps, known, state, _| {
            if state == State::Running && force == Force::No {
                return Ok(Changed::Refused(state));
            }
            steps.forget(&known)?;
            Ok(Changed::Done)
        })
    }

    pub(super) fn resolve(
        &mut self,
        id: OperationId,
        meant: Option<Fence>,
        word: &Resolution,
        reply: Option<&[u8]>,
    ) -> Result<Changed> {
        self.change(id, |steps, known, state, now| {
            if state != State::Unknown {
                return Ok(Changed::Refused(state));
            }
            if meant.is_some_and(|meant| meant != known.record().fence) {
                return Ok(Changed::Refused(state));
            }
            let mut record = Record::clone(known.record());
            record.resolve(Fence(steps.transaction.next()?), word, now);
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
            let changed = record.redeliver(Fence(steps.transaction.next()?), now);
            if changed == Changed::Done {
                if let Known::Open(operation) = &known {
                    steps.transaction.read_request(operation.request)?;
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
        act: impl FnOnce(&mut Self, Known, State, Timestamp) -> Result<Changed>,
    ) -> Result<Changed> {
        let now = self.now();
        let known = self.look_up(Lookup::Id(id))?;
        let Some(known) = known else {
            return Ok(Changed::Absent);
        };
        let Some(state) = known.record().shown_state_at(now) else {
            return Ok(Changed::Absent);
        };
        let digest = known.record().digest;
        let changed = act(self, known, state, now)?;
        if changed == Changed::Done {
            self.after_commit.push(AfterCommit::Notify(digest));
        }
        Ok(changed)
    }

    pub(super) fn put_document(
        &mut self,
        sheet: Collection,
        name: &str,
        body: &[u8],
    ) -> Result<()> {
        self.waits_for_commit = true;
        self.transaction.put_document(sheet, name, body)
    }

    /// An existing document may also be one of this transaction.
    pub(super) fn add_document(
        &mut self,
        sheet: Collection,
        name: &str,
        body: &[u8],
    ) -> Result<Added> {
        self.waits_for_commit = true;
        self.transaction.add_document(sheet, name, body)
    }

    pub(super) fn remove_document(&mut self, sheet: Collection, name: &str) -> Result<()> {
        self.waits_for_commit = true;
        self.transaction.remove_document(sheet, name)
    }

    /// One slice of a sweep: released operations first, then finished ones, then
    /// replies.
    pub(super) fn sweep(&mut self, limit: usize) -> Result<SweepSlice> {
        let now = self.now();
        let released = self.sweep_released(now, limit)?;
        if released > 0 {
            return Ok(SweepSlice {
                operations: released,
                rows: released,
            });
        }
        if let Some(rows) = self.transaction.sweep_finished(now, limit)? {
            self.waits_for_commit = true;
            return Ok(SweepSlice {
                operations: rows,
                // Dropping an empty table is work too, and there may be more behind it.
                rows: rows.max(1),
            });
        }
        let replies = self.transaction.sweep_replies(now, limit)?;
        self.waits_for_commit = replies.is_some();
        Ok(SweepSlice {
            operations: 0,
            rows: replies.map_or(0, |rows| rows.max(1)),
        })
    }

    fn sweep_released(&mut self, now: Timestamp, limit: usize) -> Result<usize> {
        let over = self.open_operations.over(now, limit);
        for operation in &over {
            self.forget_open(operation)?;
        }
        Ok(over.len())
    }

    /// The counts that are in memory: without the bytes, and with everything in
    /// buckets that are partly over.
    pub(super) fn stats(&mut self) -> Stats {
        let now = self.now();
        self.depend_on_all();
        let mut stats = Stats::default();
        for operation in self.open_operations.iter() {
            if let Some(state) = operation.record.state_at(now) {
                stats.count(state);
            }
        }
        let kept = self.shared.buckets.operations();
        let rows = kept
            .values()
            .filter(|bucket| bucket.age(now) != Age::Over)
            .map(|bucket| bucket.tally().rows);
        stats.operations += rows.sum::<u64>();
        stats
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn look_up(&mut self, lookup: Lookup) -> Result<Option<Known>> {
        let operation = match lookup {
            Lookup::Digest(digest) => self.open_operations.get(&digest)?,
            Lookup::Id(id) => self.open_operations.find(id)?,
        };
        let known = match operation {
            Some(operation) => Some(Known::Open(operation.clone())),
            None => self.find_finished(lookup)?.map(Known::Finished),
        };
        self.waits_for_commit |= match (&known, lookup) {
            (Some(known), _) => self.open_operations.is_changed(&known.record().digest),
            (None, Lookup::Digest(digest)) => self.open_operations.is_changed(&digest),
            (None, Lookup::Id(_)) => self.open_operations.has_changes(),
        };
        Ok(known)
    }

    fn find_finished(&self, lookup: Lookup) -> Result<Option<FinishedOperation>> {
        finished::find(
            self.transaction.db(),
            &self.shared.buckets,
            lookup,
            self.now(),
        )
    }

    /// The present step reads all open operations.
    fn depend_on_all(&mut self) {
        self.waits_for_commit |= self.open_operations.has_changes();
    }

    /// Writes the new record of a known operation.
    fn put(&mut self, known: Known, record: Record, reply: Option<&[u8]>) -> Result<()> {
        let row = self.transaction.next()?;
        match (record.state, known) {
            (State::Completed | State::Failed, Known::Open(operation)) => {
                self.finish(&operation, row, record, reply)
            }
            (_, Known::Open(operation)) => {
                let request = operation.request;
                self.move_open(&operation, row, record, request)?;
                Ok(())
            }
            (_, Known::Finished(found)) => self.reopen(&found, row, record),
        }
    }

    /// Writes an open operation. A finished record that is over stays until its
    /// bucket is dropped; a trace is deleted, because this operation replaces it.
    fn put_open(
        &mut self,
        known: Option<Known>,
        row: u64,
        record: Record,
        request: Option<u64>,
    ) -> Result<()> {
        match known {
            Some(Known::Open(operation)) => {
                if let Some(request) = operation.request {
                    self.transaction.delete_request(request)?;
                }
                self.move_open(&operation, row, record, request)?;
            }
            Some(Known::Finished(found)) if found.record.shown_state_at(self.now()).is_some() => {
                self.forget(&Known::Finished(found))?;
                self.add_open(row, record, request)?;
            }
            Some(Known::Finished(_)) | None => {
                self.add_open(row, record, request)?;
            }
        }
        Ok(())
    }

    fn move_open(
        &mut self,
        operation: &OpenOperation,
        row: u64,
        record: Record,
        request: Option<u64>,
    ) -> Result<Arc<Record>> {
        self.transaction.delete_open(operation)?;
        self.add_open(row, record, request)
    }

    fn add_open(&mut self, row: u64, record: Record, request: Option<u64>) -> Result<Arc<Record>> {
        self.waits_for_commit = true;
        let operation = OpenOperation {
            row,
            request,
            record: Arc::new(record),
        };
        let record = operation.record.clone();
        self.transaction.insert_open(&operation)?;
        self.open_operations.put(operation);
        Ok(record)
    }

    /// From open to finished.
    fn finish(
        &mut self,
        operation: &OpenOperation,
        row: u64,
        record: Record,
        reply: Option<&[u8]>,
    ) -> Result<()> {
        self.waits_for_commit = true;
        let record = Arc::new(record);
        self.transaction.delete_open(operation)?;
        self.transaction
            .insert_finished(row, &record, reply, operation.request)?;
        if let Some(request) = operation.request {
            self.transaction.delete_request(request)?;
        }
        self.open_operations.take(&record.digest);
        self.after_commit.push(AfterCommit::Cache(record));
        Ok(())
    }

    /// From finished back to open: a reply that was marked as not kept broke off,
    /// or a delivered event is delivered again.
    fn reopen(&mut self, found: &FinishedOperation, row: u64, record: Record) -> Result<()> {
        let request = self.transaction.restore_request(found, row)?;
        if record.delivered
            && let Err(error) = self.transaction.read_request(request)
        {
            // A failed step must leave nothing in the transaction.
            if let Some(request) = request {
                self.transaction.delete_request(request)?;
            }
            return Err(error);
        }
        self.transaction.delete_finished(found)?;
        self.after_commit.push(AfterCommit::Evict(record.digest));
        self.add_open(row, record, request)?;
        Ok(())
    }

    fn forget(&mut self, known: &Known) -> Result<()> {
        match known {
            Known::Open(operation) => self.forget_open(operation),
            Known::Finished(found) => {
                self.waits_for_commit = true;
                self.transaction.delete_finished(found)?;
                self.open_operations.take(&found.record.digest);
                self.after_commit
                    .push(AfterCommit::Evict(found.record.digest));
                Ok(())
            }
        }
    }

    /// Writes an open operation in its row; its position in listings stays.
    pub(super) fn rewrite(&mut self, operation: &OpenOperation, record: Record) -> Result<()> {
        self.waits_for_commit = true;
        let operation = OpenOperation {
            record: Arc::new(record),
            ..operation.clone()
        };
        self.transaction.update_open(&operation)?;
        self.open_operations.put(operation);
        Ok(())
    }

    pub(super) fn forget_open(&mut self, operation: &OpenOperation) -> Result<()> {
        self.waits_for_commit = true;
        self.transaction.delete_open(operation)?;
        if let Some(request) = operation.request {
            self.transaction.delete_request(request)?;
        }
        self.open_operations.take(&operation.record.digest);
        Ok(())
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
