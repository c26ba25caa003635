//! Filling the database: one transaction per fill or slice of a sweep. What a failed
//! transaction must undo in memory is kept with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use onceward_core::clock::Timestamp;
use onceward_core::record::Record;
use onceward_core::wire;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use super::bucket::{BucketEnd, Buckets, Family, OperationBucket, ReplyBucket, Tally};
use super::effect::{DocumentChange, Unkept};
use super::error::{Error, Result};
use super::file;
use super::filter::Filter;
use super::index::{self, Merge};
use super::overlay::{UnfilledOperation, UnfilledRequest};
use super::pace::Rests;
use super::sql;
use super::state::{Changes, OpenedRow};

/// Pages that are not counted as room: indexes, and tables that begin.
const PAGES_SPARE: u64 = 8;
const PAGE_BYTES: u64 = 4096;

/// The database, as the filler uses it: one transaction after the other.
pub(super) struct Transaction {
    db: Connection,
    buckets: Arc<Buckets>,
    undo: Undo,
    /// The highest row that was written.
    last_row: u64,
    rests: Rests,
}

/// Changes in memory to undo if the open transaction fails.
#[derive(Default)]
struct Undo {
    tallies_before: BTreeMap<BucketEnd, (Arc<OperationBucket>, Tally)>,
    operation_buckets_made: Vec<BucketEnd>,
    reply_buckets_made: Vec<BucketEnd>,
    operation_buckets_dropped: Vec<Arc<OperationBucket>>,
    reply_buckets_dropped: Vec<Arc<ReplyBucket>>,
}

impl Transaction {
    /// The transactions of an opened file, in which all rows are up to `last_row`.
    pub(super) fn new(db: Connection, buckets: Arc<Buckets>, last_row: u64, rests: Rests) -> Self {
        Self {
            db,
            buckets,
            undo: Undo::default(),
            last_row,
            rests,
        }
    }

    /// Writes changes.
    pub(super) fn fill(&mut self, changes: &Changes) -> Result<()> {
        self.rests.begin();
        self.run(|own| own.write_changes(changes))
    }

    /// Seals all tails and moves SQLite's log into the file, so that the next start
    /// reads neither.
    pub(super) fn close(mut self) -> Result<()> {
        let tails = with_tails(&self.buckets, |_| true);
        self.run(|own| own.seal_all(&tails))?;
        self.db.query_row(sql::CHECKPOINT_ALL, [], |_| Ok(()))?;
        Ok(())
    }

    /// As [`file::checkpoint`].
    pub(super) fn checkpoint(&self) -> Result<bool> {
        Ok(file::checkpoint(&self.db)?)
    }

    /// Whether SQLite's log is so long that it is to be moved into the file, whatever
    /// wrote it.
    pub(super) fn wants_checkpoint(&self) -> bool {
        file::wal_bytes(&self.db) > file::WAL_BYTES
    }

    /// How many bytes the file may still grow by; `None` if only the disk limits it.
    pub(super) fn room(&self, pages_max: Option<u32>) -> Result<Option<u64>> {
        let Some(max) = pages_max else {
            return Ok(None);
        };
        let count = |name| {
            self.db
                .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        };
        let used = count("page_count")? - count("freelist_count")?;
        let free = u64::from(max).saturating_sub(used.cast_unsigned() + PAGES_SPARE);
        Ok(Some(free * PAGE_BYTES))
    }

    /// Reclaims up to `limit` rows of the first bucket of finished operations
    /// that is over; `None` if there is no such bucket.
    pub(super) fn sweep_finished(&mut self, now: Timestamp, limit: usize) -> Result<Option<usize>> {
        let first = self.buckets.operations().values().next().cloned();
        let Some(bucket) = first.filter(|bucket| bucket.end.is_over(now)) else {
            return Ok(None);
        };
        self.run(|own| {
            let swept = own.write(&bucket.sweep, [limit as i64])?;
            own.count(&bucket, bucket.tally().without(swept as u64));
            if swept == 0 && own.write(&bucket.index_sweep, [limit as i64])? == 0 {
                own.drop_operation_bucket(bucket.clone())?;
            }
            Ok(Some(swept))
        })
    }

    /// Reclaims up to `limit` rows of the first bucket of replies that is over;
    /// `None` if there is no such bucket.
    pub(super) fn sweep_replies(&mut self, now: Timestamp, limit: usize) -> Result<Option<usize>> {
        let first = self.buckets.replies().values().next().cloned();
        let Some(bucket) = first.filter(|bucket| bucket.end.is_over(now)) else {
            return Ok(None);
        };
        self.run(|own| {
            let swept = own.write(&bucket.sweep, [limit as i64])?;
            if swept == 0 {
                own.drop_reply_bucket(bucket.clone())?;
            }
            Ok(Some(swept))
        })
    }

    /// Runs one transaction. After an error it is undone, in memory and in the file.
    fn run<T>(&mut self, write: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.write(sql::BEGIN, [])?;
        let written = write(self).and_then(|value| {
            let sealed = self.seal_and_commit()?;
            Ok((value, sealed))
        });
        match written {
            Ok((value, sealed)) => {
                for bucket in sealed {
                    bucket.tail.forget(bucket.tally().sealed);
                }
                self.undo = Undo::default();
                Ok(value)
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    fn write_changes(&mut self, changes: &Changes) -> Result<()> {
        self.delete_rows(sql::OPEN_DELETE, &changes.open_rows_gone)?;
        self.insert_requests(&changes.opened)?;
        self.insert_finished(&changes.finished)?;
        onceward_core::crash_point!("fill-in-transaction");
        for unkept in &changes.unkept {
            self.delete_finished(unkept)?;
        }
        self.delete_rows(sql::REQUEST_DELETE, &changes.requests_gone)?;
        self.insert_open(&changes.opened)?;
        for document in &changes.documents {
            self.change_document(document)?;
        }
        let latest = i64::try_from(changes.latest.unix_ms()).unwrap_or(i64::MAX);
        self.write(
            sql::FILLED_RAISE,
            params![
                changes.through.cast_signed(),
                changes.reserved.cast_signed(),
                latest
            ],
        )?;
        Ok(())
    }

    fn delete_rows(&self, delete: &str, rows: &[u64]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut delete = self.db.prepare_cached(delete)?;
        for row in rows {
            delete.execute([row.cast_signed()])?;
            self.rests.rest_if_due();
        }
        Ok(())
    }

    fn insert_requests(&self, opened: &[OpenedRow]) -> Result<()> {
        let mut insert = self.db.prepare_cached(sql::REQUEST_INSERT)?;
        for opened in opened {
            if let (Some(row), Some(body)) = (opened.request, &opened.body) {
                insert.execute(params![row.cast_signed(), &body[..]])?;
                self.rests.rest_if_due();
            }
        }
        Ok(())
    }

    fn insert_open(&self, opened: &[OpenedRow]) -> Result<()> {
        let mut insert = self.db.prepare_cached(sql::OPEN_INSERT)?;
        for opened in opened {
            let record = &opened.record;
            insert.execute(params![
                opened.row.cast_signed(),
                record.digest.prefix().cast_signed(),
                record.identity.caller.tenant(),
                record.identity.caller.project(),
                record.identity.endpoint.as_str(),
                record.identity.key.as_str(),
                record.state.as_str(),
                record.created_at.unix_ms().cast_signed(),
                opened.request.map(u64::cast_signed),
                wire::encode_record(record),
            ])?;
            self.rests.rest_if_due();
        }
        Ok(())
    }

    /// Most rows go to the bucket of the row before them, so that a statement is looked
    /// up once for many rows.
    fn insert_finished(&mut self, operations: &[Arc<UnfilledOperation>]) -> Result<()> {
        let mut rest = operations;
        while let Some(first) = rest.first() {
            let alike = |other: &&Arc<UnfilledOperation>| {
                (other.end, other.replied) == (first.end, first.replied)
            };
            let (run, after) = rest.split_at(rest.iter().take_while(alike).count());
            let bucket = self.operation_bucket(first.end)?;
            let replies = match first.replied {
                Some(end) => Some(self.reply_bucket(end)?),
                None => None,
            };
            let tally = self.insert_run(&bucket, replies.as_deref(), run)?;
            self.count(&bucket, tally);
            rest = after;
        }
        Ok(())
    }

    fn insert_run(
        &mut self,
        bucket: &OperationBucket,
        replies: Option<&ReplyBucket>,
        run: &[Arc<UnfilledOperation>],
    ) -> Result<Tally> {
        let mut insert = self.db.prepare_cached(&bucket.insert)?;
        let mut insert_reply = match replies {
            Some(replies) => Some(self.db.prepare_cached(&replies.insert)?),
            None => None,
        };
        let mut tally = bucket.tally();
        let mut last_row = self.last_row;
        for operation in run {
            let stored;
            let request = match &operation.request {
                UnfilledRequest::None => None,
                UnfilledRequest::Body(body) => Some(&body[..]),
                UnfilledRequest::InFile(row) => {
                    stored = self.read_request(*row)?;
                    stored.as_deref()
                }
            };
            let reply = operation.reply.as_deref();
            match &mut insert_reply {
                Some(insert_reply) => {
                    let row = operation.row.cast_signed();
                    insert_reply.execute(params![row, reply, request])?;
                    insert_operation(&mut insert, operation, None, None)?;
                }
                None => insert_operation(&mut insert, operation, reply, request)?,
            }
            let prefix = operation.record.digest.prefix();
            // A fill that failed has added it already. The filter grows with each call.
            if bucket.tail.add(prefix, operation.row) {
                bucket.filter.add(prefix);
            }
            last_row = last_row.max(operation.row);
            if let Some(over) = operation.record.over_at() {
                tally = tally.with(over);
            }
            self.rests.rest_if_due();
        }
        drop((insert, insert_reply));
        self.last_row = last_row;
        Ok(tally)
    }

    fn read_request(&self, row: u64) -> Result<Option<Vec<u8>>> {
        let mut statement = self.db.prepare_cached(sql::REQUEST_READ)?;
        let body = statement.query_row([row.cast_signed()], |row| row.get(0));
        Ok(body.optional()?)
    }

    /// Deletes a finished operation with its reply and request. A bucket that is swept
    /// has it no more.
    fn delete_finished(&mut self, unkept: &Unkept) -> Result<()> {
        let row = [unkept.row.cast_signed()];
        let bucket = self.buckets.operations().get(&unkept.end).cloned();
        if let Some(bucket) = bucket {
            let deleted = self.write(&bucket.delete, row)?;
            self.count(&bucket, bucket.tally().without(deleted as u64));
        }
        if let Some(replies) = unkept.replied.and_then(|end| self.buckets.reply(end)) {
            self.write(&replies.delete, row)?;
        }
        Ok(())
    }

    fn change_document(&self, change: &DocumentChange) -> Result<()> {
        let (sheet, name) = (change.sheet.as_str(), change.name.as_bytes());
        match &change.body {
            Some(body) => self.write(sql::DOCUMENT_PUT, params![sheet, name, &body[..]])?,
            None => self.write(sql::DOCUMENT_REMOVE, params![sheet, name])?,
        };
        Ok(())
    }

    /// Ends the transaction; returns the buckets whose tails were sealed.
    fn seal_and_commit(&mut self) -> Result<Vec<Arc<OperationBucket>>> {
        let seals = seals_due(&self.buckets, &self.undo);
        self.seal_all(&seals)?;
        self.write_tallies()?;
        onceward_core::crash_point!("fill-before-commit");
        self.write(sql::COMMIT, [])?;
        onceward_core::crash_point!("fill-after-commit");
        Ok(seals)
    }

    fn seal_all(&mut self, buckets: &[Arc<OperationBucket>]) -> Result<()> {
        for bucket in buckets {
            self.seal(bucket)?;
        }
        Ok(())
    }

    /// Writes the tail of a bucket into its index.
    fn seal(&mut self, bucket: &Arc<OperationBucket>) -> Result<()> {
        let sealed = self.last_row;
        for (id, entries) in bucket.tail.leaves(sealed) {
            self.write(&bucket.index_insert, params![id, entries])?;
            self.rests.rest_if_due();
        }
        for merge in index::merges(bucket.next_seal()) {
            self.merge(bucket, &merge)?;
        }
        self.count(
            bucket,
            Tally {
                sealed,
                ..bucket.tally()
            },
        );
        Ok(())
    }

    /// Merges leaves of an index, if there are enough.
    fn merge(&self, bucket: &OperationBucket, merge: &Merge) -> Result<()> {
        let mut entries = Vec::new();
        let mut count = 0;
        let mut statement = self.db.prepare_cached(&bucket.index_find)?;
        let mut leaves = statement.query(merge.ids)?;
        while let Some(leaf) = leaves.next()? {
            let leaf = leaf.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            let Ok(leaf) = index::decode(leaf) else {
                // It stays where it is: only its own keys are unreadable.
                return Ok(());
            };
            entries.extend(leaf);
            count += 1;
            self.rests.rest_if_due();
        }
        drop(leaves);
        if count < merge.leaves_min {
            return Ok(());
        }
        self.write(&bucket.index_delete, merge.ids)?;
        for (id, leaf) in merge.leaves(entries, self.last_row) {
            self.write(&bucket.index_insert, params![id, leaf])?;
            self.rests.rest_if_due();
        }
        Ok(())
    }

    fn write_tallies(&self) -> Result<()> {
        let mut count = self.db.prepare_cached(sql::BUCKET_COUNT)?;
        for (bucket, _) in self.undo.tallies_before.values() {
            let tally = bucket.tally();
            count.execute(params![
                Family::Operations.as_str(),
                bucket.end.0.cast_signed(),
                tally.rows.cast_signed(),
                tally.first_over_ms.cast_signed(),
                tally.sealed.cast_signed(),
            ])?;
        }
        Ok(())
    }

    /// Undoes the open transaction, in memory and in the file.
    fn roll_back(&mut self) {
        // SQLite may have rolled back by itself.
        if !self.db.is_autocommit()
            && let Err(error) = self.db.execute_batch(sql::ROLLBACK)
        {
            tracing::error!(%error, "rollback in the embedded store failed");
        }
        let undo = std::mem::take(&mut self.undo);
        for (bucket, tally) in undo.tallies_before.into_values() {
            bucket.set_tally(tally);
        }
        // In this order: a bucket may have been dropped and made anew.
        for end in undo.operation_buckets_made {
            self.buckets.remove_operations(end);
        }
        for end in undo.reply_buckets_made {
            self.buckets.remove_replies(end);
        }
        for bucket in undo.operation_buckets_dropped {
            self.buckets.add_operations(bucket);
        }
        for bucket in undo.reply_buckets_dropped {
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
        self.undo.operation_buckets_made.push(end);
        self.buckets.add_operations(bucket.clone());
        Ok(bucket)
    }

    fn reply_bucket(&mut self, end: BucketEnd) -> Result<Arc<ReplyBucket>> {
        if let Some(bucket) = self.buckets.reply(end) {
            return Ok(bucket);
        }
        let bucket = Arc::new(ReplyBucket::new(end));
        self.make_bucket(Family::Replies, end, &bucket.create)?;
        self.undo.reply_buckets_made.push(end);
        self.buckets.add_replies(bucket.clone());
        Ok(bucket)
    }

    fn make_bucket(&self, family: Family, end: BucketEnd, create: &str) -> Result<()> {
        self.db.execute_batch(create)?;
        let name = params![family.as_str(), end.0.cast_signed()];
        self.write(sql::BUCKET_INSERT, name)?;
        Ok(())
    }

    fn drop_operation_bucket(&mut self, bucket: Arc<OperationBucket>) -> Result<()> {
        self.drop_bucket(Family::Operations, bucket.end, &bucket.drop)?;
        self.db.execute_batch(&bucket.index_drop)?;
        self.buckets.remove_operations(bucket.end);
        self.undo.tallies_before.remove(&bucket.end);
        self.undo.operation_buckets_dropped.push(bucket);
        Ok(())
    }

    fn drop_reply_bucket(&mut self, bucket: Arc<ReplyBucket>) -> Result<()> {
        self.drop_bucket(Family::Replies, bucket.end, &bucket.drop)?;
        self.buckets.remove_replies(bucket.end);
        self.undo.reply_buckets_dropped.push(bucket);
        Ok(())
    }

    fn drop_bucket(&self, family: Family, end: BucketEnd, drop: &str) -> Result<()> {
        let name = params![family.as_str(), end.0.cast_signed()];
        self.write(sql::BUCKET_DELETE, name)?;
        self.db.execute_batch(drop)?;
        Ok(())
    }

    /// Counts what a bucket holds; the count goes to the file with the commit.
    fn count(&mut self, bucket: &Arc<OperationBucket>, tally: Tally) {
        let before = bucket.tally();
        bucket.set_tally(tally);
        self.undo
            .tallies_before
            .entry(bucket.end)
            .or_insert_with(|| (bucket.clone(), before));
    }

    fn write(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize> {
        Ok(self.db.prepare_cached(sql)?.execute(params)?)
    }
}

fn insert_operation(
    insert: &mut CachedStatement<'_>,
    operation: &UnfilledOperation,
    reply: Option<&[u8]>,
    request: Option<&[u8]>,
) -> Result<(), Error> {
    let record = &operation.record;
    insert.execute(params![
        operation.row.cast_signed(),
        record.digest.prefix().cast_signed(),
        record.identity.caller.tenant(),
        record.identity.caller.project(),
        record.identity.endpoint.as_str(),
        record.identity.key.as_str(),
        record.state.as_str(),
        record.created_at.unix_ms().cast_signed(),
        over_ms(record),
        operation.replied.map(|end| end.0.cast_signed()),
        &operation.encoded[..],
        reply,
        request,
    ])?;
    Ok(())
}

/// The buckets whose tails are to be sealed with this transaction: the long
/// ones, and where a new bucket takes over those of the buckets before it.
fn seals_due(buckets: &Buckets, undo: &Undo) -> Vec<Arc<OperationBucket>> {
    if let Some(newest) = undo.operation_buckets_made.iter().max() {
        return with_tails(buckets, |bucket| bucket.end < *newest);
    }
    let touched = undo.tallies_before.values().map(|(bucket, _)| bucket);
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

#[cfg(test)]
mod tests {
    use onceward_core::record::{Answer, State as RecordState};

    use super::super::effect::tests::record;
    use super::super::effect::{Effect, Finished, FinishedRequest};
    use super::super::state::State;
    use super::*;

    /// A full disk lets a fill fail again and again, for as long as it stays full.
    #[test]
    fn a_filter_does_not_grow_with_the_tries_of_a_fill() {
        let home = tempfile::tempdir().expect("a directory");
        let db = file::open_writer(&home.path().join("onceward.db"), None, None).expect("opened");
        let mut transaction = Transaction::new(db, Arc::default(), 0, Rests::new(Arc::default()));
        let changes_of = |number: u64| {
            let mut record = record(number);
            let answer = Answer::NotKept { status: 200 };
            record.finish(RecordState::Completed, answer, Timestamp::from_unix_ms(8));
            let finished = Finished::new(number, Arc::new(record), None, FinishedRequest::None);
            let mut state = State::new(Default::default(), 0, Arc::default());
            state.take(Effect::Finished(finished));
            state.take_changes(1, Timestamp::default())
        };
        transaction.fill(&changes_of(1)).expect("filled");
        let bucket = transaction.buckets.operations().values().next().cloned();
        let bucket = bucket.expect("it was made");
        let changes = changes_of(2);
        for _ in 0..10 {
            let failed = transaction.run(|own| {
                own.write_changes(&changes)?;
                Err::<(), _>(Error::Full("no room for the commit".into()))
            });
            assert!(failed.is_err());
        }
        transaction.fill(&changes).expect("filled");
        assert_eq!(bucket.filter.keys(), 2);
    }

    /// Two classes with the same load are sealed in the same transactions.
    #[test]
    fn leaves_of_each_of_several_busy_buckets_are_merged() {
        const SEALS: u64 = 64;
        let home = tempfile::tempdir().expect("a directory");
        let db = file::open_writer(&home.path().join("onceward.db"), None, None).expect("opened");
        let mut transaction = Transaction::new(db, Arc::default(), 0, Rests::new(Arc::default()));
        let ends = [BucketEnd(1 << 40), BucketEnd(1 << 41)];
        let make = |own: &mut Transaction| {
            ends.map(|end| own.operation_bucket(end))
                .into_iter()
                .collect()
        };
        let buckets: Vec<_> = transaction.run(make).expect("made");
        for row in 1..=SEALS {
            transaction.last_row = row;
            for bucket in &buckets {
                for byte in 0..256 {
                    bucket.tail.add(byte << 56, row);
                }
            }
            transaction
                .run(|own| own.seal_all(&buckets))
                .expect("sealed");
            buckets.iter().for_each(|bucket| bucket.tail.forget(row));
        }
        for bucket in &buckets {
            for byte in 0..256_u64 {
                let leaves = |level: index::Level| {
                    let mut find = transaction.db.prepare(&bucket.index_find).expect("good");
                    let rows = find.query_map(level.ids(byte << 56), |_| Ok(()));
                    rows.expect("it runs").count()
                };
                let leaves: usize = index::Level::ALL.into_iter().map(leaves).sum();
                assert!(leaves < 40, "{}, {byte}: {leaves} leaves", bucket.table);
            }
        }
    }
}
