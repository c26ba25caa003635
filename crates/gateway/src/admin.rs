//! The admin listener: is it alive, is it ready, what does it count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use onceward_core::engine::Engine;
use onceward_core::identity::Digest;
use onceward_core::store::Inspect;

use crate::metrics::Metrics;

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
    // A look for what never was: it goes all the way and costs nothing.
    match admin.engine.look(&Digest::from_bytes([0; 32])).await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let page = admin.metrics.render(&admin.engine, &*admin.inspect).await;
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}
