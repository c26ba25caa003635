//! Gateways that share a store: a real PostgreSQL or Redis, and gateway processes with one
//! configuration in front of one service.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use onceward_servers::{Postgres, Redis};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::fixture::gateway::{Gateway, GatewayCommand, gateway_of, run_to_end};
use crate::fixture::origin::Origin;
use crate::fixture::until;

/// The secret of all gateways, unless a test sets another.
const KEY: &str = "the same for all gateways";

/// The kind of the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Postgres,
    Redis,
}

/// The server of the store, configured so that acknowledged writes are on disk.
pub(crate) enum Server {
    Postgres(Postgres),
    Redis(Redis),
}

impl Server {
    async fn start(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Postgres => {
                let server = block_in_place(Postgres::start);
                let url = server.url();
                let apply = ["migrate", "apply", "--store", &url].map(OsString::from);
                let applied = run_to_end(&apply).await;
                assert!(applied.status.success(), "{applied:?}");
                Self::Postgres(server)
            }
            StoreKind::Redis => {
                let always = ["--appendfsync", "always"];
                Self::Redis(block_in_place(|| Redis::start_with(&always)))
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// The same server through another port of this machine.
    pub(crate) fn url_at(&self, port: u16) -> String {
        match self {
            Self::Postgres(_) => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Self::Redis(_) => format!("redis://127.0.0.1:{port}"),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Postgres(server) => server.port(),
            Self::Redis(server) => server.port(),
        }
    }

    /// Ends it as a power failure would.
    pub(crate) fn kill(&mut self) {
        block_in_place(|| match self {
            Self::Postgres(server) => server.kill(),
            Self::Redis(server) => server.kill(),
        });
    }

    /// Starts it again with the same data.
    pub(crate) fn restart(&mut self) {
        block_in_place(|| match self {
            Self::Postgres(server) => server.restart(),
            Self::Redis(server) => server.restart(),
        });
    }

    /// The number of gateways that are subscribed to settlements of others.
    pub(crate) fn listeners(&self) -> usize {
        let told = block_in_place(|| match self {
            Self::Postgres(server) => server.sql("postgres", LISTENING),
            Self::Redis(server) => server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]),
        });
        told.lines().filter(|line| !line.is_empty()).count()
    }

    /// Breaks the connections of these subscriptions.
    pub(crate) fn break_subscriptions(&self) {
        block_in_place(|| match self {
            Self::Postgres(server) => {
                let all =
                    format!("SELECT pg_terminate_backend(pid) FROM ({LISTENING}) AS subscribers");
                server.sql("postgres", &all)
            }
            Self::Redis(server) => server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]),
        });
    }
}

/// The connections that only listen.
const LISTENING: &str = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'";

/// A server, a service, and the configuration files of the gateways.
pub(crate) struct Deployment {
    pub(crate) origin: Origin,
    pub(crate) server: Server,
    directory: TempDir,
    files: AtomicUsize,
}

/// The settings of a test beyond the defaults.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The URL of the store, if not that of its server.
    pub(crate) url: Option<String>,
    /// More lines of `[store]`.
    pub(crate) store: &'static str,
    /// The secret.
    pub(crate) key: &'static str,
    /// More lines of the route, and more sections after them.
    pub(crate) more: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: None,
            store: "",
            key: KEY,
            more: "",
        }
    }
}

impl Deployment {
    pub(crate) async fn open(kind: StoreKind, origin: Origin) -> Self {
        Self {
            origin,
            server: Server::start(kind).await,
            directory: tempfile::tempdir().unwrap(),
            files: AtomicUsize::new(0),
        }
    }

    /// A gateway with its own configuration file, on a free port.
    pub(crate) fn plan(&self, words: &Settings) -> GatewayCommand {
        let log = "info,onceward::access=off";
        gateway_of(&self.write(words)).option("--log", log)
    }

    fn write(&self, words: &Settings) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let file = self.directory.path().join(format!("{number}.toml"));
        let Settings {
            url,
            store,
            key,
            more,
        } = words;
        let url = url.clone().unwrap_or_else(|| self.server.url());
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             [store]\nurl = \"{url}\"\n{store}\n[secrets]\nkey = \"{key}\"\n\
             [upstreams.origin]\nurl = \"http://{}\"\n\
             [[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\npath = \"/payments\"\n\
             upstream = \"origin\"\npolicy = \"REQUIRED_A\"\n{more}\n",
            self.origin.address(),
        );
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Two gateways that are ready.
    pub(crate) async fn two(&self, words: &Settings) -> [Gateway; 2] {
        two(&self.plan(words)).await
    }
}

/// Two processes of one command.
pub(crate) async fn two(plan: &GatewayCommand) -> [Gateway; 2] {
    let (one, other) = tokio::join!(plan.run(), plan.run());
    [one, other]
}

/// Waits until this many requests wait at a gateway.
pub(crate) async fn waiting(gateway: &Gateway, count: usize) {
    let there = || async { gateway.counted("onceward_waiters").await >= count };
    until("the requests wait", there).await;
}
