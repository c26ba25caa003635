//! The embedded store: durable, for one process: a commit log, and SQLite behind it.
//!
//! A claim is answered in one of three ways, the cheapest first:
//!
//! 1. from memory, if the operation finished or was replayed recently (`hot_replies`);
//! 2. by a reader of the database (`reader`, `finished`, `index`), if a filter says
//!    that the key may have finished (`bucket`, `filter`);
//! 3. by the one writer (`writer`), which is authoritative. Its steps (`steps`) judge
//!    open operations in memory (`open_operations`), then what the database does not
//!    have yet (`overlay`), then the database. Their effects (`effect`) go to the
//!    commit log (`log`) and into memory (`state`); many are durable with one sync.
//!
//! Behind the log a filler (`fill`, `transaction`) writes the database, many changes
//! in one transaction. In the database (`sql/schema.sql`) open operations have one
//! small table, and finished ones a table per bucket of expiry, so that space is
//! reclaimed table by table. One sequence numbers all changes: its number is fence,
//! row id and position in listings, and never goes back.

mod bucket;
mod clock;
mod digest_table;
mod directory;
mod disk;
mod effect;
mod error;
mod file;
mod fill;
mod filter;
mod finished;
mod hot_replies;
mod inbox;
mod index;
mod log;
mod open_operations;
mod overlay;
mod pace;
mod reader;
mod sql;
mod start;
mod state;
mod steps;
mod transaction;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::{Clock, Timestamp};
use onceward_core::identity::{Digest, OperationId};
use onceward_core::notifier::Notifier;
use onceward_core::record::{Answer, Attempt, Fence, Record, Reply, Settled, Settlement, State};
use onceward_core::store::{
    Added, Changed, Claim, ClaimRequest, Collection, Due, Enqueued, Filter, Force, Inspect, Page,
    PageRequest, Queue, Registry, Resolution, SortOrder, Stats, Store, StoreError,
};
use onceward_core::wire;

use self::bucket::Buckets;
use self::clock::ResumedClock;
use self::directory::Directory;
pub use self::directory::make_directory;
#[doc(hidden)]
pub use self::disk::{Disk, SystemDisk};
use self::error::{Error, Result};
use self::fill::Filler;
use self::hot_replies::HotReplies;
use self::overlay::Superseded;
use self::pace::{Hurry, Rests};
use self::reader::Readers;
use self::start::FilterLoader;
use self::transaction::Transaction;
use self::writer::{Command, Writer};
use crate::OpenError;
use crate::checksum::seal;
use crate::lookup::Lookup;

/// The most rows in one slice of a sweep, so that no claim waits long behind it.
const SWEEP_SLICE: usize = 256;

/// Limits of an embedded store.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Memory for hot replies, in bytes.
    pub hot_bytes_max: u64,
    /// The largest file, in pages of 4 KiB; beyond it the store reports a full
    /// disk. `None`: as large as the disk allows.
    pub pages_max: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hot_bytes_max: 64 << 20,
            pages_max: None,
        }
    }
}

/// A store in a directory of its own.
pub struct EmbeddedStore {
    // Dropped in this order: readers end, then the writer and the filler bring the log
    // into the database, and the lock is released last.
    _filter_loader: FilterLoader,
    readers: Readers,
    writer: Writer,
    shared: Arc<Shared>,
    directory: Directory,
}

/// The state that the writer, the filler and the readers share.
struct Shared {
    clock: Arc<dyn Clock>,
    buckets: Arc<Buckets>,
    hot_replies: HotReplies,
    superseded: Arc<Superseded>,
    notifier: Notifier,
    failed: OnceLock<Arc<Error>>,
    is_closing: AtomicBool,
    /// Rises when finished operations leave the writer's memory for the database.
    fills: AtomicU64,
    /// How many bytes the database may grow by, where that is limited.
    room: AtomicU64,
    /// Whether something waits for the filler.
    hurry: Arc<Hurry>,
}

/// The room of a database that only the disk limits.
const UNLIMITED: u64 = u64::MAX;

impl Shared {
    fn new(clock: Arc<dyn Clock>, limits: &Limits) -> Self {
        Self {
            clock,
            buckets: Arc::default(),
            hot_replies: HotReplies::new(limits.hot_bytes_max),
            superseded: Arc::default(),
            notifier: Notifier::default(),
            failed: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            fills: AtomicU64::new(0),
            room: AtomicU64::new(UNLIMITED),
            hurry: Arc::default(),
        }
    }

    /// Returns an error once a write was not confirmed: no later step may succeed.
    fn check(&self) -> Result<()> {
        match self.failed.get() {
            Some(error) => Err(Error::Shared(error.clone())),
            None => Ok(()),
        }
    }

    /// A failed checkpoint loses nothing: everything is still in the commit log.
    fn report_checkpoint(&self, error: &Arc<Error>) {
        tracing::error!(%error, "checkpoint of the embedded store failed; its commit log grows");
        if error.is_final() {
            self.fail(error.clone());
        }
    }

    fn fail(&self, error: Arc<Error>) {
        // The first fault is the cause of all later ones.
        let _ = self.failed.set(error);
    }

    fn set_closing(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    fn fills(&self) -> u64 {
        self.fills.load(Ordering::Acquire)
    }

    fn count_fill(&self) {
        self.fills.fetch_add(1, Ordering::Release);
    }

    fn set_room(&self, room: u64) {
        self.room.store(room, Ordering::Relaxed);
    }

    fn room(&self) -> Option<u64> {
        Some(self.room.load(Ordering::Relaxed)).filter(|room| *room != UNLIMITED)
    }
}

/// What can be told of a finished operation without the writer.
enum Sighting {
    /// It finished.
    Finished(Arc<Record>),
    /// Absent from the database as of this count of fills.
    Absent(u64),
    /// The writer must be asked.
    Unclear,
}

impl Sighting {
    fn record(self) -> Option<Arc<Record>> {
        match self {
            Self::Finished(record) => Some(record),
            Self::Absent(_) | Self::Unclear => None,
        }
    }
}

impl EmbeddedStore {
    /// Opens the store in this directory for this process; creates the directory if
    /// it is missing. Every lease of an earlier process ends.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::open_within(path, clock, Limits::default())
    }

    /// The same, with other limits than the default.
    pub fn open_within(
        path: &Path,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Self, OpenError> {
        Self::open_on(path, clock, limits, Arc::new(SystemDisk))
    }

    /// The same, on a disk that a test watches or disturbs.
    #[doc(hidden)]
    pub fn open_on(
        path: &Path,
        clock: Arc<dyn Clock>,
        limits: Limits,
        disk: Arc<dyn Disk>,
    ) -> Result<Self, OpenError> {
        let directory = Directory::take(path)?;
        let database = directory.database();
        let vfs = disk.vfs().map(str::to_owned);
        let vfs = vfs.as_deref();
        let refuse = |error| file::refuse_for(&database, error);
        let db = file::open_writer(&database, vfs, limits.pages_max)?;
        let latest = start::latest(&db).map_err(refuse)?;
        let recovered = start::open_log(&db, disk, &directory.log()).map_err(refuse)?;
        file::rely_on_log(&db).map_err(|source| file::refuse(&database, source))?;
        let latest = latest.max(recovered.time);
        let clock = Arc::new(ResumedClock::new(clock, latest));
        let shared = Arc::new(Shared::new(clock, &limits));
        let reader = file::open_reader(&database, vfs)?;
        let loaded = start::load(&db, reader, recovered, &shared).map_err(refuse)?;
        let readers = Readers::start(&database, vfs, &shared)?;
        let filter_loader = FilterLoader::start(&database, vfs, shared.clone())?;
        let transaction = Transaction::new(
            db,
            shared.buckets.clone(),
            loaded.last_row,
            Rests::new(shared.hurry.clone()),
        );
        if let Some(room) = transaction.room(limits.pages_max).map_err(refuse)? {
            shared.set_room(room);
        }
        let filler = |writer| {
            let (filled, pages_max) = (loaded.filled, limits.pages_max);
            Filler::start(transaction, filled, pages_max, shared.clone(), writer)
        };
        let writer = Writer::start(loaded.steps, shared.clone(), filler)
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            _filter_loader: filter_loader,
            readers,
            writer,
            shared,
            directory,
        })
    }

    /// The finished operation in memory, unless it has expired meanwhile.
    fn hot(&self, digest: &Digest, now: Timestamp) -> Option<Arc<Record>> {
        let record = self.shared.hot_replies.get(digest)?;
        let is_current = record.state_at(now).is_some() && !record.is_overdue(now);
        is_current.then_some(record)
    }

    /// Looks for the finished operation without the writer.
    async fn sight(&self, lookup: Lookup) -> Result<Sighting, StoreError> {
        self.shared.check()?;
        let now = self.shared.clock.now();
        let hot = match lookup {
            Lookup::Digest(digest) => self.hot(&digest, now),
            Lookup::Id(_) => None,
        };
        if let Some(record) = hot {
            return Ok(Sighting::Finished(record));
        }
        // Read before the filter is asked: what a later fill brings is not seen.
        let fills = self.shared.fills();
        if !self.shared.buckets.may_hold(lookup.prefix(), now) {
            return Ok(Sighting::Absent(fills));
        }
        match self.readers.find(lookup).await {
            Ok(Some(record)) => Ok(Sighting::Finished(record)),
            Ok(None) => Ok(Sighting::Unclear),
            // A bucket may be listed before it is committed, or be dropped at this
            // moment. The writer is authoritative.
            Err(StoreError::Unavailable(_)) => Ok(Sighting::Unclear),
            Err(error) => Err(error),
        }
    }

    /// Returns when the database has everything up to now.
    async fn fill(&self) -> Result<(), StoreError> {
        self.writer.ask(Command::Fill).await
    }

    /// Returns when the database has every document up to now.
    async fn fill_documents(&self) -> Result<(), StoreError> {
        self.writer.ask(Command::FillDocuments).await
    }

    async fn look_up(&self, lookup: Lookup) -> Result<Option<Arc<Record>>, StoreError> {
        let finished = self.sight(lookup).await?.record();
        let seen = finished.and_then(|record| record.seen_at(self.shared.clock.now()));
        match seen {
            Some(record) => Ok(Some(record)),
            None => self.writer.ask(|to| Command::Get(lookup, to)).await,
        }
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError> {
        let absent_at = match self.sight(Lookup::Digest(ask.digest)).await? {
            Sighting::Finished(record) => {
                let now = self.shared.clock.now();
                if let Some(claim) = Claim::on(&record, ask, now) {
                    return Ok(claim);
                }
                None
            }
            Sighting::Absent(fills) => Some(fills),
            Sighting::Unclear => None,
        };
        let ask = Box::new(ask.clone());
        let command = |to| Command::Claim(ask, absent_at, to);
        self.writer.ask(command).await
    }

    fn recall(&self, request: &ClaimRequest) -> Option<Claim> {
        self.shared.check().ok()?;
        let now = self.shared.clock.now();
        let record = self.hot(&request.digest, now)?;
        Claim::on(&record, request, now)
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        let command = |to| Command::Withdraw(*digest, attempt, to);
        self.writer.ask(command).await
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        let command = |to| Command::Renew(*digest, fence, to);
        self.writer.ask(command).await
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let reply = match &settlement {
            Settlement::Completed(Answer::Kept(reply))
            | Settlement::Failed(Answer::Kept(reply)) => Some(encode(reply)),
            _ => None,
        };
        let command = |to| Command::Settle(*digest, fence, settlement, reply, to);
        self.writer.ask(command).await
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.look_up(Lookup::Digest(*digest)).await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.look_up(Lookup::Id(id)).await
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        let finished = self.sight(Lookup::Digest(*digest)).await?.record();
        let now = self.shared.clock.now();
        if finished.is_some_and(|record| !record.wants_touch(now)) {
            return Ok(());
        }
        self.writer.ask(|to| Command::Touch(*digest, to)).await
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        let subscription = self.shared.notifier.listen(digest);
        let record = self.get(digest).await?;
        let runs =
            record.is_some_and(|record| matches!(record.state, State::Running | State::Queued));
        if runs {
            subscription.notified_within(limit).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Queue for EmbeddedStore {
    async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        let (ask, request) = (Box::new(ask.clone()), seal(&request).into());
        let command = |to| Command::Enqueue(ask, request, after, to);
        self.writer.ask(command).await
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        self.writer.ask(|to| Command::Due(limit, to)).await
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        self.writer.ask(Command::NextDue).await
    }
}

#[async_trait]
impl Inspect for EmbeddedStore {
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError> {
        self.fill().await?;
        self.readers.list(filter.clone(), page).await
    }

    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let finished = self.sight(Lookup::Id(id)).await?.record();
        let shown = finished.and_then(|record| record.shown_at(self.shared.clock.now()));
        match shown {
            Some(record) => Ok(Some(record)),
            None => self.writer.ask(|to| Command::Show(id, to)).await,
        }
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        self.writer.ask(|to| Command::Purge(id, force, to)).await
    }

    async fn resolve(
        &self,
        id: OperationId,
        fence: Option<Fence>,
        word: Resolution,
    ) -> Result<Changed, StoreError> {
        let reply = match &word {
            Resolution::Ran(reply) => Some(encode(reply)),
            Resolution::NotRun => None,
        };
        let command = |to| Command::Resolve(id, fence, word, reply, to);
        self.writer.ask(command).await
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.writer.ask(|to| Command::Resume(id, to)).await
    }

    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.writer.ask(|to| Command::Redeliver(id, to)).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let mut operations = 0;
        let mut left = limit;
        while left > 0 {
            let slice = left.min(SWEEP_SLICE);
            let swept = self.writer.ask(|to| Command::Sweep(slice, to)).await?;
            if swept.rows == 0 {
                break;
            }
            operations += swept.operations;
            left = left.saturating_sub(swept.rows);
        }
        Ok(operations)
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.fill().await?;
        let stats = self.writer.ask(Command::Stats).await?;
        Ok(Stats {
            bytes: self.directory.bytes(),
            ..stats
        })
    }
}

#[async_trait]
impl Registry for EmbeddedStore {
    async fn put(&self, sheet: Collection, name: &str, document: Bytes) -> Result<(), StoreError> {
        let command = |to| Command::Put(sheet, name.to_owned(), document, to);
        self.writer.ask(command).await
    }

    async fn add(
        &self,
        sheet: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        let command = |to| Command::Add(sheet, name.to_owned(), document, to);
        self.writer.ask(command).await
    }

    async fn read(&self, sheet: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        self.fill_documents().await?;
        self.readers.document(sheet, name.to_owned()).await
    }

    async fn remove(&self, sheet: Collection, name: &str) -> Result<(), StoreError> {
        let command = |to| Command::Remove(sheet, name.to_owned(), to);
        self.writer.ask(command).await
    }

    async fn documents(
        &self,
        sheet: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.fill_documents().await?;
        let after = after.map(str::to_owned);
        self.readers.documents(sheet, order, after, limit).await
    }
}

fn encode(reply: &Reply) -> Bytes {
    wire::encode_reply(reply).into()
}
