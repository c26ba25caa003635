//! Work that the gateway delivers itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Claim, ClaimRequest, Grant, StoreError};
use crate::clock::Timestamp;
use crate::identity::OperationId;
use crate::record::Record;

/// A queue of operations with their requests.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Records an operation with its request in one durable step, due after
    /// `after`. A known operation is answered as by
    /// [`Store::claim`](super::Store::claim), and nothing is recorded.
    async fn enqueue(
        &self,
        claim: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError>;

    /// Grants up to `limit` queued operations that are due, oldest first. Each is
    /// `running` under a new fence when answered, and is granted once. One whose
    /// record or request is damaged is left out, so that it does not hold up the
    /// others.
    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError>;

    /// When the next queued operation is due; `None` when nothing is queued.
    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError>;
}

/// The answer to an enqueueing.
#[derive(Clone, Debug)]
pub enum Enqueued {
    /// It is recorded and will be delivered.
    Accepted(OperationId),
    /// It was known already; never [`Claim::Granted`].
    Known(Claim),
}

/// A queued operation that is due.
#[derive(Clone, Debug)]
pub struct Due {
    /// The right to run it.
    pub grant: Grant,
    /// The record.
    pub record: Arc<Record>,
    /// The request, as it was enqueued.
    pub request: Bytes,
}
