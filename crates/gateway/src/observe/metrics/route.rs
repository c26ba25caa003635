//! The counters of one caller on one route. Every protected request looks them up,
//! so the lookup takes no lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use http::{HeaderMap, StatusCode};
use metrics::{Counter, Key, Label};
use onceward_core::caller::Caller;
use onceward_core::record::State;
use onceward_http::fields;
use onceward_http::problem::Code;
use onceward_http::run::Outcome;

use super::family::{Family, Positioned};
use super::{MetricRegistry, Metrics, OTHER, RequestMetrics};
use crate::config::Policy;
use crate::runtime::cores::CopyForCore;

/// The maximum number of pairs of endpoint and class with separate counters per
/// caller. Only reloads with ever new names exceed it.
const ROUTES_MAX: usize = 2048;

/// The tenants and projects with labels of their own.
pub(super) struct CallerMetrics {
    registry: MetricRegistry,
    known: ArcSwap<TenantProjects>,
    pairs_max: AtomicUsize,
    other: Arc<TenantProject>,
}

/// Hashed cheaply: the number of names is bounded.
type ByName<T> = HashMap<Box<str>, T, RandomState>;

#[derive(Clone, Default)]
struct TenantProjects {
    by_tenant: ByName<ByName<Arc<TenantProject>>>,
    count: usize,
}

impl TenantProjects {
    fn find(&self, tenant: &str, project: &str) -> Option<&Arc<TenantProject>> {
        self.by_tenant.get(tenant)?.get(project)
    }

    fn with(&self, labels: TenantProject) -> Self {
        let mut more = self.clone();
        let projects = more.by_tenant.entry(labels.tenant.clone()).or_default();
        projects.insert(labels.project.clone(), Arc::new(labels));
        more.count += 1;
        more
    }
}

impl CallerMetrics {
    pub(super) fn new(registry: &MetricRegistry, pairs_max: usize) -> Self {
        Self {
            registry: registry.clone(),
            known: ArcSwap::default(),
            pairs_max: AtomicUsize::new(pairs_max),
            other: Arc::new(TenantProject::new(registry, OTHER, OTHER)),
        }
    }

    pub(super) fn set_max(&self, pairs_max: usize) {
        self.pairs_max.store(pairs_max, Ordering::Relaxed);
    }

    /// The counters of this caller: its own, or the shared ones beyond the bound.
    pub(super) fn of(&self, tenant: &str, project: &str) -> Arc<TenantProject> {
        let known = self.known.load();
        if let Some(labels) = known.find(tenant, project) {
            return labels.clone();
        }
        let pairs_max = self.pairs_max.load(Ordering::Relaxed);
        if known.count >= pairs_max {
            return self.other.clone();
        }
        self.known.rcu(|known| {
            if known.count >= pairs_max || known.find(tenant, project).is_some() {
                return known.clone();
            }
            Arc::new(known.with(TenantProject::new(&self.registry, tenant, project)))
        });
        let known = self.known.load();
        let labels = known.find(tenant, project);
        labels.unwrap_or(&self.other).clone()
    }
}

/// A tenant and a project, and their counters by route.
pub(super) struct TenantProject {
    registry: MetricRegistry,
    tenant: Box<str>,
    project: Box<str>,
    routes: ArcSwap<ByName<Vec<Arc<RouteMetrics>>>>,
    /// The counters of all routes beyond the bound.
    other: OnceLock<Arc<RouteMetrics>>,
}

impl TenantProject {
    fn new(registry: &MetricRegistry, tenant: &str, project: &str) -> Self {
        Self {
            registry: registry.clone(),
            tenant: tenant.into(),
            project: project.into(),
            routes: ArcSwap::default(),
            other: OnceLock::new(),
        }
    }

    /// The tenant's label.
    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    pub(super) fn route(&self, endpoint: &str, class: &str) -> Arc<RouteMetrics> {
        let routes = self.routes.load();
        if let Some(route) = find(&routes, endpoint, class) {
            return route.clone();
        }
        self.routes.rcu(|routes| {
            let full = routes.len() >= ROUTES_MAX;
            if full || find(routes, endpoint, class).is_some() {
                return routes.clone();
            }
            let route = self.make(endpoint, class);
            let mut more = HashMap::clone(routes);
            more.entry(endpoint.into()).or_default().push(route);
            Arc::new(more)
        });
        let routes = self.routes.load();
        match find(&routes, endpoint, class) {
            Some(route) => route.clone(),
            None => {
                let other = self.other.get_or_init(|| self.make(OTHER, OTHER));
                other.clone()
            }
        }
    }

    fn make(&self, endpoint: &str, class: &str) -> Arc<RouteMetrics> {
        let (tenant, project) = (&self.tenant, &self.project);
        Arc::new(RouteMetrics::new(
            &self.registry,
            tenant,
            project,
            endpoint,
            class,
        ))
    }
}

fn find<'a>(
    routes: &'a ByName<Vec<Arc<RouteMetrics>>>,
    endpoint: &str,
    class: &str,
) -> Option<&'a Arc<RouteMetrics>> {
    let routes = routes.get(endpoint)?;
    routes.iter().find(|route| *route.class == *class)
}

/// The metrics of a planned route, found without a look-up.
pub(crate) struct PlannedMetrics {
    requests: Arc<RequestMetrics>,
    /// The counters of requests whose caller is not known.
    local: OnceLock<Arc<RouteMetrics>>,
}

impl PlannedMetrics {
    pub(super) fn new(requests: Arc<RequestMetrics>) -> Self {
        Self {
            requests,
            local: OnceLock::new(),
        }
    }

    /// Records the time from a request's head to its answer's head.
    pub(crate) fn request_took(&self, status: StatusCode, time: Duration) {
        self.requests.took(status, time);
    }

    /// The counters of a caller on this route, which has this endpoint and class.
    pub(crate) fn of(
        &self,
        metrics: &Metrics,
        caller: &Caller,
        (endpoint, class): (&str, &str),
    ) -> Arc<RouteMetrics> {
        let find = || metrics.of(caller, endpoint, class);
        match caller.is_local() {
            true => {
                let own = || Arc::new(RouteMetrics::clone(&find()));
                self.local.get_or_init(own).clone()
            }
            false => find(),
        }
    }
}

impl CopyForCore for PlannedMetrics {
    fn copy_for_core(&self) -> Self {
        Self::new(self.requests.clone())
    }
}

/// The counters of one caller on one route. Clones count in the same series.
#[derive(Clone)]
pub(crate) struct RouteMetrics {
    class: Box<str>,
    present: Positioned<Counter, 3>,
    missing: Counter,
    invalid: Family<Counter>,
    translation_failed: Family<Counter>,
    handler_internal_hit: Counter,
    collision: Counter,
    hit_completed: Counter,
    hit_failed: Counter,
    bypassed: Counter,
    outcomes: Positioned<Counter, 2>,
}

impl RouteMetrics {
    fn new(
        registry: &MetricRegistry,
        tenant: &str,
        project: &str,
        endpoint: &str,
        class: &str,
    ) -> Self {
        let labels = || {
            vec![
                Label::new("tenant", tenant.to_owned()),
                Label::new("project", project.to_owned()),
                Label::new("endpoint", endpoint.to_owned()),
            ]
        };
        let counter = |name| registry.get(&Key::from_parts(name, labels()));
        let by = |name, label| Family::counters(registry, name, labels(), label);
        let hits = by("idempotency_cache_hit_total", "restate_status");
        Self {
            class: class.into(),
            present: Positioned::new(by("idempotency_key_present_total", "case")),
            missing: by("idempotency_key_missing_total", "class").of(class),
            invalid: by("idempotency_key_invalid_total", "reason"),
            translation_failed: by("transport_translation_failed_total", "provider"),
            handler_internal_hit: counter("handler_internal_dedup_hit_total"),
            collision: counter("idempotency_key_collision_total"),
            hit_completed: hits.of("completed"),
            hit_failed: hits.of("failed"),
            bypassed: counter("onceward_bypassed_total"),
            outcomes: Positioned::new(by("onceward_protected_total", "outcome")),
        }
    }

    /// Counts a request with a key from the client or from a provider's identifier.
    /// The policy determines the case.
    pub(crate) fn key_present(&self, policy: Policy) {
        let position = match policy {
            Policy::RequiredA | Policy::Accepted | Policy::Prohibited => 0,
            Policy::RequiredB => 1,
            Policy::HandlerInternalC => 2,
        };
        self.present.at(position, policy.case()).increment(1);
    }

    /// Counts a request without a key, where the policy accepts one.
    pub(crate) fn key_missing(&self) {
        self.missing.increment(1);
    }

    /// Counts a key refused for one of CONTRACT's reasons.
    pub(crate) fn key_invalid(&self, reason: &'static str) {
        self.invalid.of(reason).increment(1);
    }

    /// Counts a provider's request in which its identifier could not be found.
    /// `provider` is built in or configured.
    pub(crate) fn translation_failed(&self, provider: &str) {
        self.translation_failed.of(provider).increment(1);
    }

    /// Counts an answer in which the handler reports a duplicate.
    pub(crate) fn handler_internal_hit(&self) {
        self.handler_internal_hit.increment(1);
    }

    /// Counts the answer of a handler that keeps its own keys: with
    /// `Idempotent-Replayed: true` it did not run again.
    pub(crate) fn handler_answered(&self, headers: &HeaderMap) {
        let replayed = headers.get(fields::IDEMPOTENT_REPLAYED);
        if replayed.is_some_and(|value| value.as_bytes() == b"true") {
            self.handler_internal_hit();
        }
    }

    /// Counts a reused key whose different request was not refused.
    /// [`RouteMetrics::ended`] counts refusals.
    pub(crate) fn collision(&self) {
        self.collision.increment(1);
    }

    /// Counts a protected request by its outcome.
    pub(crate) fn ended(&self, outcome: Outcome) {
        let word = outcome.as_str();
        match outcome {
            Outcome::Replayed(_) => self.outcomes.at(0, word).increment(1),
            Outcome::Ran(State::Completed) => self.outcomes.at(1, word).increment(1),
            _ => self.outcomes.of(word).increment(1),
        }
        match outcome {
            Outcome::Replayed(State::Failed) => self.hit_failed.increment(1),
            Outcome::Replayed(_) => self.hit_completed.increment(1),
            Outcome::Refused(Code::KeyReused) => self.collision(),
            Outcome::Bypassed => self.bypassed.increment(1),
            _ => {}
        }
    }
}
