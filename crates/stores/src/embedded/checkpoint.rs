//! Moving committed pages from the write-ahead log into the file.
//!
//! SQLite would do this during a commit now and then, and all callers of that commit
//! would wait for a second sync of many scattered pages. A separate thread does most
//! of it instead. It never finishes while the writer continues, and the log restarts
//! only when all of it has been moved; so once the log is long, the writer moves the
//! small rest between two batches.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::error::{Error, Result};
use super::{Shared, file, sql};
use crate::OpenError;

/// The number of written rows after which the log is moved; a row touches about
/// one page.
const ROWS_PER_ROUND: usize = 4096;
/// The length from which the log should restart: 32 MiB.
const LOG_PAGES_MAX: i64 = 8192;

/// The thread that moves the log. Dropping it ends it.
pub(super) struct Checkpointer {
    rows: usize,
    wake: Option<SyncSender<()>>,
    is_long: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread.
    pub(super) fn start(path: &Path, shared: Arc<Shared>) -> Result<Self, OpenError> {
        let db = file::open_checkpointer(path)?;
        let (wake, woken) = sync_channel(1);
        let is_long = Arc::new(AtomicBool::new(false));
        let set_long = is_long.clone();
        let thread = std::thread::Builder::new()
            .name("onceward-checkpoint".into())
            .spawn(move || run(&db, &shared, &woken, &set_long))
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            rows: 0,
            wake: Some(wake),
            is_long,
            thread: Some(thread),
        })
    }

    /// Counts committed rows, and wakes the thread when there are enough.
    pub(super) fn count(&mut self, rows: usize) {
        self.rows += rows;
        if self.rows >= ROWS_PER_ROUND {
            self.rows = 0;
            // A full channel means that the thread is awake already.
            let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
        }
    }

    /// Whether the writer should move the rest, so that the log restarts. It is true
    /// once per round.
    pub(super) fn is_log_long(&self) -> bool {
        self.is_long.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("checkpoint thread of the embedded store panicked");
        }
    }
}

fn run(db: &Connection, shared: &Shared, woken: &Receiver<()>, is_long: &AtomicBool) {
    while woken.recv().is_ok() {
        match move_log(db) {
            Ok(pages) => is_long.store(pages > LOG_PAGES_MAX, Ordering::Relaxed),
            Err(error) => shared.report_checkpoint(error),
        }
    }
}

/// Moves the pages that no reader still needs; returns the length of the log.
pub(super) fn move_log(db: &Connection) -> Result<i64> {
    let mut statement = db.prepare_cached(sql::CHECKPOINT)?;
    statement
        .query_row([], |row| row.get(1))
        .map_err(Error::from)
}
