//! Opening: the small tables and the end of the log are read into memory, and the
//! leases of the previous process end.
//!
//! The time this takes does not depend on the number of finished operations; their
//! filters are loaded afterwards, by a separate thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use onceward_core::clock::Timestamp;
use onceward_core::entropy::Entropy;
use onceward_core::identity::Digest;
use onceward_core::record::State as RecordState;
use onceward_core::wire;
use rusqlite::{Connection, params};

use super::bucket::{BucketEnd, Buckets, Family, OperationBucket, ReplyBucket, Tally};
use super::digest_table::{ByDigest, DigestTable};
use super::disk::Disk;
use super::effect::Effect;
use super::error::{Error, Result};
use super::filter::Filter;
use super::log::{self, Entry, LogError, LogIdentity, Recovered};
use super::open_operations::{OpenOperation, OpenOperations, StoredRequest};
use super::state::State;
use super::steps::Steps;
use super::{Shared, file, index, sql};
use crate::OpenError;

/// Numbers that a new log leaves out: an earlier log, which is gone, may have used
/// them.
const NUMBERS_SKIPPED: i64 = 1 << 32;
/// The size from which leases that ended are written before there are more.
const BATCH_BYTES: u64 = 1 << 20;

/// The latest time that was noted.
pub(super) fn latest(db: &Connection) -> Result<Timestamp> {
    let latest: i64 = db.query_row(sql::LATEST_READ, [], |row| row.get(0))?;
    Ok(Timestamp::from_unix_ms(latest.cast_unsigned()))
}

/// The log of a database: its identity, and the last batch that is in the database.
pub(super) fn log_of(db: &Connection) -> Result<Option<(LogIdentity, u64)>> {
    let (log, filled): (Option<Vec<u8>>, i64) =
        db.query_row(sql::LOG_READ, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some(log) = log else {
        return Ok(None);
    };
    let identity = log.try_into().map_err(|_| LogError::Missing)?;
    let identity = LogIdentity(u128::from_be_bytes(identity));
    Ok(Some((identity, filled.cast_unsigned())))
}

/// Reads the log of the database, or begins one for a database that has none: it is
/// new, of an earlier layout, or a copy without its log.
pub(super) fn open_log(
    db: &Connection,
    disk: Arc<dyn Disk>,
    directory: &Path,
) -> Result<Recovered> {
    if let Some((identity, filled)) = log_of(db)? {
        return Ok(log::recover(disk, directory, identity, filled)?);
    }
    let entropy = Entropy::system().map_err(|source| LogError::File {
        path: directory.into(),
        source,
    })?;
    let identity = LogIdentity(entropy.next_u128());
    let log = log::create(disk, directory, identity)?;
    // The database names its log once that is there, and before anything is in it.
    let name = identity.0.to_be_bytes();
    db.execute(sql::LOG_BEGIN, params![&name[..], NUMBERS_SKIPPED])?;
    // Into the file itself: a database that lost SQLite's log would not know its own,
    // and begin another in its place.
    db.query_row(sql::CHECKPOINT_ALL, [], |_| Ok(()))?;
    Ok(Recovered {
        log,
        entries: Vec::new(),
        time: Timestamp::default(),
    })
}

/// What the start read.
pub(super) struct Loaded {
    pub(super) steps: Steps,
    /// The last batch that is in the database.
    pub(super) filled: u64,
    /// The highest row of a finished operation.
    pub(super) last_row: u64,
}

/// Reads the writer's state from the database and the log, and ends earlier leases.
pub(super) fn load(
    db: &Connection,
    reader: Connection,
    recovered: Recovered,
    shared: &Arc<Shared>,
) -> Result<Loaded> {
    let reserved: i64 = db.query_row(sql::SEQUENCE_READ, [], |row| row.get(0))?;
    let filled = log_of(db)?.map_or(0, |(_, filled)| filled);
    let last_row = load_buckets(db, &shared.buckets)?;
    let open_operations = load_open_operations(db)?;
    let superseded = shared.superseded.clone();
    let mut state = State::new(open_operations, reserved.cast_unsigned(), superseded);
    let taken = recovered.entries.len();
    replay(&mut state, recovered.entries)?;
    if taken > 0 {
        // It was killed, or could not fill the database before it ended.
        tracing::info!(
            steps = taken,
            "embedded store opened; its last steps come from the commit log"
        );
    }
    let mut steps = Steps::new(recovered.log, state, reader, shared.clone());
    steps.latest = recovered.time;
    let commit = |steps: &mut Steps| commit(steps, db, filled);
    lose_leases(&mut steps, shared.clock.now(), commit)?;
    Ok(Loaded {
        steps,
        filled,
        last_row,
    })
}

/// Takes the effects that the database lacks. What a later entry overwrites whole is
/// not decoded.
fn replay(state: &mut State, entries: Vec<Entry>) -> Result<()> {
    let mut last = DigestTable::default();
    for (place, entry) in entries.iter().enumerate() {
        if let Some(digest) = entry.digest() {
            last.insert(LastEntry { digest, place });
        }
    }
    for (place, entry) in entries.into_iter().enumerate() {
        let is_last = |digest: &Digest| last.get(digest).is_none_or(|last| last.place == place);
        if entry.is_overwritten_whole() && !entry.digest().as_ref().is_none_or(is_last) {
            continue;
        }
        state.take(entry.decode()?);
    }
    Ok(())
}

/// The place of an operation's last entry in the log.
struct LastEntry {
    digest: Digest,
    place: usize,
}

impl ByDigest for LastEntry {
    fn digest(&self) -> &Digest {
        &self.digest
    }
}

/// Returns the highest row.
fn load_buckets(db: &Connection, buckets: &Buckets) -> Result<u64> {
    let mut last_row = 0;
    for (end, tally) in read_buckets(db, Family::Operations)? {
        let bucket = OperationBucket::new(end, tally, Filter::unread(tally.rows));
        last_row = last_row.max(load_tail(db, &bucket)?);
        buckets.add_operations(Arc::new(bucket));
    }
    for (end, _) in read_buckets(db, Family::Replies)? {
        buckets.add_replies(Arc::new(ReplyBucket::new(end)));
    }
    Ok(last_row)
}

/// Reads the rows that are in no leaf yet; returns the highest row of the bucket.
fn load_tail(db: &Connection, bucket: &OperationBucket) -> Result<u64> {
    let mut last_row = bucket.tally().sealed;
    let mut statement = db.prepare(&bucket.read_tail)?;
    let mut rows = statement.query([last_row.cast_signed()])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let prefix: i64 = row.get(1)?;
        bucket.filter.add(prefix.cast_unsigned());
        bucket.tail.add(prefix.cast_unsigned(), id.cast_unsigned());
        last_row = last_row.max(id.cast_unsigned());
    }
    Ok(last_row)
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
            Ok(record) => {
                open_operations.put(OpenOperation {
                    row: id.cast_unsigned(),
                    record: Arc::new(record),
                    request: request.map(|row| StoredRequest {
                        row: row.cast_unsigned(),
                        body: None,
                        is_filled: true,
                    }),
                    filled_row: Some(id.cast_unsigned()),
                    is_changed: false,
                });
            }
            Err(error) => {
                tracing::error!(%error, row = id, "record of an open operation is damaged; its key is refused");
                open_operations.mark_damaged(prefix.cast_unsigned());
            }
        }
    }
    Ok(open_operations)
}

/// Commits what was recorded. On a full disk the only room may be in segments that the
/// database does not need any more.
fn commit(steps: &mut Steps, db: &Connection, filled: u64) -> Result<()> {
    match steps.commit() {
        Err(Error::Full(_)) => {
            if file::checkpoint(db)? {
                steps.log.give_back(filled);
            }
            steps.commit()
        }
        committed => committed,
    }
}

/// The process that held the leases has ended, because this one has the lock.
fn lose_leases(
    steps: &mut Steps,
    now: Timestamp,
    commit: impl Fn(&mut Steps) -> Result<()>,
) -> Result<()> {
    let is_running = |open: &&OpenOperation| open.record.state == RecordState::Running;
    let running: Vec<OpenOperation> = steps
        .state
        .open
        .iter()
        .filter(is_running)
        .cloned()
        .collect();
    for operation in running {
        match operation.record.without_holder(now) {
            Some(record) => steps.rewrite(&operation, record),
            None => steps.record(Effect::Closed(operation.record.digest)),
        }
        if steps.log.batch_bytes() >= BATCH_BYTES {
            commit(steps)?;
        }
    }
    commit(steps)
}

/// The thread that loads the filters of the buckets that existed at the start.
/// Dropping it stops it.
pub(super) struct FilterLoader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FilterLoader {
    /// Starts the thread.
    pub(super) fn start(
        path: &Path,
        vfs: Option<&str>,
        shared: Arc<Shared>,
    ) -> Result<Self, OpenError> {
        let db = file::open_reader(path, vfs)?;
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
/// the filler adds what it seals meanwhile.
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
