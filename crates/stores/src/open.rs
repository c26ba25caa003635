//! From a URL to a store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::Clock;
use onceward_core::memory::MemoryStore;
use onceward_core::namespace::Namespace;
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

/// Where a store is and how it is used.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `memory:`, `embedded:DIR`, `postgres://…` or `redis://…`.
    pub url: String,
    /// Whose operations these are, where several share a database or a server.
    pub namespace: Namespace,
    /// PostgreSQL: the table, with its schema if that is not on the search path.
    pub table: String,
    /// PostgreSQL behind a pooler in transaction mode: where to listen for
    /// notifications all the same, past the pooler.
    pub listen_url: Option<String>,
    /// How many connections to a server may be open at once.
    pub connections: usize,
    /// Redis: whom a write must have reached before it is acknowledged.
    pub durability: Durability,
    /// After how long a step is given up. The engine has its own deadline; this
    /// one is for the server, so that it does not work on what nobody awaits.
    pub deadline: Duration,
}

/// Whom a write to Redis must have reached before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The server that took it.
    Primary,
    /// As many replicas as well, or the step fails.
    Replicas(u32),
}

impl Settings {
    /// The usual way to use the store that a URL names.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            namespace: Namespace::edge(),
            table: "idempotency_record".to_owned(),
            listen_url: None,
            connections: 16,
            durability: Durability::Primary,
            deadline: Duration::from_secs(2),
        }
    }
}

impl From<&str> for Settings {
    fn from(url: &str) -> Self {
        Self::at(url)
    }
}

/// URLs may hold passwords: only what is no secret is shown.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("scheme", &self.url.split(':').next())
            .field("namespace", &self.namespace)
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("durability", &self.durability)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Opens a store. One that lives in this process judges by `clock`; a server
/// that several processes share judges by its own.
pub async fn open(
    settings: impl Into<Settings>,
    clock: Arc<dyn Clock>,
) -> Result<Opened, OpenError> {
    let settings = settings.into();
    let (scheme, rest) = settings
        .url
        .split_once(':')
        .unwrap_or((settings.url.as_str(), ""));
    match (scheme, rest) {
        ("memory", "") => Ok(Opened::new(MemoryStore::new(clock))),
        #[cfg(feature = "embedded")]
        ("embedded", rest) if !rest.is_empty() => {
            let store = crate::embedded::EmbeddedStore::open(rest.as_ref(), clock)?;
            Ok(Opened::new(store))
        }
        ("embedded", "") => Err(OpenError::NoDirectory),
        #[cfg(feature = "postgres")]
        ("postgres" | "postgresql", _) => {
            let store = crate::postgres::PostgresStore::open(&settings).await?;
            Ok(Opened::new(store))
        }
        #[cfg(feature = "redis")]
        ("redis" | "rediss", _) => {
            let store = crate::redis::RedisStore::open(&settings).await?;
            Ok(Opened::new(store))
        }
        _ => Err(match feature_of(scheme) {
            Some(feature) => OpenError::FeatureMissing {
                scheme: scheme.to_owned(),
                feature,
            },
            None => OpenError::Url {
                scheme: scheme.to_owned(),
            },
        }),
    }
}

/// The feature of the store that a scheme names.
fn feature_of(scheme: &str) -> Option<&'static str> {
    match scheme {
        "embedded" => Some("embedded"),
        "postgres" | "postgresql" => Some("postgres"),
        "redis" | "rediss" => Some("redis"),
        _ => None,
    }
}

/// Why a store was not opened. Nothing was changed in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store. Only its scheme is told: the rest may hold a password.
    #[error(
        "there is no store `{scheme}:`; use `embedded:DIR`, `postgres://…`, `redis://…` or `memory:`"
    )]
    Url {
        /// What stood before the colon.
        scheme: String,
    },
    /// The store exists, but this program was built without it.
    #[error(
        "`{scheme}:` needs the feature `{feature}` of the crate `onceward`; add it in Cargo.toml"
    )]
    FeatureMissing {
        /// What stood before the colon.
        scheme: String,
        /// The feature to add.
        feature: &'static str,
    },
    /// `embedded:` alone.
    #[error("`embedded:` lacks its directory; write `embedded:./onceward-data`, for example")]
    NoDirectory,
    /// PostgreSQL cannot be used.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] crate::postgres::PostgresOpenError),
    /// Redis cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] crate::redis::RedisOpenError),
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
