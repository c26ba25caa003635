//! The trait between the application's stores and the place of their records.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, OperationId};
use crate::record::{Record, Settled, Settlement};

use super::error::Error;
use super::key::ScopedKey;
use super::options::Scope;
use super::outcome::Fresh;

/// An operation that an application wants to run.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The key, as it was given.
    pub key: &'a ScopedKey,
    /// The operation.
    pub identity: Identity,
    /// The request's fingerprint.
    pub fingerprint: Fingerprint,
    /// The request, as it is kept.
    pub request: Bytes,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claimed {
    /// It may run.
    Granted(Fresh),
    /// Another attempt runs it.
    Busy,
    /// It finished; the record holds its answer.
    Finished(Arc<Record>),
    /// The key belongs to a different request.
    Mismatch {
        /// That request, where it was kept.
        request: Option<Bytes>,
        /// Its fingerprint.
        fingerprint: Fingerprint,
    },
    /// It may have run.
    Unknown(OperationId),
    /// Its attempts are used up.
    Paused(OperationId),
    /// It finished and its outcome is gone.
    Expired(OperationId),
}

/// Where an application's records are: an engine's store, or a connection of
/// the application's own.
#[async_trait]
pub trait Binding: Send {
    /// The namespace of the records, and their terms.
    fn scope(&self) -> &Scope;

    /// Claims an operation. One atomic step that does not wait for others.
    async fn claim(&mut self, wanted: Wanted<'_>) -> Result<Claimed, Error>;

    /// Records the outcome of a claim. A stale claim changes nothing.
    async fn settle(&mut self, fresh: Fresh, settlement: Settlement) -> Result<Settled, Error>;

    /// Renews the lease of a claim.
    async fn renew(&mut self, fresh: &Fresh) -> Result<Settled, Error>;

    /// Reclaims the space of operations that are over; returns their number.
    async fn purge_expired(&mut self) -> Result<u64, Error>;

    /// Records a reference from the operation to a resource.
    async fn refer(&mut self, fresh: &Fresh, resource: &str, id: &str) -> Result<Settled, Error>;
}
