//! The library on JSON values: for callers that choose which part of a request is
//! compared.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::record::{Answer, Settled, Settlement};

use super::binding::{Binding, Claimed, Wanted};
use super::content::{Prior, Request, error_reply, prior, result_reply};
use super::error::Error;
use super::failure::{Failure, StoredError};
use super::key::ScopedKey;
use super::outcome::{Begun, Fresh, Mismatch, RecordedRequest};
use super::typed::TypedStore;

/// Records of one namespace, on JSON values. It never begins or ends a
/// transaction: its writes become durable when the caller commits.
pub struct RawStore<B> {
    binding: B,
}

impl<B: Binding> RawStore<B> {
    /// A store on these records.
    pub fn new(binding: B) -> Self {
        Self { binding }
    }

    /// The same on the caller's own types.
    pub fn typed<Req, Res>(self) -> TypedStore<Req, Res, B>
    where
        Req: Serialize + DeserializeOwned,
        Res: Serialize + DeserializeOwned,
    {
        TypedStore::new(self)
    }

    /// Begins an operation, or returns its outcome. It does not wait: an operation
    /// that another transaction has begun and not committed is in flight.
    pub async fn begin(
        &mut self,
        key: &ScopedKey,
        request: &Value,
    ) -> Result<Begun<Value, Value>, Error> {
        self.begin_as(key, request).await
    }

    /// The same, with the recorded values decoded as these types.
    pub(crate) async fn begin_as<Req, Res>(
        &mut self,
        key: &ScopedKey,
        request: &Value,
    ) -> Result<Begun<Req, Res>, Error>
    where
        Req: DeserializeOwned,
        Res: DeserializeOwned,
    {
        self.check(key)?;
        let submitted = Request::of(request)?;
        let wanted = Wanted {
            key,
            identity: self.binding.scope().identity(key),
            fingerprint: submitted.fingerprint,
            request: submitted.json,
        };
        Ok(match self.binding.claim(wanted).await? {
            Claimed::Granted(fresh) => Begun::Fresh(fresh),
            Claimed::Busy => Begun::InFlight,
            Claimed::Finished(record) => match prior(&record)? {
                Prior::Result(result) => Begun::PriorResult(result),
                Prior::Error(error) => Begun::PriorError(error),
            },
            Claimed::Mismatch {
                request,
                fingerprint,
            } => Begun::Mismatch(Mismatch {
                recorded: match request.map(|json| serde_json::from_slice(&json)) {
                    Some(Ok(request)) => RecordedRequest::Kept(request),
                    Some(Err(error)) => RecordedRequest::Undecodable(error),
                    None => RecordedRequest::NotKept,
                },
                recorded_hash: fingerprint,
                submitted_hash: submitted.fingerprint,
            }),
            Claimed::Unknown(operation) => return Err(Error::UnknownOutcome { operation }),
            Claimed::Paused(operation) => return Err(Error::Paused { operation }),
            Claimed::Expired(operation) => return Err(Error::OutcomeGone { operation }),
        })
    }

    /// Records a result, to be replayed.
    pub async fn commit(&mut self, fresh: Fresh, result: &Value) -> Result<(), Error> {
        let answer = Answer::Kept(result_reply(result)?);
        self.settle(fresh, Settlement::Completed(answer)).await
    }

    /// Records an error that a retry would not change, to be replayed.
    ///
    /// Roll the failed work back to a savepoint first: a transaction that is
    /// rolled back as a whole loses this record too.
    pub async fn fail_permanent<E: Failure>(
        &mut self,
        fresh: Fresh,
        error: &E,
    ) -> Result<(), Error> {
        let answer = Answer::Kept(error_reply(&StoredError::of(error))?);
        self.settle(fresh, Settlement::Failed(answer)).await
    }

    /// Releases the key: the next request runs the operation again.
    pub async fn fail_transient(&mut self, fresh: Fresh) -> Result<(), Error> {
        self.settle(fresh, Settlement::Released).await
    }

    /// Renews the lease, for work that takes longer. Needed only where a claim is
    /// committed before its outcome.
    pub async fn renew(&mut self, fresh: &Fresh) -> Result<(), Error> {
        self.check(fresh.key())?;
        let renewed = self.binding.renew(fresh).await?;
        held(fresh, renewed)
    }

    /// Records a reference to a resource, in the column that
    /// `onceward migrate --resource` made for it. At most one kind is set.
    pub async fn refer(&mut self, fresh: &Fresh, resource: &str, id: &str) -> Result<(), Error> {
        self.check(fresh.key())?;
        let referred = self.binding.refer(fresh, resource, id).await?;
        held(fresh, referred)
    }

    /// Reclaims the space of operations that are over; returns their number. The
    /// application must call it from time to time. Under
    /// [`Expiry::Lazy`](crate::class::Expiry::Lazy) only this ends replays.
    pub async fn purge_expired(&mut self) -> Result<u64, Error> {
        self.binding.purge_expired().await
    }

    fn check(&self, key: &ScopedKey) -> Result<(), Error> {
        let records = self.binding.scope().namespace();
        if key.namespace() == records {
            return Ok(());
        }
        Err(Error::OtherNamespace {
            key: key.namespace().clone(),
            records: records.clone(),
        })
    }

    async fn settle(&mut self, fresh: Fresh, settlement: Settlement) -> Result<(), Error> {
        self.check(fresh.key())?;
        let (operation, fence) = (fresh.id(), fresh.fence());
        match self.binding.settle(fresh, settlement).await? {
            Settled::Finished(_) | Settled::Done => Ok(()),
            Settled::Stale => Err(Error::Stale { operation, fence }),
        }
    }
}

fn held(fresh: &Fresh, settled: Settled) -> Result<(), Error> {
    match settled {
        Settled::Finished(_) | Settled::Done => Ok(()),
        Settled::Stale => Err(Error::Stale {
            operation: fresh.id(),
            fence: fresh.fence(),
        }),
    }
}

impl<B: Binding> fmt::Debug for RawStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawStore({})", self.binding.scope().namespace())
    }
}
