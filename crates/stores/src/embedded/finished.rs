//! Looking up a finished operation in the file, for readers and for the writer.
//!
//! An operation that ran again after it was forgotten has several rows until the
//! older buckets are dropped; the row with the highest number is valid.

use std::sync::Arc;

use onceward_core::clock::Timestamp;
use onceward_core::record::{Answer, Record, Reply, State};
use onceward_core::wire;
use rusqlite::{Connection, OptionalExtension, Row};

use super::bucket::{BucketEnd, Buckets, OperationBucket};
use super::error::{Error, Result};
use super::index::{self, Level};
use crate::lookup::Lookup;

/// A finished operation and where it is stored.
#[derive(Clone)]
pub(super) struct FinishedOperation {
    /// The bucket.
    pub(super) bucket: Arc<OperationBucket>,
    /// Its row there.
    pub(super) row: u64,
    /// The bucket of its reply, if that is another.
    pub(super) replied: Option<BucketEnd>,
    /// The record.
    pub(super) record: Arc<Record>,
}

/// Finds the newest record of a finished operation in the buckets that are not over.
pub(super) fn find(
    db: &Connection,
    buckets: &Buckets,
    lookup: Lookup,
    now: Timestamp,
) -> Result<Option<FinishedOperation>> {
    let mut newest: Option<FinishedOperation> = None;
    for bucket in buckets.candidates(lookup.prefix(), now) {
        let found = find_in(db, buckets, &bucket, lookup, now);
        if let Some(found) = unless_swept(db, &bucket.table, found)?
            && newest.as_ref().is_none_or(|newest| newest.row < found.row)
        {
            newest = Some(found);
        }
    }
    Ok(newest)
}

/// A bucket is listed a moment before its table is committed and until after it is
/// dropped; without its table it has nothing.
pub(super) fn unless_swept<T>(
    db: &Connection,
    table: &str,
    found: Result<Option<T>>,
) -> Result<Option<T>> {
    match found {
        Err(error) if !error.is_damage() && !db.table_exists(None, table)? => Ok(None),
        found => found,
    }
}

fn find_in(
    db: &Connection,
    buckets: &Buckets,
    bucket: &Arc<OperationBucket>,
    lookup: Lookup,
    now: Timestamp,
) -> Result<Option<FinishedOperation>> {
    for row in rows_like(db, bucket, lookup.prefix())? {
        let found = read(db, buckets, bucket, row, now)?;
        if let Some(found) = found.filter(|found| lookup.matches(&found.record)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The rows that may hold a digest with this prefix, the newest first.
fn rows_like(db: &Connection, bucket: &OperationBucket, prefix: u64) -> Result<Vec<u64>> {
    // The tail first: a row that is sealed meanwhile is then found twice, and never
    // missed.
    let mut like = bucket.tail.rows(prefix);
    let mut statement = db
        .prepare_cached(&bucket.index_find)
        .map_err(Error::from_read)?;
    for level in Level::ALL {
        let mut leaves = statement
            .query(level.ids(prefix))
            .map_err(Error::from_read)?;
        while let Some(leaf) = leaves.next().map_err(Error::from_read)? {
            let entries = index::decode(blob(leaf, 0)?.unwrap_or_default())?;
            like.extend(
                entries
                    .filter(|entry| entry.0 == prefix)
                    .map(|entry| entry.1),
            );
        }
    }
    like.sort_unstable_by(|a, b| b.cmp(a));
    Ok(like)
}

/// The record in this row; `None` if it was purged, or never committed.
fn read(
    db: &Connection,
    buckets: &Buckets,
    bucket: &Arc<OperationBucket>,
    row: u64,
    now: Timestamp,
) -> Result<Option<FinishedOperation>> {
    let id = row.cast_signed();
    let mut statement = db.prepare_cached(&bucket.find).map_err(Error::from_read)?;
    let mut rows = statement.query([id]).map_err(Error::from_read)?;
    let Some(columns) = rows.next().map_err(Error::from_read)? else {
        return Ok(None);
    };
    let replied: Option<i64> = columns.get(0).map_err(Error::from_read)?;
    let replied = replied.map(|end| BucketEnd(end.cast_unsigned()));
    // A reply in a bucket of its own may be swept before the record.
    let (is_there, reply) = match replied {
        Some(end) => match read_apart(db, buckets, end, id)? {
            Some(reply) => (true, reply),
            None => (false, None),
        },
        None => (true, blob(columns, 2)?.map(wire::decode_reply).transpose()?),
    };
    let bytes = blob(columns, 1)?.unwrap_or_default();
    let mut record = wire::decode_record(bytes, || Ok(reply.map(Arc::new)))?;
    if !is_there || matches!(record.answer, Some(Answer::Gone { .. })) {
        mark_expired(&mut record, now);
    }
    Ok(Some(FinishedOperation {
        bucket: bucket.clone(),
        row,
        replied,
        record: Arc::new(record),
    }))
}

/// The reply in a bucket of replies; the inner `None` is a row with only a request,
/// the outer one a row that was swept.
fn read_apart(
    db: &Connection,
    buckets: &Buckets,
    end: BucketEnd,
    id: i64,
) -> Result<Option<Option<Reply>>> {
    let Some(bucket) = buckets.reply(end) else {
        return Ok(None);
    };
    let read = || -> rusqlite::Result<Option<Option<Vec<u8>>>> {
        let mut statement = db.prepare_cached(&bucket.read)?;
        statement.query_row([id], |row| row.get(0)).optional()
    };
    let bytes = unless_swept(db, &bucket.table, read().map_err(Error::from_read))?;
    let decoded = bytes.map(|bytes| bytes.map(|bytes| wire::decode_reply(&bytes)).transpose());
    Ok(decoded.transpose()?)
}

fn blob<'r>(row: &'r Row<'_>, column: usize) -> Result<Option<&'r [u8]>> {
    let value = row.get_ref(column).map_err(Error::from_read)?;
    value
        .as_blob_or_null()
        .map_err(|error| Error::from_read(error.into()))
}

/// A record whose reply was swept has expired, independently of the time: its
/// expiry was lazy, or the system clock was set back before a restart.
pub(super) fn mark_expired(record: &mut Record, now: Timestamp) {
    let shown = record.state_at(now);
    if matches!(shown, Some(State::Completed | State::Failed)) {
        record.expire();
    }
}
