//! The writer: one thread that takes every step that changes something.
//!
//! It takes all waiting commands, up to a limit, appends their effects to the log as
//! one batch, and answers them when one sync has made the batch durable. Commands that
//! arrive meanwhile wait for the next batch, so with more callers each costs less. A
//! command is answered at once if nothing that it may have seen waits to be durable.
//!
//! Now and then the writer hands what has changed to the filler. At the bounds of the
//! log and of what is not filled, new work waits for the filler; settlements do not.

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
use super::inbox::Inbox;
use super::log::{ENTRY_BYTES_MAX, SEGMENT_BYTES, Segment};
use super::state::{Changes, Retired};
use super::steps::{Reach, Steps};
use crate::lookup::Lookup;
use crate::mailbox::{self, Outbox, at_end_of_turn, end_turn, responder};

/// The most commands in one batch.
const BATCH_MAX: usize = 1024;
/// A batch that is longer is made durable before it takes more.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// The most commands that wait for the writer; further callers wait to enter.
const WAITING_MAX: usize = 4096;
/// A fill is due when this much has changed.
const FILL_BYTES: u64 = 8 << 20;
/// A fill is due when the log has grown by this much.
const FILL_LOG_BYTES: u64 = SEGMENT_BYTES;
/// The most changes that are not filled before new work waits.
const UNFILLED_BYTES_MAX: u64 = 6 * FILL_BYTES;
/// How many finished operations leave the overlay after a batch.
const RETIRED_PER_BATCH: usize = 256;
/// What a running operation needs in the database to settle.
const SETTLEMENT_BYTES: u64 = 1 << 10;
/// What it needs in the log, alone in a batch.
const SETTLEMENT_LOG_BYTES: u64 = ENTRY_BYTES_MAX;
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
    /// From the filler: a change has waited long enough.
    FillDue,
    /// From the filler: the database has these changes.
    Filled(Arc<Changes>),
    /// From the filler: changes could not be written; they are tried again.
    FillFailed(Arc<Error>),
    /// From the filler: everything up to this batch is synced into the database file.
    Checkpointed(u64),
    /// From the filler: nothing can be given back of the log now.
    CheckpointFailed(Arc<Error>),
    /// From the filler: a segment for the log.
    Spare(io::Result<Segment>),
}

impl Command {
    /// How much room a command needs in the log that is new work and waits at the
    /// bounds; `None` for a command that never waits.
    fn new_bytes(&self) -> Option<u64> {
        match self {
            Self::Claim(..) | Self::Due(..) | Self::Redeliver(..) => Some(ENTRY_BYTES_MAX),
            Self::Enqueue(_, bytes, ..) | Self::Put(_, _, bytes, _) | Self::Add(_, _, bytes, _) => {
                Some(ENTRY_BYTES_MAX + bytes.len() as u64)
            }
            _ => None,
        }
    }

    /// Refuses new work.
    fn refuse(self, outbox: &mut Outbox, error: Error) {
        match self {
            Self::Claim(_, _, to) => answer(outbox, to, Err(error)),
            Self::Enqueue(_, _, _, to) => answer(outbox, to, Err(error)),
            Self::Due(_, to) => answer(outbox, to, Err(error)),
            Self::Redeliver(_, to) => answer(outbox, to, Err(error)),
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
            Self::Put(_, _, _, to) => to.is_gone(),
            Self::Add(_, _, _, to) => to.is_gone(),
            _ => false,
        }
    }
}

/// The way to the writer. Dropping it ends the writer, after what waits is done.
pub(super) struct Writer {
    inbox: Arc<Inbox<Command>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread, and the filler with the way back to the writer.
    pub(super) fn start(
        steps: Steps,
        shared: Arc<Shared>,
        start_filler: impl FnOnce(Arc<Inbox<Command>>) -> io::Result<Filler>,
    ) -> io::Result<Self> {
        let inbox = Inbox::new(WAITING_MAX);
        let thread_state = WriterThread {
            filler: start_filler(inbox.clone())?,
            steps,
            shared: shared.clone(),
            at_once: Outbox::default(),
            after_commit: Outbox::default(),
            held: VecDeque::new(),
            fills: Fills::default(),
            spare_is_wanted: false,
            is_reminded: false,
            is_short: false,
            is_shaken: false,
        };
        let ended = DiscardedOnDrop(inbox.clone());
        let thread = std::thread::Builder::new()
            .name("onceward-writer".into())
            .spawn(move || thread_state.run(&ended.0))?;
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
        let place = self.inbox.place().await.ok_or(Error::Closed)?;
        let command = command(to);
        at_end_of_turn(move || {
            // Nothing was sent, so there is nothing to undo.
            if !command.is_abandoned() {
                place.leave(command);
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
struct DiscardedOnDrop(Arc<Inbox<Command>>);

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
    /// How much the fills under way change.
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
    steps: Steps,
    shared: Arc<Shared>,
    filler: Filler,
    at_once: Outbox,
    after_commit: Outbox,
    /// New work that waits for room.
    held: VecDeque<Command>,
    fills: Fills,
    spare_is_wanted: bool,
    /// Whether the filler reminds the writer of the next fill.
    is_reminded: bool,
    /// Whether there was no room for new work.
    is_short: bool,
    /// Whether the filler reported something, so that what is held may go on.
    is_shaken: bool,
}

impl WriterThread {
    fn run(mut self, inbox: &Inbox<Command>) {
        self.steps.waits_for_room = true;
        // What was read from the log.
        if self.steps.state.has_changes() {
            self.fill();
        }
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while inbox.take(BATCH_MAX, &mut batch) {
            for command in batch.drain(..) {
                self.admit(command);
                if self.steps.log.batch_bytes() >= BATCH_BYTES_MAX {
                    self.commit();
                }
            }
            if std::mem::take(&mut self.is_shaken) {
                self.retry_held();
            }
            self.commit();
            self.retire(RETIRED_PER_BATCH);
            self.fill_if_due();
            self.want_spare();
        }
        self.close();
    }

    /// Performs a command, unless it is new work and there is no room.
    fn admit(&mut self, command: Command) {
        let Some(bytes) = command.new_bytes() else {
            return self.perform(command);
        };
        if let Err(error) = self.shared.check() {
            return command.refuse(&mut self.at_once, error);
        }
        let room = self.room_for(bytes);
        self.is_short = !matches!(room, Room::Free);
        match room {
            Room::Free => self.perform(command),
            Room::Soon => self.held.push_back(command),
            Room::None(error) => command.refuse(&mut self.at_once, error),
        }
    }

    fn room_for(&self, bytes: u64) -> Room {
        let running = self.steps.state.open.running() as u64;
        let unfilled = self.steps.state.unfilled_bytes() + self.fills.bytes;
        let file = self.shared.room();
        if file.is_some_and(|file| unfilled + running * SETTLEMENT_BYTES + bytes > file) {
            return Room::None(Error::Full("the database may not grow".into()));
        }
        let reserved = running * SETTLEMENT_LOG_BYTES;
        let reserved = reserved.clamp(*SETTLEMENTS_BYTES.start(), *SETTLEMENTS_BYTES.end());
        if self.steps.log.room() >= reserved + bytes && unfilled < UNFILLED_BYTES_MAX {
            return Room::Free;
        }
        let error = self.fills.error.as_ref();
        match error.or(self.fills.checkpoint_error.as_ref()) {
            Some(error) => Room::None(Error::Shared(error.clone())),
            // Every fill gives some back.
            None => Room::Soon,
        }
    }

    /// Admits what was held, in its order.
    fn retry_held(&mut self) {
        for command in std::mem::take(&mut self.held) {
            if !command.is_abandoned() {
                self.admit(command);
            }
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
                    !matches!(held, Command::Claim(ask, ..) if ask.digest == digest && ask.attempt == attempt)
                });
                self.step(to, |steps| steps.withdraw(digest, attempt));
            }
            Command::Renew(digest, fence, to) => {
                self.step(to, |steps| steps.renew(digest, fence));
            }
            Command::Settle(digest, fence, settlement, reply, to) => {
                self.step(to, |steps| steps.settle(digest, fence, &settlement, reply));
            }
            Command::Get(lookup, to) => self.step(to, |steps| steps.get(lookup)),
            Command::Show(id, to) => self.step(to, |steps| steps.show(id)),
            Command::Touch(digest, to) => self.step(to, |steps| steps.touch(digest)),
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
                while self.retire(RETIRED_PER_BATCH) {}
                self.step(to, |steps| Ok(steps.stats()));
            }
            Command::Fill(to) => self.fill_for(to),
            Command::FillDue => {
                self.is_reminded = false;
                self.steps.log.try_to_grow();
                self.fill_all();
                if self.steps.log.wants_checkpoint() {
                    self.filler.send(Job::Checkpoint);
                }
                self.is_shaken = true;
            }
            Command::Filled(changes) => self.filled(changes),
            Command::FillFailed(error) => self.fill_failed(&error),
            Command::Checkpointed(through) => {
                self.fills.checkpoint_error = None;
                self.steps.log.give_back(through);
                self.fills.log_bytes = self.fills.log_bytes.min(self.steps.log.used_bytes());
                self.is_shaken = true;
            }
            Command::CheckpointFailed(error) => {
                self.fills.checkpoint_error = Some(error);
                self.is_shaken = true;
            }
            Command::Spare(spare) => {
                self.spare_is_wanted = false;
                self.steps.log.add_spare(spare);
                self.is_shaken = true;
            }
        }
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
        match self.steps.commit() {
            Ok(()) => self.after_commit = Outbox::default(),
            Err(error) => {
                // What is in memory is not in the log: nothing may follow.
                tracing::error!(%error, "the commit log of the embedded store could not be written; the store is stopped");
                self.shared.fail(Arc::new(error));
                self.after_commit.discard();
            }
        }
    }

    fn fill_if_due(&mut self) {
        let waits = self.steps.state.has_changes() || self.is_short;
        if !waits || self.shared.check().is_err() {
            return;
        }
        let log_bytes = self.steps.log.used_bytes();
        let is_due = self.steps.state.unfilled_bytes() >= FILL_BYTES
            || log_bytes.saturating_sub(self.fills.log_bytes) >= FILL_LOG_BYTES
            || self.is_short;
        let is_free = self.fills.sent == self.fills.done;
        if is_due && is_free && self.steps.state.has_changes() {
            self.fill();
        } else if !self.is_reminded {
            self.is_reminded = true;
            self.filler.send(Job::Remind);
        }
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
        self.is_shaken = true;
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
        self.is_shaken = true;
    }

    fn want_spare(&mut self) {
        if !self.spare_is_wanted
            && let Some(spare) = self.steps.log.wanted_spare()
        {
            self.spare_is_wanted = true;
            self.filler.send(Job::Spare(spare));
        }
    }

    fn close(mut self) {
        for command in std::mem::take(&mut self.held) {
            command.refuse(&mut self.at_once, Error::Closed);
        }
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
