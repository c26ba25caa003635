//! A payments service whose rows and records are committed in one transaction: a
//! payment is made and recorded, or neither, if the process dies at any time. A
//! payment that is refused for good is recorded too, behind a savepoint.
//!
//! ```sh
//! cargo run -p onceward-examples --bin payments -- postgres://… 127.0.0.1:3000
//! curl -i localhost:3000/payments -H 'Idempotency-Key: p-1' -H 'Content-Type: application/json' -d '{"account":1,"amount":30}'
//! ```
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use onceward::postgres::{Records, migrate};
use onceward::{
    Entropy, Failure, Fresh, Namespace, Outcome, OutcomeKind, ScopedKey, StoredError, parse_key,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, Postgres};
use sqlx::{Acquire as _, Transaction};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS account (
        id bigint PRIMARY KEY,
        balance bigint NOT NULL CHECK (balance >= 0)
    );
    CREATE TABLE IF NOT EXISTS payment (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL,
        account bigint NOT NULL REFERENCES account,
        amount bigint NOT NULL
    );
    INSERT INTO account VALUES (1, 100) ON CONFLICT DO NOTHING;
";

#[derive(Deserialize, Serialize)]
struct Payment {
    account: i64,
    amount: i64,
}

#[derive(Deserialize, Serialize)]
struct Receipt {
    payment: i64,
    balance: i64,
}

/// Why a payment is refused for good.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the account does not hold that much")]
    InsufficientFunds,
    #[error("there is no such account")]
    NoAccount,
}

impl Failure for Refused {
    fn class(&self) -> &str {
        match self {
            Self::InsufficientFunds => "insufficient-funds",
            Self::NoAccount => "no-account",
        }
    }

    fn restore(stored: &StoredError) -> Option<Self> {
        match stored.class.as_str() {
            "insufficient-funds" => Some(Self::InsufficientFunds),
            "no-account" => Some(Self::NoAccount),
            _ => None,
        }
    }
}

struct Shop {
    pool: PgPool,
    namespace: Namespace,
    records: Records,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let database = arguments.next().context("say which database")?;
    let listen = arguments.next().context("say where to listen")?;

    migrate::apply(&database, &migrate::Options::default()).await?;
    let pool = PgPool::connect(&database).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let namespace = Namespace::new("payments")?;
    let shop = Arc::new(Shop {
        pool,
        records: Records::new(namespace.clone(), Entropy::system()?),
        namespace,
    });
    tokio::spawn(purge(shop.clone()));

    let app = Router::new().route("/payments", post(pay)).with_state(shop);
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

type Told = (StatusCode, Json<Outcome<Receipt>>);

async fn pay(
    State(shop): State<Arc<Shop>>,
    headers: HeaderMap,
    Json(payment): Json<Payment>,
) -> Result<Told, Failed> {
    let key = key_of(&shop.namespace, &headers)?;
    if payment.amount <= 0 {
        // Before the claim, so nothing is recorded.
        return Err(anyhow::anyhow!("pay more than nothing").into());
    }
    let mut tx = shop.pool.begin().await?;
    let mut payments = shop.records.with_tx(&mut tx).typed::<Payment, Receipt>();
    let outcome = match payments.begin(&key, &payment).await?.outcome() {
        Ok(known) => known,
        Err(fresh) => make(&shop, &mut tx, fresh, &payment).await?,
    };
    // Before the commit nothing took effect; after it everything did.
    tx.commit().await?;
    Ok((status(&outcome.kind), Json(outcome)))
}

/// Makes a payment, or records why it is refused.
async fn make(
    shop: &Shop,
    tx: &mut Transaction<'_, Postgres>,
    fresh: Fresh,
    payment: &Payment,
) -> Result<Outcome<Receipt>, Failed> {
    // A savepoint: an error of the database rolls the transaction back to here, so
    // that the refusal can still be recorded.
    let mut work = tx.begin().await?;
    let debited = debit(&mut work, fresh.key(), payment).await;
    match debited {
        Ok(receipt) => {
            work.commit().await?;
            let mut payments = shop.records.with_tx(tx).typed::<Payment, Receipt>();
            payments.commit(fresh, &receipt).await?;
            Ok(Outcome::created(receipt))
        }
        Err(error) => {
            // A transient error is not recorded: everything is rolled back, and the
            // key is free.
            let refused = refusal(&error).ok_or(error)?;
            work.rollback().await?;
            let mut payments = shop.records.with_tx(tx).typed::<Payment, Receipt>();
            payments.fail_permanent(fresh, &refused).await?;
            Ok(Outcome::failed(&refused))
        }
    }
}

async fn debit(
    work: &mut Transaction<'_, Postgres>,
    key: &ScopedKey,
    payment: &Payment,
) -> Result<Receipt, sqlx::Error> {
    let insert = "INSERT INTO payment (key, account, amount) VALUES ($1, $2, $3) RETURNING id";
    let paid: i64 = sqlx::query_scalar(insert)
        .bind(key.as_str())
        .bind(payment.account)
        .bind(payment.amount)
        .fetch_one(&mut **work)
        .await?;
    let update = "UPDATE account SET balance = balance - $2 WHERE id = $1 RETURNING balance";
    let balance: i64 = sqlx::query_scalar(update)
        .bind(payment.account)
        .bind(payment.amount)
        .fetch_one(&mut **work)
        .await?;
    Ok(Receipt {
        payment: paid,
        balance,
    })
}

/// Errors of the database that a retry would not change.
fn refusal(error: &sqlx::Error) -> Option<Refused> {
    let database = error.as_database_error()?;
    if database.is_check_violation() {
        Some(Refused::InsufficientFunds)
    } else if database.is_foreign_key_violation() {
        Some(Refused::NoAccount)
    } else {
        None
    }
}

fn key_of(namespace: &Namespace, headers: &HeaderMap) -> Result<ScopedKey, Failed> {
    let raw = headers.get("idempotency-key").map(|value| value.to_str());
    let raw = raw.transpose().context("the key is not text")?;
    let key = parse_key(namespace, raw).context("the key is refused")?;
    Ok(key.context("send an Idempotency-Key")?)
}

fn status(kind: &OutcomeKind<Receipt>) -> StatusCode {
    match kind {
        OutcomeKind::Created { .. } => StatusCode::CREATED,
        OutcomeKind::PreExisting { .. } => StatusCode::OK,
        OutcomeKind::OperationInProgress => StatusCode::CONFLICT,
        OutcomeKind::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
        OutcomeKind::Failed { .. } => StatusCode::PAYMENT_REQUIRED,
    }
}

/// Nothing was done: the transaction is rolled back when it is dropped.
struct Failed(StatusCode, String);

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self(StatusCode::BAD_REQUEST, format!("{error:#}"))
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<onceward::Error> for Failed {
    fn from(error: onceward::Error) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

/// Reclaims the space of expired operations.
async fn purge(shop: Arc<Shop>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(60));
    loop {
        ticks.tick().await;
        let Ok(mut connection) = shop.pool.acquire().await else {
            continue;
        };
        let purged = shop
            .records
            .on_connection(&mut connection)
            .purge_expired()
            .await;
        if let Err(error) = purged {
            println!("could not purge: {error}");
        }
    }
}
