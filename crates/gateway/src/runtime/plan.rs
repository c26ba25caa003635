//! A configuration, made ready to serve requests.
//!
//! A request takes the plan in force when it arrives and keeps it until it ends, so
//! a reload never changes the rules of work that has begun. The new plan takes over
//! the connections to every upstream whose settings did not change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::identity::Endpoint;
use onceward_http::rules::{Credentials, FinalAnswers, Hosts, Rules};

use crate::callers::Callers;
use crate::config::{self, Access, Config, EndpointName};
use crate::observe::metrics::{Metrics, PlannedMetrics, endpoint_label};
use crate::request::route_table::RouteTable;
use crate::runtime::cores::CopyForCore;
use crate::upstream::forward::Forwarder;
use crate::upstream::{self, UpstreamClient, UpstreamError};

/// How the gateway serves requests.
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) routes: RouteTable,
    /// Whether a route has an endpoint of its own: not without configuration.
    pub(crate) has_endpoints: bool,
    /// Whether pages of other sites may use a route.
    pub(crate) has_cors: bool,
    pub(crate) callers: Arc<Callers>,
    pub(crate) forwarders: BTreeMap<Arc<str>, Arc<Forwarder>>,
    /// The route of webhook events to each upstream.
    pub(crate) event_routes: BTreeMap<Arc<str>, Arc<PlannedRoute>>,
}

/// A route with everything that serving its requests needs.
pub(crate) struct PlannedRoute {
    pub(crate) route: config::Route,
    pub(crate) rules: Arc<Rules>,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) metrics: PlannedMetrics,
    pub(crate) body_limit: usize,
    /// How long the upstream may take.
    pub(crate) timeout: Duration,
}

/// Why a configuration cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An upstream's settings are not usable.
    #[error("upstreams.{name}: {source}")]
    Upstream {
        /// The name of the upstream.
        name: Arc<str>,
        /// The cause.
        source: UpstreamError,
    },
    /// A route names an upstream that does not exist.
    #[error("the route for {path} goes to the upstream `{name}`, which does not exist")]
    NoUpstream {
        /// The route's path.
        path: String,
        /// The name of the upstream.
        name: Arc<str>,
    },
    /// A route names a class that does not exist.
    #[error("the route for {path} has the class `{name}`, which does not exist")]
    NoClass {
        /// The route's path.
        path: String,
        /// The name of the class.
        name: Arc<str>,
    },
    /// A lease would end before the upstream may answer.
    #[error(
        "the lease of class {class} ({lease:?}) is shorter than the upstream timeout ({timeout:?}); make it longer"
    )]
    ShortLease {
        /// The name of the class.
        class: Arc<str>,
        /// Its lease.
        lease: Duration,
        /// The longest upstream timeout of its routes.
        timeout: Duration,
    },
    /// A path conflicts with another route's path or is malformed.
    #[error("the path {path} cannot be served: {source}")]
    Path {
        /// The path.
        path: String,
        /// The cause.
        source: matchit::InsertError,
    },
}

impl Plan {
    /// Makes a plan. It takes over the unchanged upstreams of `before`, with their
    /// connections.
    pub(crate) fn new(
        config: Config,
        callers: Callers,
        metrics: &Arc<Metrics>,
        before: Option<&Self>,
    ) -> Result<Self, PlanError> {
        let mut forwarders = BTreeMap::new();
        for (name, settings) in &config.upstreams {
            let kept = before.and_then(|plan| plan.forwarder_like(name, settings, &config));
            let forwarder = match kept {
                Some(forwarder) => forwarder,
                None => Arc::new(forwarder(name, settings, &config, metrics)?),
            };
            forwarders.insert(name.clone(), forwarder);
        }
        let routes = config.routes.iter().map(|route| {
            let planned = planned(route, &config, &forwarders, metrics)?;
            Ok(Arc::new(planned))
        });
        let routes = RouteTable::new(routes.collect::<Result<_, PlanError>>()?);
        let routes = routes.map_err(|(index, source)| PlanError::Path {
            path: config
                .routes
                .get(index)
                .map_or_else(String::new, |route| route.path.clone()),
            source,
        })?;
        let event_routes = forwarders.iter().filter_map(|(name, forwarder)| {
            let planned = event_route(name, &config, forwarder, metrics)?;
            Some((name.clone(), Arc::new(planned)))
        });
        let is_endpoint = |route: &config::Route| route.endpoint != EndpointName::ByPath;
        Ok(Self {
            has_endpoints: config.routes.iter().any(is_endpoint),
            has_cors: config.routes.iter().any(|route| route.cors.is_some()),
            event_routes: event_routes.collect(),
            routes,
            callers: Arc::new(callers),
            forwarders,
            config,
        })
    }

    fn forwarder_like(
        &self,
        name: &Arc<str>,
        settings: &config::Upstream,
        config: &Config,
    ) -> Option<Arc<Forwarder>> {
        let same = self.config.upstreams.get(name) == Some(settings)
            && self.config.server.body_deadline == config.server.body_deadline;
        same.then(|| self.forwarders.get(name).cloned()).flatten()
    }

    /// The longest upstream timeout of each class's routes: no lease may be
    /// shorter.
    pub(crate) fn longest_timeouts(&self) -> BTreeMap<Arc<str>, Duration> {
        let mut longest = BTreeMap::new();
        for planned in self.routes.all() {
            let class = longest.entry(planned.route.class.clone());
            let timeout = class.or_insert(Duration::ZERO);
            *timeout = planned.timeout.max(*timeout);
        }
        longest
    }
}

impl CopyForCore for Plan {
    fn copy_for_core(&self) -> Self {
        Self {
            config: self.config.clone(),
            routes: self.routes.copy_for_core(),
            has_endpoints: self.has_endpoints,
            has_cors: self.has_cors,
            callers: self.callers.clone(),
            forwarders: self.forwarders.clone(),
            event_routes: self.event_routes.clone(),
        }
    }
}

impl CopyForCore for PlannedRoute {
    fn copy_for_core(&self) -> Self {
        let mut route = self.route.clone();
        if let EndpointName::Fixed(endpoint) = &mut route.endpoint {
            *endpoint = Endpoint::new(endpoint.as_str());
        }
        Self {
            route,
            rules: Arc::new(Rules::clone(&self.rules)),
            forwarder: self.forwarder.clone(),
            metrics: self.metrics.copy_for_core(),
            body_limit: self.body_limit,
            timeout: self.timeout,
        }
    }
}

/// The route of events to an upstream. No request matches it. The gateway sets its
/// rules, because no configuration does.
fn event_route(
    name: &Arc<str>,
    config: &Config,
    forwarder: &Arc<Forwarder>,
    metrics: &Metrics,
) -> Option<PlannedRoute> {
    let settings = config.upstreams.get(name)?;
    let class = config.classes.get(&config.webhooks.class)?;
    let naming = config::EndpointName::Fixed(Endpoint::new("webhooks"));
    let route = config::Route {
        access: Access::Anyone,
        policy: Some(config::Policy::RequiredB),
        class: class.name.clone(),
        ..config::Route::new(naming, "/", name)
    };
    let timeout = settings.timeout;
    let server = &config.server;
    Some(PlannedRoute {
        rules: Arc::new(Rules::new(Credentials::Trusted).with(|rules| {
            rules.upstream_timeout = timeout;
            rules.reply_limit = server.reply_limit;
            rules.final_answers = FinalAnswers::Accepted;
        })),
        forwarder: forwarder.clone(),
        metrics: metrics.planned(endpoint_label(&route.endpoint)),
        body_limit: server.body_limit,
        timeout,
        route,
    })
}

fn forwarder(
    name: &Arc<str>,
    settings: &config::Upstream,
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<Forwarder, PlanError> {
    let limits = upstream::UpstreamLimits {
        // Connecting times out before the response does: only a failed connection
        // proves that no byte was sent.
        connect_timeout: settings.connect_timeout.min(settings.timeout / 2),
        idle_timeout: settings.idle_timeout,
        idle_max: settings.idle_max,
        connections_max: settings.connections_max,
    };
    let upstream = UpstreamClient::open(&settings.url, limits, &settings.tls);
    let upstream = upstream.map_err(|source| PlanError::Upstream {
        name: name.clone(),
        source,
    })?;
    Ok(Forwarder::new(
        upstream,
        settings.host.clone(),
        metrics.upstream(name),
        config.server.body_deadline,
    ))
}

fn planned(
    route: &config::Route,
    config: &Config,
    forwarders: &BTreeMap<Arc<str>, Arc<Forwarder>>,
    metrics: &Metrics,
) -> Result<PlannedRoute, PlanError> {
    let no_upstream = || PlanError::NoUpstream {
        path: route.path.clone(),
        name: route.upstream.clone(),
    };
    let settings = config.upstreams.get(&route.upstream);
    let settings = settings.ok_or_else(no_upstream)?;
    let forwarder = forwarders.get(&route.upstream).ok_or_else(no_upstream)?;
    let timeout = route.timeout.unwrap_or(settings.timeout);
    let class = config.classes.get(&route.class);
    let class = class.ok_or_else(|| PlanError::NoClass {
        path: route.path.clone(),
        name: route.class.clone(),
    })?;
    if class.lease < timeout {
        return Err(PlanError::ShortLease {
            class: class.name.clone(),
            lease: class.lease,
            timeout,
        });
    }
    let credentials = match route.access {
        Access::Callers { .. } if config.auth.knows_callers() => Credentials::Trusted,
        _ => Credentials::Compared,
    };
    Ok(PlannedRoute {
        rules: Arc::new(Rules::new(credentials).with(|rules| {
            // Every upstream receives the client's Host: as Host, or as
            // X-Forwarded-Host if `host` is configured for the upstream.
            rules.hosts = Hosts::Compared;
            rules.space = route.key_space;
            rules.many_paths =
                route.endpoint != config::EndpointName::ByPath && route.path.contains('{');
            rules.selection = route.fingerprint.clone();
            rules.upstream_timeout = timeout;
            rules.reply_limit = route.reply_limit.unwrap_or(config.server.reply_limit);
            rules.keep = route.keep_statuses.clone();
            rules.release = route.release_statuses.clone();
            rules.duplicate_create = route.duplicate_create;
            rules.joined = route.joined;
        })),
        forwarder: forwarder.clone(),
        metrics: metrics.planned(endpoint_label(&route.endpoint)),
        body_limit: route.body_limit.unwrap_or(config.server.body_limit),
        timeout,
        route: route.clone(),
    })
}
