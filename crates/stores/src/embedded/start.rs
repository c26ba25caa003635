//! Opening: the small tables are read into memory, and the leases of the previous
//! process end.
//!
//! The time this takes does not depend on the number of finished operations; their
//! filters are loaded afterwards, by a separate thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use onceward_core::clock::Timestamp;
use onceward_core::record::State;
use onceward_core::wire;
use rusqlite::Connection;

use super::bucket::{BucketEnd, Buckets, Family, OperationBucket, ReplyBucket, Tally};
use super::checkpoint::Checkpointer;
use super::error::{Error, Result};
use super::filter::Filter;
use super::open_operations::{OpenOperation, OpenOperations};
use super::steps::Steps;
use super::transaction::Transaction;
use super::{Shared, file, index, sql};
use crate::OpenError;

/// The latest time that was noted.
pub(super) fn latest(db: &Connection) -> Result<Timestamp> {
    let latest: i64 = db.query_row(sql::LATEST_READ, [], |row| row.get(0))?;
    Ok(Timestamp::from_unix_ms(latest.cast_unsigned()))
}

/// Reads the writer's state from the file, and ends earlier leases.
pub(super) fn load(
    db: Connection,
    checkpointer: Checkpointer,
    shared: &Arc<Shared>,
) -> Result<Steps> {
    let last: i64 = db.query_row(sql::SEQUENCE_READ, [], |row| row.get(0))?;
    load_buckets(&db, &shared.buckets)?;
    let open_operations = load_open_operations(&db)?;
    let transaction = Transaction::new(
        db,
        shared.buckets.clone(),
        last.cast_unsigned(),
        checkpointer,
    );
    let mut steps = Steps::new(transaction, open_operations, shared.clone());
    lose_leases(&mut steps, shared.clock.now())?;
    Ok(steps)
}

fn load_buckets(db: &Connection, buckets: &Buckets) -> Result<()> {
    for (end, tally) in read_buckets(db, Family::Operations)? {
        let bucket = OperationBucket::new(end, tally, Filter::unread(tally.rows));
        load_tail(db, &bucket)?;
        buckets.add_operations(Arc::new(bucket));
    }
    for (end, _) in read_buckets(db, Family::Replies)? {
        buckets.add_replies(Arc::new(ReplyBucket::new(end)));
    }
    Ok(())
}

/// The rows that are in no leaf yet.
fn load_tail(db: &Connection, bucket: &OperationBucket) -> Result<()> {
    let mut statement = db.prepare(&bucket.read_tail)?;
    let mut rows = statement.query([bucket.tally().sealed.cast_signed()])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let prefix: i64 = row.get(1)?;
        bucket.filter.add(prefix.cast_unsigned());
        bucket.tail.add(prefix.cast_unsigned(), id.cast_unsigned());
    }
    Ok(())
}

fn read_buckets(db: &Connection, family: Family) -> Result<Vec<(BucketEnd, Tally)>> {
    let mut statement = db.prepare(sql::BUCKET_READ)?;
    let rows = statement.query_map([family.as_str()], |row| {
        let end: i64 = row.get(0)?;
        let rows: i64 = row.get(1)?;
        let first: i64 = row.get(2)?;
        let sealed: i64 = row.get(3)?;
        let tally = Tally {
            rows: rows.cast_unsigned(),
            first_over_ms: first.cast_unsigned(),
            sealed: sealed.cast_unsigned(),
        };
        Ok((BucketEnd(end.cast_unsigned()), tally))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn load_open_operations(db: &Connection) -> Result<OpenOperations> {
    let mut open_operations = OpenOperations::default();
    let mut statement = db.prepare(sql::OPEN_READ)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let prefix: i64 = row.get(1)?;
        let request: Option<i64> = row.get(2)?;
        let bytes = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
        match wire::decode_record(bytes, || Ok(None)) {
            Ok(record) => open_operations.put(OpenOperation {
                row: id.cast_unsigned(),
                request: request.map(i64::cast_unsigned),
                record: Arc::new(record),
            }),
            Err(error) => {
                tracing::error!(%error, row = id, "record of an open operation is damaged; its key is refused");
                open_operations.mark_damaged(prefix.cast_unsigned());
            }
        }
    }
    open_operations.keep();
    Ok(open_operations)
}

/// The process that held the leases has ended, because this one has the lock.
fn lose_leases(steps: &mut Steps, now: Timestamp) -> Result<()> {
    let running: Vec<OpenOperation> = steps
        .open_operations
        .iter()
        .filter(|operation| operation.record.state == State::Running)
        .cloned()
        .collect();
    for operation in running {
        match operation.record.without_holder(now) {
            Some(record) => steps.rewrite(&operation, record)?,
            None => steps.forget_open(&operation)?,
        }
    }
    steps.commit()
}

/// The thread that loads the filters of the buckets that existed at the start.
/// Dropping it stops it.
pub(super) struct FilterLoader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FilterLoader {
    /// Starts the thread.
    pub(super) fn start(path: &Path, shared: Arc<Shared>) -> Result<Self, OpenError> {
        let db = file::open_reader(path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("onceward-filters".into())
            .spawn(move || fill(&db, &shared, &stopped))
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for FilterLoader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("thread that loads the embedded store's filters panicked");
        }
    }
}

fn fill(db: &Connection, shared: &Shared, stop: &AtomicBool) {
    let buckets: Vec<_> = shared
        .buckets
        .operations()
        .values()
        .rev()
        .cloned()
        .collect();
    for bucket in buckets {
        if bucket.filter.is_complete() || bucket.end.is_past(shared.clock.now()) {
            continue;
        }
        if let Err(error) = fill_one(db, &bucket, stop) {
            // Without the filter every look-up reads the bucket: slower, but correct.
            tracing::warn!(%error, table = bucket.table, "cannot load a filter; look-ups in this bucket read the file");
        }
    }
}

/// Adds the keys of all leaves. Those of the tail were added when it was read, and
/// the writer adds what it seals meanwhile.
fn fill_one(db: &Connection, bucket: &OperationBucket, stop: &AtomicBool) -> Result<()> {
    let mut statement = db.prepare(&bucket.index_read).map_err(Error::from_read)?;
    let mut rows = statement.query([]).map_err(Error::from_read)?;
    while let Some(row) = rows.next().map_err(Error::from_read)? {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leaf = row.get_ref(0).map_err(Error::from_read)?;
        let leaf = leaf
            .as_blob()
            .map_err(|error| Error::from_read(error.into()))?;
        for (prefix, _) in index::decode(leaf)? {
            bucket.filter.add(prefix);
        }
    }
    bucket.filter.complete();
    Ok(())
}
