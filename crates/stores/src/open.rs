//! From a URL to a store.

use std::path::PathBuf;
use std::sync::Arc;

use onceward_core::clock::Clock;
use onceward_core::memory::MemoryStore;
use onceward_core::store::{Inspect, Queue, Registry, Store};

/// A store, by its four doors.
#[derive(Clone)]
pub struct Opened {
    /// Claims and replies.
    pub store: Arc<dyn Store>,
    /// Work that the gateway delivers itself.
    pub queue: Arc<dyn Queue>,
    /// Looking into it, and an operator's hand in it.
    pub inspect: Arc<dyn Inspect>,
    /// What operators keep in it.
    pub registry: Arc<dyn Registry>,
}

impl Opened {
    /// The four doors of one store.
    pub fn new<S: Store + Queue + Inspect + Registry>(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            store: store.clone(),
            queue: store.clone(),
            inspect: store.clone(),
            registry: store,
        }
    }
}

/// Opens the store that a URL names, judging by this clock: `memory:`, or
/// `embedded:DIR`.
pub fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Opened, OpenError> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match (scheme, rest) {
        ("memory", "") => Ok(Opened::new(MemoryStore::new(clock))),
        #[cfg(feature = "embedded")]
        ("embedded", rest) if !rest.is_empty() => {
            let store = crate::embedded::EmbeddedStore::open(rest.as_ref(), clock)?;
            Ok(Opened::new(store))
        }
        ("embedded", "") => Err(OpenError::NoDirectory),
        _ => Err(OpenError::Url {
            scheme: scheme.to_owned(),
        }),
    }
}

/// Why a store was not opened. Nothing was changed in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store. Only its scheme is told: the rest may hold a password.
    #[error("there is no store `{scheme}:` in this build; use `embedded:DIR` or `memory:`")]
    Url {
        /// What stood before the colon.
        scheme: String,
    },
    /// `embedded:` alone.
    #[error("`embedded:` lacks its directory; write `embedded:./onceward-data`, for example")]
    NoDirectory,
    /// The directory cannot be made, entered or written.
    #[error(
        "cannot use {}: {source}; the store needs a directory that this process may write",
        path.display()
    )]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Another process has the directory.
    #[error(
        "{} is held by process {owner}: one process owns a store at a time; stop that one, or use another directory",
        path.display()
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
        /// Who has it.
        owner: String,
    },
    /// The file cannot be opened for writing.
    #[error(
        "cannot write {}: {source}; the store needs a directory and file that this process may write",
        path.display()
    )]
    NotWritable {
        /// Which.
        path: PathBuf,
        /// What SQLite says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({source}); nothing was changed in it: restore it from a copy, or move it away to start empty",
        path.display()
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What was found.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A later program wrote the file.
    #[error(
        "{} has layout {layout}, written by a newer Onceward; open it with that one",
        path.display()
    )]
    Newer {
        /// Which.
        path: PathBuf,
        /// Its layout.
        layout: i32,
    },
    /// Another program's file.
    #[error("{} is not a store of Onceward; use another directory", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// The system gives no thread.
    #[error("cannot start a thread for the store: {source}")]
    Thread {
        /// What the system says.
        source: std::io::Error,
    },
    /// Anything else.
    #[error("cannot open {}: {source}", path.display())]
    Database {
        /// Which.
        path: PathBuf,
        /// What was said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
