//! Records on any store, led by an engine, which puts a deadline on every step,
//! withdraws claims whose answer was lost, and repeats the write of an outcome
//! until the store has it. The store keeps no requests, so a mismatch cannot show
//! the recorded one.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::engine::{Engine, Entered, Recorded, Renewed};
use crate::namespace::Namespace;
use crate::record::{Answer, Settled, Settlement};
use crate::store::{Inspect, StoreError};

use super::binding::{Binding, Claimed, Wanted};
use super::error::Error;
use super::options::{RecordOptions, RecordOptionsError, Scope};
use super::outcome::Fresh;
use super::raw::RawStore;

/// How many operations one step purges.
const PURGE_BATCH: usize = 10_000;
/// How many steps one purge takes at most.
const PURGE_BATCHES_MAX: usize = 1_000;

/// The store did not take an outcome; the write is being repeated.
#[derive(Debug, thiserror::Error)]
#[error("the outcome is not recorded yet; the write is being repeated")]
struct NotYet;

/// The lease could not be renewed.
#[derive(Debug, thiserror::Error)]
#[error("the lease could not be renewed")]
struct NotRenewed;

/// Records of one namespace on a store. Cheap to clone. Purging sweeps the whole
/// store, including what other namespaces and gateways keep there.
#[derive(Clone)]
pub struct Records {
    engine: Arc<Engine>,
    inspect: Arc<dyn Inspect>,
    scope: Arc<Scope>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({})", self.scope.namespace())
    }
}

impl Records {
    /// Records of this namespace with [`RecordOptions::default`]. `engine` and
    /// `inspect` are of the same store.
    pub fn new(engine: Arc<Engine>, inspect: Arc<dyn Inspect>, namespace: Namespace) -> Self {
        Self {
            engine,
            inspect,
            scope: Arc::new(Scope::new(namespace)),
        }
    }

    /// The same records with other options.
    pub fn with_options(self, options: &RecordOptions) -> Result<Self, RecordOptionsError> {
        let scope = Scope::clone(&self.scope).with_options(options)?;
        Ok(Self {
            scope: Arc::new(scope),
            ..self
        })
    }

    /// The store on JSON values.
    pub fn raw(&self) -> RawStore<Self> {
        RawStore::new(self.clone())
    }

    async fn mismatch(&self, wanted: &Wanted<'_>) -> Result<Claimed, Error> {
        let recorded = self.engine.look(&wanted.identity.digest()).await?;
        Ok(match recorded {
            Some(record) => Claimed::Mismatch {
                request: None,
                fingerprint: record.fingerprint,
            },
            // It was released or forgotten in between: the next request may run.
            None => Claimed::Busy,
        })
    }
}

#[async_trait]
impl Binding for Records {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    async fn claim(&mut self, wanted: Wanted<'_>) -> Result<Claimed, Error> {
        let (identity, fingerprint) = (wanted.identity.clone(), wanted.fingerprint);
        let terms = self.scope.terms().clone();
        Ok(
            match self.engine.enter(identity, fingerprint, terms).await? {
                // The application works as soon as it has the claim.
                Entered::Lead(lead) => Claimed::Granted(Fresh::led(wanted.key, lead.begin())),
                Entered::Follow(_) => Claimed::Busy,
                Entered::Finished(record) => Claimed::Finished(record),
                Entered::Mismatch => self.mismatch(&wanted).await?,
                Entered::Unknown(record) => Claimed::Unknown(record.id),
                Entered::Paused(record) => Claimed::Paused(record.id),
                Entered::Expired(record) => Claimed::Expired(record.id),
            },
        )
    }

    async fn settle(&mut self, mut fresh: Fresh, settlement: Settlement) -> Result<Settled, Error> {
        let Some(lead) = fresh.lead.take() else {
            // It was granted elsewhere, in a transaction say.
            return Ok(Settled::Stale);
        };
        let recorded = match settlement {
            Settlement::Completed(Answer::Kept(ref reply))
            | Settlement::Failed(Answer::Kept(ref reply)) => {
                let reply = reply.clone();
                lead.finish(settlement, Some(reply)).await
            }
            Settlement::Completed(_) | Settlement::Failed(_) => lead.finish(settlement, None).await,
            // Nothing is enqueued here, so there is nothing to deliver later.
            Settlement::Released | Settlement::Requeued { .. } | Settlement::Deferred { .. } => {
                lead.release(None).await
            }
            Settlement::Lost => lead.lose().await,
            Settlement::Paused => lead.pause().await,
        };
        match recorded {
            Recorded::Finished(completion) => Ok(Settled::Finished(completion)),
            Recorded::Durably => Ok(Settled::Done),
            Recorded::Stale => Ok(Settled::Stale),
            Recorded::NotYet => Err(StoreError::Unavailable(Box::new(NotYet)).into()),
        }
    }

    async fn renew(&mut self, fresh: &Fresh) -> Result<Settled, Error> {
        let Some(lead) = &fresh.lead else {
            return Ok(Settled::Stale);
        };
        match lead.renew().await {
            Renewed::Confirmed => Ok(Settled::Done),
            Renewed::Lost => Ok(Settled::Stale),
            Renewed::NotConfirmed => Err(StoreError::Unavailable(Box::new(NotRenewed)).into()),
        }
    }

    async fn purge_expired(&mut self) -> Result<u64, Error> {
        let mut purged = 0;
        for _ in 0..PURGE_BATCHES_MAX {
            let taken = self.inspect.sweep(PURGE_BATCH).await?;
            purged += taken as u64;
            if taken == 0 {
                break;
            }
        }
        Ok(purged)
    }

    async fn refer(&mut self, _: &Fresh, _: &str, _: &str) -> Result<Settled, Error> {
        Err(Error::NoResources)
    }
}
