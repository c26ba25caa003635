//! Makes retries safe: the work is not done twice, and the same answer comes
//! back. This crate is the door for applications; it re-exports what they need.
//!
//! A service behind [`IdempotencyLayer`] runs a POST or PATCH with an
//! `Idempotency-Key` at most once per granted claim and replays its reply:
//!
//! ```
//! use std::sync::Arc;
//!
//! use onceward::{Engine, Entropy, IdempotencyLayer, Limits, SystemClock, open};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // `embedded:DIR` keeps operations on disk, `memory:` forgets them.
//! let store = open("memory:", Arc::new(SystemClock::new())).await?;
//! let engine = Engine::new(store.store, Entropy::system()?, Limits::default());
//! let layer = IdempotencyLayer::builder(engine).build()?;
//! // `Router::new().route(…).layer(layer)`, or any tower service.
//! # let _ = layer;
//! # Ok(())
//! # }
//! ```
//!
//! Work that is no HTTP request begins with a key of its own and is one of five
//! outcomes: see [`Begun`]. On PostgreSQL the record is committed in the
//! application's own transaction (`postgres::Records`), elsewhere beside it
//! ([`Records`]).

#[cfg(all(doctest, feature = "axum", feature = "sqlx"))]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryBook;

pub use onceward_core::application::{
    Begun, Binding, Claimed, Error, Failure, Fresh, InternalError, KeyRefused, Minter, Mismatch,
    Outcome, OutcomeError, OutcomeKind, RawStore, RecordOptions, RecordOptionsError,
    RecordedRequest, Records, Scope, ScopedKey, StoredError, TypedStore, Wanted, parse_key,
};
pub use onceward_core::caller::{Caller, CallerError, Subject, SubjectKind};
pub use onceward_core::class::{
    AfterLoss, Class, Expiry, InFlight, OnError, OnMismatch, OnStoreFailure, OnUnknown,
};
pub use onceward_core::clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use onceward_core::engine::{Engine, Limits};
pub use onceward_core::entropy::Entropy;
pub use onceward_core::fingerprint::{Fingerprint, canonical_json};
pub use onceward_core::identity::OperationId;
pub use onceward_core::key::{Key, KeyError, MintError};
pub use onceward_core::namespace::{Namespace, NamespaceError};
pub use onceward_core::{record, store};
#[cfg(feature = "axum")]
pub use onceward_http::axum;
pub use onceward_http::joined::{Joined, JoinedError};
pub use onceward_http::layer::{IdempotencyBuilder, IdempotencyLayer, Idempotent};
pub use onceward_http::run::Granted;
pub use onceward_stores::{OpenError, Opened, Settings, open};

/// Records in the application's own transaction on PostgreSQL, by tokio-postgres
/// or (feature `sqlx`) by sqlx.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use onceward_stores::postgres::{
        BoundStore, Connection, JoinedRecords, JoinedStore, Records, Table, TableError, Tx, migrate,
    };
}
