//! Makes retries safe: the work is not done twice, and the same answer comes
//! back.
//!
//! [`Onceward::open`] opens a store and everything that runs on it. A service
//! behind [`Onceward::layer`] runs a POST or PATCH with an `Idempotency-Key` at
//! most once per granted claim and replays its reply:
//!
//! ```
//! use onceward::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // `embedded:DIR` keeps operations on disk; `memory:` forgets them.
//! let onceward = Onceward::open("memory:").await?;
//! let layer = onceward.layer().required().build()?;
//! // `Router::new().route(…).layer(layer)`, or any tower service.
//! # let _ = layer;
//! onceward.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Work that is not an HTTP request begins with a key of its own and has one of
//! five outcomes: see [`Begun`]. On PostgreSQL its record is committed in the
//! application's own transaction (`postgres::Records`), on other stores beside
//! it ([`Onceward::records`]).
//!
//! This crate re-exports everything that its types name, so that applications
//! depend on it alone. Names that few applications need are in the modules
//! [`engine`], [`fingerprint`], [`identity`], [`problem`], [`record`] and
//! [`store`].

#[cfg(all(doctest, feature = "axum", feature = "sqlx"))]
#[doc = include_str!("../library.md")]
struct LibraryBook;

mod onceward;

pub use ::bytes;
pub use ::http;
pub use onceward_core::application::{
    Begun, Binding, CONTENT_BYTES_MAX, Claimed, Error, Failure, Fresh, InternalError, KeyRefused,
    Minter, Mismatch, Outcome, OutcomeError, OutcomeKind, RawStore, RecordOptions,
    RecordOptionsError, RecordedRequest, Records, Scope, ScopedKey, StoredError, TypedStore,
    Wanted, parse_key,
};
pub use onceward_core::caller::{Caller, CallerError, Subject, SubjectKind};
pub use onceward_core::class::{
    AfterLoss, Backoff, Class, Expiry, InFlight, OnError, OnExhausted, OnMismatch, OnStoreFailure,
    OnUnknown, Terms, TtlBasis,
};
pub use onceward_core::clock::{Clock, ManualClock, SystemClock, Timestamp};
#[cfg(feature = "conformance")]
pub use onceward_core::conformance;
pub use onceward_core::engine::{Engine, Limits};
pub use onceward_core::entropy::Entropy;
pub use onceward_core::fingerprint::{Fingerprint, canonical_json};
pub use onceward_core::identity::OperationId;
pub use onceward_core::key::{Key, KeyError, MintError};
pub use onceward_core::memory::MemoryStore;
pub use onceward_core::namespace::{Namespace, NamespaceError};
pub use onceward_core::{engine, fingerprint, identity, record, store};
#[cfg(feature = "axum")]
pub use onceward_http::axum;
pub use onceward_http::body::{Body, BoxError};
pub use onceward_http::joined::{Joined, JoinedError};
pub use onceward_http::layer::{BuildError, IdempotencyBuilder, IdempotencyLayer, Idempotent};
pub use onceward_http::problem;
pub use onceward_http::run::Granted;
pub use onceward_stores::{Durability, OpenError, Opened, Settings, open};

pub use self::onceward::{Builder, Closed, Onceward, StartError};

/// Records in the application's own transaction on PostgreSQL, with
/// tokio-postgres or (feature `sqlx`) sqlx.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use onceward_stores::postgres::{
        BoundStore, Connection, JoinedRecords, JoinedStore, Records, Table, TableError, Tx, migrate,
    };
}

/// The names that most applications use.
pub mod prelude {
    #[cfg(feature = "axum")]
    pub use crate::axum::Operation;
    pub use crate::{
        Begun, Caller, Class, Failure, Fresh, Granted, IdempotencyLayer, Joined, Minter, Namespace,
        Onceward, Records, ScopedKey, StoredError, Subject, parse_key,
    };
}
