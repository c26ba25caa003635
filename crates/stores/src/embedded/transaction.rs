//! The writer's transaction. The first write begins it; what a failed commit must
//! undo in memory is kept with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::record::Record;
use onceward_core::store::{Added, Collection};
use onceward_core::wire;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::bucket::{BucketEnd, Buckets, Family, OperationBucket, ReplyBucket, Tally};
use super::checkpoint::{self, Checkpointer};
use super::error::{Error, Result};
use super::filter::Filter;
use super::finished::FinishedOperation;
use super::open_operations::OpenOperation;
use super::sql;
use crate::checksum::unseal;

/// How many numbers are reserved at a time, so that the mark in the file is
/// written rarely.
const NUMBERS_RESERVED: u64 = 1 << 16;

/// The file as the writer uses it: one transaction after the other.
pub(super) struct Transaction {
    db: Connection,
    buckets: Arc<Buckets>,
    /// The last number that was assigned.
    last: u64,
    /// Numbers up to this one may be assigned.
    reserved: u64,
    open: Option<Undo>,
    checkpointer: Checkpointer,
}

/// Changes in memory to undo if the open transaction fails.
#[derive(Default)]
struct Undo {
    rows: usize,
    reserved_before: u64,
    tallies_before: BTreeMap<BucketEnd, (Arc<OperationBucket>, Tally)>,
    operation_buckets_made: Vec<BucketEnd>,
    reply_buckets_made: Vec<BucketEnd>,
    operation_buckets_dropped: Vec<Arc<OperationBucket>>,
    reply_buckets_dropped: Vec<Arc<ReplyBucket>>,
}

impl Transaction {
    /// The transaction of an opened file. Every number up to `last` may have been
    /// assigned.
    pub(super) fn new(
        db: Connection,
        buckets: Arc<Buckets>,
        last: u64,
        checkpointer: Checkpointer,
    ) -> Self {
        Self {
            db,
            buckets,
            last,
            reserved: last,
            open: None,
            checkpointer,
        }
    }

    /// Merges the log into the file and seals all tails, so that the next start reads
    /// neither.
    pub(super) fn close(mut self, now: Timestamp) -> Result<()> {
        let tails = with_tails(&self.buckets, |_| true);
        self.note_time(now)?;
        self.seal_and_commit(&tails)?;
        drop(self.checkpointer);
        self.db.query_row(sql::CHECKPOINT_ALL, [], |_| Ok(()))?;
        Ok(())
    }

    /// Notes the time, so that no later process starts with an earlier one.
    pub(super) fn note_time(&mut self, now: Timestamp) -> Result<()> {
        let now = i64::try_from(now.unix_ms()).unwrap_or(i64::MAX);
        self.write(sql::LATEST_RAISE, [now])?;
        Ok(())
    }

    /// Whether anything was written since the last commit.
    pub(super) fn has_changes(&self) -> bool {
        self.open.is_some()
    }

    /// The connection, for reads within the open transaction.
    pub(super) fn db(&self) -> &Connection {
        &self.db
    }

    /// The next number: a fence, and the position of a change in listings.
    pub(super) fn next(&mut self) -> Result<u64> {
        // `last` may be above the mark: a transaction that raised the mark may have
        // failed, and its numbers are not assigned again.
        if self.last >= self.reserved {
            let reserved = self.last + NUMBERS_RESERVED;
            self.write(sql::SEQUENCE_RAISE, [reserved.cast_signed()])?;
            self.reserved = reserved;
        }
        self.last += 1;
        Ok(self.last)
    }

    /// Writes an open operation into its row.
    pub(super) fn insert_open(&mut self, operation: &OpenOperation) -> Result<()> {
        let record = &operation.record;
        self.write(
            sql::OPEN_INSERT,
            params![
                operation.row.cast_signed(),
                record.digest.prefix().cast_signed(),
                record.identity.caller.tenant(),
                record.identity.caller.project(),
                record.identity.endpoint.as_str(),
                record.identity.key.as_str(),
                record.state.as_str(),
                record.created_at.unix_ms().cast_signed(),
                operation.request.map(u64::cast_signed),
                wire::encode_record(record),
            ],
        )?;
        Ok(())
    }

    /// Writes an open operation over its row.
    pub(super) fn update_open(&mut self, operation: &OpenOperation) -> Result<()> {
        let row = operation.row.cast_signed();
        let bytes = wire::encode_record(&operation.record);
        self.write(
            sql::OPEN_UPDATE,
            params![row, operation.record.state.as_str(), bytes],
        )?;
        Ok(())
    }

    /// Deletes an open operation's row; its request stays.
    pub(super) fn delete_open(&mut self, operation: &OpenOperation) -> Result<()> {
        self.write(sql::OPEN_DELETE, [operation.row.cast_signed()])?;
        Ok(())
    }

    /// Writes the sealed request of an operation to be delivered.
    pub(super) fn insert_request(&mut self, row: u64, sealed: &[u8]) -> Result<()> {
        self.write(sql::REQUEST_INSERT, params![row.cast_signed(), sealed])?;
        Ok(())
    }

    /// Reads the request of a queued operation. A missing request is damage of this
    /// operation alone.
    pub(super) fn read_request(&self, row: Option<u64>) -> Result<Bytes> {
        let row = row.ok_or(Error::NoRequest)?;
        let mut statement = self.db.prepare_cached(sql::REQUEST_READ)?;
        let sealed: Option<Vec<u8>> = statement
            .query_row([row.cast_signed()], |row| row.get(0))
            .optional()
            .map_err(Error::from_read)?;
        Ok(unseal(sealed.ok_or(Error::NoRequest)?)?)
    }

    /// Deletes a request.
    pub(super) fn delete_request(&mut self, row: u64) -> Result<()> {
        self.write(sql::REQUEST_DELETE, [row.cast_signed()])?;
        Ok(())
    }

    /// Writes a finished operation into its buckets, with its encoded reply and the
    /// request in this row.
    pub(super) fn insert_finished(
        &mut self,
        row: u64,
        record: &Record,
        reply: Option<&[u8]>,
        request: Option<u64>,
    ) -> Result<()> {
        let (Some(end), Some(over), Some(expired)) = (
            BucketEnd::of_record(record),
            record.over_at(),
            record.expires_at(),
        ) else {
            return Ok(());
        };
        let bucket = self.operation_bucket(end)?;
        let request = request.map(u64::cast_signed);
        let apart = BucketEnd::of(expired, record.terms.retention);
        if apart == bucket.end || (reply.is_none() && request.is_none()) {
            self.insert_finished_row(&bucket, row, record, None, reply, request)?;
        } else {
            let replies = self.reply_bucket(apart)?;
            self.write(&replies.insert, params![row.cast_signed(), reply, request])?;
            self.insert_finished_row(&bucket, row, record, Some(apart), None, None)?;
        }
        bucket.filter.add(record.digest.prefix());
        bucket.tail.add(record.digest.prefix(), row);
        self.count(&bucket, bucket.tally().with(over));
        Ok(())
    }

    fn insert_finished_row(
        &mut self,
        bucket: &OperationBucket,
        row: u64,
        record: &Record,
        replied: Option<BucketEnd>,
        reply: Option<&[u8]>,
        request: Option<i64>,
    ) -> Result<()> {
        self.write(
            &bucket.insert,
            params![
                row.cast_signed(),
                record.digest.prefix().cast_signed(),
                record.identity.caller.tenant(),
                record.identity.caller.project(),
                record.identity.endpoint.as_str(),
                record.identity.key.as_str(),
                record.state.as_str(),
                record.created_at.unix_ms().cast_signed(),
                over_ms(record),
                replied.map(|end| end.0.cast_signed()),
                wire::encode_record(record),
                reply,
                request,
            ],
        )?;
        Ok(())
    }

    /// Deletes a finished operation with its reply and request.
    pub(super) fn delete_finished(&mut self, found: &FinishedOperation) -> Result<()> {
        let row = [found.row.cast_signed()];
        self.write(&found.bucket.delete, row)?;
        if let Some(replies) = self.replies_of(found) {
            self.write(&replies.delete, row)?;
        }
        self.count(&found.bucket, found.bucket.tally().without(1));
        Ok(())
    }

    /// Writes a document, in place of the one of that name.
    pub(super) fn put_document(
        &mut self,
        sheet: Collection,
        name: &str,
        body: &[u8],
    ) -> Result<()> {
        self.write(
            sql::DOCUMENT_PUT,
            params![sheet.as_str(), name.as_bytes(), body],
        )?;
        Ok(())
    }

    /// Writes a document unless there is one of that name.
    pub(super) fn add_document(
        &mut self,
        sheet: Collection,
        name: &str,
        body: &[u8],
    ) -> Result<Added> {
        let added = self.write(
            sql::DOCUMENT_ADD,
            params![sheet.as_str(), name.as_bytes(), body],
        )?;
        Ok(if added > 0 { Added::Done } else { Added::Known })
    }

    /// Deletes a document.
    pub(super) fn remove_document(&mut self, sheet: Collection, name: &str) -> Result<()> {
        self.write(
            sql::DOCUMENT_REMOVE,
            params![sheet.as_str(), name.as_bytes()],
        )?;
        Ok(())
    }

    /// Moves the request of a finished operation back to the requests, into this
    /// row; `None` if it has none.
    pub(super) fn restore_request(
        &mut self,
        found: &FinishedOperation,
        row: u64,
    ) -> Result<Option<u64>> {
        let rows = params![found.row.cast_signed(), row.cast_signed()];
        let restored = match self.replies_of(found) {
            Some(replies) => self.write(&replies.restore_request, rows)?,
            None => self.write(&found.bucket.restore_request, rows)?,
        };
        Ok((restored > 0).then_some(row))
    }

    fn replies_of(&self, found: &FinishedOperation) -> Option<Arc<ReplyBucket>> {
        found.replied.and_then(|end| self.buckets.reply(end))
    }

    /// Reclaims up to `limit` rows of the first bucket of finished operations
    /// that is over; `None` if there is no such bucket.
    pub(super) fn sweep_finished(&mut self, now: Timestamp, limit: usize) -> Result<Option<usize>> {
        let first = self.buckets.operations().values().next().cloned();
        let Some(bucket) = first.filter(|bucket| bucket.end.is_over(now)) else {
            return Ok(None);
        };
        let swept = self.write(&bucket.sweep, [limit as i64])?;
        self.count(&bucket, bucket.tally().without(swept as u64));
        if swept == 0 && self.write(&bucket.index_sweep, [limit as i64])? == 0 {
            self.drop_operation_bucket(bucket)?;
        }
        Ok(Some(swept))
    }

    /// Reclaims up to `limit` rows of the first bucket of replies that is over;
    /// `None` if there is no such bucket.
    pub(super) fn sweep_replies(&mut self, now: Timestamp, limit: usize) -> Result<Option<usize>> {
        let first = self.buckets.replies().values().next().cloned();
        let Some(bucket) = first.filter(|bucket| bucket.end.is_over(now)) else {
            return Ok(None);
        };
        let swept = self.write(&bucket.sweep, [limit as i64])?;
        if swept == 0 {
            self.drop_reply_bucket(bucket)?;
        }
        Ok(Some(swept))
    }

    /// Makes the open transaction durable. After an error it is undone, in memory and
    /// in the file.
    pub(super) fn commit(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let seals = seals_due(&self.buckets, &open);
        self.open = Some(open);
        let committed = self.seal_and_commit(&seals);
        if committed.is_err() {
            self.roll_back();
            return committed;
        }
        for bucket in seals {
            bucket.tail.forget(bucket.tally().sealed);
        }
        let open = self.open.take();
        self.checkpointer.count(open.map_or(0, |open| open.rows));
        Ok(())
    }

    fn seal_and_commit(&mut self, seals: &[Arc<OperationBucket>]) -> Result<()> {
        for bucket in seals {
            self.seal(bucket)?;
        }
        match &self.open {
            Some(open) => self.count_and_commit(open),
            None => Ok(()),
        }
    }

    /// Writes the tail of a bucket into its index.
    fn seal(&mut self, bucket: &Arc<OperationBucket>) -> Result<()> {
        for (id, entries) in bucket.tail.leaves(self.last) {
            self.write(&bucket.index_insert, params![id, entries])?;
        }
        let sealed = self.last;
        self.count(
            bucket,
            Tally {
                sealed,
                ..bucket.tally()
            },
        );
        Ok(())
    }

    fn count_and_commit(&self, open: &Undo) -> Result<()> {
        let mut count = self.db.prepare_cached(sql::BUCKET_COUNT)?;
        for (bucket, _) in open.tallies_before.values() {
            let tally = bucket.tally();
            count.execute(params![
                Family::Operations.as_str(),
                bucket.end.0.cast_signed(),
                tally.rows.cast_signed(),
                tally.first_over_ms.cast_signed(),
                tally.sealed.cast_signed(),
            ])?;
        }
        onceward_core::crash_point!("store-before-commit");
        self.db.prepare_cached(sql::COMMIT)?.execute([])?;
        onceward_core::crash_point!("store-after-commit");
        Ok(())
    }

    /// Between two transactions: moves the rest of a long log into the file.
    pub(super) fn shorten_log(&self) -> Result<()> {
        if self.checkpointer.is_log_long() {
            checkpoint::move_log(&self.db)?;
        }
        Ok(())
    }

    /// Undoes the open transaction, in memory and in the file.
    pub(super) fn roll_back(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        // SQLite may have rolled back by itself.
        if !self.db.is_autocommit()
            && let Err(error) = self.db.execute_batch(sql::ROLLBACK)
        {
            tracing::error!(%error, "rollback in the embedded store failed");
        }
        self.reserved = open.reserved_before;
        for (bucket, tally) in open.tallies_before.into_values() {
            bucket.set_tally(tally);
        }
        // In this order: a bucket may have been dropped and made anew.
        for end in open.operation_buckets_made {
            self.buckets.remove_operations(end);
        }
        for end in open.reply_buckets_made {
            self.buckets.remove_replies(end);
        }
        for bucket in open.operation_buckets_dropped {
            self.buckets.add_operations(bucket);
        }
        for bucket in open.reply_buckets_dropped {
            self.buckets.add_replies(bucket);
        }
    }

    fn operation_bucket(&mut self, end: BucketEnd) -> Result<Arc<OperationBucket>> {
        let known = self.buckets.operations().get(&end).cloned();
        if let Some(bucket) = known {
            return Ok(bucket);
        }
        let bucket = Arc::new(OperationBucket::new(
            end,
            Tally::empty(end),
            Filter::empty(),
        ));
        self.make_bucket(Family::Operations, end, &bucket.create)?;
        self.transaction()?.operation_buckets_made.push(end);
        self.buckets.add_operations(bucket.clone());
        Ok(bucket)
    }

    fn reply_bucket(&mut self, end: BucketEnd) -> Result<Arc<ReplyBucket>> {
        if let Some(bucket) = self.buckets.reply(end) {
            return Ok(bucket);
        }
        let bucket = Arc::new(ReplyBucket::new(end));
        self.make_bucket(Family::Replies, end, &bucket.create)?;
        self.transaction()?.reply_buckets_made.push(end);
        self.buckets.add_replies(bucket.clone());
        Ok(bucket)
    }

    fn make_bucket(&mut self, family: Family, end: BucketEnd, create: &str) -> Result<()> {
        self.transaction()?;
        self.db.execute_batch(create)?;
        let name = params![family.as_str(), end.0.cast_signed()];
        self.write(sql::BUCKET_INSERT, name)?;
        Ok(())
    }

    fn drop_operation_bucket(&mut self, bucket: Arc<OperationBucket>) -> Result<()> {
        self.drop_bucket(Family::Operations, bucket.end, &bucket.drop)?;
        self.db.execute_batch(&bucket.index_drop)?;
        self.buckets.remove_operations(bucket.end);
        self.transaction()?.operation_buckets_dropped.push(bucket);
        Ok(())
    }

    fn drop_reply_bucket(&mut self, bucket: Arc<ReplyBucket>) -> Result<()> {
        self.drop_bucket(Family::Replies, bucket.end, &bucket.drop)?;
        self.buckets.remove_replies(bucket.end);
        self.transaction()?.reply_buckets_dropped.push(bucket);
        Ok(())
    }

    fn drop_bucket(&mut self, family: Family, end: BucketEnd, drop: &str) -> Result<()> {
        let name = params![family.as_str(), end.0.cast_signed()];
        self.write(sql::BUCKET_DELETE, name)?;
        self.db.execute_batch(drop)?;
        Ok(())
    }

    /// Counts what a bucket holds; the count goes to the file with the commit.
    fn count(&mut self, bucket: &Arc<OperationBucket>, tally: Tally) {
        let before = bucket.tally();
        bucket.set_tally(tally);
        if let Some(open) = &mut self.open {
            open.tallies_before
                .entry(bucket.end)
                .or_insert_with(|| (bucket.clone(), before));
        }
    }

    fn write(&mut self, sql: &str, params: impl rusqlite::Params) -> Result<usize> {
        self.transaction()?.rows += 1;
        Ok(self.db.prepare_cached(sql)?.execute(params)?)
    }

    /// The open transaction, begun if there is none.
    fn transaction(&mut self) -> Result<&mut Undo> {
        if self.open.is_none() {
            self.db.prepare_cached(sql::BEGIN)?.execute([])?;
        }
        let reserved_before = self.reserved;
        Ok(self.open.get_or_insert_with(|| Undo {
            reserved_before,
            ..Undo::default()
        }))
    }
}

/// The buckets whose tails are to be sealed with this transaction: the long
/// ones, and where a new bucket takes over those of the buckets before it.
fn seals_due(buckets: &Buckets, open: &Undo) -> Vec<Arc<OperationBucket>> {
    if let Some(newest) = open.operation_buckets_made.iter().max() {
        return with_tails(buckets, |bucket| bucket.end < *newest);
    }
    let touched = open.tallies_before.values().map(|(bucket, _)| bucket);
    touched
        .filter(|bucket| bucket.tail.is_long())
        .cloned()
        .collect()
}

fn with_tails(
    buckets: &Buckets,
    lookup: impl Fn(&OperationBucket) -> bool,
) -> Vec<Arc<OperationBucket>> {
    let kept = buckets.operations();
    let tails = kept.values().filter(|bucket| !bucket.tail.is_empty());
    tails.filter(|bucket| lookup(bucket)).cloned().collect()
}

/// When a finished operation may be removed, in SQLite's type.
fn over_ms(record: &Record) -> i64 {
    let over = record.over_at().unwrap_or_default();
    i64::try_from(over.unix_ms()).unwrap_or(i64::MAX)
}
