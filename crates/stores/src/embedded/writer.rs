//! The writer: one thread that takes every step that changes something.
//!
//! It takes all waiting commands, up to a limit, appends their effects to the log as
//! one batch, and answers them when one sync has made the batch durable. Commands that
//! arrive meanwhile wait for the next batch, so with more callers each costs less. Where
//! more commands are about to come, it gives them a moment first. A command is answered
//! at once if nothing that it may have seen waits to be durable.
//!
//! Now and then the writer hands what has changed to the filler. At the bounds of the
//! log and of what is not filled, new work waits for the filler; settlements do not. A
//! commit that finds no room on the disk waits too, and heeds the filler meanwhile: what
//! it gives back of the log may be the room.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Attempt, Fence, Record, Settled, Settlement};
use onceward_core::store::{
    Added, Changed, Claim, ClaimRequest, Collection, Due, Enqueued, Force, Resolution, Stats,
    StoreError,
};

use super::Shared;
use super::error::{Error, Result};
use super::fill::{Filler, Job, SweepSlice};
use super::inbox::{Inbox, Kind, Placed, Taken};
use super::log::{ENTRY_BYTES_MAX, SEGMENT_BYTES, Segment};
use super::state::{Changes, Retired};
use super::steps::{Reach, Steps};
use crate::lookup::Lookup;
use crate::mailbox::{self, Outbox, at_end_of_turn, end_turn, responder};

/// The most commands in one batch.
const BATCH_MAX: usize = 1024;
/// A batch that is longer is made durable before it takes more.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// How long a short batch waits for more commands: a part of what a sync takes, whose
/// processor time they then share.
const GATHERING: Duration = Duration::from_micros(200);
/// The most commands of a kind that wait for the writer; further callers wait to enter.
const WAITING_MAX: usize = 4096;
/// A fill is due when this much has changed. Longer fills take more processor time per
/// change, because they do not fit the processor's caches, and delay requests for longer.
const FILL_BYTES: u64 = 256 << 10;
/// A fill is due when the log has grown by this much.
const FILL_LOG_BYTES: u64 = SEGMENT_BYTES;
/// The most changes that are not filled before new work waits.
const UNFILLED_BYTES_MAX: u64 = 48 << 20;
/// How many finished operations leave the overlay at a time.
const RETIRED_PER_STEP: usize = 256;
/// The longest pause before a commit that found no room is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// What a running operation needs in the database to settle.
const SETTLEMENT_BYTES: u64 = 1 << 10;
/// The log's room that settlements have to themselves: however few run, and however
/// many, because many share their batches.
const SETTLEMENTS_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(32 << 20);

/// The way of an answer to its caller.
pub(super) type Responder<T> = mailbox::Responder<Result<T, StoreError>>;

/// A command for the writer. Replies are already encoded and requests sealed, so
/// that the one writer spends no time on that.
pub(super) enum Command {
    /// With the count of fills when the key was last known to be absent from the
    /// database.
    Claim(Box<ClaimRequest>, Option<u64>, Responder<Claim>),
    Withdraw(Digest, Attempt, Responder<()>),
    Renew(Digest, Fence, Responder<Settled>),
    Settle(Digest, Fence, Settlement, Option<Bytes>, Responder<Settled>),
    Get(Lookup, Responder<Option<Arc<Record>>>),
    Show(OperationId, Responder<Option<Arc<Record>>>),
    Touch(Digest, Responder<()>),
    Enqueue(Box<ClaimRequest>, Bytes, Duration, Responder<Enqueued>),
    Due(usize, Responder<Vec<Due>>),
    NextDue(Responder<Option<Timestamp>>),
    Purge(OperationId, Force, Responder<Changed>),
    Resolve(
        OperationId,
        Option<Fence>,
        Resolution,
        Option<Bytes>,
        Responder<Changed>,
    ),
    Resume(OperationId, Responder<Changed>),
    Redeliver(OperationId, Responder<Changed>),
    Put(Collection, String, Bytes, Responder<()>),
    Add(Collection, String, Bytes, Responder<Added>),
    Remove(Collection, String, Responder<()>),
    Sweep(usize, Responder<SweepSlice>),
    Stats(Responder<Stats>),
    /// Answered when the database has everything up to now.
    Fill(Responder<()>),
    /// Answered when the database has every document up to now.
    FillDocuments(Responder<()>),
}

/// What the filler reports.
pub(super) enum Report {
    /// A change has waited long enough.
    FillDue,
    /// The database has these changes.
    Filled(Arc<Changes>),
    /// Changes could not be written; they are tried again.
    FillFailed(Arc<Error>),
    /// Everything up to this batch is synced into the database file.
    Checkpointed(u64),
    /// A reader of the database keeps the log from being given back.
    CheckpointBlocked,
    /// Nothing can be given back of the log now.
    CheckpointFailed(Arc<Error>),
    /// A segment for the log.
    Spare(io::Result<Segment>),
}

/// The inbox of the writer.
pub(super) type WriterInbox = Inbox<Command, Report>;

impl Command {
    /// New work waits at the bounds; everything else never does.
    fn kind(&self) -> Kind {
        match self {
            Self::Claim(..)
            | Self::Due(..)
            | Self::Redeliver(..)
            | Self::Resolve(_, _, _, Some(_), _)
            | Self::Enqueue(..)
            | Self::Put(..)
            | Self::Add(..) => Kind::NewWork,
            _ => Kind::Other,
        }
    }

    /// The length of the reply, the request or the document in it.
    fn payload_bytes(&self) -> u64 {
        match self {
            Self::Settle(_, _, _, Some(payload), _)
            | Self::Resolve(_, _, _, Some(payload), _)
            | Self::Enqueue(_, payload, ..)
            | Self::Put(_, _, payload, _)
            | Self::Add(_, _, payload, _) => payload.len() as u64,
            _ => 0,
        }
    }

    /// About how much it adds to the log, rather more than less.
    fn bytes(&self) -> u64 {
        ENTRY_BYTES_MAX + self.payload_bytes()
    }

    /// Refuses new work.
    fn refuse(self, outbox: &mut Outbox, error: Error) {
        match self {
            Self::Claim(_, _, to) => answer(outbox, to, Err(error)),
            Self::Enqueue(_, _, _, to) => answer(outbox, to, Err(error)),
            Self::Due(_, to) => answer(outbox, to, Err(error)),
            Self::Redeliver(_, to) => answer(outbox, to, Err(error)),
            Self::Resolve(_, _, _, _, to) => answer(outbox, to, Err(error)),
            Self::Put(_, _, _, to) => answer(outbox, to, Err(error)),
            Self::Add(_, _, _, to) => answer(outbox, to, Err(error)),
            _ => {}
        }
    }

    /// Whether it is new work whose caller has given up. Everything else is done
    /// although its caller has gone: a settlement above all.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Claim(_, _, to) => to.is_gone(),
            Self::Enqueue(_, _, _, to) => to.is_gone(),
            Self::Due(_, to) => to.is_gone(),
            Self::Redeliver(_, to) => to.is_gone(),
            Self::Resolve(_, _, _, Some(_), to) => to.is_gone(),
            Self::Put(_, _, _, to) => to.is_gone(),
            Self::Add(_, _, _, to) => to.is_gone(),
            _ => false,
        }
    }
}

/// The way to the writer. Dropping it ends the writer, after what waits is done.
pub(super) struct Writer {
    inbox: Arc<WriterInbox>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread, and the filler with the way back to the writer.
    pub(super) fn start(
        steps: Steps,
        shared: Arc<Shared>,
        start_filler: impl FnOnce(Arc<WriterInbox>) -> io::Result<Filler>,
    ) -> io::Result<Self> {
        let inbox = Inbox::new(WAITING_MAX);
        let thread_state = WriterThread {
            filler: start_filler(inbox.clone())?,
            inbox: inbox.clone(),
            steps,
            shared: shared.clone(),
            at_once: Outbox::default(),
            after_commit: Outbox::default(),
            held: VecDeque::new(),
            fills: Fills::default(),
            spare_is_wanted: false,
            is_reminded: false,
            lacks_room: false,
            may_admit_held: false,
            reply_bytes_mean: 0,
        };
        let ended = DiscardedOnDrop(inbox.clone());
        let thread = std::thread::Builder::new()
            .name("onceward-writer".into())
            .spawn(move || {
                let _ended = ended;
                thread_state.run();
            })?;
        Ok(Self {
            inbox,
            shared,
            thread: Some(thread),
        })
    }

    /// Sends a command and waits for its answer. It is sent together with those of the
    /// same turn, so that the writer is woken once and finds a longer batch.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Responder<T>) -> Command,
    ) -> Result<T, StoreError> {
        let (to, answered) = responder();
        let command = command(to);
        let place = self.inbox.place(command.kind(), command.payload_bytes());
        let place = place.await.ok_or(Error::Closed)?;
        let inbox = self.inbox.clone();
        at_end_of_turn(move || {
            // Nothing was sent, so there is nothing to undo.
            if !command.is_abandoned() {
                inbox.leave(command, place);
            }
        });
        // The writer answers nothing that it could not make durable.
        let unanswered = |_| self.shared.check().err().unwrap_or(Error::Closed);
        answered.await.map_err(unanswered)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A settlement may wait for the end of this turn.
        end_turn();
        self.inbox.close();
        self.shared.set_closing();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("writer thread of the embedded store panicked");
        }
    }
}

/// The end of the writer's thread, by a panic too, drops the commands that wait: their
/// callers learn that there is no answer.
struct DiscardedOnDrop(Arc<WriterInbox>);

impl Drop for DiscardedOnDrop {
    fn drop(&mut self) {
        self.0.discard();
    }
}

/// The fills that were handed to the filler.
#[derive(Default)]
struct Fills {
    sent: u64,
    done: u64,
    /// The bytes of the fills that were sent and are not done.
    bytes: u64,
    /// The used bytes of the log at the last fill.
    log_bytes: u64,
    /// Why the fill under way does not succeed.
    error: Option<Arc<Error>>,
    /// Why the log is not given back.
    checkpoint_error: Option<Arc<Error>>,
    /// Callers that wait for a fill to be done.
    waiting: Vec<(u64, Responder<()>)>,
}

/// The state of the writer's thread.
struct WriterThread {
    inbox: Arc<WriterInbox>,
    steps: Steps,
    shared: Arc<Shared>,
    filler: Filler,
    at_once: Outbox,
    after_commit: Outbox,
    /// New work that waits for room.
    held: VecDeque<Placed<Command>>,
    fills: Fills,
    spare_is_wanted: bool,
    /// Whether the filler reminds the writer of the next fill.
    is_reminded: bool,
    /// Whether there was no room for new work.
    lacks_room: bool,
    /// Whether the filler reported something that may have made room.
    may_admit_held: bool,
    /// The length of a kept reply, on average over the last ones.
    reply_bytes_mean: u64,
}

impl WriterThread {
    fn run(mut self) {
        // What was read from the log.
        if self.steps.state.has_changes() {
            self.fill();
        }
        let mut taken = Taken::with_capacity(BATCH_MAX);
        let mut commands = 0;
        while let Some(waiting) = self.inbox.wait() {
            if self.expects_more(waiting, commands) {
                std::thread::sleep(GATHERING);
            }
            self.inbox.take(BATCH_MAX, &mut taken);
            for report in taken.reports.drain(..) {
                self.heed(report);
            }
            self.fill_before(&taken.commands);
            if std::mem::take(&mut self.may_admit_held) {
                self.fill_if_due();
                self.retry_held();
            }
            commands = taken.commands.len();
            for placed in taken.commands.drain(..) {
                self.admit(placed);
            }
            self.commit();
            self.retire_after(commands);
            self.fill_if_due();
            self.want_spare();
        }
        self.close();
    }

    /// Whether a batch of so many commands is worth a wait: commands came together the
    /// last time, and most of the running operations have still to settle. A single
    /// caller therefore never waits, and operations that run long do not make the few
    /// that arrive meanwhile wait.
    fn expects_more(&self, waiting: usize, last_batch: usize) -> bool {
        let running = self.steps.state.open.running();
        waiting > 0 && last_batch > 1 && waiting < running / 2
    }

    /// Performs a command, unless it is new work and there is no room, or other new work
    /// waits for room before it.
    fn admit(&mut self, placed: Placed<Command>) {
        if placed.command.kind() == Kind::Other {
            self.perform(placed.command);
            return self.commit_if_long();
        }
        // Nobody waits for it: a grant, for instance, would stay until its lease ends.
        if placed.command.is_abandoned() {
            return;
        }
        if let Err(error) = self.shared.check() {
            return placed.command.refuse(&mut self.at_once, error);
        }
        if !self.held.is_empty() {
            return self.held.push_back(placed);
        }
        let room = self.room_for(placed.command.bytes());
        self.lacks_room = !matches!(room, Room::Free);
        match room {
            Room::Free => self.perform(placed.command),
            Room::Soon => self.held.push_back(placed),
            Room::None(error) => placed.command.refuse(&mut self.at_once, error),
        }
        self.commit_if_long();
    }

    /// Makes a long batch durable before it takes more, and hands it over: the next one may
    /// have to wait for the segment that took it.
    fn commit_if_long(&mut self) {
        if self.steps.log.batch_bytes() >= BATCH_BYTES_MAX {
            self.fill_all();
        }
    }

    /// Hands over what is durable if the first batch of these commands may have to wait for
    /// room in the log: while a batch waits nothing is handed over, and what is not filled by
    /// then keeps its part of the log.
    fn fill_before(&mut self, commands: &[Placed<Command>]) {
        let is_tight = self.first_batch_bytes(commands) > self.steps.log.batch_bytes_max();
        if is_tight && self.steps.state.has_changes() {
            self.fill();
        }
    }

    /// At most about how long the next batch will be, with these commands and what is held.
    /// Commands that write again what the store has are rare, and counted without that.
    fn first_batch_bytes(&self, commands: &[Placed<Command>]) -> u64 {
        let placed = commands.iter().chain(&self.held);
        let (all, longest) = placed.fold((0, 0), |(all, longest), placed| {
            let bytes = placed.command.bytes();
            (all + bytes, bytes.max(longest))
        });
        all.min(BATCH_BYTES_MAX + longest)
    }

    fn room_for(&self, bytes: u64) -> Room {
        let running = self.steps.state.open.running() as u64;
        let unfilled = self.steps.state.unfilled_bytes() + self.fills.bytes;
        let file = self.shared.room();
        if file.is_some_and(|file| unfilled + running * SETTLEMENT_BYTES + bytes > file) {
            return Room::None(Error::Full("the database may not grow".into()));
        }
        let log = &self.steps.log;
        let is_behind = unfilled >= UNFILLED_BYTES_MAX;
        if log.room() >= self.reserved() + bytes && !is_behind {
            return Room::Free;
        }
        let error = self.fills.error.as_ref();
        match error.or(self.fills.checkpoint_error.as_ref()) {
            Some(error) => Room::None(Error::Shared(error.clone())),
            // Nothing of the log can be given back.
            None if !is_behind && !log.can_grow() && !log.wants_checkpoint() => {
                Room::None(Error::Full("the commit log may not grow".into()))
            }
            // A fill gives some back, or a spare segment is made.
            None => Room::Soon,
        }
    }

    /// The room of the log that is left to settlements: for replies as long as the last
    /// ones were. Longer ones may have to wait for room.
    fn reserved(&self) -> u64 {
        let running = self.steps.state.open.running() as u64;
        let needed = running * (ENTRY_BYTES_MAX + self.reply_bytes_mean);
        needed.clamp(*SETTLEMENTS_BYTES.start(), *SETTLEMENTS_BYTES.end())
    }

    /// Admits what was held, in its order.
    fn retry_held(&mut self) {
        // Their callers may all have given up.
        self.lacks_room = false;
        for placed in std::mem::take(&mut self.held) {
            self.admit(placed);
        }
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Claim(ask, absent_at, to) => {
                let reach = match absent_at == Some(self.shared.fills()) {
                    true => Reach::Memory,
                    false => Reach::Database,
                };
                self.step(to, |steps| steps.claim(&ask, reach));
            }
            Command::Withdraw(digest, attempt, to) => {
                // It may wait for room, and must not be granted later.
                self.held.retain(|held| {
                    !matches!(&held.command, Command::Claim(ask, ..) if ask.digest == digest && ask.attempt == attempt)
                });
                self.step(to, |steps| steps.withdraw(digest, attempt));
            }
            Command::Renew(digest, fence, to) => {
                self.step(to, |steps| steps.renew(digest, fence));
            }
            Command::Settle(digest, fence, settlement, reply, to) => {
                if let Some(reply) = &reply {
                    self.reply_bytes_mean = (self.reply_bytes_mean * 15 + reply.len() as u64) / 16;
                }
                self.step(to, |steps| steps.settle(digest, fence, &settlement, reply));
            }
            Command::Get(lookup, to) => self.step(to, |steps| steps.get(lookup)),
            Command::Show(id, to) => self.step(to, |steps| steps.show(id)),
            Command::Touch(digest, to) => match self.room_for(ENTRY_BYTES_MAX) {
                // The reply only expires earlier, and settlements need the room.
                Room::None(_) => answer(&mut self.at_once, to, Ok(())),
                Room::Soon if self.steps.log.is_stuck() || !self.steps.log.can_grow() => {
                    answer(&mut self.at_once, to, Ok(()));
                }
                Room::Free | Room::Soon => self.step(to, |steps| steps.touch(digest)),
            },
            Command::Enqueue(ask, request, after, to) => {
                self.step(to, |steps| steps.enqueue(&ask, request, after));
            }
            Command::Due(limit, to) => self.step(to, |steps| steps.due(limit)),
            Command::NextDue(to) => self.step(to, |steps| Ok(steps.next_due())),
            Command::Purge(id, force, to) => self.step(to, |steps| steps.purge(id, force)),
            Command::Resolve(id, fence, word, reply, to) => {
                self.step(to, |steps| steps.resolve(id, fence, &word, reply));
            }
            Command::Resume(id, to) => self.step(to, |steps| steps.resume(id)),
            Command::Redeliver(id, to) => self.step(to, |steps| steps.redeliver(id)),
            Command::Put(sheet, name, document, to) => self.step(to, |steps| {
                steps.put_document(sheet, name, Some(document));
                Ok(())
            }),
            Command::Add(sheet, name, document, to) => {
                self.step(to, |steps| steps.add_document(sheet, name, document));
            }
            Command::Remove(sheet, name, to) => self.step(to, |steps| {
                steps.put_document(sheet, name, None);
                Ok(())
            }),
            Command::Sweep(limit, to) => self.sweep(limit, to),
            Command::Stats(to) => {
                while self.retire(RETIRED_PER_STEP) {}
                self.step(to, |steps| Ok(steps.stats()));
            }
            Command::Fill(to) => self.fill_for(to),
            // Documents change rarely: most reads of them wait for no fill.
            Command::FillDocuments(to) => match self.steps.state.overlay.has_documents() {
                true => self.fill_for(to),
                false => answer(&mut self.at_once, to, self.shared.check()),
            },
        }
    }

    /// Acts on what the filler reports.
    fn heed(&mut self, report: Report) {
        match report {
            Report::FillDue => {
                self.is_reminded = false;
                self.steps.log.retry_growth();
                self.fill_all();
                if self.steps.log.wants_checkpoint() {
                    self.filler.send(Job::Checkpoint);
                }
            }
            Report::Filled(changes) => self.filled(changes),
            Report::FillFailed(error) => self.fill_failed(&error),
            Report::Checkpointed(through) => {
                self.fills.checkpoint_error = None;
                self.steps.log.give_back(through);
                self.fills.log_bytes = self.fills.log_bytes.min(self.steps.log.used_bytes());
            }
            Report::CheckpointBlocked => self.steps.log.grow_beyond(),
            Report::CheckpointFailed(error) => self.fills.checkpoint_error = Some(error),
            Report::Spare(spare) => {
                self.spare_is_wanted = false;
                self.steps.log.add_spare(spare);
            }
        }
        self.may_admit_held = true;
    }

    /// Takes one step, and answers it now or with the commit.
    fn step<T: Send + 'static>(
        &mut self,
        to: Responder<T>,
        take: impl FnOnce(&mut Steps) -> Result<T>,
    ) {
        if let Err(error) = self.shared.check() {
            return answer(&mut self.at_once, to, Err(error));
        }
        let result = take(&mut self.steps);
        match self.steps.waits_for_commit() {
            true => answer(&mut self.after_commit, to, result),
            false => answer(&mut self.at_once, to, result),
        }
    }

    /// Released operations are the writer's; all others are the filler's, which must
    /// have everything that is over.
    fn sweep(&mut self, limit: usize, to: Responder<SweepSlice>) {
        if let Err(error) = self.shared.check() {
            return answer(&mut self.at_once, to, Err(error));
        }
        let released = self.steps.sweep_released(limit);
        if released > 0 {
            let slice = SweepSlice {
                operations: released,
                rows: released,
            };
            return answer(&mut self.after_commit, to, Ok(slice));
        }
        self.fill_all();
        let now = self.steps.now();
        self.filler.send(Job::Sweep(limit, now, to));
    }

    fn commit(&mut self) {
        self.at_once = Outbox::default();
        // After a failure nothing is written any more.
        if self.shared.check().is_err() {
            return self.after_commit.discard();
        }
        let mut committed = self.steps.commit();
        while let Err(Error::Full(_)) = committed
            && !self.shared.is_closing()
            && self.shared.check().is_ok()
        {
            self.wait_for_room();
            committed = self.steps.commit();
        }
        match committed {
            Ok(()) => self.after_commit = Outbox::default(),
            Err(error) => {
                // What is in memory is not in the log: nothing may follow.
                tracing::error!(%error, "the commit log of the embedded store could not be written; the store is stopped");
                self.shared.fail(Arc::new(error));
                self.after_commit.discard();
            }
        }
    }

    /// Heeds what the filler reports while a batch waits for room on the disk.
    fn wait_for_room(&mut self) {
        self.shared.hurry.set(true);
        let reports = self.inbox.take_reports(FULL_PAUSE);
        if reports.is_empty() {
            // A reader of the database may have been in the way of the last one.
            self.filler.send(Job::Checkpoint);
        }
        for report in reports {
            match report {
                // What waits is not durable and must not be filled. The writer is
                // reminded again after the commit.
                Report::FillDue => self.is_reminded = false,
                report => self.heed(report),
            }
        }
        self.at_once = Outbox::default();
    }

    fn fill_if_due(&mut self) {
        self.shared.hurry.set(self.is_waiting_for_filler());
        let waits = self.steps.state.has_changes() || self.lacks_room || !self.held.is_empty();
        if !waits || self.shared.check().is_err() {
            return;
        }
        let log_bytes = self.steps.log.used_bytes();
        let is_due = self.steps.state.unfilled_bytes() >= FILL_BYTES
            || log_bytes.saturating_sub(self.fills.log_bytes) >= FILL_LOG_BYTES
            || self.lacks_room;
        // On a full disk all that is durable is filled at once: a batch that waits for
        // room keeps everything from being handed over that is not filled by then.
        let log = &self.steps.log;
        let is_urgent = log.is_stuck() && log.batch_bytes_max() < BATCH_BYTES_MAX + self.reserved();
        let is_free = self.fills.sent == self.fills.done;
        if (is_due && is_free || is_urgent) && self.steps.state.has_changes() {
            self.fill();
        } else if !self.is_reminded {
            self.is_reminded = true;
            self.filler.send(Job::Remind);
        }
    }

    /// Whether the filler should not rest: work or a caller waits for it, or it is behind by
    /// more than the fill that it does.
    fn is_waiting_for_filler(&self) -> bool {
        let unfilled = self.steps.state.unfilled_bytes() + self.fills.bytes;
        self.lacks_room
            || !self.held.is_empty()
            || !self.fills.waiting.is_empty()
            || unfilled >= 2 * FILL_BYTES
    }

    /// Hands what has changed to the filler. Everything is durable.
    fn fill(&mut self) {
        if self.shared.check().is_err() {
            return;
        }
        let changes = self.steps.take_changes();
        self.fills.sent += 1;
        self.fills.bytes += changes.bytes;
        self.fills.log_bytes = self.steps.log.used_bytes();
        self.filler.send(Job::Fill(Arc::new(changes)));
    }

    /// Hands everything up to now to the filler.
    fn fill_all(&mut self) {
        self.commit();
        if self.steps.state.has_changes() {
            self.fill();
        }
    }

    /// Answers when the database has everything up to now.
    fn fill_for(&mut self, to: Responder<()>) {
        self.fill_all();
        if let Err(error) = self.shared.check() {
            answer(&mut self.at_once, to, Err(error));
        } else if self.fills.sent == self.fills.done {
            answer(&mut self.at_once, to, Ok(()));
        } else if let Some(error) = &self.fills.error {
            answer(&mut self.at_once, to, Err(Error::Shared(error.clone())));
        } else {
            self.fills.waiting.push((self.fills.sent, to));
        }
    }

    fn filled(&mut self, changes: Arc<Changes>) {
        self.fills.done += 1;
        self.fills.bytes -= changes.bytes;
        self.fills.error = None;
        self.steps.state.filled(changes);
        for (number, to) in std::mem::take(&mut self.fills.waiting) {
            match number <= self.fills.done {
                true => answer(&mut self.at_once, to, Ok(())),
                false => self.fills.waiting.push((number, to)),
            }
        }
    }

    /// Takes out of memory what the database has: after each turn as many operations as
    /// the turn may have added, and the rest while nothing waits. Fills that pile up go at
    /// once, because their replies may be long.
    fn retire_after(&mut self, commands: usize) {
        let mut goes_on = self.retire(commands.max(RETIRED_PER_STEP));
        while goes_on && (self.inbox.is_empty() || self.steps.state.retiring() > 1) {
            goes_on = self.retire(RETIRED_PER_STEP);
        }
    }

    /// Takes what the database has out of memory, a few at a time, so that no answer
    /// waits for that.
    fn retire(&mut self, limit: usize) -> bool {
        match self.steps.state.retire(limit) {
            Retired::Nothing => return false,
            Retired::Some => {}
            Retired::Last(changes) => self.filler.send(Job::Forget(changes)),
        }
        // What a caller found absent before may have left memory now.
        self.shared.count_fill();
        true
    }

    fn fill_failed(&mut self, error: &Arc<Error>) {
        for (_, to) in self.fills.waiting.drain(..) {
            answer(&mut self.at_once, to, Err(Error::Shared(error.clone())));
        }
        self.fills.error = Some(error.clone());
    }

    fn want_spare(&mut self) {
        let (reserved, lacks_room) = (self.reserved(), self.lacks_room);
        if !self.spare_is_wanted
            && let Some(spare) = self.steps.log.wanted_spare(reserved, lacks_room)
        {
            self.spare_is_wanted = true;
            self.filler.send(Job::Spare(spare));
        }
    }

    fn close(mut self) {
        for placed in std::mem::take(&mut self.held) {
            placed.command.refuse(&mut self.at_once, Error::Closed);
        }
        self.shared.hurry.set(true);
        self.fill_all();
        self.at_once = Outbox::default();
        // The filler ends with what it was given.
    }
}

/// Whether there is room for new work.
enum Room {
    Free,
    /// When the filler has done what it has.
    Soon,
    None(Error),
}

fn answer<T: Send + 'static>(outbox: &mut Outbox, to: Responder<T>, result: Result<T>) {
    // A step stays done although its caller has gone.
    outbox.add(to, result.map_err(StoreError::from), |_| {});
}
