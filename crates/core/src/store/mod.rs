//! The store traits: what every store promises.
//!
//! - [`Store`] claims operations and records their outcomes.
//! - [`Queue`] holds work that the gateway delivers itself.
//! - [`Inspect`] lists operations and lets operators change them.
//! - [`Registry`] keeps small documents.
//!
//! Each method is one atomic step. Nothing is acknowledged before it is durable,
//! as far as the store is durable at all. An error means that the fate of the
//! step is not known: the caller may repeat it, because a repeated step is
//! recognised.

mod claim;
mod inspect;
mod queue;
mod registry;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use self::claim::{Claim, ClaimRequest, Grant};
pub use self::inspect::{
    Changed, Cursor, Filter, Force, Inspect, Page, PageRequest, Resolution, Stats,
};
pub use self::queue::{Due, Enqueued, Queue};
pub use self::registry::{Added, Collection, Registry, SortOrder};
pub use self::sweep::sweep_every;
use crate::identity::{Digest, OperationId};
use crate::record::{Attempt, Fence, Record, Settled, Settlement};

/// The largest page of a listing.
pub const PAGE_MAX: usize = 1_000;

/// Why a store could not take a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached, is full or too slow; a later attempt may succeed.
    #[error("the store is unavailable: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The record under this key cannot be trusted. It never counts as absent.
    #[error("the store holds a damaged record: {0}")]
    Damaged(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Claims and their outcomes.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Claims an operation. One atomic step, decided by
    /// [`judge`](crate::judge::judge) at the store's own time.
    ///
    /// A grant is durable when it is answered. Its fence is higher than that of
    /// every earlier grant for this key, across release, purge and restart. A
    /// repeated claim of the same attempt is granted again, under the same fence.
    /// A caller that gives up waiting withdraws its claim, and claims again, if
    /// at all, as another attempt.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError>;

    /// The answer to a claim that the store has in memory: that of an operation
    /// that finished. It is the answer that [`claim`](Self::claim) would give,
    /// without a wait; `None` where only `claim` can answer.
    fn recall(&self, _request: &ClaimRequest) -> Option<Claim> {
        None
    }

    /// Takes back a claim whose answer was lost: if this attempt holds the
    /// operation it is released, otherwise nothing happens.
    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError>;

    /// Extends the holder's lease by the length in the record's terms.
    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError>;

    /// Records the outcome of a claim. Durable when answered. A late settlement
    /// counts as long as no other claim was granted since, out of `unknown` too;
    /// a stale fence changes nothing. An outcome is answered with its times
    /// ([`Settled::Finished`]), and the same settlement again with the same times.
    /// The first outcome of a fence stays: another one changes nothing and is
    /// answered with the first one's times.
    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError>;

    /// The record with its current state. An expired reply is left out.
    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError>;

    /// The same by the operation's id. Traces are not returned; see
    /// [`Inspect::show`].
    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError>;

    /// Notes that a reply was replayed, where its retention counts from that.
    /// Most notes are not written, as [`Record::wants_touch`] decides. A lost
    /// note only lets the reply expire earlier.
    async fn touch(&self, digest: &Digest) -> Result<(), StoreError>;

    /// Returns when the operation may have left `running`, or after `limit`.
    /// It is a hint: the caller looks again afterwards.
    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError>;
}
