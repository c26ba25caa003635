//! The narrow waist: what every store promises.
//!
//! Each method of [`Store`] is one atomic step. Nothing is acknowledged before
//! it is durable, as far as the store is durable at all. An error means that
//! the fate of the step is not known: the caller may repeat it, because each
//! step is recognised when it comes again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::class::Terms;
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, Identity, OperationId};
use crate::judge::{Judgement, judge};
use crate::record::{Attempt, Fence, Record, Reply, Settled, Settlement, State};

/// The largest page of a listing.
pub const PAGE_MAX: usize = 1_000;

/// Why a store could not take a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It is away, full or too slow; later it may be there again.
    #[error("the store is unavailable: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What it holds under this key cannot be trusted. It is never taken for absent.
    #[error("the store holds a damaged record: {0}")]
    Damaged(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What a claim asks.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The digest of the identity.
    pub digest: Digest,
    /// Caller, endpoint and key.
    pub identity: Identity,
    /// What is asked for.
    pub fingerprint: Fingerprint,
    /// What the record will freeze of its class.
    pub terms: Terms,
    /// The holder's name for this claim.
    pub attempt: Attempt,
    /// The id that the operation gets if it is new.
    pub id: OperationId,
}

impl ClaimRequest {
    /// The record that this ask makes, before any grant. What was released or
    /// lost keeps its id and its count of attempts; what is absent begins anew.
    pub fn to_record_after(&self, before: Option<&Record>, now: Timestamp) -> Record {
        let before = before.filter(|record| record.state_at(now).is_some());
        Record {
            id: before.map_or(self.id, |record| record.id),
            digest: self.digest,
            identity: self.identity.clone(),
            fingerprint: self.fingerprint,
            terms: self.terms.clone(),
            state: State::Queued,
            fence: Fence(0),
            attempt: self.attempt,
            attempts: before.map_or(0, |record| record.attempts),
            delivered: false,
            created_at: before.map_or(now, |record| record.created_at),
            until: now,
            completed_at: None,
            touched_at: None,
            answer: None,
        }
    }
}

/// What a claim is answered.
#[derive(Clone, Debug)]
pub enum Claim {
    /// This attempt may run.
    Granted(Grant),
    /// It finished; here is the record with its answer.
    Finished(Arc<Record>),
    /// Another attempt runs, or it is queued.
    Busy(Arc<Record>),
    /// The key belongs to a different request. Nothing of that is told.
    Mismatch,
    /// It may have run.
    Unknown(Arc<Record>),
    /// Its attempts are used up.
    Paused(Arc<Record>),
    /// It finished and its reply is gone.
    Expired(Arc<Record>),
}

impl Claim {
    /// What a record answers to a claim; `None` where it leaves the key free.
    pub fn on(record: &Arc<Record>, ask: &ClaimRequest, now: Timestamp) -> Option<Self> {
        let standing = judge(Some(record), &ask.fingerprint, ask.attempt, &ask.terms, now);
        let seen = record.seen_at(now)?;
        match standing {
            Judgement::Free => None,
            Judgement::Ours => Some(Self::Granted(seen.as_grant())),
            Judgement::Mismatch => Some(Self::Mismatch),
            Judgement::Busy => Some(Self::Busy(seen)),
            Judgement::Finished => Some(Self::Finished(seen)),
            Judgement::Expired => Some(Self::Expired(seen)),
            Judgement::Unknown => Some(Self::Unknown(seen)),
            Judgement::Paused => Some(Self::Paused(seen)),
        }
    }
}

/// A granted claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The operation's digest.
    pub digest: Digest,
    /// The operation's id.
    pub id: OperationId,
    /// This grant's fence.
    pub fence: Fence,
}

/// The store that every shape of the product stands on.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Asks for the right to run. One atomic step, judged by
    /// [`judge`] at the store's own time.
    ///
    /// A grant is durable when it is answered. The fence of a grant is higher
    /// than that of every grant before it for this key, across release, purge
    /// and restart. The same attempt asking again is granted again, under the
    /// same fence; but who stops waiting for an answer gives its claim back, and
    /// comes again, if at all, as another attempt.
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError>;

    /// Takes back a claim whose answer never came: if this attempt holds the
    /// operation it is released, otherwise nothing happens.
    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError>;

    /// Extends the holder's lease by the length in the record's terms.
    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError>;

    /// Records the outcome of a claim. Durable when answered. A late settlement
    /// counts as long as no other claim was granted since, out of `unknown` too;
    /// a stale fence changes nothing. An outcome is answered with its times
    /// ([`Settled::Finished`]), and the same settlement again with the same times.
    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError>;

    /// The record as it stands now. An expired reply is not given.
    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError>;

    /// The record with this id as it stands now. A trace is not given; see
    /// [`Inspect::show`].
    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError>;

    /// Notes that a reply was replayed, where its retention counts from that.
    /// The store writes it down only now and then, as
    /// [`Record::wants_touch`] says; for all else nothing happens. A note that
    /// is lost lets the reply expire earlier, and no more.
    async fn touch(&self, digest: &Digest) -> Result<(), StoreError>;

    /// Returns when the operation may have left `running`, or after `limit`.
    /// A hint: look again afterwards.
    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError>;
}

/// Work that the gateway delivers itself.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Records an operation with its request in one durable step, due after
    /// `after`. A known operation is answered as [`Store::claim`] would, and
    /// nothing is recorded.
    async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError>;

    /// Grants up to `limit` queued operations that are due, oldest first. Each
    /// is `running` under a new fence when answered, and is given once. One whose
    /// record or request is damaged is left out: it keeps no other from its turn.
    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError>;

    /// When the next queued operation is due; `None` when nothing is queued.
    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError>;
}

/// What enqueueing is answered.
#[derive(Clone, Debug)]
pub enum Enqueued {
    /// It is recorded and will be delivered.
    Accepted(OperationId),
    /// It was known already; never [`Claim::Granted`].
    Known(Claim),
}

/// A queued operation whose turn has come.
#[derive(Clone, Debug)]
pub struct Due {
    /// The right to run it.
    pub grant: Grant,
    /// The record.
    pub record: Arc<Record>,
    /// The request, as it was enqueued.
    pub request: Bytes,
}

/// Looking into a store, and an operator's hand in it.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    /// Operations that match, and traces of those whose keys are forgotten, the
    /// most recently claimed, settled or [touched](Store::touch) first.
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError>;

    /// The operation with this id as it stands now, or its trace: the record of
    /// an operation whose key is forgotten, `expired` and without its reply. It
    /// is there until the class's `keep_expired` is over, or until the key is
    /// used again: the new operation takes its place.
    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError>;

    /// Forgets an operation, or its trace, and raises its fence. Running work is
    /// forgotten only by force.
    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError>;

    /// Settles an unknown operation by somebody's word and raises its fence.
    /// Who speaks of a certain grant names its `fence`: where another was
    /// granted since, the word is not about what is unknown now, and is
    /// refused with that state.
    async fn resolve(
        &self,
        id: OperationId,
        fence: Option<Fence>,
        word: Resolution,
    ) -> Result<Changed, StoreError>;

    /// Lets a paused operation go on: the next request runs it, or it is due at once.
    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError>;

    /// Sends the request of enqueued work again, as [`Record::redeliver`] says:
    /// it is due at once, and its fence is raised. A request is kept as long as
    /// the reply is; one that is missing before is [`StoreError::Damaged`].
    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError>;

    /// Reclaims room from what is over, at most about `limit` operations of it,
    /// and tells how many. Never blocks a key, and never changes an answer but of
    /// what expires lazily: that ends here, first the reply and then the key.
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError>;

    /// How much there is.
    async fn stats(&self) -> Result<Stats, StoreError>;
}

/// Small documents that operators keep: API keys, changed classes, the audit,
/// webhooks; and what gateways must agree on. Bytes in and out; what they mean
/// is their owner's business.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Writes a document, in place of the one of that name. Durable when answered.
    async fn put(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<(), StoreError>;

    /// Writes a document unless there is one of that name already. One atomic
    /// step; durable when answered.
    async fn add(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError>;

    /// The document of this name.
    async fn read(&self, collection: Collection, name: &str) -> Result<Option<Bytes>, StoreError>;

    /// Forgets a document; one that is not there is forgotten already.
    async fn remove(&self, collection: Collection, name: &str) -> Result<(), StoreError>;

    /// Up to `limit` (capped at [`PAGE_MAX`]) documents with their names, in the
    /// order of the names' bytes, or against it; those after `after` in that order.
    async fn documents(
        &self,
        collection: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError>;
}

/// Which documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collection {
    /// API keys, by their id.
    ApiKeys,
    /// Classes that were changed at run time, by their name.
    Classes,
    /// What operators did, by time.
    Audit,
    /// What all gateways on the store must agree on, by its name.
    Agreed,
    /// Where providers may deliver, by the webhook's id.
    Webhooks,
}

impl Collection {
    /// Every collection.
    pub const ALL: [Self; 5] = [
        Self::ApiKeys,
        Self::Classes,
        Self::Audit,
        Self::Agreed,
        Self::Webhooks,
    ];

    /// The name in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiKeys => "api-keys",
            Self::Classes => "classes",
            Self::Audit => "audit",
            Self::Agreed => "agreed",
            Self::Webhooks => "webhooks",
        }
    }
}

/// In which order documents are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortOrder {
    /// By ascending names.
    Ascending,
    /// By descending names: documents named by time come latest first.
    Descending,
}

/// What adding a document came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is there now.
    Done,
    /// There was one already; nothing changed.
    Known,
}

/// Which operations to list; what is `None` matches all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// By tenant.
    pub tenant: Option<String>,
    /// By project.
    pub project: Option<String>,
    /// By endpoint.
    pub endpoint: Option<String>,
    /// By state as it stands now.
    pub state: Option<State>,
    /// By raw key.
    pub key: Option<String>,
    /// Created at or after.
    pub since: Option<Timestamp>,
    /// Created before.
    pub before: Option<Timestamp>,
}

impl Filter {
    /// Whether a record, as seen now, matches.
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
pub struct PageRequest {
    /// How many at most; capped at [`PAGE_MAX`].
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<Cursor>,
}

/// A place in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records, without the bodies of their replies being promised.
    pub records: Vec<Arc<Record>>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// Whether running work may be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Refuse while it runs.
    No,
    /// Forget it even then.
    Yes,
}

/// Somebody's word on an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It ran, and this was the reply.
    Ran(Arc<Reply>),
    /// It did not run and never will under this fence or a lower one.
    NotRun,
}

/// What an operator's change came to.
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
    /// Operations on record. What is over may still count until its room is
    /// reclaimed: telling it apart could take longer than anybody wants to wait.
    pub operations: u64,
    /// Bytes on disk, or in memory where there is no disk.
    pub bytes: u64,
}

impl Stats {
    /// Counts one operation that stands like this.
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

/// How many records one sweep reclaims at most.
const SWEEP_MAX: usize = 50_000;

/// Reclaims expired records at an interval, for as long as the store is in use
/// elsewhere.
pub async fn sweep_every(interval: Duration, inspect: Weak<dyn Inspect>) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(inspect) = inspect.upgrade() else {
            return;
        };
        match inspect.sweep(SWEEP_MAX).await {
            Ok(0) => {}
            Ok(records) => tracing::info!(records, "expired records reclaimed"),
            Err(error) => tracing::warn!(%error, "expired records could not be reclaimed"),
        }
    }
}
