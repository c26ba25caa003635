//! The steps of the store, as the one writer takes them.
//!
//! Each step looks an operation up, lets the rules of `core` decide, and writes
//! what they decided. Nothing here is durable before [`Shelf::commit`], and
//! nothing here survives [`Shelf::roll_back`].

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
use super::error::Step;
use super::finished::{self, Found, Wanted};
use super::open_operations::{Live, Mirror};
use super::transaction::Ledger;

/// The store, as the writer has it.
pub(super) struct Shelf {
    pub(super) ledger: Ledger,
    pub(super) mirror: Mirror,
    shared: Arc<Shared>,
    /// What the commit makes known to others.
    news: Vec<News>,
    /// Whether the present step saw or made something that is not durable yet.
    unsettled: bool,
    /// When the time was last written down.
    noted_at: Timestamp,
}

/// How far the time on disk may lag behind, while something is written.
const NOTE_PAUSE: Duration = Duration::from_secs(10);

/// What others learn once a transaction is durable.
enum News {
    Finished(Arc<Record>),
    Forgotten(Digest),
    Moved(Digest),
}

/// A known operation, and where it lies.
#[derive(Clone)]
enum Known {
    Live(Live),
    Kept(Found),
}

impl Known {
    fn record(&self) -> &Arc<Record> {
        match self {
            Self::Live(live) => &live.record,
            Self::Kept(found) => &found.record,
        }
    }
}

/// What one slice of sweeping came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swept {
    /// How many operations it reclaimed.
    pub(super) operations: usize,
    /// How many rows that took; nothing was left to do when zero.
    pub(super) rows: usize,
}

impl Shelf {
    /// The shelf over an opened file.
    pub(super) fn new(ledger: Ledger, mirror: Mirror, shared: Arc<Shared>) -> Self {
        Self {
            ledger,
            mirror,
            shared,
            news: Vec::new(),
            unsettled: false,
            noted_at: Timestamp::default(),
        }
    }

    /// Leaves one whole file behind.
    pub(super) fn close(self) -> Step<()> {
        let now = self.now();
        self.ledger.close(now)
    }

    /// Begins a step; to be asked after it: [`Shelf::is_unsettled`].
    pub(super) fn begin_step(&mut self) {
        self.unsettled = false;
    }

    /// Whether the answer to the present step must wait for the commit.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Makes all steps since the last commit durable, and known.
    pub(super) fn commit(&mut self) -> Step<()> {
        let committed = self.note_time().and_then(|()| self.ledger.commit());
        if let Err(fault) = committed {
            self.roll_back();
            return Err(fault);
        }
        self.mirror.keep();
        for news in self.news.drain(..) {
            match news {
                News::Finished(record) => self.shared.hot.put(record),
                News::Forgotten(digest) => self.shared.hot.take_out(&digest),
                News::Moved(digest) => self.shared.notifier.notify(&digest),
            }
        }
        Ok(())
    }

    /// Writes the time down with what else is written, now and then.
    fn note_time(&mut self) -> Step<()> {
        let now = self.now();
        if self.ledger.has_changes() && now.since(self.noted_at) >= NOTE_PAUSE {
            self.ledger.note_time(now)?;
            self.noted_at = now;
        }
        Ok(())
    }

    /// Undoes all steps since the last commit.
    pub(super) fn roll_back(&mut self) {
        self.ledger.roll_back();
        self.mirror.undo();
        self.news.clear();
    }

    pub(super) fn claim(&mut self, ask: &ClaimRequest) -> Step<Claim> {
        let now = self.now();
        let known = self.look_up(Wanted::Digest(ask.digest))?;
        if let Some(claim) = answer(known.as_ref(), ask, now) {
            return Ok(claim);
        }
        let mut record = ask.to_record_after(known.as_ref().map(|known| &**known.record()), now);
        let row = self.ledger.next()?;
        record.grant(Fence(row), ask.attempt, now);
        let grant = record.as_grant();
        self.put_live(known, row, record, None)?;
        Ok(Claim::Granted(grant))
    }

    pub(super) fn withdraw(&mut self, digest: Digest, attempt: Attempt) -> Step<()> {
        let known = self.look_up(Wanted::Digest(digest))?;
        if let Some(known) = known.filter(|known| is_own(known.record(), attempt)) {
            let fence = known.record().fence;
            self.settle_known(known, fence, &Settlement::Released, None)?;
        }
        Ok(())
    }

    pub(super) fn renew(&mut self, digest: Digest, fence: Fence) -> Step<Settled> {
        let now = self.now();
        let Some(Known::Live(live)) = self.look_up(Wanted::Digest(digest))? else {
            return Ok(Settled::Stale);
        };
        let mut record = Record::clone(&live.record);
        let renewed = record.renew(fence, now);
        if renewed == Settled::Done {
            self.rewrite(&live, record)?;
        }
        Ok(renewed)
    }

    pub(super) fn settle(
        &mut self,
        digest: Digest,
        fence: Fence,
        settlement: &Settlement,
        reply: Option<&[u8]>,
    ) -> Step<Settled> {
        match self.look_up(Wanted::Digest(digest))? {
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
    ) -> Step<Settled> {
        let now = self.now();
        let mut record = Record::clone(known.record());
        let settled = record.settle(fence, settlement, now);
        // The same word again changes nothing, so nothing is written.
        if settled.is_recorded() && record.state != known.record().state {
            self.news.push(News::Moved(record.digest));
            self.put(known, record, reply)?;
        }
        Ok(settled)
    }

    pub(super) fn get(&mut self, wanted: Wanted) -> Step<Option<Arc<Record>>> {
        let now = self.now();
        let known = self.look_up(wanted)?;
        Ok(known.and_then(|known| known.record().seen_at(now)))
    }

    /// The operation, or its trace.
    pub(super) fn show(&mut self, id: OperationId) -> Step<Option<Arc<Record>>> {
        let now = self.now();
        let known = self.look_up(Wanted::Id(id))?;
        Ok(known.and_then(|known| known.record().shown_at(now)))
    }

    /// Notes a replay: the operation moves to the bucket in which it is over
    /// from now on.
    pub(super) fn touch(&mut self, digest: Digest) -> Step<()> {
        let now = self.now();
        let Some(Known::Kept(found)) = self.look_up(Wanted::Digest(digest))? else {
            return Ok(());
        };
        if !found.record.wants_touch(now) {
            return Ok(());
        }
        self.unsettled = true;
        let mut record = Record::clone(&found.record);
        record.touch(now);
        let reply = match &record.answer {
            Some(Answer::Kept(reply)) => Some(wire::encode_reply(reply)),
            _ => None,
        };
        let row = self.ledger.next()?;
        let request = self.ledger.restore_request(&found, row)?;
        self.forget(&Known::Kept(found))?;
        let record = Arc::new(record);
        self.ledger
            .insert_kept(row, &record, reply.as_deref(), request)?;
        if let Some(request) = request {
            self.ledger.delete_request(request)?;
        }
        self.news.push(News::Finished(record));
        Ok(())
    }

    pub(super) fn enqueue(
        &mut self,
        ask: &ClaimRequest,
        request: &[u8],
        after: Duration,
    ) -> Step<Enqueued> {
        let now = self.now();
        let known = self.look_up(Wanted::Digest(ask.digest))?;
        if let Some(claim) = answer(known.as_ref(), ask, now) {
            return Ok(Enqueued::Known(claim));
        }
        let mut record = ask.to_record_after(known.as_ref().map(|known| &**known.record()), now);
        record.enqueue(now.plus(after));
        let id = record.id;
        let row = self.ledger.next()?;
        self.ledger.insert_request(row, request)?;
        self.put_live(known, row, record, Some(row))?;
        Ok(Enqueued::Accepted(id))
    }

    pub(super) fn due(&mut self, limit: usize) -> Step<Vec<Due>> {
        let now = self.now();
        self.see_all();
        let mut given = Vec::new();
        for live in self.mirror.due(now, limit) {
            match self.deliver(&live, now) {
                Ok(due) => given.push(due),
                Err(fault) if fault.is_damage() => {
                    tracing::error!(%fault, "queued work is damaged and cannot be delivered");
                    self.mirror.set_aside(&live);
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(given)
    }

    fn deliver(&mut self, live: &Live, now: Timestamp) -> Step<Due> {
        let request = self.ledger.read_request(live.request)?;
        let row = self.ledger.next()?;
        let mut record = Record::clone(&live.record);
        record.grant(Fence(row), record.attempt, now);
        let record = self.move_live(live, row, record, live.request)?;
        Ok(Due {
            grant: record.as_grant(),
            record,
            request,
        })
    }

    pub(super) fn next_due(&mut self) -> Option<Timestamp> {
        self.see_all();
        self.mirror.next_due()
    }

    pub(super) fn purge(&mut self, id: OperationId, force: Force) -> Step<Changed> {
        self.change(id, |shelf, known, state, _| {
            if state == State::Running && force == Force::No {
                return Ok(Changed::Refused(state));
            }
            shelf.forget(&known)?;
            Ok(Changed::Done)
        })
    }

    pub(super) fn resolve(
        &mut self,
        id: OperationId,
        meant: Option<Fence>,
        word: &Resolution,
        reply: Option<&[u8]>,
    ) -> Step<Changed> {
        self.change(id, |shelf, known, state, now| {
            if state != State::Unknown {
                return Ok(Changed::Refused(state));
            }
            if meant.is_some_and(|meant| meant != known.record().fence) {
                return Ok(Changed::Refused(state));
            }
            let mut record = Record::clone(known.record());
            record.resolve(Fence(shelf.ledger.next()?), word, now);
            shelf.put(known, record, reply)?;
            Ok(Changed::Done)
        })
    }

    pub(super) fn resume(&mut self, id: OperationId) -> Step<Changed> {
        self.change(id, |shelf, known, state, now| {
            if state != State::Paused {
                return Ok(Changed::Refused(state));
            }
            let mut record = Record::clone(known.record());
            record.resume(now);
            shelf.put(known, record, None)?;
            Ok(Changed::Done)
        })
    }

    pub(super) fn redeliver(&mut self, id: OperationId) -> Step<Changed> {
        self.change(id, |shelf, known, _, now| {
            let mut record = Record::clone(known.record());
            let changed = record.redeliver(Fence(shelf.ledger.next()?), now);
            if changed == Changed::Done {
                if let Known::Live(live) = &known {
                    shelf.ledger.read_request(live.request)?;
                }
                shelf.put(known, record, None)?;
            }
            Ok(changed)
        })
    }

    /// Lets an operator change an operation that is not over, or its trace.
    fn change(
        &mut self,
        id: OperationId,
        act: impl FnOnce(&mut Self, Known, State, Timestamp) -> Step<Changed>,
    ) -> Step<Changed> {
        let now = self.now();
        let known = self.look_up(Wanted::Id(id))?;
        let Some(known) = known else {
            return Ok(Changed::Absent);
        };
        let Some(state) = known.record().shown_state_at(now) else {
            return Ok(Changed::Absent);
        };
        let digest = known.record().digest;
        let changed = act(self, known, state, now)?;
        if changed == Changed::Done {
            self.news.push(News::Moved(digest));
        }
        Ok(changed)
    }

    pub(super) fn put_document(&mut self, sheet: Collection, name: &str, body: &[u8]) -> Step<()> {
        self.unsettled = true;
        self.ledger.put_document(sheet, name, body)
    }

    /// That there is one already may also be news of this transaction.
    pub(super) fn add_document(
        &mut self,
        sheet: Collection,
        name: &str,
        body: &[u8],
    ) -> Step<Added> {
        self.unsettled = true;
        self.ledger.add_document(sheet, name, body)
    }

    pub(super) fn remove_document(&mut self, sheet: Collection, name: &str) -> Step<()> {
        self.unsettled = true;
        self.ledger.remove_document(sheet, name)
    }

    /// One slice of sweeping: what was released first, then finished
    /// operations, then replies.
    pub(super) fn sweep(&mut self, limit: usize) -> Step<Swept> {
        let now = self.now();
        let released = self.sweep_released(now, limit)?;
        if released > 0 {
            return Ok(Swept {
                operations: released,
                rows: released,
            });
        }
        if let Some(rows) = self.ledger.sweep_kept(now, limit)? {
            self.unsettled = true;
            return Ok(Swept {
                operations: rows,
                // Dropping an empty table is work too, and there may be more behind it.
                rows: rows.max(1),
            });
        }
        let replies = self.ledger.sweep_replies(now, limit)?;
        self.unsettled = replies.is_some();
        Ok(Swept {
            operations: 0,
            rows: replies.map_or(0, |rows| rows.max(1)),
        })
    }

    fn sweep_released(&mut self, now: Timestamp, limit: usize) -> Step<usize> {
        let over = self.mirror.over(now, limit);
        for live in &over {
            self.forget_live(live)?;
        }
        Ok(over.len())
    }

    /// How much there is, but for what only the file can tell: the bytes, and
    /// what is left in buckets that are partly over.
    pub(super) fn stats(&mut self) -> Stats {
        let now = self.now();
        self.see_all();
        let mut stats = Stats::default();
        for live in self.mirror.iter() {
            if let Some(state) = live.record.state_at(now) {
                stats.count(state);
            }
        }
        let kept = self.shared.buckets.kept();
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

    fn look_up(&mut self, wanted: Wanted) -> Step<Option<Known>> {
        let live = match wanted {
            Wanted::Digest(digest) => self.mirror.get(&digest)?,
            Wanted::Id(id) => self.mirror.find(id)?,
        };
        let known = match live {
            Some(live) => Some(Known::Live(live.clone())),
            None => self.find_kept(wanted)?.map(Known::Kept),
        };
        self.unsettled |= match (&known, wanted) {
            (Some(known), _) => self.mirror.is_changed(&known.record().digest),
            (None, Wanted::Digest(digest)) => self.mirror.is_changed(&digest),
            (None, Wanted::Id(_)) => self.mirror.has_changes(),
        };
        Ok(known)
    }

    fn find_kept(&self, wanted: Wanted) -> Step<Option<Found>> {
        finished::find(self.ledger.db(), &self.shared.buckets, wanted, self.now())
    }

    /// The present step looks at all open operations.
    fn see_all(&mut self) {
        self.unsettled |= self.mirror.has_changes();
    }

    /// Writes what became of a known operation.
    fn put(&mut self, known: Known, record: Record, reply: Option<&[u8]>) -> Step<()> {
        let row = self.ledger.next()?;
        match (record.state, known) {
            (State::Completed | State::Failed, Known::Live(live)) => {
                self.finish(&live, row, record, reply)
            }
            (_, Known::Live(live)) => {
                let request = live.request;
                self.move_live(&live, row, record, request)?;
                Ok(())
            }
            (_, Known::Kept(found)) => self.reopen(&found, row, record),
        }
    }

    /// Writes an operation as open. What was kept of it and is over stays for
    /// its bucket to go, but for a trace: the new operation takes its place.
    fn put_live(
        &mut self,
        known: Option<Known>,
        row: u64,
        record: Record,
        request: Option<u64>,
    ) -> Step<()> {
        match known {
            Some(Known::Live(live)) => {
                if let Some(request) = live.request {
                    self.ledger.delete_request(request)?;
                }
                self.move_live(&live, row, record, request)?;
            }
            Some(Known::Kept(found)) if found.record.shown_state_at(self.now()).is_some() => {
                self.forget(&Known::Kept(found))?;
                self.add_live(row, record, request)?;
            }
            Some(Known::Kept(_)) | None => {
                self.add_live(row, record, request)?;
            }
        }
        Ok(())
    }

    fn move_live(
        &mut self,
        live: &Live,
        row: u64,
        record: Record,
        request: Option<u64>,
    ) -> Step<Arc<Record>> {
        self.ledger.delete_live(live)?;
        self.add_live(row, record, request)
    }

    fn add_live(&mut self, row: u64, record: Record, request: Option<u64>) -> Step<Arc<Record>> {
        self.unsettled = true;
        let live = Live {
            row,
            request,
            record: Arc::new(record),
        };
        let record = live.record.clone();
        self.ledger.insert_live(&live)?;
        self.mirror.put(live);
        Ok(record)
    }

    /// From open to finished.
    fn finish(&mut self, live: &Live, row: u64, record: Record, reply: Option<&[u8]>) -> Step<()> {
        self.unsettled = true;
        let record = Arc::new(record);
        self.ledger.delete_live(live)?;
        self.ledger.insert_kept(row, &record, reply, live.request)?;
        if let Some(request) = live.request {
            self.ledger.delete_request(request)?;
        }
        self.mirror.take(&record.digest);
        self.news.push(News::Finished(record));
        Ok(())
    }

    /// From finished back to open: a reply that was marked as not kept broke off,
    /// or what was delivered is delivered again.
    fn reopen(&mut self, found: &Found, row: u64, record: Record) -> Step<()> {
        let request = self.ledger.restore_request(found, row)?;
        if record.delivered
            && let Err(fault) = self.ledger.read_request(request)
        {
            // Nothing of a step that is not taken may stay in the transaction.
            if let Some(request) = request {
                self.ledger.delete_request(request)?;
            }
            return Err(fault);
        }
        self.ledger.delete_kept(found)?;
        self.news.push(News::Forgotten(record.digest));
        self.add_live(row, record, request)?;
        Ok(())
    }

    fn forget(&mut self, known: &Known) -> Step<()> {
        match known {
            Known::Live(live) => self.forget_live(live),
            Known::Kept(found) => {
                self.unsettled = true;
                self.ledger.delete_kept(found)?;
                self.mirror.take(&found.record.digest);
                self.news.push(News::Forgotten(found.record.digest));
                Ok(())
            }
        }
    }

    /// Writes an open operation where it stands; its place in listings stays.
    pub(super) fn rewrite(&mut self, live: &Live, record: Record) -> Step<()> {
        self.unsettled = true;
        let live = Live {
            record: Arc::new(record),
            ..live.clone()
        };
        self.ledger.update_live(&live)?;
        self.mirror.put(live);
        Ok(())
    }

    pub(super) fn forget_live(&mut self, live: &Live) -> Step<()> {
        self.unsettled = true;
        self.ledger.delete_live(live)?;
        if let Some(request) = live.request {
            self.ledger.delete_request(request)?;
        }
        self.mirror.take(&live.record.digest);
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
