//! Makes a [`Runtime`] from a configuration before the first connection is
//! accepted.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use onceward_core::clock::Clock;
use onceward_core::engine::Engine;
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::store::{Inspect, StoreError};
use onceward_http::run::Protection;
use onceward_stores::{OpenError, open};
use tokio::net::TcpListener;

use super::classes::{Classes, ConfiguredClasses};
use super::plan::{Plan, PlanError};
use super::reconcile::Reconciler;
use super::{Runtime, RuntimeParts, engine_limits};
use crate::admin::{Audit, FrozenSets, OperatorToken, Operators, StoreHealth};
use crate::callers::{self, Callers, CallersError, WallClock};
use crate::config::{Config, Otlp, StoreKind};
use crate::listen::tls::{ListenerTls, TlsError};
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::Metrics;
use crate::observe::traces::Tracer;
use crate::secrets::gateway_key::{GatewayKey, GatewayKeyError, KeyMatch};
use crate::secrets::{self, SecretReader};
use crate::webhooks::registry::{WebhookRegistry, WebhooksError};

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The gateway cannot listen on an address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The admin listener would be reachable from other machines.
    #[error(
        "the admin listener {0} is not a loopback address, and there is no token to protect it; use 127.0.0.1, or set server.admin_token"
    )]
    AdminExposed(SocketAddr),
    /// The configuration cannot be served.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store did not open.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store opened but cannot be read.
    #[error("the store cannot be read: {0}")]
    Read(#[from] StoreError),
    /// The gateway's key is missing or unusable.
    #[error(transparent)]
    Secret(#[from] GatewayKeyError),
    /// A secret that the configuration names cannot be read.
    #[error("{0}")]
    Named(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Callers cannot be authenticated.
    #[error("{0}")]
    Callers(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Webhooks cannot be served.
    #[error("{0}")]
    Webhooks(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The TLS certificate is not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Traces cannot be exported.
    #[error("telemetry.otlp: {0}")]
    Telemetry(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The system provides no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Entropy(io::Error),
    /// The threads that serve requests cannot be started.
    #[error("the threads that serve requests cannot be started: {0}")]
    Threads(io::Error),
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

/// The sockets of a gateway, bound and not yet accepting.
pub(crate) struct Sockets {
    pub(crate) traffic: TcpListener,
    pub(crate) traffic_address: SocketAddr,
    pub(crate) admin: TcpListener,
    pub(crate) admin_address: SocketAddr,
    pub(crate) tls: Option<Arc<ListenerTls>>,
}

impl Sockets {
    /// Binds both listeners. An admin listener that other machines can reach
    /// requires a token.
    pub(crate) async fn bind(config: &Config) -> Result<Self, StartError> {
        let server = &config.server;
        let (traffic, traffic_address) = bind(&server.listen).await?;
        let (admin, admin_address) = bind(&server.admin).await?;
        if !admin_address.ip().is_loopback() && server.admin_tokens.is_empty() {
            return Err(StartError::AdminExposed(admin_address));
        }
        let tls = server.tls.clone().map(ListenerTls::new).transpose()?;
        Ok(Self {
            traffic,
            traffic_address,
            admin,
            admin_address,
            tls: tls.map(Arc::new),
        })
    }
}

async fn bind(address: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen {
        address: address.to_owned(),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

/// A runtime and the operators' parts beside it.
pub(crate) struct Opened {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) inspect: Arc<dyn Inspect>,
    pub(crate) operators: Arc<Operators>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) frozen_sets: FrozenSets,
    pub(crate) store_health: Arc<StoreHealth>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether other gateways use the same store.
    pub(crate) is_shared: bool,
}

impl Opened {
    /// Opens the store, makes the plan, and makes the runtime from both.
    pub(crate) async fn open(config: Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new());
        let secrets = SecretReader::new(&config.secrets)?;
        let operators = operator_tokens(&config, &secrets).await?;
        let key = gateway_key(&config)?;
        let is_shared = config.store_kind().is_some_and(StoreKind::is_shared);
        let wall_clock = WallClock::system();

        let store = open(config.store.clone(), clock.clone()).await?;
        let registry = store.registry;
        if is_shared && key.compare_with_store(registry.as_ref()).await? == KeyMatch::Different {
            return Err(GatewayKeyError::Different.into());
        }

        let parts = callers::Parts {
            registry: registry.clone(),
            pepper: key.clone(),
            secrets: secrets.clone(),
            clock: wall_clock.clone(),
        };
        let callers = Callers::open(&config.auth, parts).await?;
        let webhooks =
            WebhookRegistry::open(registry.clone(), &key, &config, secrets, wall_clock.clone())
                .await?;
        let plan = Plan::new(config, callers, &metrics, None)?;
        let classes = Classes::open(registry.clone(), ConfiguredClasses::of(&plan)).await?;

        let store_health = Arc::new(StoreHealth::new(clock.clone()));
        let timed = metrics.timed(store.store, store_health.clone());
        let limits = &plan.config.limits;
        metrics.set_label_values(limits.label_values);
        let engine = Engine::new(timed, entropy()?, engine_limits(limits));
        let reconciler =
            Reconciler::new(store.inspect.clone()).with_reply_limit(plan.config.server.reply_limit);
        let telemetry = &plan.config.telemetry;
        let runtime = Runtime::new(RuntimeParts {
            protection: Protection::new(engine, Fingerprinter::keyed(key.bytes()))
                .with_reconciler(Arc::new(reconciler)),
            tracer: tracer(telemetry.otlp.as_ref(), &metrics)?,
            access_log: AccessLog::new(key, telemetry.keys),
            classes: Arc::new(classes),
            metrics,
            webhooks: Arc::new(webhooks),
            queue: store.queue,
            clock: wall_clock,
            plan,
        });
        Ok(Self {
            runtime,
            inspect: store.inspect,
            operators: Arc::new(Operators::new(operators)),
            audit: Arc::new(Audit::new(registry, clock.clone(), entropy()?)),
            frozen_sets: FrozenSets::new(clock.clone(), entropy()?),
            store_health,
            clock,
            is_shared,
        })
    }
}

/// Reads the tokens of the admin API from their configured sources.
pub(crate) async fn operator_tokens(
    config: &Config,
    secrets: &SecretReader,
) -> Result<Vec<OperatorToken>, secrets::SecretError> {
    let mut operators = Vec::with_capacity(config.server.admin_tokens.len());
    for token in &config.server.admin_tokens {
        operators.push(OperatorToken {
            name: token.name.clone(),
            role: token.role,
            token: secrets.read(&token.token).await?,
        });
    }
    Ok(operators)
}

/// The gateway's own key: the configured key, else the key beside an embedded
/// store, else a new key for the life of this process. A shared store requires a
/// configured key.
fn gateway_key(config: &Config) -> Result<GatewayKey, GatewayKeyError> {
    if let Some(key) = &config.secrets.key {
        return Ok(GatewayKey::given(key));
    }
    if config.store_kind().is_some_and(StoreKind::is_shared) {
        return Err(GatewayKeyError::NotConfigured);
    }
    match config.store.url.strip_prefix("embedded:") {
        Some("") | None => GatewayKey::new(),
        Some(directory) => GatewayKey::in_directory(Path::new(directory)),
    }
}

fn tracer(otlp: Option<&Otlp>, metrics: &Metrics) -> Result<Tracer, StartError> {
    match otlp {
        None => Ok(Tracer::off()),
        Some(otlp) => Tracer::start(otlp, entropy()?, metrics.spans())
            .map_err(|error| StartError::Telemetry(Box::new(error))),
    }
}

fn entropy() -> Result<Entropy, StartError> {
    Entropy::system().map_err(StartError::Entropy)
}
