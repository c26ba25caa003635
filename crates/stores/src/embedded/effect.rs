//! Effects: what a step changed, as the log records it and the state takes it.
//!
//! An effect is an after-image with its numbers and times, never a command: taking it
//! again needs no judgement and no clock.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::identity::Digest;
use onceward_core::record::Record;
use onceward_core::store::Collection;
use onceward_core::wire;

use super::bucket::BucketEnd;

/// One change of the store's state.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// An operation is open, in place of what it was before.
    Opened(Opened),
    /// An operation is finished; it is no longer open.
    Finished(Finished),
    /// An operation is no longer open, and not finished either.
    Closed(Digest),
    /// A finished operation is no longer kept under this row.
    Unkept(Unkept),
    /// A document was written or removed.
    Document(DocumentChange),
    /// Numbers up to this one may have been used.
    Numbers(u64),
}

/// An open operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opened {
    /// Its row: the number of its last change.
    pub(super) row: u64,
    pub(super) record: Arc<Record>,
    /// Its request, if the gateway delivers it.
    pub(super) request: Option<OpenedRequest>,
}

/// The request of an open operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpenedRequest {
    pub(super) row: u64,
    /// Sealed. `None`: the request that the operation had in this row before.
    pub(super) body: Option<Bytes>,
}

/// A finished operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finished {
    pub(super) row: u64,
    pub(super) record: Arc<Record>,
    /// The record without its reply, encoded.
    pub(super) encoded: Bytes,
    /// The encoded reply.
    pub(super) reply: Option<Bytes>,
    pub(super) request: FinishedRequest,
}

/// The request of a finished operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FinishedRequest {
    /// It has none.
    None,
    /// The one that it had while it was open.
    AsOpen,
    /// This one, sealed.
    Body(Bytes),
}

impl Finished {
    /// The operation with its encoded reply, finished under this number.
    pub(super) fn new(
        row: u64,
        record: Arc<Record>,
        reply: Option<Bytes>,
        request: FinishedRequest,
    ) -> Self {
        let encoded = wire::encode_record(&record).into();
        Self {
            row,
            record,
            encoded,
            reply,
            request,
        }
    }
}

/// Where a finished operation was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unkept {
    pub(super) digest: Digest,
    pub(super) row: u64,
    pub(super) end: BucketEnd,
    /// The bucket of its reply, if that is another.
    pub(super) replied: Option<BucketEnd>,
}

/// A document that was written or, without a body, removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentChange {
    pub(super) sheet: Collection,
    pub(super) name: String,
    pub(super) body: Option<Bytes>,
}

#[cfg(test)]
pub(super) mod tests {
    use onceward_core::caller::Caller;
    use onceward_core::class::Class;
    use onceward_core::clock::Timestamp;
    use onceward_core::fingerprint::{Algorithm, Fingerprint};
    use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
    use onceward_core::key::Key;
    use onceward_core::record::{Attempt, Fence};
    use onceward_core::store::ClaimRequest;

    use super::*;

    /// The record of the operation with this number, running.
    pub(in crate::embedded) fn record(number: u64) -> Record {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse(&format!("key-{number}")).expect("a good key"),
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        let ask = ClaimRequest {
            digest,
            identity,
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: [1; 32],
                sender: [2; 16],
            },
            terms: Class::interactive().terms(),
            attempt: Attempt(9),
            id: OperationId::new(&digest, number),
        };
        let mut record = ask.to_record_after(None, Timestamp::from_unix_ms(5));
        record.grant(Fence(7), Attempt(9), Timestamp::from_unix_ms(6));
        record
    }
}
