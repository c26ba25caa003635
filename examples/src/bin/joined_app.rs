//! A payments service that shares its records with the gateway in front of it. The
//! gateway claims each payment and forwards it with its id and fence; here the
//! payment and its reply are committed in one transaction, under that fence. So a
//! payment is made and recorded, or neither, if one of the two dies at any time.
//!
//! ```sh
//! cargo run -- migrate apply --store postgres://…
//! cargo run -p onceward-examples --bin joined_app -- postgres://… 127.0.0.1:3000
//! ONCEWARD_STORE=postgres://… ONCEWARD_KEY=… cargo run -- serve --config examples/joined.toml
//! curl -i localhost:8080/payments -H 'Idempotency-Key: p-1' -H 'Content-Type: application/json' -d '{"amount":30}'
//! ```
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use anyhow::Context as _;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use onceward::Joined;
use onceward::postgres::JoinedRecords;
use onceward::record::Reply;
use serde::Deserialize;
use sqlx::postgres::PgPool;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS payment (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL,
        amount bigint NOT NULL
    )
";

#[derive(Deserialize)]
struct Payment {
    amount: i64,
}

struct Shop {
    pool: PgPool,
    records: JoinedRecords,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // A crash point for tests; otherwise it has no effect.
    let _points = fail::FailScenario::setup();
    let mut arguments = std::env::args().skip(1);
    let database = arguments.next().context("say which database")?;
    let listen = arguments.next().context("say where to listen")?;

    let pool = PgPool::connect(&database).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let shop = Arc::new(Shop {
        pool,
        records: JoinedRecords::default(),
    });
    let app = Router::new().route("/payments", post(pay)).with_state(shop);
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn pay(
    State(shop): State<Arc<Shop>>,
    joined: Joined,
    Json(payment): Json<Payment>,
) -> Result<Response, Failed> {
    if payment.amount <= 0 {
        // Nothing is committed: the gateway keeps this answer by its status.
        let why = "an amount is above zero".to_owned();
        return Err(Failed(StatusCode::UNPROCESSABLE_ENTITY, why));
    }
    let mut tx = shop.pool.begin().await?;
    let insert = "INSERT INTO payment (key, amount) VALUES ($1, $2) RETURNING id";
    let id: i64 = sqlx::query_scalar(insert)
        .bind(&joined.key)
        .bind(payment.amount)
        .fetch_one(&mut *tx)
        .await?;
    fail::fail_point!("after-insert", |_| std::process::abort());
    let reply = created(id);
    // The last statement. If the fence is stale this is an error, and the
    // transaction, payment and all, is rolled back when it is dropped.
    let mut records = shop.records.with_tx(&mut tx);
    records
        .complete(joined.id, joined.fence, reply.clone())
        .await?;
    fail::fail_point!("before-commit", |_| std::process::abort());
    tx.commit().await?;
    fail::fail_point!("after-commit", |_| std::process::abort());
    Ok(answer(reply))
}

/// The reply for every retry: the gateway answers with it, even if this service's
/// own answer is lost.
fn created(id: i64) -> Reply {
    let line = |name: HeaderName, value: String| (Bytes::from(name.to_string()), value.into());
    Reply {
        status: StatusCode::CREATED.as_u16(),
        headers: vec![
            line(
                axum::http::header::CONTENT_TYPE,
                "application/json".to_owned(),
            ),
            line(axum::http::header::LOCATION, format!("/payments/{id}")),
        ],
        body: format!(r#"{{"payment":{id}}}"#).into(),
        trailers: Vec::new(),
    }
}

fn answer(reply: Reply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let headers = reply.headers.iter().filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name).ok()?;
        let value = HeaderValue::from_bytes(value).ok()?;
        Some((name, value))
    });
    (status, HeaderMap::from_iter(headers), reply.body).into_response()
}

/// Nothing was done: the transaction is rolled back when it is dropped.
struct Failed(StatusCode, String);

/// Also where a commit was not confirmed: the gateway reads from the record whether
/// it took effect.
impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<onceward::Error> for Failed {
    fn from(error: onceward::Error) -> Self {
        let status = match error {
            // Another claim holds this payment now.
            onceward::Error::Stale { .. } => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
