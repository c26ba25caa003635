//! The admin listener: health for orchestrators, numbers for Prometheus, and
//! the API by which operators look and change.
//!
//! [`doors`] is the one list of what the API serves: path, role, words and
//! handler. The router and the OpenAPI document are both made of it, so neither
//! can know what the other does not. A change goes through [`Desk::change`]: its
//! audit entry first, then the change, whatever becomes of the client that asked.

mod audit;
mod classes;
mod doors;
mod health;
mod journal;
mod keys;
mod openapi;
mod operations;
mod operators;
mod page;
mod problem;
mod read;
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
use onceward_core::store::Inspect;
use serde_json::Value;
use tokio::sync::Notify;

pub(crate) use self::audit::{Action, Audit, Deed, Outcome};
pub(crate) use self::health::Pulse;
pub(crate) use self::operators::{Operator, Operators};
pub(crate) use self::serve::serve;

use self::operators::Approach;
use self::problem::{Kind, Problem};
use crate::callers::api_keys::ApiKeys;
use crate::config::{Config, Role};
use crate::observe::metrics::Metrics;
use crate::runtime::classes::Classes;
use crate::webhooks::registry::Webhooks;

/// What is sent along with every answer, unless it says otherwise: nothing of
/// it is to be kept, guessed at, or shown as a page.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
];

/// Reads the configuration again and puts it in force; a sentence in either case.
pub(crate) type Reload = Arc<dyn Fn() -> Reloading + Send + Sync>;
/// A reload under way.
pub(crate) type Reloading = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Gives the configuration of the moment.
pub(crate) type InForce = Arc<dyn Fn() -> Config + Send + Sync>;

/// What operators look at and change.
pub(crate) struct Admin {
    /// Runs operations, and owns work that must outlive its client.
    pub(crate) engine: Arc<Engine>,
    /// The operator's hand in the store.
    pub(crate) inspect: Arc<dyn Inspect>,
    /// Tells the courier that something may be due.
    pub(crate) courier_wakeup: Arc<Notify>,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Whether the gateway is stopping.
    pub(crate) draining: Arc<AtomicBool>,
    /// Whether the store takes what is written.
    pub(crate) pulse: Arc<Pulse>,
    /// The classes in force.
    pub(crate) classes: Arc<Classes>,
    /// The keys that this gateway gives out; none where it gives out none.
    pub(crate) api_keys: Option<Arc<ApiKeys>>,
    /// The webhooks.
    pub(crate) webhooks: Arc<Webhooks>,
    /// The configuration in force.
    pub(crate) config: InForce,
    /// Where requests come in.
    pub(crate) listen: SocketAddr,
    /// Who may do what.
    pub(crate) operators: Arc<Operators>,
    /// The book of changes.
    pub(crate) audit: Arc<Audit>,
    /// Reads the configuration again; none where there is no file.
    pub(crate) reload: Option<Reload>,
    /// What time it is.
    pub(crate) clock: Arc<dyn Clock>,
    /// The largest reply that an operator may give an operation, in bytes.
    pub(crate) reply_limit: usize,
}

/// The same, shared by all requests.
#[derive(Clone)]
pub(crate) struct Desk(Arc<Admin>);

impl Deref for Desk {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.0
    }
}

/// All of it.
pub(crate) fn router(admin: Admin) -> Router {
    let desk = Desk(Arc::new(admin));
    let mut router = Router::new()
        .route("/livez", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics));
    for door in doors::all() {
        let guard = middleware::from_fn_with_state((desk.clone(), door.role), admit);
        router = router.route(door.path, door.handler.route_layer(guard));
    }
    router
        .fallback(async || Problem::absent("Nothing is served here; see /admin/v1/openapi.json."))
        .method_not_allowed_fallback(async || {
            Problem::new(
                Kind::MethodNotAllowed,
                "Looks are by GET, changes by POST; see /admin/v1/openapi.json.",
            )
        })
        .layer(middleware::map_response(with_headers))
        .with_state(desk)
}

/// Lets a request in as somebody, or not at all.
async fn admit(
    State((desk, needed)): State<(Desk, Role)>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let approach = Approach {
        headers: request.headers(),
        peer,
    };
    match desk.operators.admit(&approach, needed) {
        Ok(who) => {
            request.extensions_mut().insert(who);
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

/// What a change came to, and what the audit is told of it.
pub(crate) struct Made<T> {
    pub(crate) answer: T,
    pub(crate) result: Value,
}

impl Desk {
    /// Makes a change: its audit entry, then the work, then the outcome in the
    /// entry. It goes on to its end also when the client has gone.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        deed: Deed,
        work: impl Future<Output = Result<Made<T>, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let audit = self.audit.clone();
        let (tell, told) = tokio::sync::oneshot::channel();
        self.engine.tasks().spawn(async move {
            let mut entry = match audit.begin(deed).await {
                Ok(entry) => entry,
                Err(error) => {
                    // Who asked may have gone; then nobody is to be told.
                    let _ = tell.send(Err(unaudited(&error)));
                    return;
                }
            };
            let (answer, outcome) = match work.await {
                Ok(made) => (Ok(made.answer), Outcome::Done(made.result)),
                Err(problem) => {
                    let detail = problem.detail().to_owned();
                    let outcome = match problem.kind() {
                        Kind::StoreUnavailable => Outcome::Failed(detail),
                        _ => Outcome::Refused(detail),
                    };
                    (Err(problem), outcome)
                }
            };
            let ended = audit.end(&mut entry, outcome).await;
            let _ = tell.send(answer);
            if let Err(error) = ended {
                tracing::error!(%error, entry = entry.id(), "an outcome is missing in the audit; trying again");
                audit.end_later(&entry).await;
            }
        });
        // It ends without a word only if it panicked.
        told.await.unwrap_or_else(|_| {
            Err(Problem::new(
                Kind::StoreUnavailable,
                "The change broke off. Look how far it came.",
            ))
        })
    }
}

fn unaudited(error: &onceward_core::store::StoreError) -> Problem {
    tracing::error!(%error, "a change was refused because the audit cannot be written");
    Problem::new(
        Kind::StoreUnavailable,
        "Nothing was changed: the audit cannot be written. Try again later.",
    )
}
