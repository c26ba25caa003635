//! The edge: a reverse proxy that makes retries safe.
//!
//! [`Gateway::start`] puts the parts together: a store, the engine on it, the
//! runtime that every request shares, and two listeners, one for traffic and
//! one for operators.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests use the system's clock and environment"
    )
)]

mod admin;
mod callers;
pub mod config;
mod listen;
mod observe;
mod pages;
mod request;
mod runtime;
mod secrets;
pub mod upstream;
mod webhooks;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use onceward_core::clock::{Clock, SystemClock};
pub use onceward_core::engine::Drained;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Admin;
use crate::config::Config;
use crate::listen::Listener;
use crate::runtime::Runtime;
use crate::runtime::background;
use crate::runtime::cores::Cores;
pub use crate::runtime::plan::PlanError;
pub use crate::runtime::reload::ConfigFile;
use crate::runtime::reload::Reloader;
pub use crate::runtime::start::StartError;
use crate::runtime::start::{Opened, Sockets};
pub use crate::secrets::gateway_key::GatewayKeyError;
use crate::webhooks::delivery::Courier;

/// A running gateway.
pub struct Gateway {
    listen: SocketAddr,
    admin: SocketAddr,
    runtime: Arc<Runtime>,
    reloader: Arc<Reloader>,
    draining: Arc<AtomicBool>,
    stop_serving: CancellationToken,
    stop_background: CancellationToken,
    serving: TaskTracker,
    background: TaskTracker,
    cores: Arc<Cores>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("listen", &self.listen)
            .field("admin", &self.admin)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// Starts a gateway. No connection is accepted before the store is open.
    /// With a file, the gateway follows the file's changes.
    pub fn start(
        config: Config,
        file: Option<ConfigFile>,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Self::start_with_clock(config, file, Arc::new(SystemClock::new()))
    }

    /// The same with this clock, for tests: leases, expiry and attempts of a
    /// store in this process follow it. Signatures and credentials are checked
    /// by the wall clock all the same.
    // Boxed, as `reload` is, so that it is compiled in this crate once and not
    // again in each program that starts a gateway.
    pub fn start_with_clock(
        config: Config,
        file: Option<ConfigFile>,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_steps(config, file, clock))
    }

    async fn start_steps(
        config: Config,
        file: Option<ConfigFile>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let sockets = Sockets::bind(&config).await?;
        let cores = Cores::start(config.server.threads).map_err(StartError::Threads)?;
        let opened = Opened::open(config, clock).await?;
        let gateway = Self::new(&sockets, &opened, cores, file);
        gateway.start_background(&sockets, &opened);
        gateway.start_delivery(&opened);
        gateway.start_admin(sockets.admin, opened);
        gateway.start_listener(sockets.traffic, &sockets.tls);
        Ok(gateway)
    }

    fn new(sockets: &Sockets, opened: &Opened, cores: Cores, file: Option<ConfigFile>) -> Self {
        Self {
            listen: sockets.traffic_address,
            admin: sockets.admin_address,
            runtime: opened.runtime.clone(),
            reloader: Arc::new(Reloader {
                file,
                runtime: opened.runtime.clone(),
                operators: opened.operators.clone(),
                audit: opened.audit.clone(),
                tls: sockets.tls.clone(),
                reloading: tokio::sync::Mutex::new(()),
            }),
            draining: Arc::default(),
            stop_serving: CancellationToken::new(),
            stop_background: CancellationToken::new(),
            serving: TaskTracker::new(),
            background: TaskTracker::new(),
            cores: Arc::new(cores),
        }
    }

    fn start_background(&self, sockets: &Sockets, opened: &Opened) {
        self.spawn_background(background::sweep(opened.inspect.clone()));
        self.spawn_background(background::tidy(self.runtime.clone()));
        self.spawn_background(background::load_failed_events(
            self.runtime.clone(),
            opened.inspect.clone(),
            opened.is_shared,
        ));
        if opened.is_shared {
            self.spawn_background(background::refresh(self.runtime.clone()));
        }
        if let Some(tls) = &sockets.tls {
            self.spawn_background(tls.clone().reload_periodically());
        }
        self.spawn_background(self.reloader.clone().watch());
    }

    fn start_delivery(&self, opened: &Opened) {
        let courier = Courier::new(self.runtime.clone(), opened.clock.clone());
        self.serving.spawn(courier.run(self.stop_serving.clone()));
    }

    fn start_admin(&self, listener: TcpListener, opened: Opened) {
        let runtime = self.runtime.clone();
        let plan = runtime.plan();
        let admin = Admin {
            engine: runtime.engine().clone(),
            inspect: opened.inspect,
            courier_wakeup: runtime.courier_wakeup().clone(),
            metrics: runtime.metrics().clone(),
            draining: self.draining.clone(),
            store_health: opened.store_health,
            classes: runtime.classes().clone(),
            api_keys: Some(plan.callers.api_keys().clone()),
            webhooks: runtime.webhooks().clone(),
            config: Arc::new(move || runtime.plan().config.clone()),
            listen: self.listen,
            operators: opened.operators,
            audit: opened.audit,
            frozen_sets: opened.frozen_sets,
            reload: self.reloader.by_operators(),
            reply_limit: plan.config.server.reply_limit,
            clock: opened.clock,
        };
        self.spawn_background(admin::serve(listener, admin::router(admin)));
    }

    fn start_listener(&self, socket: TcpListener, tls: &Option<Arc<listen::tls::ListenerTls>>) {
        let plan = self.runtime.plan();
        let (server, limits) = (&plan.config.server, &plan.config.limits);
        let listener = Listener {
            tls: tls.clone(),
            trusted: server.trusted_proxies.clone().into(),
            proxy_protocol: server.proxy_protocol,
            head_deadline: server.head_deadline,
            write_deadline: server.write_deadline,
            connections_max: limits.connections,
            streams_max: limits.streams,
            ..Listener::new(socket)
        };
        self.runtime
            .metrics()
            .set_connection_counts(listener.counts.clone());
        let service = (self.runtime.clone(), self.cores.clone());
        let serving = listen::serve(listener, service, self.stop_serving.clone());
        self.serving.spawn(serving);
    }

    /// The address of the listener for traffic.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Reads the configuration file again and puts it in force. Both results
    /// are sentences for the operator; a mistake changes nothing.
    pub fn reload(&self) -> BoxFuture<'_, Result<String, String>> {
        Box::pin(self.reloader.reload("signal"))
    }

    /// How long running work may take to end, by the configuration in force.
    pub fn drain_limit(&self) -> Duration {
        self.runtime.drain_limit()
    }

    /// Stops the gateway: it is no longer ready, accepts no connections, and
    /// waits up to `limit` for running work to end and be recorded. Work that
    /// still runs then is recorded as unknown.
    pub async fn drain(self, limit: Duration) -> Drained {
        self.draining.store(true, Ordering::Relaxed);
        self.stop_serving.cancel();
        self.serving.close();
        let engine = self.runtime.engine();
        let ending = async {
            // First: a connection that still serves may start a task.
            self.serving.wait().await;
            engine.tasks().wait().await;
            // Within the limit too: work that was cut off still holds its
            // connection.
            self.runtime.close_upstreams().await;
        };
        let drained = engine.drain(limit, ending).await;
        self.cores.stop().await;
        self.runtime.tracer().close().await;
        self.stop_background.cancel();
        self.background.close();
        self.background.wait().await;
        drained
    }

    /// Runs something until the gateway has drained.
    fn spawn_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop_background.clone();
        self.background.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }
}
