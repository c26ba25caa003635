//! The admin listener: is it alive, is it ready, what does it count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use onceward_core::engine::Engine;
use onceward_core::store::Inspect;

use crate::metrics::Metrics;

/// How long the store may take to show that it is there.
const READY_DEADLINE: Duration = Duration::from_secs(2);

/// What the admin pages look at.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) engine: Arc<Engine>,
    pub(crate) inspect: Arc<dyn Inspect>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) draining: Arc<AtomicBool>,
}

/// The pages.
pub(crate) fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(admin)
}

/// Ready means that the store answers; the upstream is not asked.
async fn ready(State(admin): State<Admin>) -> impl IntoResponse {
    if admin.draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match tokio::time::timeout(READY_DEADLINE, admin.inspect.stats()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer\n".to_owned(),
        ),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let page = admin.metrics.render(&admin.engine, &*admin.inspect).await;
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}
