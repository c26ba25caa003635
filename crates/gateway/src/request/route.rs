//! The second step: where a request goes.
//!
//! A declared route wins over a path of the gateway's own, unless the route
//! ends in `{*rest}`.

use std::sync::Arc;

use http::Method;
use onceward_core::class::Class;
use onceward_core::identity::Endpoint;
use onceward_http::problem::{Code, Problem};
use onceward_http::recovery::{RecoveryPath, RecoveryTarget};

use super::cors;
use super::route_table::{RouteMatch, has_dot_segment, has_doubtful_slash};
use super::screen::Screened;
use crate::config::{self, EndpointName, Policy};
use crate::observe::report::{Report, Reported};
use crate::pages::{self, Page};
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};
use crate::webhooks::ingest::WebhookPath;

/// The path below which operations are found by their id.
const OPERATIONS: &str = "/api/v1/operations/";

/// Where a request goes.
pub(super) enum Destination<'a> {
    /// To an upstream, by a route.
    Upstream(Routed),
    /// To a page that the gateway publishes.
    Page(Page),
    /// To the gateway's answer to a CORS preflight.
    Preflight(&'a config::Cors, Method),
    /// To the reply of an earlier request, by its key.
    Recovery(AskedByKey<'a>),
    /// To the reply of an earlier request, by its operation id.
    Operation(AskedById<'a>),
    /// To a webhook.
    Webhook(WebhookPath),
}

/// A request's route and what it means for the request. Only [`route`] makes
/// one.
pub(super) struct Routed {
    route: Arc<PlannedRoute>,
    endpoint: Endpoint,
    policy: Option<Policy>,
    /// The class as it was when the request came: later changes apply to later
    /// requests.
    class: Arc<Class>,
}

impl Routed {
    pub(super) fn route(&self) -> &Arc<PlannedRoute> {
        &self.route
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn policy(&self) -> Option<Policy> {
        self.policy
    }

    pub(super) fn class(&self) -> &Arc<Class> {
        &self.class
    }
}

/// A recovery path, with the routes whose operations it may mean.
pub(super) struct AskedByKey<'a> {
    pub(super) recovery: RecoveryPath<'a>,
    /// Never empty.
    pub(super) candidates: Vec<(&'a Arc<PlannedRoute>, Endpoint)>,
}

/// An operation id in a path, and the question about the operation.
pub(super) struct AskedById<'a> {
    pub(super) id: &'a str,
    pub(super) target: RecoveryTarget,
}

impl Reported for Destination<'_> {
    fn add_to<'r>(&self, report: Report<'r>) -> Report<'r> {
        match self {
            Self::Upstream(routed) => report
                .by_route(&routed.route)
                .at_endpoint(&routed.endpoint, routed.policy),
            // Refusals get the headers of the first candidate too.
            Self::Recovery(asked) => match asked.candidates.first() {
                Some((route, _)) => report.by_route(route),
                None => report,
            },
            Self::Webhook(_) => report.under(Policy::RequiredB),
            Self::Page(_) | Self::Preflight(..) | Self::Operation(_) => report,
        }
    }
}

/// Finds where a request goes.
pub(super) fn route<'a>(
    runtime: &Runtime,
    plan: &'a Plan,
    request: &'a Screened,
) -> Result<Destination<'a>, Problem> {
    let (method, path) = (request.method(), request.path());
    // The upstream may resolve such a path to a path of another route.
    if plan.has_endpoints && has_dot_segment(path) {
        return Err(Problem::new(
            Code::BadRequest,
            "The path has a segment `.` or `..`; send the path that is meant.",
        ));
    }
    if let Some(asked) = cors::preflighted_method(method, request.headers())
        && let Some(route) = route_for_preflight(plan, &asked, path)
        && let Some(cors) = &route.route.cors
    {
        return Ok(Destination::Preflight(cors, asked));
    }
    let found = plan.routes.find(method, path);
    let is_declared = matches!(&found, RouteMatch::Route(route) if !is_catch_all(route));
    if !is_declared
        && matches!(*method, Method::GET | Method::HEAD)
        && let Some(destination) = own_path(plan, path)
    {
        return Ok(destination);
    }
    if !is_declared && let Some(address) = WebhookPath::parse(plan, method, path) {
        return Ok(Destination::Webhook(address));
    }
    match found {
        // The upstream may read the path as that of another route.
        RouteMatch::Route(_)
            if !is_declared && plan.routes.all().len() > 1 && has_doubtful_slash(path) =>
        {
            Err(Problem::new(
                Code::BadRequest,
                "The path has a double, escaped or backward slash; send the path that is meant.",
            ))
        }
        RouteMatch::Route(route) => Ok(Destination::Upstream(Routed {
            endpoint: endpoint(&route.route, method, path),
            policy: route.route.policy_for(method),
            class: runtime.class(plan, &route.route.class)?,
            route: route.clone(),
        })),
        RouteMatch::OtherMethods(methods) => Err(Problem::new(
            Code::MethodNotAllowed,
            format!("{method} is not served here."),
        )
        .with_allowed_methods(&methods)),
        RouteMatch::Nothing => Err(Problem::new(Code::NoRoute, "No route matches this path.")),
    }
}

/// The route whose CORS settings answer a preflight. For a recovery path it is the
/// route that made the reply.
fn route_for_preflight<'a>(
    plan: &'a Plan,
    method: &Method,
    path: &'a str,
) -> Option<&'a Arc<PlannedRoute>> {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    match own_path(plan, path) {
        Some(Destination::Recovery(asked)) if is_read => {
            asked.candidates.first().map(|(route, _)| *route)
        }
        _ => plan.routes.at(method, path),
    }
}

fn is_catch_all(route: &PlannedRoute) -> bool {
    route.route.path.contains("{*")
}

/// The destination of a path of the gateway's own.
fn own_path<'a>(plan: &'a Plan, path: &'a str) -> Option<Destination<'a>> {
    if let Some(page) = pages::find(path) {
        return Some(Destination::Page(page));
    }
    if let Some(rest) = path.strip_prefix(OPERATIONS) {
        let (id, target) = RecoveryTarget::split(rest)?;
        let asked = AskedById { id, target };
        return id
            .starts_with("op_")
            .then_some(Destination::Operation(asked));
    }
    let recovery = RecoveryPath::parse(path)?;
    let candidates = recoverable(plan, recovery.path);
    (!candidates.is_empty()).then_some(Destination::Recovery(AskedByKey {
        recovery,
        candidates,
    }))
}

/// The routes at a path whose operations can be recovered, with the endpoints
/// of those operations.
fn recoverable<'a>(plan: &'a Plan, path: &str) -> Vec<(&'a Arc<PlannedRoute>, Endpoint)> {
    let mut candidates: Vec<(&Arc<PlannedRoute>, Endpoint)> = Vec::new();
    let methods = [
        Method::POST,
        Method::PATCH,
        Method::PUT,
        Method::DELETE,
        Method::GET,
    ];
    for method in methods {
        let Some(route) = plan.routes.at(&method, path) else {
            continue;
        };
        let policy = route.route.policy_for(&method);
        let endpoint = endpoint(&route.route, &method, path);
        let is_known = candidates.iter().any(|(_, known)| *known == endpoint);
        if matches!(policy, Some(Policy::RequiredA | Policy::Accepted)) && !is_known {
            candidates.push((route, endpoint));
        }
    }
    candidates
}

/// The endpoint of an operation: the route's name, or method and path on the
/// default route.
fn endpoint(route: &config::Route, method: &Method, path: &str) -> Endpoint {
    match &route.endpoint {
        EndpointName::Fixed(endpoint) => endpoint.clone(),
        EndpointName::ByPath => Endpoint::new(&[method.as_str(), " ", path].concat()),
    }
}
