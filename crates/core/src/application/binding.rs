//! The narrow waist between what an application says and where it is recorded.

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

/// What an application wants to run.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The key, as it was given.
    pub key: &'a ScopedKey,
    /// The operation.
    pub identity: Identity,
    /// What is asked for, as it is compared.
    pub fingerprint: Fingerprint,
    /// What is asked for, as it is kept.
    pub request: Bytes,
}

/// How a claim is answered.
#[derive(Debug)]
pub enum Claimed {
    /// It may run.
    Granted(Fresh),
    /// Somebody else runs it.
    Busy,
    /// It finished; here is the record with its answer.
    Finished(Arc<Record>),
    /// The key belongs to a different request.
    Mismatch {
        /// That request as it was kept, if it was.
        request: Option<Bytes>,
        /// As it is compared.
        fingerprint: Fingerprint,
    },
    /// It may have run.
    Unknown(OperationId),
    /// Its attempts are used up.
    Paused(OperationId),
    /// It finished and what came of it is gone.
    Expired(OperationId),
}

/// Where an application's records are: an engine's store, or a connection of
/// the application's own.
#[async_trait]
pub trait Binding: Send {
    /// Whose records, under which terms.
    fn scope(&self) -> &Scope;

    /// Asks for the right to run. One atomic step that waits for nobody.
    async fn claim(&mut self, wanted: Wanted<'_>) -> Result<Claimed, Error>;

    /// Records what became of a claim. A stale one changes nothing.
    async fn settle(&mut self, fresh: Fresh, settlement: Settlement) -> Result<Settled, Error>;

    /// Begins the lease of a claim anew.
    async fn renew(&mut self, fresh: &Fresh) -> Result<Settled, Error>;

    /// Reclaims the room of what is over, and tells of how many operations.
    async fn purge_expired(&mut self) -> Result<u64, Error>;

    /// Says which resource the operation is about.
    async fn refer(&mut self, fresh: &Fresh, resource: &str, id: &str) -> Result<Settled, Error>;
}
