//! Listing operations, and changing them as an operator.

use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use crate::clock::Timestamp;
use crate::identity::OperationId;
use crate::record::{Fence, Record, Reply, State};

/// An operator's view of a store. A change is answered when it holds for every process
/// that shares the store: none of them gives the earlier reply any more.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    /// Matching operations, and traces of operations whose keys are forgotten;
    /// the most recently claimed, settled or [touched](super::Store::touch) first.
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError>;

    /// The operation with this id and its current state, or its trace: the record
    /// of an operation whose key is forgotten, `expired` and without its reply. A
    /// trace stays until the class's `keep_expired` is over, or until a new
    /// operation with the same key replaces it.
    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError>;

    /// Deletes an operation, or its trace, and raises its fence. A running
    /// operation is deleted only by force.
    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError>;

    /// Settles an unknown operation and raises its fence. A resolution about a
    /// certain grant names its `fence`: where another claim was granted since, it
    /// is refused with the current state.
    async fn resolve(
        &self,
        id: OperationId,
        fence: Option<Fence>,
        resolution: Resolution,
    ) -> Result<Changed, StoreError>;

    /// Lets a paused operation go on: the next request runs it, or queued work is
    /// due at once.
    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError>;

    /// Queues enqueued work again, by the rule of [`Record::redeliver`]: it is due
    /// at once, and its fence is raised. A request is kept as long as the reply;
    /// one that is missing earlier is [`StoreError::Damaged`].
    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError>;

    /// Reclaims the space of at most about `limit` operations that are over, and
    /// returns their number. It never blocks a key. It changes answers only for
    /// lazily expiring operations, which it ends: first the reply, then the key.
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError>;

    /// How much the store holds.
    async fn stats(&self) -> Result<Stats, StoreError>;
}

/// Which operations to list; a field that is `None` matches all.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Filter {
    /// By tenant.
    pub tenant: Option<String>,
    /// By project.
    pub project: Option<String>,
    /// By endpoint.
    pub endpoint: Option<String>,
    /// By current state.
    pub state: Option<State>,
    /// By raw key.
    pub key: Option<String>,
    /// Created at or after this moment.
    pub since: Option<Timestamp>,
    /// Created before this moment.
    pub before: Option<Timestamp>,
}

impl Filter {
    /// The same filter with changes:
    /// `Filter::default().with(|filter| filter.state = Some(State::Unknown))`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Whether a record with its current state matches.
    pub fn matches(&self, record: &Record) -> bool {
        fn is(want: Option<&String>, got: &str) -> bool {
            want.is_none_or(|want| want == got)
        }
        is(self.tenant.as_ref(), record.identity.caller.tenant())
            && is(self.project.as_ref(), record.identity.caller.project())
            && is(self.endpoint.as_ref(), record.identity.endpoint.as_str())
            && is(self.key.as_ref(), record.identity.key.as_str())
            && self.state.is_none_or(|want| want == record.state)
            && self.since.is_none_or(|since| record.created_at >= since)
            && self.before.is_none_or(|before| record.created_at < before)
    }
}

/// Which page of a listing.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PageRequest {
    /// How many records at most; capped at [`PAGE_MAX`](super::PAGE_MAX).
    pub limit: usize,
    /// The cursor from the previous page; `None` for the first.
    pub after: Option<Cursor>,
}

impl PageRequest {
    /// The first page, of at most `limit` records.
    pub const fn first(limit: usize) -> Self {
        Self { limit, after: None }
    }

    /// The page that begins at this cursor; the first page without one.
    #[must_use]
    pub const fn after(self, after: Option<Cursor>) -> Self {
        Self { after, ..self }
    }
}

/// A position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records. The bodies of their replies may be missing.
    pub records: Vec<Arc<Record>>,
    /// The cursor for the next page; `None` at the end.
    pub next: Option<Cursor>,
}

/// Whether a running operation may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// It is refused while it runs.
    No,
    /// It is deleted even while it runs.
    Yes,
}

/// The outcome of an unknown operation, as an operator or the upstream reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It ran, and this was the reply.
    Ran(Arc<Reply>),
    /// It did not run, and never will under this fence or a lower one.
    NotRun,
}

/// The answer to an operator's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is done.
    Done,
    /// There is no such operation.
    Absent,
    /// Its state does not allow it.
    Refused(State),
}

/// How much a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations that run.
    pub running: u64,
    /// Operations that wait for delivery.
    pub queued: u64,
    /// Operations that may have run.
    pub unknown: u64,
    /// Operations whose attempts are used up.
    pub paused: u64,
    /// Operations on record. Those that are over may count until their space is
    /// reclaimed: counting without them would take too long for a gauge.
    pub operations: u64,
    /// Bytes on disk, or in memory where there is no disk.
    pub bytes: u64,
}

impl Stats {
    /// Counts one operation in this state.
    pub fn count(&mut self, state: State) {
        self.operations += 1;
        match state {
            State::Running => self.running += 1,
            State::Queued => self.queued += 1,
            State::Unknown => self.unknown += 1,
            State::Paused => self.paused += 1,
            State::Completed | State::Failed | State::Released | State::Expired => {}
        }
    }
}
