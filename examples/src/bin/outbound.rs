//! Calls to another service that are safe to repeat. The key is minted from the
//! subject of the call, so that every retry, by any process, has the same key; the
//! other service charges once for all of them.
//!
//! ```sh
//! cargo run -p onceward-examples --bin outbound
//! ```
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use onceward::prelude::*;

const TRIES_MAX: u32 = 5;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (address, downstream) = downstream().await?;
    // Tenant, invoice, and the number of the intent: a second payment on purpose
    // would be "2".
    let minter = Minter::new(Namespace::new("billing")?);
    let key = minter.mint(&["tenant-1", "invoice-42", "1"])?;
    let receipt = charge(address, &key).await?;
    println!(
        "called {} times, charged {} time: {receipt}",
        downstream.called.load(Ordering::SeqCst),
        downstream.charged.load(Ordering::SeqCst),
    );
    Ok(())
}

/// Calls until it is answered, under one key.
async fn charge(address: SocketAddr, key: &ScopedKey) -> anyhow::Result<String> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    for _ in 0..TRIES_MAX {
        let request = hyper::Request::post(format!("http://{address}/charges"))
            .header("idempotency-key", key.as_str())
            .header("content-type", "application/json")
            .body(Full::<Bytes>::from(r#"{"amount":100}"#))?;
        let response = client.request(request).await?;
        if response.status() == StatusCode::CREATED {
            let body = response.into_body().collect().await?.to_bytes();
            return Ok(String::from_utf8(body.to_vec())?);
        }
        println!(
            "no answer, but {}: once more, with the same key",
            response.status()
        );
    }
    anyhow::bail!("the other service did not answer in {TRIES_MAX} tries")
}

#[derive(Default)]
struct Downstream {
    called: AtomicU32,
    charged: AtomicU32,
}

/// The other service. It charges, and its first two answers are lost.
async fn downstream() -> anyhow::Result<(SocketAddr, Arc<Downstream>)> {
    let state = Arc::new(Downstream::default());
    let onceward = Onceward::open("memory:").await?;
    let app = Router::new()
        .route("/charges", post(charged))
        .with_state(state.clone())
        .layer(onceward.layer().required().build()?)
        .layer(from_fn_with_state(state.clone(), flaky));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // It serves until the program ends.
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((address, state))
}

async fn charged(State(state): State<Arc<Downstream>>) -> (StatusCode, Json<serde_json::Value>) {
    let charge = state.charged.fetch_add(1, Ordering::SeqCst) + 1;
    let receipt = serde_json::json!({ "charge": charge, "amount": 100 });
    (StatusCode::CREATED, Json(receipt))
}

async fn flaky(State(state): State<Arc<Downstream>>, request: Request, next: Next) -> Response {
    let answer = next.run(request).await;
    match state.called.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => StatusCode::BAD_GATEWAY.into_response(),
        _ => answer,
    }
}
