//! Idempotency inside an application: a key, a request, and one of five outcomes,
//! which is stored beside the work.
//!
//! [`RawStore`] works on JSON values, [`TypedStore`] on types of the caller's
//! own. Both stand on a [`Binding`]: on any store by way of an engine
//! ([`Records`]), or on the caller's own transaction, where record and business
//! rows are committed together or not at all.
//!
//! ```
//! use std::sync::Arc;
//!
//! use onceward_core::application::{Begun, Minter, Records};
//! use onceward_core::clock::SystemClock;
//! use onceward_core::engine::{Engine, Limits};
//! use onceward_core::entropy::Entropy;
//! use onceward_core::memory::MemoryStore;
//! use onceward_core::namespace::Namespace;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
//! let engine = Engine::new(store.clone(), Entropy::system()?, Limits::default());
//! let namespace = Namespace::new("mail")?;
//! let records = Records::new(engine, store, namespace.clone());
//! let mut mails = records.raw().typed::<String, u32>();
//!
//! let key = Minter::new(namespace).mint(&["tenant-1", "welcome", "anna"])?;
//! let request = "Welcome, Anna".to_owned();
//! match mails.begin(&key, &request).await? {
//!     Begun::Fresh(fresh) => mails.commit(fresh, &250).await?,
//!     _ => unreachable!("this key was not used before"),
//! }
//! let again = mails.begin(&key, &request).await?;
//! assert!(matches!(again, Begun::PriorResult(250)));
//! # Ok(())
//! # }
//! ```

mod binding;
mod content;
mod error;
mod failure;
mod key;
mod options;
mod outcome;
mod raw;
mod records;
#[cfg(test)]
mod tests;
mod typed;
mod wire;

pub use binding::{Binding, Claimed, Wanted};
pub use content::CONTENT_BYTES_MAX;
pub use error::Error;
pub use failure::{Failure, InternalError, StoredError};
pub use key::{KeyRefused, Minter, ScopedKey, parse_key};
pub use options::{RecordOptions, RecordOptionsError, Scope};
pub use outcome::{Begun, Fresh, Mismatch, RecordedRequest};
pub use raw::RawStore;
pub use records::Records;
pub use typed::TypedStore;
pub use wire::{Outcome, OutcomeError, OutcomeKind};
