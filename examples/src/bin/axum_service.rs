//! An axum service with the tower layer on the embedded store: every POST with
//! an `Idempotency-Key` runs at most once per claim, and its reply survives a
//! crash.
//!
//! ```sh
//! cargo run -p onceward-examples --bin axum_service -- 127.0.0.1:3000 ./notes-data
//! curl -i localhost:3000/notes -H 'Idempotency-Key: n-1' -H 'Content-Type: application/json' -d '{"text":"hi"}'
//! ```
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use onceward::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Note {
    text: String,
}

#[derive(Serialize)]
struct Written {
    number: u64,
    text: String,
    operation: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().context("say where to listen")?;
    let directory = arguments.next().context("say where to keep operations")?;

    let onceward = Onceward::open(format!("embedded:{directory}").as_str()).await?;

    let app = Router::new()
        .route("/notes", post(write))
        .with_state(Arc::new(AtomicU64::new(0)))
        .layer(onceward.layer().required().build()?);
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;

    // Running operations end and are recorded before the process ends.
    onceward.close().await;
    Ok(())
}

async fn write(
    State(written): State<Arc<AtomicU64>>,
    Operation(granted): Operation,
    Json(note): Json<Note>,
) -> (StatusCode, Json<Written>) {
    let number = written.fetch_add(1, Ordering::SeqCst) + 1;
    let written = Written {
        number,
        text: note.text,
        operation: granted.id.to_string(),
    };
    (StatusCode::CREATED, Json(written))
}
