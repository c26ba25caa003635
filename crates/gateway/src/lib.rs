//! The edge: a reverse proxy that makes retries safe.
//!
//! [`Gateway::start`] puts the pieces together: a store, the engine on it, the
//! runtime that each request goes through, and two listeners, one for traffic
//! and one for those who operate it.

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

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward_core::clock::{Clock, SystemClock};
use onceward_core::engine::Engine;
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::store::{StoreError, sweep_every};
use onceward_http::run::Protection;
use onceward_stores::{OpenError, open};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{Admin, Audit, FrozenSets, Operators, StoreHealth};
use crate::callers::{Callers, CallersError, WallClock};
use crate::config::{Config, StoreKind};
use crate::listen::Door;
use crate::listen::tls::{ServerTls, TlsError};
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::Metrics;
use crate::observe::traces::Tracer;
use crate::runtime::classes::{Base, Classes};
use crate::runtime::plan::Plan;
pub use crate::runtime::plan::PlanError;
use crate::runtime::reconcile::Reconciler;
pub use crate::runtime::reload::ConfigFile;
use crate::runtime::reload::Reloader;
use crate::runtime::{Runtime, RuntimeParts};
use crate::secrets::SecretReader;
pub use crate::secrets::gateway_key::SecretError;
use crate::secrets::gateway_key::{Agreement, Secret};
use crate::webhooks::delivery::Courier;
use crate::webhooks::registry::{Webhooks, WebhooksError};

/// How often what has expired is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// How long what is given up at the end may take to be recorded.
const ABANDON_LIMIT: Duration = Duration::from_secs(3);
/// How often histograms are folded and what tenants asked is forgotten.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which address.
        address: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The admin listener would be reachable from other machines.
    #[error(
        "the admin listener {0} is not a loopback address, and there is no token to protect it; use 127.0.0.1, or set server.admin_token"
    )]
    AdminExposed(SocketAddr),
    /// What is configured cannot be served.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store does not open.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store does not give what was kept in it.
    #[error("the store cannot be read: {0}")]
    Read(#[from] StoreError),
    /// There is no secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A secret that the configuration names cannot be read.
    #[error("{0}")]
    Named(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Callers cannot be known.
    #[error("{0}")]
    Callers(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Webhooks cannot be served.
    #[error("{0}")]
    Webhooks(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Traces cannot be sent.
    #[error("telemetry.otlp: {0}")]
    Telemetry(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Entropy(io::Error),
    /// The metrics cannot be set up.
    #[error("the metrics cannot be set up: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

impl From<secrets::SecretError> for StartError {
    fn from(error: secrets::SecretError) -> Self {
        Self::Named(Box::new(error))
    }
}

impl From<CallersError> for StartError {
    fn from(error: CallersError) -> Self {
        Self::Callers(Box::new(error))
    }
}

impl From<WebhooksError> for StartError {
    fn from(error: WebhooksError) -> Self {
        Self::Webhooks(Box::new(error))
    }
}

/// A running gateway.
pub struct Gateway {
    listen: SocketAddr,
    admin: SocketAddr,
    engine: Arc<Engine>,
    runtime: Arc<Runtime>,
    reloader: Arc<Reloader>,
    draining: Arc<AtomicBool>,
    stop_serving: CancellationToken,
    stop_all: CancellationToken,
    servers: TaskTracker,
    keepers: TaskTracker,
}

impl Gateway {
    /// Opens the store, listens, serves. Nothing is accepted before the store
    /// is open. With a file, the gateway follows its changes.
    pub async fn start(config: Config, file: Option<ConfigFile>) -> Result<Self, StartError> {
        let listener = bind(&config.server.listen).await?;
        let admin_listener = bind(&config.server.admin).await?;
        let admin_address = local_address(&admin_listener, &config.server.admin)?;
        if !admin_address.ip().is_loopback() && config.server.admin_tokens.is_empty() {
            return Err(StartError::AdminExposed(admin_address));
        }
        let tls = config.server.tls.clone().map(ServerTls::new).transpose()?;
        let tls = tls.map(Arc::new);
        let metrics = Arc::new(Metrics::new()?);
        metrics.set_label_values(config.limits.label_values);
        let secrets = SecretReader::new(&config.secrets)?;
        let operators = runtime::reload::operators(&config, &secrets).await?;
        let secret = secret_of(&config)?;
        let shared = config.store_kind().is_some_and(StoreKind::is_shared);

        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let opened = open(config.store.clone(), clock.clone()).await?;
        if shared && secret.agrees(opened.registry.as_ref()).await? == Agreement::Another {
            return Err(SecretError::Another.into());
        }
        let wall = WallClock::system();
        let callers = callers::Parts {
            registry: opened.registry.clone(),
            pepper: secret.clone(),
            secrets: secrets.clone(),
            clock: wall.clone(),
        };
        let callers = Callers::open(&config.auth, callers).await?;
        let api_keys = callers.api_keys().clone();
        let registry = opened.registry.clone();
        let webhooks = Webhooks::open(registry, &secret, &config, secrets, wall.clone()).await?;
        let webhooks = Arc::new(webhooks);
        let plan = Plan::new(config, callers, &metrics, None)?;
        let classes = Classes::open(opened.registry.clone(), Base::of(&plan)).await?;
        let classes = Arc::new(classes);
        let audit = Arc::new(Audit::new(opened.registry, clock.clone(), entropy()?));
        let store_health = Arc::new(StoreHealth::new(clock.clone()));
        let store = metrics.timed(opened.store, store_health.clone());
        let engine = Engine::new(
            store,
            entropy()?,
            runtime::engine_limits(&plan.config.limits),
        );
        let telemetry = &plan.config.telemetry;
        let tracer = match &telemetry.otlp {
            None => Tracer::off(),
            Some(otlp) => Tracer::start(otlp, entropy()?, metrics.spans())
                .map_err(|error| StartError::Telemetry(Box::new(error)))?,
        };
        let server = &plan.config.server;
        let limits = &plan.config.limits;
        let door = Door {
            tls: tls.clone(),
            trusted: plan.trusted.clone(),
            proxy_protocol: server.proxy_protocol,
            head_deadline: server.head_deadline,
            write_deadline: server.write_deadline,
            connections_max: limits.connections,
            streams_max: limits.streams,
            ..Door::new(listener)
        };
        metrics.watch(door.census.clone());
        let listen = local_address(&door.listener, &server.listen)?;
        let reply_limit = server.reply_limit;
        let runtime = Runtime::new(RuntimeParts {
            protection: Protection {
                engine: engine.clone(),
                fingerprinter: Fingerprinter::keyed(secret.bytes()),
                reconciler: Some(Arc::new(
                    Reconciler::new(opened.inspect.clone()).with_reply_limit(reply_limit),
                )),
            },
            access_log: AccessLog::new(secret, telemetry.keys),
            classes: classes.clone(),
            metrics: metrics.clone(),
            tracer,
            webhooks: webhooks.clone(),
            queue: opened.queue,
            clock: wall,
            plan,
        });
        let operators = Arc::new(Operators::new(operators));
        let reloader = Arc::new(Reloader {
            file,
            runtime: runtime.clone(),
            operators: operators.clone(),
            audit: audit.clone(),
            tls: tls.clone(),
            turn: tokio::sync::Mutex::new(()),
        });
        let gateway = Self {
            listen,
            admin: admin_address,
            engine: engine.clone(),
            runtime: runtime.clone(),
            reloader: reloader.clone(),
            draining: Arc::default(),
            stop_serving: CancellationToken::new(),
            stop_all: CancellationToken::new(),
            servers: TaskTracker::new(),
            keepers: TaskTracker::new(),
        };
        let serving = listen::serve(door, runtime.clone(), gateway.stop_serving.clone());
        gateway.servers.spawn(serving);
        let courier = Courier::new(runtime.clone(), clock.clone());
        gateway
            .servers
            .spawn(courier.run(gateway.stop_serving.clone()));
        gateway.keep(sweep_every(SWEEP_INTERVAL, Arc::downgrade(&opened.inspect)));
        gateway.keep(fold(runtime));
        if shared {
            gateway.keep(runtime::refresh::keep_fresh(
                api_keys.clone(),
                classes.clone(),
                webhooks.clone(),
            ));
        }
        if let Some(tls) = tls {
            gateway.keep(tls.keep_fresh());
        }
        gateway.keep(reloader.clone().watch());
        let in_force = gateway.runtime.clone();
        let admin = admin::router(Admin {
            engine,
            inspect: opened.inspect,
            courier_wakeup: gateway.runtime.courier_wakeup().clone(),
            metrics,
            draining: gateway.draining.clone(),
            store_health,
            classes,
            api_keys: Some(api_keys),
            webhooks,
            config: Arc::new(move || in_force.plan().config.clone()),
            listen,
            operators,
            audit,
            frozen_sets: FrozenSets::new(clock.clone(), entropy()?),
            reload: reloader.by_operators(),
            reply_limit,
            clock,
        });
        gateway.keep(admin::serve(admin_listener, admin));
        Ok(gateway)
    }

    /// Where requests come in.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Where operators look.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Reads the configuration again and puts it in force; a sentence in either
    /// case. A mistake changes nothing.
    pub async fn reload(&self) -> Result<String, String> {
        self.reloader.reload("signal").await
    }

    /// How long the configuration of now lets running work take to end.
    pub fn drain_limit(&self) -> Duration {
        self.runtime.drain_limit()
    }

    /// Stops: not ready, no new connections, then waits for what runs to end
    /// and be recorded, at most this long. What still runs then is recorded as
    /// unknown.
    pub async fn drain(self, limit: Duration) -> Drained {
        self.draining.store(true, Ordering::Relaxed);
        self.stop_serving.cancel();
        self.servers.close();
        self.engine.tasks().close();
        let ending = async {
            self.servers.wait().await;
            self.engine.tasks().wait().await;
            // Within the limit too: what was cut still holds its connection.
            self.runtime.close_upstreams().await;
        };
        let drained = match tokio::time::timeout(limit, ending).await {
            Ok(()) => Drained::Whole,
            Err(_) => {
                let running = self.engine.running();
                // What is given up is recorded as unknown, if the store takes it.
                self.engine.abandon();
                let writing = self.engine.tasks().wait();
                let _ = tokio::time::timeout(ABANDON_LIMIT, writing).await;
                Drained::Cut { running }
            }
        };
        self.runtime.tracer().close().await;
        self.stop_all.cancel();
        self.keepers.close();
        self.keepers.wait().await;
        drained
    }

    /// Runs something for as long as the gateway lives.
    fn keep(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop_all.clone();
        self.keepers.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }
}

/// How draining ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything ended and was recorded.
    Whole,
    /// The limit came first.
    Cut {
        /// How many operations still ran.
        running: usize,
    },
}

/// The gateway's own secret: as configured, else beside an embedded store, else
/// for the life of this process, if nobody else uses the store.
fn secret_of(config: &Config) -> Result<Secret, SecretError> {
    if let Some(key) = &config.secrets.key {
        return Ok(Secret::given(key));
    }
    if config.store_kind().is_some_and(StoreKind::is_shared) {
        return Err(SecretError::Needed);
    }
    match config.store.url.strip_prefix("embedded:") {
        Some("") | None => Secret::new(),
        Some(directory) => Secret::in_directory(Path::new(directory)),
    }
}

fn entropy() -> Result<Entropy, StartError> {
    Entropy::system().map_err(StartError::Entropy)
}

async fn bind(address: &str) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen {
            address: address.to_owned(),
            source,
        })
}

fn local_address(listener: &TcpListener, asked: &str) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen {
        address: asked.to_owned(),
        source,
    })
}

async fn fold(runtime: Arc<Runtime>) {
    loop {
        tokio::time::sleep(FOLD_INTERVAL).await;
        runtime.tidy();
    }
}
