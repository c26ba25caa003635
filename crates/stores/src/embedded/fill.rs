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
use tokio::time::Instant;

use super::Shared;
use super::error::{Error, Result};
use super::log::SpareSegment;
use super::state::Changes;
use super::transaction::Transaction;
use super::writer::{Report, Responder, WriterInbox};
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
/// What was filled is synced into the database file after this many bytes: a long sync
/// would keep the log's own syncs waiting.
const CHECKPOINT_BYTES: u64 = 256 << 10;
/// A reader that keeps the log from being given back for this long is worth a warning.
const BLOCKED_WARNING: Duration = Duration::from_secs(10);

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
        writer: Arc<WriterInbox>,
    ) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let state = FillerThread {
            transaction,
            pages_max,
            shared,
            writer,
            waiting: VecDeque::new(),
            is_stuck: false,
            remind_at: None,
            filled,
            unsynced_bytes: 0,
            checkpointed: 0,
            checkpoint_fails: false,
            blocked: Blocked::No,
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
    writer: Arc<WriterInbox>,
    waiting: VecDeque<Arc<Changes>>,
    /// Whether the first of what waits could not be written.
    is_stuck: bool,
    /// When the writer is to be reminded of the next fill.
    remind_at: Option<Instant>,
    /// The last batch that is in the database.
    filled: u64,
    /// The bytes of the changes that were filled since the last checkpoint.
    unsynced_bytes: u64,
    /// The last batch that is synced into the database file.
    checkpointed: u64,
    /// Whether the last checkpoint failed: one line in the log is enough for many.
    checkpoint_fails: bool,
    blocked: Blocked,
}

/// Why what was filled is synced into the database file.
#[derive(Clone, Copy)]
enum Checkpoint {
    /// The log or SQLite's own waits to be given back.
    Needed,
    /// Nothing waits; a short sync now keeps a later one from being long.
    Early,
}

/// Whether a reader keeps checkpoints from taking over all that is filled.
enum Blocked {
    No,
    Since(Instant),
    /// For so long that a warning was logged.
    Warned,
}

impl FillerThread {
    fn run(mut self, inbox: &Receiver<Job>) {
        lower_priority();
        self.checkpoint(Checkpoint::Needed);
        loop {
            let reminder = self
                .remind_at
                .map(|at| at.saturating_duration_since(Instant::now()));
            let pause = if self.is_stuck {
                Some(RETRY_PAUSE)
            } else {
                reminder
            };
            let job = match pause {
                Some(pause) => inbox.recv_timeout(pause),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(job) => self.perform(job),
                Err(RecvTimeoutError::Timeout) if self.is_stuck => self.fill(),
                Err(RecvTimeoutError::Timeout) => {
                    self.remind_at = None;
                    self.report(Report::FillDue);
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
                    self.checkpoint(Checkpoint::Needed);
                }
                if self.is_stuck {
                    self.fill();
                }
                Outbox::default().add(to, swept.map_err(StoreError::from), |_| {});
            }
            Job::Spare(spare) => self.report(Report::Spare(spare.create())),
            Job::Checkpoint => {
                // These jobs come so often on a full disk that the pause before the
                // next try never ends.
                if self.is_stuck {
                    self.fill();
                }
                self.checkpoint(Checkpoint::Needed);
            }
            Job::Remind => self.remind_at = Some(Instant::now() + FILL_INTERVAL),
        }
    }

    /// Writes what waits, in order.
    fn fill(&mut self) {
        while let Some(changes) = self.waiting.front().cloned() {
            if let Err(error) = self.shared.check() {
                return self.report(Report::FillFailed(Arc::new(error)));
            }
            match self.transaction.fill(&changes) {
                Ok(()) => {
                    self.waiting.pop_front();
                    self.is_stuck = false;
                    self.filled = changes.through;
                    self.unsynced_bytes += changes.bytes;
                    self.report_room();
                    self.report(Report::Filled(changes.clone()));
                    if changes.wants_checkpoint || self.transaction.wants_checkpoint() {
                        self.checkpoint(Checkpoint::Needed);
                    } else if self.unsynced_bytes >= CHECKPOINT_BYTES {
                        self.checkpoint(Checkpoint::Early);
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
        self.report(Report::FillFailed(error));
    }

    fn checkpoint(&mut self, why: Checkpoint) {
        match self.transaction.checkpoint() {
            Ok(true) => {
                self.checkpoint_fails = false;
                self.blocked = Blocked::No;
                self.unsynced_bytes = 0;
                if self.filled > self.checkpointed {
                    self.checkpointed = self.filled;
                    self.report(Report::Checkpointed(self.filled));
                }
            }
            // A reader still needs a part; the next fill tries again.
            Ok(false) => {
                self.checkpoint_fails = false;
                if let Checkpoint::Needed = why {
                    self.warn_if_blocked_for_long();
                    self.report(Report::CheckpointBlocked);
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                let is_known = std::mem::replace(&mut self.checkpoint_fails, true);
                if !is_known || error.is_final() {
                    self.shared.report_checkpoint(&error);
                }
                self.report(Report::CheckpointFailed(error));
            }
        }
    }

    fn warn_if_blocked_for_long(&mut self) {
        match self.blocked {
            Blocked::No => self.blocked = Blocked::Since(Instant::now()),
            Blocked::Since(start) if start.elapsed() >= BLOCKED_WARNING => {
                self.blocked = Blocked::Warned;
                tracing::warn!(
                    "a program reads the database of the embedded store in a long transaction; its commit log grows until that ends"
                );
            }
            Blocked::Since(_) | Blocked::Warned => {}
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

    fn report(&self, report: Report) {
        // A store that is closing needs no reports.
        self.writer.report(report);
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
