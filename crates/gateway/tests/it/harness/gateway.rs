//! A gateway before an origin, on free ports, with a store of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use onceward_core::class::Class;
use onceward_gateway::{Drained, Gateway, Settings};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{Answer, Ask, Origin, RawClient};

/// How long a drain may take where the test does not say.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Chooses how a gateway is.
pub(crate) struct GatewayBuilder {
    settings: Settings,
    directory: Option<TempDir>,
}

/// A gateway before this origin, on an embedded store that goes with it.
pub(crate) fn gateway(origin: &Origin) -> GatewayBuilder {
    gateway_to(&origin.url())
}

/// A gateway before whoever has this URL.
pub(crate) fn gateway_to(upstream: &str) -> GatewayBuilder {
    let directory = TempDir::new().unwrap();
    let mut settings = Settings::new(upstream);
    settings.listen = "127.0.0.1:0".to_owned();
    settings.admin = "127.0.0.1:0".to_owned();
    settings.store = store_in(directory.path());
    GatewayBuilder {
        settings,
        directory: Some(directory),
    }
}

fn store_in(directory: &Path) -> String {
    format!("embedded:{}", directory.display())
}

impl GatewayBuilder {
    /// With its store in this directory, which stays.
    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.settings.store = store_in(directory);
        Self {
            directory: None,
            ..self
        }
    }

    /// With a store in memory, where the store does not matter.
    pub(crate) fn in_memory(mut self) -> Self {
        self.settings.store = "memory:".to_owned();
        Self {
            directory: None,
            ..self
        }
    }

    pub(crate) fn class(mut self, class: Class) -> Self {
        self.settings.class = class;
        self
    }

    pub(crate) fn body_limit(mut self, bytes: usize) -> Self {
        self.settings.body_limit = bytes;
        self
    }

    pub(crate) fn reply_limit(mut self, bytes: usize) -> Self {
        self.settings.reply_limit = bytes;
        self
    }

    pub(crate) fn upstream_timeout(mut self, timeout: Duration) -> Self {
        self.settings.upstream_timeout = timeout;
        self
    }

    pub(crate) fn head_deadline(mut self, deadline: Duration) -> Self {
        self.settings.head_deadline = deadline;
        self
    }

    pub(crate) fn body_deadline(mut self, deadline: Duration) -> Self {
        self.settings.body_deadline = deadline;
        self
    }

    /// Its settings, with the directory that they name.
    pub(crate) fn settings(self) -> (Settings, Option<TempDir>) {
        (self.settings, self.directory)
    }

    pub(crate) async fn run(self) -> Running {
        Running {
            gateway: Gateway::start(self.settings).await.unwrap(),
            _directory: self.directory,
        }
    }
}

/// A gateway that runs. It ends with the test, or when it is drained.
pub(crate) struct Running {
    gateway: Gateway,
    _directory: Option<TempDir>,
}

impl Running {
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.listen()
    }

    /// A request; `what` is a method and a target.
    pub(crate) fn ask(&self, what: &str) -> Ask {
        Ask::new(self.gateway.listen(), what)
    }

    pub(crate) fn get(&self, target: &str) -> Ask {
        self.ask(&format!("GET {target}"))
    }

    /// A protected request.
    pub(crate) fn post(&self, target: &str, key: &str) -> Ask {
        self.ask(&format!("POST {target}")).key(key)
    }

    /// A connection for exact bytes.
    pub(crate) async fn raw(&self) -> RawClient {
        RawClient::new(TcpStream::connect(self.gateway.listen()).await.unwrap())
    }

    /// Asks the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        Ask::new(self.gateway.admin(), &format!("GET {path}"))
            .send()
            .await
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.gateway.admin()
    }

    /// The page for Prometheus.
    pub(crate) async fn metrics(&self) -> String {
        self.admin("/metrics").await.text().to_owned()
    }

    /// Waits until the metrics hold this line.
    pub(crate) async fn shows(&self, line: &str) {
        while !self.metrics().await.lines().any(|is| is == line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until so many requests wait for another.
    pub(crate) async fn waiting(&self, waiters: usize) {
        self.shows(&format!("onceward_waiters {waiters}")).await;
    }

    /// Waits until nothing runs.
    pub(crate) async fn idle(&self) {
        self.shows("onceward_in_flight 0").await;
    }

    pub(crate) async fn drain(self) -> Drained {
        self.drain_within(DRAIN_LIMIT).await
    }

    pub(crate) async fn drain_within(self, limit: Duration) -> Drained {
        self.gateway.drain(limit).await
    }
}
