//! The admin listener: health checks, Prometheus metrics and the operators' API.
//!
//! [`endpoints`] lists everything that the API serves: path, role, description
//! and handler. The router and the OpenAPI document are both built from it, so
//! they cannot disagree. Every change goes through [`AdminState::change`]: the
//! audit entry is durable before the change begins, and the change finishes even
//! if its client disconnects.

mod audit;
mod classes;
mod endpoints;
mod extract;
mod health;
mod keys;
mod openapi;
mod operations;
mod operators;
mod page;
mod problem;
mod reload;
mod serve;
#[cfg(test)]
mod tests;
mod webhooks;

use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use onceward_core::clock::Clock;
use onceward_core::engine::Engine;
use onceward_core::store::{Inspect, StoreError};
use serde_json::Value;
use tokio::sync::Notify;

pub(crate) use self::audit::{Action, Audit, Change, ChangeOutcome};
pub(crate) use self::health::StoreHealth;
pub(crate) use self::operations::FrozenSets;
pub(crate) use self::operators::{OperatorToken, Operators};
pub(crate) use self::serve::serve;

use self::problem::{Problem, ProblemKind};
use crate::callers::api_keys::ApiKeyRegistry;
use crate::config::{Config, Role};
use crate::observe::metrics::Metrics;
use crate::runtime::classes::Classes;
use crate::webhooks::registry::WebhookRegistry;

/// Headers of every response that does not set them itself: it must not be
/// cached, sniffed for another type, or rendered as a page.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
];

/// Reloads the configuration; returns a sentence about the result in either case.
pub(crate) type Reload = Arc<dyn Fn() -> Reloading + Send + Sync>;
/// A reload in progress.
pub(crate) type Reloading = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Returns the configuration in force.
pub(crate) type InForce = Arc<dyn Fn() -> Config + Send + Sync>;

/// The parts of the gateway that operators read and change.
pub(crate) struct Admin {
    /// Runs operations, and owns work that must outlive its client.
    pub(crate) engine: Arc<Engine>,
    /// The operators' access to the store.
    pub(crate) inspect: Arc<dyn Inspect>,
    /// Wakes the courier: a delivery may be due.
    pub(crate) courier_wakeup: Arc<Notify>,
    /// The gateway's metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// Whether the gateway is stopping.
    pub(crate) draining: Arc<AtomicBool>,
    /// Whether the store accepts writes.
    pub(crate) store_health: Arc<StoreHealth>,
    /// The classes in force.
    pub(crate) classes: Arc<Classes>,
    /// The gateway's own API keys, where it issues any.
    pub(crate) api_keys: Option<Arc<ApiKeyRegistry>>,
    /// The webhooks.
    pub(crate) webhooks: Arc<WebhookRegistry>,
    /// The configuration in force.
    pub(crate) config: InForce,
    /// The address of the listener for requests.
    pub(crate) listen: SocketAddr,
    /// The operators' tokens and roles.
    pub(crate) operators: Arc<Operators>,
    /// The audit log.
    pub(crate) audit: Arc<Audit>,
    /// The sets of operations that were previewed for bulk changes.
    pub(crate) frozen_sets: FrozenSets,
    /// Reloads the configuration, where there is a file.
    pub(crate) reload: Option<Reload>,
    /// The clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// The largest reply that an operator may give an operation, in bytes.
    pub(crate) reply_limit: usize,
}

/// [`Admin`], shared by all requests.
#[derive(Clone)]
pub(crate) struct AdminState(Arc<Admin>);

impl Deref for AdminState {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.0
    }
}

/// The router of the admin listener.
pub(crate) fn router(admin: Admin) -> Router {
    let admin = AdminState(Arc::new(admin));
    let mut router = Router::new()
        .route("/livez", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics));
    for endpoint in endpoints::all() {
        let guard = middleware::from_fn_with_state((admin.clone(), endpoint.role), admit);
        router = router.route(endpoint.path, endpoint.handler.route_layer(guard));
    }
    router
        .fallback(async || {
            Problem::not_found("No endpoint has this path; see /admin/v1/openapi.json.")
        })
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(middleware::map_response(with_headers))
        .with_state(admin)
}

/// Authenticates a request and checks its role before its handler runs.
async fn admit(
    State((admin, needed)): State<(AdminState, Role)>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    match admin.operators.admit(request.headers(), peer, needed) {
        Ok(operator) => {
            request.extensions_mut().insert(operator);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(value);
    }
    response
}

/// A change that was made: the answer for the client, and the result for the audit.
pub(crate) struct Applied<T> {
    pub(crate) answer: T,
    pub(crate) result: Value,
}

impl AdminState {
    /// Makes a change: writes its audit entry, does the work, then writes the
    /// outcome into the entry. It runs to its end even if the client disconnects.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        change: Change,
        work: impl Future<Output = Result<Applied<T>, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let audit = self.audit.clone();
        let (reply_to, reply) = tokio::sync::oneshot::channel();
        self.engine.tasks().spawn(async move {
            let mut entry = match audit.begin(change).await {
                Ok(entry) => entry,
                Err(error) => {
                    // The receiver is gone if the client disconnected.
                    let _ = reply_to.send(Err(audit_unavailable(&error)));
                    return;
                }
            };
            let (answer, outcome) = match work.await {
                Ok(applied) => (Ok(applied.answer), ChangeOutcome::Done(applied.result)),
                Err(problem) => {
                    let detail = problem.detail().to_owned();
                    let outcome = match problem.kind() {
                        ProblemKind::StoreUnavailable => ChangeOutcome::Failed(detail),
                        _ => ChangeOutcome::Refused(detail),
                    };
                    (Err(problem), outcome)
                }
            };
            let ended = audit.end(&mut entry, outcome).await;
            let _ = reply_to.send(answer);
            if let Err(error) = ended {
                tracing::error!(%error, entry = entry.id(), "outcome not written to the audit log; retrying");
                audit.end_later(&entry).await;
            }
        });
        // The task drops its sender without an answer only if it panicked.
        reply.await.unwrap_or_else(|_| {
            Err(Problem::store_unavailable(
                "The change ended early. Check how much of it was made.",
            ))
        })
    }
}

fn audit_unavailable(error: &StoreError) -> Problem {
    tracing::error!(%error, "audit log cannot be written; change refused");
    Problem::store_unavailable(
        "Nothing was changed: the audit log cannot be written. Try again later.",
    )
}
