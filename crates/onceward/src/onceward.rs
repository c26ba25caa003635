//! One call that opens a store and everything that runs on it: the engine, the
//! sweeper, and their end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::application::Records;
use onceward_core::clock::{Clock, SystemClock};
use onceward_core::engine::{Drained, Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::namespace::Namespace;
use onceward_core::store::{Inspect, Store, sweep_every};
use onceward_http::layer::{IdempotencyBuilder, IdempotencyLayer};
use onceward_stores::{OpenError, Settings};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often expired records are reclaimed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// How long [`Onceward::close`] waits for running operations.
const DRAIN: Duration = Duration::from_secs(30);

/// An open store with its engine and its sweeper. Clones share all of it.
///
/// Call [`close`](Self::close) before the process ends. Without it nothing is
/// lost that was answered, but operations that still run are cut off with the
/// runtime: a shared store holds them as unknown after their lease, an embedded
/// one from its next start. The sweeper stops when the last clone is dropped and
/// nothing made from it, such as a layer, is left.
#[derive(Clone)]
pub struct Onceward {
    engine: Arc<Engine>,
    inspect: Arc<dyn Inspect>,
    sweeper: TaskTracker,
    stop: CancellationToken,
    drain: Duration,
}

/// How [`Onceward::close`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// Every operation ended and is recorded.
    Drained,
    /// Some operations did not end in time.
    Abandoned {
        /// How many. They are recorded as unknown, if the store took it.
        operations: usize,
    },
}

/// Why [`Onceward`] could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Entropy(#[source] std::io::Error),
}

impl Onceward {
    /// Opens a store with all defaults: `embedded:DIR`, `postgres://…`,
    /// `redis://…` or `memory:`, or [`Settings`].
    ///
    /// # Errors
    ///
    /// The store cannot be opened; the error says why and what to do.
    pub async fn open(settings: impl Into<Settings>) -> Result<Self, StartError> {
        Self::builder().open(settings).await
    }

    /// The parts, to choose some of them.
    pub fn builder() -> Builder {
        Builder {
            clock: None,
            entropy: None,
            limits: Limits::default(),
            sweep_interval: SWEEP_INTERVAL,
            drain: DRAIN,
        }
    }

    /// A tower layer for HTTP services. Several layers may share a store.
    pub fn layer(&self) -> IdempotencyBuilder {
        IdempotencyLayer::builder(self.engine.clone())
    }

    /// Records of work that is not an HTTP request, for
    /// [`RawStore`](crate::RawStore) and [`TypedStore`](crate::TypedStore).
    pub fn records(&self, namespace: Namespace) -> Records {
        Records::new(self.engine.clone(), self.inspect.clone(), namespace)
    }

    /// The engine that runs operations on the store.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The operators' view of the store: list, count, resolve, resume, purge.
    pub fn inspect(&self) -> &Arc<dyn Inspect> {
        &self.inspect
    }

    /// Waits until running operations have ended and are recorded, at most for
    /// the builder's [`drain`](Builder::drain), and stops the sweeper. Stop
    /// serving requests before. What runs after the limit is abandoned and
    /// recorded as unknown.
    pub async fn close(&self) -> Closed {
        let ending = self.engine.tasks().wait();
        let drained = self.engine.drain(self.drain, ending).await;
        self.stop.cancel();
        self.sweeper.wait().await;
        match drained {
            Drained::Whole => Closed::Drained,
            Drained::Cut { running } => Closed::Abandoned {
                operations: running,
            },
        }
    }
}

impl fmt::Debug for Onceward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Onceward")
            .field("running", &self.engine.running())
            .field("waiters", &self.engine.waiters())
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}

/// The parts of an [`Onceward`]. Each has a default.
#[must_use]
pub struct Builder {
    clock: Option<Arc<dyn Clock>>,
    entropy: Option<Entropy>,
    limits: Limits,
    sweep_interval: Duration,
    drain: Duration,
}

impl Builder {
    /// The clock of a store in this process; servers use their own. For tests.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock: Some(clock),
            ..self
        }
    }

    /// The source of random numbers. For tests: processes that share a store
    /// must not share a seed.
    pub fn entropy(self, entropy: Entropy) -> Self {
        Self {
            entropy: Some(entropy),
            ..self
        }
    }

    /// The limits of the engine: deadlines and waiters.
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// How often expired records are reclaimed; every 10 seconds by default.
    pub fn sweep_interval(self, sweep_interval: Duration) -> Self {
        Self {
            sweep_interval,
            ..self
        }
    }

    /// How long [`Onceward::close`] waits; 30 seconds by default.
    pub fn drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Opens the store that these settings name.
    ///
    /// # Errors
    ///
    /// The store cannot be opened.
    pub async fn open(mut self, settings: impl Into<Settings>) -> Result<Onceward, StartError> {
        let clock = self.clock.take();
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let opened = onceward_stores::open(settings, clock).await?;
        self.start(opened.store, opened.inspect)
    }

    /// Runs on a store that is already open, such as one of your own.
    ///
    /// # Errors
    ///
    /// The system gives no random numbers.
    pub async fn with_store<S: Store + Inspect>(
        self,
        store: Arc<S>,
    ) -> Result<Onceward, StartError> {
        self.start(store.clone(), store)
    }

    /// Within a runtime, on which the sweeper is spawned.
    fn start(
        self,
        store: Arc<dyn Store>,
        inspect: Arc<dyn Inspect>,
    ) -> Result<Onceward, StartError> {
        let entropy = match self.entropy {
            Some(entropy) => entropy,
            None => Entropy::system().map_err(StartError::Entropy)?,
        };
        let (sweeper, stop) = (TaskTracker::new(), CancellationToken::new());
        let sweeping = sweep_every(self.sweep_interval, Arc::downgrade(&inspect));
        let stopped = stop.clone();
        sweeper.spawn(async move {
            stopped.run_until_cancelled(sweeping).await;
        });
        sweeper.close();
        Ok(Onceward {
            engine: Engine::new(store, entropy, self.limits),
            inspect,
            sweeper,
            stop,
            drain: self.drain,
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("limits", &self.limits)
            .field("sweep_interval", &self.sweep_interval)
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}
