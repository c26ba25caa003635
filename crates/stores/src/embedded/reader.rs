//! Reading the file beside the writer: a few threads with a connection each, so that no
//! thread that serves requests waits for the disk.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use onceward_core::record::{Record, State};
use onceward_core::store::{
    Collection, Cursor, Filter, PAGE_MAX, Page, PageRequest, SortOrder, StoreError,
};
use onceward_core::wire;
use rusqlite::{Connection, OptionalExtension, params};

use super::bucket::BucketEnd;
use super::error::{Error, Result};
use super::finished;
use super::{Shared, file, sql};
use crate::OpenError;
use crate::lookup::Lookup;
use crate::mailbox::{Outbox, responder};

/// How many reads of the file run at a time.
const READERS: usize = 4;

/// The threads that read. Dropping them ends them.
pub(super) struct Readers {
    reads: Option<Sender<Read>>,
    threads: Vec<JoinHandle<()>>,
}

/// A read of the file, with the way of its answer.
type Read = Box<dyn FnOnce(&Connection, &Shared) + Send>;

impl Readers {
    /// Starts the threads.
    pub(super) fn start(
        path: &Path,
        vfs: Option<&str>,
        shared: &Arc<Shared>,
    ) -> Result<Self, OpenError> {
        let (reads, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let mut threads = Vec::with_capacity(READERS);
        for _ in 0..READERS {
            let (db, inbox, shared) =
                (file::open_reader(path, vfs)?, inbox.clone(), shared.clone());
            let thread = std::thread::Builder::new()
                .name("onceward-reader".into())
                .spawn(move || run(&db, &shared, &inbox))
                .map_err(|source| OpenError::Thread { source })?;
            threads.push(thread);
        }
        Ok(Self {
            reads: Some(reads),
            threads,
        })
    }

    /// The newest record of a finished operation. It is offered to the cache.
    pub(super) async fn find(&self, lookup: Lookup) -> Result<Option<Arc<Record>>, StoreError> {
        self.read(move |db, shared| {
            // In this order: what is superseded from now on is also removed from now on,
            // so that an older record is not cached.
            let removals = shared.hot_replies.removals();
            if shared.superseded.contains(lookup.prefix()) {
                return Ok(None);
            }
            let found = finished::find(db, &shared.buckets, lookup, shared.clock.now())?;
            let record = found.map(|found| found.record);
            // A record whose reply was swept early is not cached.
            if let Some(record) = &record
                && record.state != State::Expired
            {
                shared.hot_replies.offer(record, removals);
            }
            Ok(record)
        })
        .await
    }

    /// A page of a listing, from one snapshot of the file. A listing that finds little
    /// may read all of the file. It ends when its caller gives up, because no checkpoint
    /// passes its snapshot.
    pub(super) async fn list(&self, filter: Filter, ask: PageRequest) -> Result<Page, StoreError> {
        self.read_for(move |db, shared, is_gone| {
            let snapshot = db.unchecked_transaction()?;
            PageReader::new(&filter, ask, is_gone).read_all(&snapshot, shared)
        })
        .await
    }

    /// A document of the registry.
    pub(super) async fn document(
        &self,
        sheet: Collection,
        name: String,
    ) -> Result<Option<Bytes>, StoreError> {
        self.read(move |db, _| {
            let mut statement = db.prepare_cached(sql::DOCUMENT_READ)?;
            let row = params![sheet.as_str(), name.as_bytes()];
            let body = statement.query_row(row, |row| row.get::<_, Vec<u8>>(0));
            let body = body.optional().map_err(Error::from_read)?;
            Ok(body.map(Bytes::from))
        })
        .await
    }

    /// A page of the documents of a collection.
    pub(super) async fn documents(
        &self,
        sheet: Collection,
        order: SortOrder,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.read(move |db, _| read_documents(db, sheet, order, after, limit))
            .await
    }

    async fn read<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Connection, &Shared) -> Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.read_for(move |db, shared, _| act(db, shared)).await
    }

    /// A read that can ask whether its caller is gone.
    async fn read_for<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Connection, &Shared, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (to, answered) = responder();
        let read = move |db: &Connection, shared: &Shared| {
            if to.is_gone() {
                return;
            }
            let answer = act(db, shared, &|| to.is_gone()).map_err(StoreError::from);
            Outbox::default().add(to, answer, |_| {});
        };
        let reads = self.reads.as_ref().ok_or(Error::Closed)?;
        reads.send(Box::new(read)).map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.reads = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("reader thread of the embedded store panicked");
            }
        }
    }
}

/// Reads what comes, until the store closes.
fn run(db: &Connection, shared: &Shared, inbox: &Mutex<Receiver<Read>>) {
    loop {
        // One thread waits for the next read, and all others for that thread.
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(read) => read(db, shared),
            Err(_) => return,
        }
    }
}

fn read_documents(
    db: &Connection,
    sheet: Collection,
    order: SortOrder,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<(String, Bytes)>> {
    let after = after.map(String::into_bytes);
    let (page, bound) = match order {
        // The smallest name after a name is that name and a zero byte.
        SortOrder::Ascending => {
            let next = after.map(|name| [name.as_slice(), &[0]].concat());
            (sql::DOCUMENT_RISING, next.unwrap_or_default())
        }
        // No text has this byte.
        SortOrder::Descending => (sql::DOCUMENT_FALLING, after.unwrap_or(vec![0xff])),
    };
    let mut statement = db.prepare_cached(page)?;
    let mut rows = statement.query(params![sheet.as_str(), bound, limit.min(PAGE_MAX) as i64])?;
    let mut documents = Vec::new();
    while let Some(row) = rows.next().map_err(Error::from_read)? {
        let name = String::from_utf8(row.get(0)?).map_err(|_| Error::Name)?;
        let body: Vec<u8> = row.get(1)?;
        documents.push((name, body.into()));
    }
    Ok(documents)
}

/// The newest records that match, gathered table by table.
struct PageReader<'a> {
    filter: &'a Filter,
    /// Whether nobody waits for the page.
    is_gone: &'a dyn Fn() -> bool,
    limit: usize,
    before: u64,
    found: Vec<(u64, Arc<Record>)>,
}

impl<'a> PageReader<'a> {
    fn new(filter: &'a Filter, ask: PageRequest, is_gone: &'a dyn Fn() -> bool) -> Self {
        Self {
            filter,
            is_gone,
            limit: ask.limit.min(PAGE_MAX),
            before: ask.after.map_or(i64::MAX as u64, |cursor| cursor.0),
            found: Vec::new(),
        }
    }

    fn read_all(mut self, db: &Connection, shared: &Shared) -> Result<Page> {
        let operation = sql::LIST
            .replace("{table}", "live")
            .replace("{replied}", "NULL");
        self.read_table(db, shared, &operation)?;
        let buckets: Vec<_> = shared
            .buckets
            .operations()
            .values()
            .rev()
            .cloned()
            .collect();
        for bucket in buckets {
            if bucket.end.is_past(shared.clock.now()) {
                continue;
            }
            match self.read_table(db, shared, &bucket.list) {
                // It was created after the snapshot, or dropped before it.
                Err(_) if !has_table(db, &bucket.table)? => {}
                read => read?,
            }
        }
        Ok(self.into_page())
    }

    /// Adds the rows of a table that belong on the page.
    fn read_table(&mut self, db: &Connection, shared: &Shared, list: &str) -> Result<()> {
        let after = self.oldest_wanted();
        let (state, or_state) = stored_states(self.filter.state);
        let mut statement = db.prepare_cached(list)?;
        let mut rows = statement.query(params![
            self.before.cast_signed(),
            after.cast_signed(),
            self.filter.tenant,
            self.filter.project,
            self.filter.endpoint,
            self.filter.key,
            state.map(State::as_str),
            or_state.map(State::as_str),
            self.filter
                .since
                .map_or(0, |since| since.unix_ms().cast_signed()),
            self.filter
                .before
                .map_or(i64::MAX, |before| before.unix_ms().cast_signed()),
        ])?;
        let mut taken = 0;
        while taken <= self.limit
            && !(self.is_gone)()
            && let Some(row) = rows.next().map_err(Error::from_read)?
        {
            let id: i64 = row.get(0)?;
            let record = row.get_ref(2)?.as_blob_or_null();
            let Some(bytes) = record.map_err(rusqlite::Error::from)? else {
                continue;
            };
            let replied: Option<i64> = row.get(1)?;
            let replied = replied.map(|end| BucketEnd(end.cast_unsigned()));
            if let Some(record) = self.matching(bytes, replied, shared)? {
                self.found.push((id.cast_unsigned(), record));
                taken += 1;
            }
        }
        self.found
            .sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        self.found.truncate(self.limit + 1);
        Ok(())
    }

    /// The number that a row must exceed to be on the page: once it is full, that
    /// of the additional row that shows that there is a next page.
    fn oldest_wanted(&self) -> u64 {
        self.found.get(self.limit).map_or(0, |(id, _)| *id)
    }

    fn matching(
        &self,
        bytes: &[u8],
        replied: Option<BucketEnd>,
        shared: &Shared,
    ) -> Result<Option<Arc<Record>>> {
        let now = shared.clock.now();
        let mut record = match wire::decode_record(bytes, || Ok(None)) {
            Ok(record) => record,
            Err(error) => {
                // A damaged record must not hide the others.
                tracing::error!(%error, "damaged record left out of a listing");
                return Ok(None);
            }
        };
        if replied.is_some_and(|end| shared.buckets.reply(end).is_none()) {
            finished::mark_expired(&mut record, now);
        }
        let shown = Arc::new(record).shown_at(now);
        Ok(shown.filter(|record| self.filter.matches(record)))
    }

    fn into_page(mut self) -> Page {
        let more = self.found.len() > self.limit;
        self.found.truncate(self.limit);
        let last = self.found.last().map(|(id, _)| Cursor(*id));
        Page {
            next: last.filter(|_| more),
            records: self.found.into_iter().map(|(_, record)| record).collect(),
        }
    }
}

/// The states in which an operation may be stored that is in this state now.
fn stored_states(state: Option<State>) -> (Option<State>, Option<State>) {
    match state {
        None => (None, None),
        Some(State::Expired) => (Some(State::Completed), Some(State::Failed)),
        // A lease that ran out leaves the row as it was.
        Some(state @ (State::Queued | State::Unknown)) => (Some(state), Some(State::Running)),
        Some(state) => (Some(state), None),
    }
}

fn has_table(db: &Connection, table: &str) -> Result<bool> {
    Ok(db.table_exists(None, table)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use onceward_core::clock::{ManualClock, Timestamp};

    use super::super::Limits;
    use super::super::effect::tests::record;
    use super::*;

    #[test]
    fn a_listing_that_finds_nothing_ends_with_its_caller() {
        let home = tempfile::tempdir().expect("a directory");
        let db = file::open_writer(&home.path().join("onceward.db"), None, None).expect("opened");
        for number in 1..=10 {
            let record = wire::encode_record(&record(number));
            let number = number.cast_signed();
            let row = params![number, 0, "", "", "", "", "running", 0, None::<i64>, record];
            db.execute(sql::OPEN_INSERT, row).expect("inserted");
        }
        let clock = Arc::new(ManualClock::new(Timestamp::default()));
        let shared = Shared::new(clock, &Limits::default());
        let mut filter = Filter::default();
        filter.key = Some("nosuch".into());
        let asked = Cell::new(0);
        let rows_read = |rows_max: usize| {
            asked.set(0);
            let is_gone = || asked.replace(asked.get() + 1) >= rows_max;
            let page = PageReader::new(&filter, PageRequest::first(5), &is_gone);
            let page = page.read_all(&db, &shared).expect("it reads");
            assert!(page.records.is_empty() && page.next.is_none());
            asked.get() - 1
        };
        assert_eq!(rows_read(usize::MAX), 10);
        assert_eq!(rows_read(3), 3);
    }
}
