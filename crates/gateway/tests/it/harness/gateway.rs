//! A gateway in front of an origin, on free ports, with its own store.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::class::Class;
use onceward_core::clock::{Clock, SystemClock};
use onceward_gateway::config::{self, Config};
use onceward_gateway::{ConfigFile, Drained, Gateway};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{Answer, ClientRequest, Origin, RawClient, until};

/// The default limit of a drain.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Builds a gateway.
pub(crate) struct GatewayBuilder {
    config: Config,
    directory: Option<TempDir>,
    file: Option<ConfigFile>,
    clock: Arc<dyn Clock>,
}

/// A gateway with a configuration in front of this origin, which is the upstream
/// `origin` in it. The harness sets listeners and store; the text may have
/// everything else, and further settings of `[server]` after a first line `server:
/// …`.
pub(crate) fn configured(origin: &Origin, text: &str) -> GatewayBuilder {
    configured_to(&origin.url(), text)
}

/// Like [`configured`], in front of this URL.
pub(crate) fn configured_to(upstream: &str, text: &str) -> GatewayBuilder {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("onceward.toml");
    std::fs::write(&path, whole(upstream, directory.path(), text)).unwrap();
    let file = ConfigFile::new(path, BTreeMap::new());
    let config = match config::load(&file.path, &file.environment) {
        Ok(loaded) => loaded.config,
        Err(mistakes) => panic!("{mistakes:#?}"),
    };
    GatewayBuilder {
        config,
        directory: Some(directory),
        file: Some(file),
        clock: Arc::new(SystemClock::new()),
    }
}

/// Completes a test's text to a whole configuration.
pub(crate) fn whole(upstream: &str, directory: &Path, text: &str) -> String {
    let (server, rest) = match text.trim_start().strip_prefix("server:") {
        Some(text) => text.split_once('\n').unwrap_or((text, "")),
        None => ("", text),
    };
    let store = store_in(&directory.join("data"));
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{}\n\
         [store]\nurl = \"{store}\"\n[upstreams.origin]\nurl = \"{upstream}\"\n{rest}",
        server.replace(';', "\n"),
    )
}

/// A gateway in front of this origin, with a temporary embedded store.
pub(crate) fn gateway(origin: &Origin) -> GatewayBuilder {
    gateway_to(&origin.url())
}

/// A gateway in front of this URL.
pub(crate) fn gateway_to(upstream: &str) -> GatewayBuilder {
    let directory = TempDir::new().unwrap();
    let mut config = Config::unconfigured(upstream);
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.admin = "127.0.0.1:0".to_owned();
    config.store = store_in(directory.path()).as_str().into();
    GatewayBuilder {
        config,
        directory: Some(directory),
        file: None,
        clock: Arc::new(SystemClock::new()),
    }
}

fn store_in(directory: &Path) -> String {
    format!("embedded:{}", directory.display())
}

impl GatewayBuilder {
    /// Puts the store into this directory, which is not removed.
    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.config.store = store_in(directory).as_str().into();
        Self {
            directory: None,
            ..self
        }
    }

    /// Uses a memory store, for tests in which the store does not matter.
    pub(crate) fn in_memory(mut self) -> Self {
        self.config.store = "memory:".into();
        Self {
            directory: None,
            ..self
        }
    }

    /// With this clock for leases, expiry and attempts.
    pub(crate) fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    pub(crate) fn class(mut self, class: Class) -> Self {
        self.config.routes[0].class = class.name.clone();
        self.config.classes.insert(class.name.clone(), class);
        self
    }

    pub(crate) fn body_limit(mut self, bytes: usize) -> Self {
        self.config.server.body_limit = bytes;
        self
    }

    pub(crate) fn reply_limit(mut self, bytes: usize) -> Self {
        self.config.server.reply_limit = bytes;
        self
    }

    pub(crate) fn upstream_timeout(mut self, timeout: Duration) -> Self {
        for upstream in self.config.upstreams.values_mut() {
            upstream.timeout = timeout;
        }
        self
    }

    pub(crate) fn head_deadline(mut self, deadline: Duration) -> Self {
        self.config.server.head_deadline = deadline;
        self
    }

    pub(crate) fn body_deadline(mut self, deadline: Duration) -> Self {
        self.config.server.body_deadline = deadline;
        self
    }

    /// Changes the configuration in a way that the file does not support.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The configuration, with its temporary directory.
    pub(crate) fn config(self) -> (Config, Option<TempDir>) {
        (self.config, self.directory)
    }

    pub(crate) async fn run(self) -> Running {
        let file = self.file.clone();
        let gateway = Gateway::start_with_clock(self.config, self.file, self.clock).await;
        Running {
            file,
            gateway: gateway.unwrap(),
            directory: self.directory,
        }
    }
}

/// A running gateway. It ends with the test, or when it is drained.
pub(crate) struct Running {
    gateway: Gateway,
    directory: Option<TempDir>,
    file: Option<ConfigFile>,
}

impl Running {
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.listen()
    }

    /// A request; `what` is a method and a target.
    pub(crate) fn request(&self, what: &str) -> ClientRequest {
        ClientRequest::new(self.gateway.listen(), what)
    }

    pub(crate) fn get(&self, target: &str) -> ClientRequest {
        self.request(&format!("GET {target}"))
    }

    /// A protected request.
    pub(crate) fn post(&self, target: &str, key: &str) -> ClientRequest {
        self.request(&format!("POST {target}")).key(key)
    }

    /// A connection for exact bytes.
    pub(crate) async fn raw(&self) -> RawClient {
        RawClient::new(TcpStream::connect(self.gateway.listen()).await.unwrap())
    }

    /// Sends a GET to the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        ClientRequest::new(self.gateway.admin(), &format!("GET {path}"))
            .host("127.0.0.1")
            .send()
            .await
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.gateway.admin()
    }

    /// The rendered metrics.
    pub(crate) async fn metrics(&self) -> String {
        self.admin("/metrics").await.text().to_owned()
    }

    /// Waits until the metrics contain this line.
    pub(crate) async fn shows(&self, line: &str) {
        until(async || self.metrics().await.lines().any(|is| is == line)).await;
    }

    /// Waits until this many requests wait for another.
    pub(crate) async fn waiting(&self, waiters: usize) {
        self.shows(&format!("onceward_waiters {waiters}")).await;
    }

    /// Waits until no operation runs.
    pub(crate) async fn idle(&self) {
        self.shows("onceward_in_flight 0").await;
    }

    /// Writes another configuration and reloads it; see [`configured`].
    pub(crate) async fn reload(&self, upstream: &str, text: &str) -> Result<String, String> {
        let directory = self.directory.as_ref().unwrap().path();
        let file = self.file.as_ref().unwrap();
        std::fs::write(&file.path, whole(upstream, directory, text)).unwrap();
        self.gateway.reload().await
    }

    /// Sends a change to the admin API.
    pub(crate) fn change(&self, path: &str, body: &str) -> ClientRequest {
        ClientRequest::new(self.gateway.admin(), &format!("POST {path}"))
            .host("127.0.0.1")
            .header("content-type", "application/json")
            .body(body.to_owned())
    }

    pub(crate) async fn drain(self) -> Drained {
        self.drain_within(DRAIN_LIMIT).await
    }

    pub(crate) async fn drain_within(self, limit: Duration) -> Drained {
        self.gateway.drain(limit).await
    }
}
