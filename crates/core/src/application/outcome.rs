//! The five answers to `begin`, the same for raw and typed stores.

use std::fmt;
use std::future::Future;

use crate::engine::Lead;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, OperationId};
use crate::record::Fence;
use crate::store::Grant;

use super::failure::StoredError;
use super::key::ScopedKey;

/// The answer to `begin`.
#[derive(Debug)]
pub enum Begun<Req, Res> {
    /// The caller runs it, and records its outcome.
    Fresh(Fresh),
    /// Another caller runs it now.
    InFlight,
    /// It was done, with this result, and must not run again.
    PriorResult(Res),
    /// It failed for good, with this error, and must not run again.
    PriorError(StoredError),
    /// The key belongs to a different request, which stays as it is.
    Mismatch(Mismatch<Req>),
}

/// A different request under the same key.
#[derive(Debug)]
pub struct Mismatch<Req> {
    /// The request that has the key. It is for debugging, not for the sender: it
    /// may be another user's.
    pub recorded: RecordedRequest<Req>,
    /// Its hash.
    pub recorded_hash: Fingerprint,
    /// The hash of the request that was submitted.
    pub submitted_hash: Fingerprint,
}

/// The request that has a key, as far as it is kept.
#[derive(Debug)]
pub enum RecordedRequest<Req> {
    /// All of it.
    Kept(Req),
    /// It was kept, and its type has changed since.
    Undecodable(serde_json::Error),
    /// This store keeps no requests, or it is gone.
    NotKept,
}

impl<Req> RecordedRequest<Req> {
    /// The request, where it is kept and decodes.
    pub fn get(&self) -> Option<&Req> {
        match self {
            Self::Kept(request) => Some(request),
            Self::Undecodable(_) | Self::NotKept => None,
        }
    }
}

/// The right to run an operation. The holder records the outcome by `commit`,
/// `fail_permanent` or `fail_transient`.
///
/// Dropped without an outcome, it leaves the claim behind: a transaction that is
/// rolled back takes the claim with it; elsewhere the claim is abandoned, at once
/// where an engine led it, otherwise at the end of its lease.
pub struct Fresh {
    key: ScopedKey,
    grant: Grant,
    /// Boxed, because most have none.
    pub(crate) lead: Option<Box<Lead>>,
}

impl Fresh {
    /// Returned by a [`Binding`](super::Binding) for a grant.
    pub fn granted(key: &ScopedKey, grant: Grant) -> Self {
        Self {
            key: key.clone(),
            grant,
            lead: None,
        }
    }

    /// The same for a grant that an engine leads.
    pub(crate) fn led(key: &ScopedKey, lead: Lead) -> Self {
        let grant = Grant {
            digest: lead.digest(),
            id: lead.id(),
            fence: lead.fence(),
        };
        Self {
            lead: Some(Box::new(lead)),
            ..Self::granted(key, grant)
        }
    }

    /// The key.
    pub fn key(&self) -> &ScopedKey {
        &self.key
    }

    /// The operation's id, for logs and operators.
    pub fn id(&self) -> OperationId {
        self.grant.id
    }

    /// A number higher than that of every earlier run of this operation. Systems
    /// that are written to under it can refuse late runs.
    pub fn fence(&self) -> Fence {
        self.grant.fence
    }

    /// The digest under which the record is stored.
    pub fn digest(&self) -> Digest {
        self.grant.digest
    }

    /// Does work that may outlast the lease, renewing it meanwhile where an
    /// engine holds it. In a transaction there is nothing to renew.
    pub async fn holding<T>(&self, work: impl Future<Output = T>) -> T {
        match &self.lead {
            Some(lead) => lead.holding(work).await,
            None => work.await,
        }
    }
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fresh({} under fence {})", self.id(), self.fence().0)
    }
}
