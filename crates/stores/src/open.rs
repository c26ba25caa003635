//! From a URL to a store.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::Clock;
use onceward_core::memory::MemoryStore;
use onceward_core::namespace::Namespace;
use onceward_core::store::{Inspect, Queue, Registry, Store};

/// One open store, as each of its traits. All four fields are the same store;
/// it closes when the last of them is dropped.
#[derive(Clone)]
#[non_exhaustive]
pub struct Opened {
    /// Claims and replies: what the engine needs.
    pub store: Arc<dyn Store>,
    /// Operations that are recorded with their request, to be delivered later.
    pub queue: Arc<dyn Queue>,
    /// Listing, sweeping and changes by an operator.
    pub inspect: Arc<dyn Inspect>,
    /// Small documents, such as API keys and the audit.
    pub registry: Arc<dyn Registry>,
}

impl Opened {
    /// The four traits of one store.
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

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

/// Where a store is and how it is used. A plain URL converts into it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `memory:`, `embedded:DIR`, `postgres://…` or `redis://…`.
    pub url: String,
    /// Separates the operations of several users of one database or server.
    pub namespace: Namespace,
    /// PostgreSQL: the table, with its schema if that is not on the search path.
    pub table: String,
    /// PostgreSQL behind a pooler in transaction mode: the server itself, to
    /// listen for notifications, which a pooler does not pass on.
    pub listen_url: Option<String>,
    /// The maximum number of connections to a server.
    pub connections: usize,
    /// Redis: which servers must have a write before it is acknowledged.
    pub durability: Durability,
    /// The time limit of a step on the server. The engine has its own deadline;
    /// this one keeps the server from working on abandoned steps.
    pub deadline: Duration,
    /// PostgreSQL and Redis: for how long a finished reply that was read may be given
    /// again from memory, and for how long an operator's change waits for that before
    /// it is answered. It must be the same in all processes that share a store, so the
    /// gateway has no setting for it. Zero keeps nothing.
    pub reply_memory: Duration,
}

/// Which servers must have a write to Redis before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The primary.
    Primary,
    /// The primary and this many replicas; otherwise the step fails.
    Replicas(u32),
}

impl Settings {
    /// The default settings for the store that a URL names.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            namespace: Namespace::edge(),
            table: "idempotency_record".to_owned(),
            listen_url: None,
            connections: 16,
            durability: Durability::Primary,
            deadline: Duration::from_secs(2),
            reply_memory: Duration::from_secs(1),
        }
    }
}

impl From<&str> for Settings {
    fn from(url: &str) -> Self {
        Self::at(url)
    }
}

impl From<String> for Settings {
    fn from(url: String) -> Self {
        Self::at(url)
    }
}

/// Leaves out the URLs, which may contain passwords.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("scheme", &self.url.split(':').next())
            .field("namespace", &self.namespace)
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("durability", &self.durability)
            .field("deadline", &self.deadline)
            .field("reply_memory", &self.reply_memory)
            .finish_non_exhaustive()
    }
}

/// Opens the store that a URL names. The memory store and the embedded store
/// judge leases and expiry by `clock`, PostgreSQL and Redis by the server's own
/// clock, which all processes share.
pub async fn open(
    settings: impl Into<Settings>,
    clock: Arc<dyn Clock>,
) -> Result<Opened, OpenError> {
    open_boxed(settings.into(), clock).await
}

/// Boxed as a trait object, so that the clients of PostgreSQL and Redis are
/// compiled in this crate once, and not again in each crate that opens a store.
fn open_boxed(
    settings: Settings,
    clock: Arc<dyn Clock>,
) -> Pin<Box<dyn Future<Output = Result<Opened, OpenError>> + Send>> {
    Box::pin(open_by_scheme(settings, clock))
}

async fn open_by_scheme(settings: Settings, clock: Arc<dyn Clock>) -> Result<Opened, OpenError> {
    let (scheme, rest) = settings
        .url
        .split_once(':')
        .unwrap_or((settings.url.as_str(), ""));
    match (scheme, rest) {
        ("memory", "") => Ok(Opened::new(MemoryStore::new(clock))),
        ("embedded", "") => Err(OpenError::NoDirectory),
        #[cfg(feature = "embedded")]
        ("embedded", rest) => {
            let store = crate::embedded::EmbeddedStore::open(rest.as_ref(), clock)?;
            Ok(Opened::new(store))
        }
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
        _ => Err(OpenError::unsupported(scheme)),
    }
}

/// Why a store was not opened. Nothing was changed in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store. Only its scheme is shown: the rest may contain a
    /// password.
    #[error(
        "there is no store `{scheme}:`; use `embedded:DIR`, `postgres://…`, `redis://…` or `memory:`"
    )]
    Url {
        /// The part before the colon.
        scheme: String,
    },
    /// The store exists, but its feature was not enabled at compile time.
    #[error(
        "`{scheme}:` needs the feature `{feature}` of the crate `onceward`, which this program was built without; add it in Cargo.toml"
    )]
    FeatureMissing {
        /// The part of the URL before the colon.
        scheme: String,
        /// The feature to enable.
        feature: &'static str,
    },
    /// `embedded:` without a directory.
    #[error("`embedded:` has no directory; write `embedded:./onceward-data`, for example")]
    NoDirectory,
    /// PostgreSQL cannot be used.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] crate::postgres::PostgresOpenError),
    /// Redis cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] crate::redis::RedisOpenError),
    /// The directory cannot be created, entered or written.
    #[error(
        "cannot use {}: {source}; the store needs a directory that this process may write",
        path.display()
    )]
    Directory {
        /// The directory or its lock file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process uses the directory.
    #[error(
        "{} is held by process {owner}: one process owns a store at a time; stop that process, or use another directory",
        path.display()
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
        /// The id of the other process, or `unknown`.
        owner: String,
    },
    /// The file cannot be opened for writing.
    #[error(
        "cannot write {}: {source}; the store needs a directory and file that this process may write",
        path.display()
    )]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({source}); nothing was changed in it: restore it from a backup, or move it away to start empty",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A newer version wrote the file.
    #[error(
        "{} has layout {layout}, written by a newer Onceward; open it with that version",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its layout.
        layout: i32,
    },
    /// The file belongs to another program.
    #[error("{} is not a store of Onceward; use another directory", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The system could not start a thread.
    #[error("cannot start a thread for the store: {source}")]
    Thread {
        /// The system's error.
        source: std::io::Error,
    },
    /// Any other error of the file.
    #[error("cannot open {}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl OpenError {
    /// The error for a scheme that this build does not open.
    fn unsupported(scheme: &str) -> Self {
        let feature = match scheme {
            "embedded" => "embedded",
            "postgres" | "postgresql" => "postgres",
            "redis" | "rediss" => "redis",
            _ => {
                return Self::Url {
                    scheme: scheme.to_owned(),
                };
            }
        };
        Self::FeatureMissing {
            scheme: scheme.to_owned(),
            feature,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_not_compiled_in_is_refused_with_its_feature() {
        for (scheme, feature) in [
            ("embedded", "embedded"),
            ("postgres", "postgres"),
            ("postgresql", "postgres"),
            ("redis", "redis"),
            ("rediss", "redis"),
        ] {
            let message = OpenError::unsupported(scheme).to_string();
            assert!(message.starts_with(&format!("`{scheme}:` ")), "{message}");
            let named = format!("the feature `{feature}`");
            assert!(message.contains(&named), "{message}");
        }
        let message = OpenError::unsupported("mysql").to_string();
        assert!(
            message.starts_with("there is no store `mysql:`"),
            "{message}"
        );
    }

    #[cfg(not(feature = "postgres"))]
    #[tokio::test]
    async fn postgres_without_its_feature_names_the_feature() {
        let clock = Arc::new(onceward_core::clock::SystemClock::new());
        let opened = open("postgres://user:secret@host/db", clock).await;
        let message = opened.map(drop).map_err(|error| error.to_string());
        let message = message.expect_err("it is not compiled in");
        assert!(message.contains("the feature `postgres`"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
