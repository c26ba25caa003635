//! The state of a running gateway, and how it changes while the gateway serves: the
//! plan made from the configuration, retention classes, reloads, and reconciliation
//! of unknown outcomes.

pub(crate) mod background;
pub(crate) mod classes;
pub(crate) mod cores;
pub(crate) mod plan;
pub(crate) mod reconcile;
pub(crate) mod reload;
pub(crate) mod start;

use std::sync::Arc;
use std::time::Duration;

use onceward_core::class::Class;
use onceward_core::clock::Timestamp;
use onceward_core::engine::{self, Engine};
use onceward_core::identity::OperationId;
use onceward_core::store::{Due, Queue, StoreError};
use onceward_http::delivery::DeliveryOutcome;
use onceward_http::problem::{Code, Problem};
use onceward_http::run::Protection;
use tokio::sync::Notify;

use crate::callers::WallClock;
use crate::config;
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::Metrics;
use crate::observe::traces::Tracer;
use crate::request::limits::Limiter;
use crate::runtime::classes::{Classes, ConfiguredClasses};
use crate::runtime::cores::Copies;
use crate::runtime::plan::Plan;
use crate::webhooks::registry::WebhookRegistry;
use crate::webhooks::warnings::WarningLimiter;

/// The state of a running gateway, shared by all requests, the courier, the
/// admin API and reloads.
pub(crate) struct Runtime {
    plan: Copies<Plan>,
    classes: Arc<Classes>,
    protection: Arc<Protection>,
    limiter: Arc<Limiter>,
    metrics: Arc<Metrics>,
    access_log: AccessLog,
    tracer: Tracer,
    webhooks: Arc<WebhookRegistry>,
    queue: Arc<dyn Queue>,
    courier_wakeup: Arc<Notify>,
    delivery_warnings: Arc<WarningLimiter>,
    clock: WallClock,
}

/// The parts of a [`Runtime`].
pub(crate) struct RuntimeParts {
    pub(crate) plan: Plan,
    pub(crate) classes: Arc<Classes>,
    pub(crate) protection: Protection,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access_log: AccessLog,
    pub(crate) tracer: Tracer,
    pub(crate) webhooks: Arc<WebhookRegistry>,
    /// The events that the courier delivers.
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) clock: WallClock,
}

impl Runtime {
    pub(crate) fn new(parts: RuntimeParts) -> Arc<Self> {
        Arc::new(Self {
            limiter: Limiter::new(&parts.plan.config.limits),
            plan: Copies::new(&parts.plan),
            classes: parts.classes,
            protection: Arc::new(parts.protection),
            metrics: parts.metrics,
            access_log: parts.access_log,
            tracer: parts.tracer,
            webhooks: parts.webhooks,
            queue: parts.queue,
            courier_wakeup: Arc::default(),
            delivery_warnings: Arc::default(),
            clock: parts.clock,
        })
    }

    /// The plan in force. A request takes it once and keeps it until it ends.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan.here().load_full()
    }

    pub(crate) fn classes(&self) -> &Arc<Classes> {
        &self.classes
    }

    /// The class of this name as it is now. If a reload has removed it since the
    /// request began, the class as it was in `plan`.
    pub(crate) fn class(&self, plan: &Plan, name: &Arc<str>) -> Result<Arc<Class>, Problem> {
        let in_plan = || plan.config.classes.get(name).cloned().map(Arc::new);
        self.classes.get(name).or_else(in_plan).ok_or_else(|| {
            // The plan was checked: each of its routes has a class.
            Problem::new(Code::NoRoute, "The class of this route does not exist.")
        })
    }

    pub(crate) fn protection(&self) -> &Arc<Protection> {
        &self.protection
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.protection.engine
    }

    pub(crate) fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) fn access_log(&self) -> &AccessLog {
        &self.access_log
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    pub(crate) fn webhooks(&self) -> &Arc<WebhookRegistry> {
        &self.webhooks
    }

    pub(crate) fn clock(&self) -> &WallClock {
        &self.clock
    }

    /// The queue into which events are recorded.
    pub(crate) fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// Takes up to `max` due events from the queue.
    pub(crate) async fn take_due(&self, max: usize) -> Result<Vec<Due>, StoreError> {
        self.queue.due(max).await
    }

    /// When the next event in the queue is due.
    pub(crate) async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        self.queue.next_due().await
    }

    /// Wakes the courier, so that it reads the queue now or the next time it waits.
    pub(crate) fn courier_wakeup(&self) -> &Arc<Notify> {
        &self.courier_wakeup
    }

    /// Limits the warnings about events that were not accepted.
    pub(crate) fn delivery_warnings(&self) -> &Arc<WarningLimiter> {
        &self.delivery_warnings
    }

    /// Counts an attempt to deliver an event.
    pub(crate) fn count_delivery(&self, upstream: &str, id: OperationId, outcome: DeliveryOutcome) {
        self.metrics.delivered(upstream, id, outcome);
    }

    /// Puts a new plan in force, with its classes and limits. Requests under way
    /// keep their plan.
    pub(crate) async fn replace_plan(&self, plan: Plan, classes: ConfiguredClasses) {
        let limits = plan.config.limits.clone();
        self.classes.replace_base(classes).await;
        // Before the plan, whose routes keep the counters that they find first.
        self.metrics.set_label_values(limits.label_values);
        self.plan.replace(&plan);
        self.limiter.set_limits(&limits);
        self.engine().set_limits(engine_limits(&limits));
    }

    /// Counts failed fetches of issuers' keys, forgets the rates of idle tenants, and
    /// closes connections to upstreams that were not used for too long.
    pub(crate) fn tidy(&self) {
        let plan = self.plan();
        for (issuer, times) in plan.callers.failures() {
            self.metrics.jwks_failed(issuer, times);
        }
        for forwarder in plan.forwarders.values() {
            forwarder.close_expired();
        }
        self.limiter.tidy();
    }

    /// How long a stopping gateway waits for running work.
    pub(crate) fn drain_limit(&self) -> Duration {
        self.plan().config.server.drain
    }

    /// Closes the connections to upstreams, once their requests have ended.
    pub(crate) async fn close_upstreams(&self) {
        for forwarder in self.plan().forwarders.values() {
            forwarder.close().await;
        }
    }
}

/// The engine's part of the limits.
pub(crate) fn engine_limits(limits: &config::Limits) -> engine::Limits {
    engine::Limits::default().with(|engine| {
        engine.store_deadline = limits.store_deadline;
        engine.waiters_per_key = limits.waiters_per_key;
        engine.waiters_per_tenant = limits.waiters_per_tenant;
        engine.waiters = limits.waiters;
    })
}
