//! What `begin` finds: five outcomes, the same for raw and typed stores.

use std::fmt;
use std::future::Future;

use crate::engine::Lead;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, OperationId};
use crate::record::Fence;
use crate::store::Grant;

use super::failure::StoredError;
use super::key::ScopedKey;

/// How an operation is found when it is begun.
#[derive(Debug)]
pub enum Begun<Req, Res> {
    /// It is the caller's to run, and to say what became of it.
    Fresh(Fresh),
    /// Somebody else runs it now.
    InFlight,
    /// It was done, with this result. Nothing is to be done again.
    PriorResult(Res),
    /// It failed for good, with this error. Nothing is to be done again.
    PriorError(StoredError),
    /// The key belongs to a different request, which stays as it is.
    Mismatch(Mismatch<Req>),
}

/// A different request under the same key.
#[derive(Debug)]
pub struct Mismatch<Req> {
    /// The request that has the key. It is for whoever looks for the mistake,
    /// not for the sender: it may be somebody else's.
    pub recorded: RecordedRequest<Req>,
    /// Its hash.
    pub recorded_hash: Fingerprint,
    /// The hash of the request that was submitted.
    pub submitted_hash: Fingerprint,
}

/// What is left of the request that has a key.
#[derive(Debug)]
pub enum RecordedRequest<Req> {
    /// All of it.
    Kept(Req),
    /// It was kept, and the type that it is to become has changed since.
    Undecodable(serde_json::Error),
    /// This store keeps no requests, or it is gone.
    NotKept,
}

impl<Req> RecordedRequest<Req> {
    /// The request, if there is one to be had.
    pub fn get(&self) -> Option<&Req> {
        match self {
            Self::Kept(request) => Some(request),
            Self::Undecodable(_) | Self::NotKept => None,
        }
    }
}

/// The right to run an operation. Whoever holds it says what became of it, by
/// `commit`, `fail_permanent` or `fail_transient`.
///
/// Dropped without a word, it leaves the claim behind: in a transaction that is
/// rolled back there is nothing left of it, elsewhere it is abandoned (at once
/// where an engine led it, else at the end of its lease).
pub struct Fresh {
    key: ScopedKey,
    grant: Grant,
    /// Most have none, so it is apart.
    pub(crate) lead: Option<Box<Lead>>,
}

impl Fresh {
    /// What a [`Binding`](super::Binding) gives for a grant.
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

    /// A number that is higher than that of every run of this operation before:
    /// what is written elsewhere under it can refuse those that come late.
    pub fn fence(&self) -> Fence {
        self.grant.fence
    }

    /// The digest that the record is found by.
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
