//! Small documents beside the operations.

use async_trait::async_trait;
use bytes::Bytes;

use super::StoreError;

/// Small documents: API keys, changed classes, the audit log, webhooks, and
/// values that gateways must agree on. The store does not interpret their bytes.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Writes a document, replacing the one of that name. Durable when answered.
    async fn put(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<(), StoreError>;

    /// Writes a document unless there is one of that name already. One atomic
    /// step; durable when answered.
    async fn add(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError>;

    /// The document of this name.
    async fn read(&self, collection: Collection, name: &str) -> Result<Option<Bytes>, StoreError>;

    /// Deletes a document. Deleting an absent one succeeds.
    async fn remove(&self, collection: Collection, name: &str) -> Result<(), StoreError>;

    /// Up to `limit` documents (capped at [`PAGE_MAX`](super::PAGE_MAX)) with
    /// their names, sorted by the names' bytes, beginning behind `after`.
    async fn documents(
        &self,
        collection: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError>;
}

/// A collection of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collection {
    /// API keys, by their id.
    ApiKeys,
    /// Classes that were changed at run time, by their name.
    Classes,
    /// The audit log of operators' changes, by time.
    Audit,
    /// Values that all gateways on the store must agree on, by their name.
    Agreed,
    /// Webhooks, by their id.
    Webhooks,
}

impl Collection {
    /// Every collection.
    pub const ALL: [Self; 5] = [
        Self::ApiKeys,
        Self::Classes,
        Self::Audit,
        Self::Agreed,
        Self::Webhooks,
    ];

    /// The name in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiKeys => "api-keys",
            Self::Classes => "classes",
            Self::Audit => "audit",
            Self::Agreed => "agreed",
            Self::Webhooks => "webhooks",
        }
    }
}

/// The order in which documents are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortOrder {
    /// By ascending names.
    Ascending,
    /// By descending names: documents named by time come latest first.
    Descending,
}

/// The answer to adding a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The document is written.
    Done,
    /// There was one of that name already; nothing changed.
    Known,
}
