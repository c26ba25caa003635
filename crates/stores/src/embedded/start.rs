//! What happens before anything is served: the small tables are read into
//! memory, and the leases of the process before are lost.
//!
//! None of this depends on how many finished operations there are; their
//! filters are filled afterwards, on a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use onceward_core::clock::Timestamp;
use onceward_core::record::State;
use onceward_core::wire;
use rusqlite::Connection;

use super::bucket::{Buckets, Ends, Family, Kept, Reply, Tally};
use super::checkpoint::Checkpointer;
use super::error::{Fault, Step};
use super::filter::Filter;
use super::open_operations::{Live, Mirror};
use super::steps::Shelf;
use super::transaction::Ledger;
use super::{Shared, file, index, sql};
use crate::OpenError;

/// The latest time that was noted.
pub(super) fn latest(db: &Connection) -> Step<Timestamp> {
    let latest: i64 = db.query_row(sql::LATEST_READ, [], |row| row.get(0))?;
    Ok(Timestamp::from_unix_ms(latest.cast_unsigned()))
}

/// Reads what the writer holds in memory, and lets go of earlier leases.
pub(super) fn load(
    db: Connection,
    checkpointer: Checkpointer,
    shared: &Arc<Shared>,
) -> Step<Shelf> {
    let last: i64 = db.query_row(sql::SEQUENCE_READ, [], |row| row.get(0))?;
    load_buckets(&db, &shared.buckets)?;
    let mirror = load_mirror(&db)?;
    let ledger = Ledger::new(
        db,
        shared.buckets.clone(),
        last.cast_unsigned(),
        checkpointer,
    );
    let mut shelf = Shelf::new(ledger, mirror, shared.clone());
    lose_leases(&mut shelf, shared.clock.now())?;
    Ok(shelf)
}

fn load_buckets(db: &Connection, buckets: &Buckets) -> Step<()> {
    for (ends, tally) in read_buckets(db, Family::Kept)? {
        let bucket = Kept::new(ends, tally, Filter::unread(tally.rows));
        load_tail(db, &bucket)?;
        buckets.add_kept(Arc::new(bucket));
    }
    for (ends, _) in read_buckets(db, Family::Reply)? {
        buckets.add_reply(Arc::new(Reply::new(ends)));
    }
    Ok(())
}

/// The rows that are in no leaf yet.
fn load_tail(db: &Connection, bucket: &Kept) -> Step<()> {
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

fn read_buckets(db: &Connection, family: Family) -> Step<Vec<(Ends, Tally)>> {
    let mut statement = db.prepare(sql::BUCKET_READ)?;
    let rows = statement.query_map([family.as_str()], |row| {
        let ends: i64 = row.get(0)?;
        let rows: i64 = row.get(1)?;
        let first: i64 = row.get(2)?;
        let sealed: i64 = row.get(3)?;
        let tally = Tally {
            rows: rows.cast_unsigned(),
            first_over_ms: first.cast_unsigned(),
            sealed: sealed.cast_unsigned(),
        };
        Ok((Ends(ends.cast_unsigned()), tally))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn load_mirror(db: &Connection) -> Step<Mirror> {
    let mut mirror = Mirror::default();
    let mut statement = db.prepare(sql::OPEN_READ)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let prefix: i64 = row.get(1)?;
        let request: Option<i64> = row.get(2)?;
        let bytes = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
        match wire::decode_record(bytes, || Ok(None)) {
            Ok(record) => mirror.put(Live {
                row: id.cast_unsigned(),
                request: request.map(i64::cast_unsigned),
                record: Arc::new(record),
            }),
            Err(error) => {
                tracing::error!(%error, row = id, "the record of an open operation is damaged; its key is refused");
                mirror.mark_damaged(prefix.cast_unsigned());
            }
        }
    }
    mirror.keep();
    Ok(mirror)
}

/// The process that held the leases is gone: nobody else can have the lock.
fn lose_leases(shelf: &mut Shelf, now: Timestamp) -> Step<()> {
    let running: Vec<Live> = shelf
        .mirror
        .iter()
        .filter(|live| live.record.state == State::Running)
        .cloned()
        .collect();
    for live in running {
        match live.record.without_holder(now) {
            Some(record) => shelf.rewrite(&live, record)?,
            None => shelf.forget_live(&live)?,
        }
    }
    shelf.commit()
}

/// The thread that fills the filters of the buckets that were there at the
/// start. Dropping it stops it.
pub(super) struct Filling {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filling {
    /// Starts to fill.
    pub(super) fn start(path: &Path, shared: Arc<Shared>) -> Result<Self, OpenError> {
        let db = file::open_reader(path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("onceward-filling".into())
            .spawn(move || fill(&db, &shared, &stopped))
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the filling of the embedded store's filters had panicked");
        }
    }
}

fn fill(db: &Connection, shared: &Shared, stop: &AtomicBool) {
    let buckets: Vec<_> = shared.buckets.kept().values().rev().cloned().collect();
    for bucket in buckets {
        if bucket.filter.is_complete() || bucket.ends.is_past(shared.clock.now()) {
            continue;
        }
        if let Err(fault) = fill_one(db, &bucket, stop) {
            // The bucket is then asked for every key: slower, and as right.
            tracing::warn!(%fault, table = bucket.table, "a filter could not be filled");
        }
    }
}

/// Reads the leaves. What the tail has was added when that was read, and what
/// the writer seals meanwhile it has added by itself.
fn fill_one(db: &Connection, bucket: &Kept, stop: &AtomicBool) -> Step<()> {
    let mut statement = db.prepare(&bucket.index_read).map_err(Fault::of_read)?;
    let mut rows = statement.query([]).map_err(Fault::of_read)?;
    while let Some(row) = rows.next().map_err(Fault::of_read)? {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leaf = row.get_ref(0).map_err(Fault::of_read)?;
        let leaf = leaf
            .as_blob()
            .map_err(|error| Fault::of_read(error.into()))?;
        for (prefix, _) in index::decode(leaf)? {
            bucket.filter.add(prefix);
        }
    }
    bucket.filter.complete();
    Ok(())
}
