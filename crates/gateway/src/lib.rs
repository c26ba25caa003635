//! The edge: a reverse proxy that makes retries safe.
//!
//! [`Gateway::start`] puts the pieces together: a store, the engine on it, the
//! pipeline that each request goes through, and two listeners, one for traffic
//! and one for those who operate it.

mod access;
mod admin;
mod forward;
pub mod framing;
mod metrics;
mod pages;
mod passing;
mod pipeline;
mod screen;
mod secret;
mod server;
pub mod upstream;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::clock::SystemClock;
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::store::Inspect;
use onceward_http::run::{Credentials, Protection};
use onceward_stores::{OpenError, open};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::admin::Admin;
use crate::forward::Forwarder;
use crate::metrics::{Labels, Metrics};
use crate::pipeline::Pipeline;
use crate::secret::{Secret, SecretError};
use crate::upstream::{Upstream, UpstreamError};

/// How often what has expired is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// How many operations one sweep reclaims at most, before it rests.
const SWEEP_MAX: usize = 50_000;
/// How often histograms are folded.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);

/// How a gateway is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where requests come in.
    pub listen: String,
    /// Where operators look.
    pub admin: String,
    /// Where requests go: `http://…`, or `h2c://…` for HTTP/2.
    pub upstream: String,
    /// Where operations are kept: `memory:` or `embedded:DIR`.
    pub store: String,
    /// The class of all routes.
    pub class: Class,
    /// The largest body of a protected request, in bytes.
    pub body_limit: usize,
    /// The largest reply that is kept, in bytes.
    pub reply_limit: usize,
    /// How long the upstream may take.
    pub upstream_timeout: Duration,
    /// How long a client may take for a request's head, and stay idle between two.
    pub head_deadline: Duration,
    /// How long the body of a protected request may take, and a pause in one
    /// that streams through.
    pub body_deadline: Duration,
}

impl Settings {
    /// The settings of a gateway without configuration.
    pub fn new(upstream: &str) -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            admin: "127.0.0.1:8081".to_owned(),
            upstream: upstream.to_owned(),
            store: "embedded:./onceward-data".to_owned(),
            class: Class::interactive(),
            body_limit: 1 << 20,
            reply_limit: 1 << 20,
            upstream_timeout: Duration::from_secs(30),
            head_deadline: Duration::from_secs(30),
            body_deadline: Duration::from_secs(30),
        }
    }
}

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
        "the admin listener {0} is not a loopback address, and there is no token to protect it; use 127.0.0.1"
    )]
    AdminExposed(SocketAddr),
    /// The upstream's URL is not one.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The store does not open.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// There is no secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The lease would end before the upstream may answer.
    #[error(
        "the lease of class {class} ({lease:?}) is shorter than the upstream timeout ({timeout:?}); make it longer"
    )]
    ShortLease {
        /// Which class.
        class: Arc<str>,
        /// Its lease.
        lease: Duration,
        /// The upstream timeout.
        timeout: Duration,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Entropy(io::Error),
    /// The metrics cannot be set up.
    #[error("the metrics cannot be set up: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// A running gateway.
pub struct Gateway {
    listen: SocketAddr,
    admin: SocketAddr,
    engine: Arc<Engine>,
    upstream: Arc<Upstream>,
    forwarder: Arc<Forwarder>,
    draining: Arc<AtomicBool>,
    stop_serving: CancellationToken,
    stop_all: CancellationToken,
    servers: TaskTracker,
    keepers: TaskTracker,
}

impl Gateway {
    /// Opens the store, listens, serves. Nothing is accepted before the store
    /// is open.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        if settings.class.lease < settings.upstream_timeout {
            return Err(StartError::ShortLease {
                class: settings.class.name,
                lease: settings.class.lease,
                timeout: settings.upstream_timeout,
            });
        }
        let upstream = Upstream::parse(&settings.upstream)?;
        let upstream = Arc::new(upstream.with_limits(bounds(settings.upstream_timeout)));
        let listener = bind(&settings.listen).await?;
        let admin_listener = bind(&settings.admin).await?;
        let admin_address = local_address(&admin_listener, &settings.admin)?;
        if !admin_address.ip().is_loopback() {
            return Err(StartError::AdminExposed(admin_address));
        }
        let secret = match settings.store.strip_prefix("embedded:") {
            Some("") | None => Secret::new()?,
            Some(directory) => Secret::in_directory(Path::new(directory))?,
        };
        let opened = open(&settings.store, Arc::new(SystemClock::new()))?;
        let metrics = Arc::new(Metrics::new()?);
        let entropy = Entropy::system().map_err(StartError::Entropy)?;
        let engine = Engine::new(metrics.timed(opened.store), entropy, Limits::default());
        let forwarder = Arc::new(Forwarder::new(
            upstream.clone(),
            metrics.clone(),
            settings.upstream_timeout,
            settings.body_deadline,
        ));
        let caller = Caller::local();
        let labels = Labels::unconfigured(&caller, &settings.class.name);
        let pipeline = Arc::new(Pipeline {
            protection: Arc::new(Protection {
                engine: engine.clone(),
                fingerprinter: Fingerprinter::keyed(secret.bytes()),
                credentials: Credentials::Compared,
                upstream_timeout: settings.upstream_timeout,
                reply_limit: settings.reply_limit,
            }),
            class: Arc::new(settings.class),
            caller,
            forwarder: forwarder.clone(),
            route_metrics: metrics.route(labels),
            metrics: metrics.clone(),
            access: Access::new(secret),
            body_limit: settings.body_limit,
            body_deadline: settings.body_deadline,
        });
        let gateway = Self {
            listen: local_address(&listener, &settings.listen)?,
            admin: admin_address,
            engine: engine.clone(),
            upstream,
            forwarder,
            draining: Arc::default(),
            stop_serving: CancellationToken::new(),
            stop_all: CancellationToken::new(),
            servers: TaskTracker::new(),
            keepers: TaskTracker::new(),
        };
        let stop = gateway.stop_serving.clone();
        let serving = server::serve(listener, pipeline, settings.head_deadline, stop);
        gateway.servers.spawn(serving);
        gateway.keep(sweep(opened.inspect.clone()));
        gateway.keep(fold(metrics.clone()));
        let admin = admin::router(Admin {
            engine,
            inspect: opened.inspect,
            metrics,
            draining: gateway.draining.clone(),
        });
        gateway.keep(async move {
            if let Err(error) = axum::serve(admin_listener, admin).await {
                tracing::error!(%error, "the admin listener ended");
            }
        });
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

    /// Stops: not ready, no new connections, then waits for what runs to end
    /// and be recorded, at most this long. What still runs then has its claim
    /// on record and will be found unknown.
    pub async fn drain(self, limit: Duration) -> Drained {
        self.draining.store(true, Ordering::Relaxed);
        self.stop_serving.cancel();
        self.servers.close();
        self.engine.tasks().close();
        let ending = async {
            self.servers.wait().await;
            self.engine.tasks().wait().await;
            self.forwarder.close().await;
            // Within the limit too: what was cut still holds its connection.
            self.upstream.close().await;
        };
        let drained = match tokio::time::timeout(limit, ending).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut {
                running: self.engine.running(),
            },
        };
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

/// Connecting is given up before the answer is: only then is it certain that
/// nothing was sent.
fn bounds(timeout: Duration) -> upstream::Limits {
    let usual = upstream::Limits::default();
    upstream::Limits {
        connect_timeout: usual.connect_timeout.min(timeout / 2),
        ..usual
    }
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

/// Reclaims room from what is over, a little at a time.
async fn sweep(inspect: Arc<dyn Inspect>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        match inspect.sweep(SWEEP_MAX).await {
            Ok(0) => {}
            Ok(operations) => tracing::info!(operations, "swept"),
            Err(error) => tracing::warn!(%error, "could not sweep"),
        }
    }
}

async fn fold(metrics: Arc<Metrics>) {
    loop {
        tokio::time::sleep(FOLD_INTERVAL).await;
        metrics.fold();
    }
}
