//! The filler: a thread that writes the database behind the log.
//!
//! A fill takes everything that changed since the last one. SQLite does not sync it:
//! until a checkpoint has synced it into the database file, the log has it, and only
//! then are segments of the log given back. A fill that finds no room is tried again;
//! meanwhile the log takes what it can.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use onceward_core::clock::Timestamp;
use onceward_core::store::StoreError;

use super::Shared;
use super::error::{Error, Result};
use super::inbox::Inbox;
use super::log::SpareSegment;
use super::state::Changes;
use super::transaction::Transaction;
use super::writer::{Command, Responder};
use crate::mailbox::Outbox;

/// The longest that a change waits for its fill: other programs that read the file see
/// it then.
const FILL_INTERVAL: Duration = Duration::from_secs(1);
/// The filler's priority. It still gets a tenth of the time that another thread gets,
/// which is more than it needs.
#[cfg(target_os = "linux")]
const FILLER_NICE: i32 = 10;
/// The pause before a fill that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The result of one slice of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepSlice {
    /// How many operations it reclaimed.
    pub(super) operations: usize,
    /// How many rows that took; nothing was left to do when zero.
    pub(super) rows: usize,
}

/// Work for the filler.
pub(super) enum Job {
    Fill(Arc<Changes>),
    /// Frees the memory of changes, which takes long for many.
    Forget(Arc<Changes>),
    Sweep(usize, Timestamp, Responder<SweepSlice>),
    Spare(SpareSegment),
    /// Tries to give log back once more.
    Checkpoint,
    /// Reminds the writer of the next fill when it is due.
    Remind,
}

/// The way to the filler. Dropping it ends the filler, after what waits is done.
pub(super) struct Filler {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    /// Starts the thread. It reports to the writer.
    pub(super) fn start(
        transaction: Transaction,
        filled: u64,
        pages_max: Option<u32>,
        shared: Arc<Shared>,
        writer: Arc<Inbox<Command>>,
    ) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let state = FillerThread {
            transaction,
            pages_max,
            shared,
            writer,
            waiting: VecDeque::new(),
            is_stuck: false,
            reminds: false,
            filled,
            checkpointed: 0,
        };
        let thread = std::thread::Builder::new()
            .name("onceward-filler".into())
            .spawn(move || state.run(&inbox))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Hands over work.
    pub(super) fn send(&self, job: Job) {
        // The thread lives as long as this value.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("filler thread of the embedded store panicked");
        }
    }
}

/// Lets the threads that serve requests run first. A fill keeps a processor busy for
/// milliseconds, and the kernel would let it finish while the writer waits for that
/// processor. Elsewhere than on Linux a priority belongs to the whole process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, FILLER_NICE) {
        tracing::debug!(%error, "priority of the filler thread not lowered");
    }
}

/// The state of the filler's thread.
struct FillerThread {
    transaction: Transaction,
    pages_max: Option<u32>,
    shared: Arc<Shared>,
    writer: Arc<Inbox<Command>>,
    waiting: VecDeque<Arc<Changes>>,
    /// Whether the first of what waits could not be written.
    is_stuck: bool,
    reminds: bool,
    /// The last batch that is in the database.
    filled: u64,
    /// The last batch that is synced into the database file.
    checkpointed: u64,
}

impl FillerThread {
    fn run(mut self, inbox: &Receiver<Job>) {
        lower_priority();
        self.checkpoint();
        loop {
            let pause = match (self.is_stuck, self.reminds) {
                (true, _) => Some(RETRY_PAUSE),
                (false, true) => Some(FILL_INTERVAL),
                (false, false) => None,
            };
            let job = match pause {
                Some(pause) => inbox.recv_timeout(pause),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(job) => self.perform(job),
                Err(RecvTimeoutError::Timeout) if self.is_stuck => self.fill(),
                Err(RecvTimeoutError::Timeout) => {
                    self.reminds = false;
                    self.report(Command::FillDue);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.close();
    }

    fn perform(&mut self, job: Job) {
        match job {
            Job::Fill(changes) => {
                self.waiting.push_back(changes);
                self.fill();
            }
            Job::Forget(changes) => drop(changes),
            Job::Sweep(limit, now, to) => {
                // Sweeping needs no room, and may make room for what waits.
                let swept = self.shared.check().and_then(|()| self.sweep(limit, now));
                self.report_room();
                if swept.is_ok() && self.transaction.wants_checkpoint() {
                    self.checkpoint();
                }
                if self.is_stuck {
                    self.fill();
                }
                Outbox::default().add(to, swept.map_err(StoreError::from), |_| {});
            }
            Job::Spare(spare) => self.report(Command::Spare(spare.create())),
            Job::Checkpoint => self.checkpoint(),
            Job::Remind => self.reminds = true,
        }
    }

    /// Writes what waits, in order.
    fn fill(&mut self) {
        while let Some(changes) = self.waiting.front().cloned() {
            if let Err(error) = self.shared.check() {
                return self.report(Command::FillFailed(Arc::new(error)));
            }
            match self.transaction.fill(&changes) {
                Ok(()) => {
                    self.waiting.pop_front();
                    self.is_stuck = false;
                    self.filled = changes.through;
                    self.report_room();
                    self.report(Command::Filled(changes.clone()));
                    if changes.wants_checkpoint || self.transaction.wants_checkpoint() {
                        self.checkpoint();
                    }
                }
                Err(error) => return self.stick(error),
            }
        }
    }

    fn stick(&mut self, error: Error) {
        if !self.is_stuck {
            tracing::error!(%error, "the database of the embedded store could not be filled; its commit log grows");
        }
        self.is_stuck = true;
        let error = Arc::new(error);
        if error.is_final() {
            self.shared.fail(error.clone());
        }
        self.report(Command::FillFailed(error));
    }

    fn checkpoint(&mut self) {
        match self.transaction.checkpoint() {
            Ok(true) if self.filled > self.checkpointed => {
                self.checkpointed = self.filled;
                self.report(Command::Checkpointed(self.filled));
            }
            // A reader still needs a part; the next fill tries again.
            Ok(_) => {}
            Err(error) => {
                let error = Arc::new(error);
                self.shared.report_checkpoint(&error);
                self.report(Command::CheckpointFailed(error));
            }
        }
    }

    fn sweep(&mut self, limit: usize, now: Timestamp) -> Result<SweepSlice> {
        if let Some(rows) = self.transaction.sweep_finished(now, limit)? {
            return Ok(SweepSlice {
                operations: rows,
                // Dropping an empty table is work too, and there may be more behind it.
                rows: rows.max(1),
            });
        }
        let replies = self.transaction.sweep_replies(now, limit)?;
        Ok(SweepSlice {
            operations: 0,
            rows: replies.map_or(0, |rows| rows.max(1)),
        })
    }

    fn report_room(&self) {
        match self.transaction.room(self.pages_max) {
            Ok(Some(room)) => self.shared.set_room(room),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "cannot read the size of the database"),
        }
    }

    fn report(&self, command: Command) {
        // A store that is closing needs no reports.
        self.writer.push(command);
    }

    fn close(mut self) {
        self.fill();
        // What could not be filled is in the log for the next start.
        if self.waiting.is_empty()
            && self.shared.check().is_ok()
            && let Err(error) = self.transaction.close()
        {
            self.shared.report_checkpoint(&Arc::new(error));
        }
    }
}
