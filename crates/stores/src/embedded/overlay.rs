//! The overlay: finished operations and documents that the database does not have
//! yet, and tombstones of those that it still has.
//!
//! It is looked at before the database. Nothing is evicted from it; an entry goes when
//! a fill has brought it into the database. The writer alone has the overlay; readers
//! of the file only learn which operations they must leave to the writer
//! ([`Superseded`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::Record;
use onceward_core::store::Collection;

use super::bucket::BucketEnd;
use super::digest_table::{ByDigest, DigestTable};
use super::effect::{DocumentChange, Unkept};

/// A finished operation that is not filled yet.
#[derive(Debug)]
pub(super) struct UnfilledOperation {
    pub(super) row: u64,
    pub(super) end: BucketEnd,
    /// The bucket of the reply and the request, if that is another.
    pub(super) replied: Option<BucketEnd>,
    pub(super) record: Arc<Record>,
    /// The record without its reply, encoded.
    pub(super) encoded: Bytes,
    /// The encoded reply.
    pub(super) reply: Option<Bytes>,
    pub(super) request: UnfilledRequest,
}

impl UnfilledOperation {
    /// Where it is kept once it is filled.
    pub(super) fn place(&self) -> Unkept {
        Unkept {
            digest: self.record.digest,
            row: self.row,
            end: self.end,
            replied: self.replied,
        }
    }

    /// About how many bytes it takes in the database.
    pub(super) fn bytes(&self) -> u64 {
        let request = match &self.request {
            UnfilledRequest::Body(body) => body.len(),
            UnfilledRequest::None | UnfilledRequest::InFile(_) => 0,
        };
        let reply = self.reply.as_ref().map_or(0, Bytes::len);
        (self.encoded.len() + reply + request + ROW_BYTES) as u64
    }
}

/// About how many bytes a row takes besides its blobs.
pub(super) const ROW_BYTES: usize = 256;

/// The request of a finished operation that is not filled yet.
#[derive(Clone, Debug)]
pub(super) enum UnfilledRequest {
    None,
    /// Sealed.
    Body(Bytes),
    /// The database has it, under this row of the requests.
    InFile(u64),
}

/// What the overlay knows of an operation.
enum Overlaid {
    Finished(Arc<UnfilledOperation>),
    /// The database may have it under this row, and it is not kept any more.
    Unkept(Unkept),
}

impl ByDigest for Overlaid {
    fn digest(&self) -> &Digest {
        match self {
            Self::Finished(operation) => &operation.record.digest,
            Self::Unkept(unkept) => &unkept.digest,
        }
    }
}

/// The answer of the overlay.
pub(super) enum OverlaidState<'a> {
    /// It is finished.
    Finished(&'a Arc<UnfilledOperation>),
    /// What the database has of it does not count.
    Gone,
    /// The database knows.
    Unknown,
}

/// What is not filled yet.
#[derive(Default)]
pub(super) struct Overlay {
    operations: DigestTable<Overlaid>,
    documents: HashMap<(Collection, String), Arc<DocumentChange>>,
}

impl Overlay {
    pub(super) fn get(&self, digest: &Digest) -> OverlaidState<'_> {
        match self.operations.get(digest) {
            Some(Overlaid::Finished(operation)) => OverlaidState::Finished(operation),
            Some(Overlaid::Unkept(_)) => OverlaidState::Gone,
            None => OverlaidState::Unknown,
        }
    }

    /// The finished operation with this id.
    pub(super) fn find(&self, id: OperationId) -> Option<&Arc<UnfilledOperation>> {
        let has_id = |overlaid: &Overlaid| match overlaid {
            Overlaid::Finished(operation) => operation.record.id == id,
            Overlaid::Unkept(_) => false,
        };
        match self.operations.find(id.prefix(), has_id) {
            Some(Overlaid::Finished(operation)) => Some(operation),
            _ => None,
        }
    }

    /// The finished operations.
    pub(super) fn finished(&self) -> impl Iterator<Item = &Arc<UnfilledOperation>> {
        self.operations
            .iter()
            .filter_map(|overlaid| match overlaid {
                Overlaid::Finished(operation) => Some(operation),
                Overlaid::Unkept(_) => None,
            })
    }

    /// A document that was changed; the inner `None` is one that was removed.
    pub(super) fn document(&self, sheet: Collection, name: &str) -> Option<Option<&Bytes>> {
        // A look-up by parts would need a key type of its own, and documents are few.
        let change = self.documents.get(&(sheet, name.to_owned()))?;
        Some(change.body.as_ref())
    }

    /// Whether a document was changed that the database does not have yet.
    pub(super) fn has_documents(&self) -> bool {
        !self.documents.is_empty()
    }

    pub(super) fn put(&mut self, operation: Arc<UnfilledOperation>) {
        self.operations.insert(Overlaid::Finished(operation));
    }

    /// Hides a row of the database. An operation that finished after it stays.
    pub(super) fn bury(&mut self, unkept: Unkept) {
        let is_newer = match self.get(&unkept.digest) {
            OverlaidState::Finished(operation) => operation.row > unkept.row,
            OverlaidState::Gone | OverlaidState::Unknown => false,
        };
        if !is_newer {
            self.operations.insert(Overlaid::Unkept(unkept));
        }
    }

    pub(super) fn put_document(&mut self, change: Arc<DocumentChange>) {
        let name = (change.sheet, change.name.clone());
        self.documents.insert(name, change);
    }

    /// The database has this row.
    pub(super) fn forget(&mut self, digest: &Digest, row: u64) {
        self.operations.remove_if(
            digest,
            |overlaid| matches!(overlaid, Overlaid::Finished(operation) if operation.row == row),
        );
    }

    /// The database has this row no more.
    pub(super) fn forget_unkept(&mut self, digest: &Digest, row: u64) {
        self.operations.remove_if(
            digest,
            |overlaid| matches!(overlaid, Overlaid::Unkept(unkept) if unkept.row == row),
        );
    }

    pub(super) fn forget_document(&mut self, change: &Arc<DocumentChange>) {
        let name = (change.sheet, change.name.clone());
        if let Some(known) = self.documents.get(&name)
            && Arc::ptr_eq(known, change)
        {
            self.documents.remove(&name);
        }
    }
}

/// The prefixes of operations whose rows in the database no longer count, because they
/// were purged, touched, reopened or replaced. Readers leave them to the writer.
#[derive(Default)]
pub(super) struct Superseded {
    /// Almost always zero, so that most look-ups take no lock.
    count: AtomicUsize,
    prefixes: RwLock<HashMap<u64, usize>>,
}

impl Superseded {
    pub(super) fn contains(&self, prefix: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self
                .prefixes
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .contains_key(&prefix)
    }

    pub(super) fn add(&self, prefix: u64) {
        let mut prefixes = self
            .prefixes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *prefixes.entry(prefix).or_default() += 1;
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove(&self, prefix: u64) {
        let mut prefixes = self
            .prefixes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = prefixes.get_mut(&prefix) {
            *times -= 1;
            self.count.fetch_sub(1, Ordering::Release);
            if *times == 0 {
                prefixes.remove(&prefix);
            }
        }
    }
}
