//! An application that depends on `onceward` alone: the layer with axum, callers of
//! its own, the typed library, and every option.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Json;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use http_body_util::BodyExt as _;
use onceward::prelude::*;
use onceward::{
    AfterLoss, Backoff, BuildError, Closed, Durability, Entropy, Expiry, InFlight, RecordOptions,
    ManualClock, MemoryStore, OnError, OnExhausted, OnMismatch, OnStoreFailure, OnUnknown,
    Settings, SubjectKind, Timestamp, TtlBasis,
};
use serde::{Deserialize, Serialize};
use tower::ServiceExt as _;

type Outcome = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let directory = std::env::args().nth(1).ok_or("say where to keep the store")?;
    let url = format!("embedded:{directory}");

    let onceward = Onceward::open(url.as_str()).await?;
    let charged = layer_with_axum(&onceward).await?;
    problem_links(&onceward).await?;
    custom_callers(&onceward).await?;
    typed_library(&onceward).await?;
    assert_eq!(onceward.close().await, Closed::Drained);
    drop(onceward);

    // The records exist when the store is opened again.
    let onceward = Onceward::open(url.as_str()).await?;
    let again = orders(&onceward)?.oneshot(order(Some("o-1"))?).await?;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(text(again).await?, charged);
    onceward.close().await;

    every_option().await?;
    missing_feature().await;
    println!("all of it works from outside");
    Ok(())
}

async fn create_order(Operation(granted): Operation) -> (StatusCode, Json<String>) {
    (StatusCode::CREATED, Json(granted.id.to_string()))
}

/// README's own lines, but for `required`.
fn orders(onceward: &Onceward) -> Result<Router, BuildError> {
    Ok(Router::new()
        .route("/orders", post(create_order))
        .layer(onceward.layer().build()?))
}

fn order(key: Option<&str>) -> Result<Request<Body>, axum::http::Error> {
    let request = Request::post("/orders").header("host", "shop.example");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    request.body(Body::from(r#"{"item":"book"}"#))
}

async fn text(response: axum::response::Response) -> Result<String, Box<dyn Error>> {
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(bytes.to_vec())?)
}

async fn layer_with_axum(onceward: &Onceward) -> Result<String, Box<dyn Error>> {
    let app = orders(onceward)?;
    let first = app.clone().oneshot(order(Some("o-1"))?).await?;
    assert_eq!(first.status(), StatusCode::CREATED);
    let first = text(first).await?;
    let again = app.clone().oneshot(order(Some("o-1"))?).await?;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(text(again).await?, first);

    // The handler needs an operation: a request without a key is the client's
    // mistake, not the application's.
    let without = app.oneshot(order(None)?).await?;
    assert_eq!(without.status(), StatusCode::BAD_REQUEST);
    let problem: serde_json::Value = serde_json::from_str(&text(without).await?)?;
    assert_eq!(problem["code"], "key-missing");
    assert_eq!(problem["type"], "urn:onceward:problem:key-missing");
    Ok(first)
}

async fn problem_links(onceward: &Onceward) -> Outcome {
    let layer = onceward.layer().required().problem_pages("/problems");
    let app = Router::new()
        .route("/orders", post(create_order))
        .layer(layer.build()?);
    let refused = app.clone().oneshot(order(None)?).await?;
    assert_eq!(
        refused.headers()["link"],
        "<http://shop.example/problems>; rel=\"describedby\""
    );
    let problem: serde_json::Value = serde_json::from_str(&text(refused).await?)?;
    let link = "http://shop.example/problems/key-missing";
    assert_eq!(problem["type"], link);

    let page = Request::get("/problems/key-missing").body(Body::empty())?;
    let page = app.clone().oneshot(page).await?;
    assert_eq!(page.status(), StatusCode::OK);
    assert!(text(page).await?.starts_with("# key-missing"));
    let absent = Request::get("/problems/no-such-code").body(Body::empty())?;
    assert_eq!(app.oneshot(absent).await?.status(), StatusCode::NOT_FOUND);
    Ok(())
}

async fn custom_callers(onceward: &Onceward) -> Outcome {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let handler = move || async move { counted.fetch_add(1, Ordering::SeqCst).to_string() };
    // An earlier layer of a real application has authenticated the user.
    let name = |parts: &onceward::http::request::Parts| {
        let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok());
        let subject = Subject::new(SubjectKind::User, user.unwrap_or("nobody"));
        let caller = subject.and_then(|subject| Caller::trusted("acme", "shop", subject));
        caller.expect("users have good names")
    };
    let app = Router::new()
        .route("/orders", post(handler))
        .layer(onceward.layer().caller(name).class(Class::financial()).build()?);
    for user in ["anna", "ben", "anna"] {
        let mut request = order(Some("of-a-user"))?;
        request.headers_mut().insert("x-user", user.parse()?);
        assert_eq!(app.clone().oneshot(request).await?.status(), StatusCode::OK);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2, "one run per caller");
    Ok(())
}

#[derive(Deserialize, Serialize)]
struct Mail {
    to: String,
}

#[derive(Debug, thiserror::Error)]
#[error("there is no such address")]
struct NoAddress;

impl Failure for NoAddress {
    fn class(&self) -> &str {
        "no-address"
    }

    fn restore(stored: &StoredError) -> Option<Self> {
        (stored.class == "no-address").then_some(Self)
    }
}

async fn typed_library(onceward: &Onceward) -> Outcome {
    let namespace = Namespace::new("mail")?;
    let mut options = RecordOptions::default();
    options.replay_window = Duration::from_secs(60 * 60);
    options.expiry = Expiry::Strict;
    options.after_loss = AfterLoss::Hold;
    let records = onceward.records(namespace.clone()).with_options(&options)?;
    let mut mails = records.raw().typed::<Mail, u32>();
    let mail = Mail {
        to: "anna".to_owned(),
    };

    let minted = Minter::new(namespace.clone()).mint(&["tenant-1", "welcome", "anna"])?;
    match mails.begin(&minted, &mail).await? {
        Begun::Fresh(fresh) => mails.commit(fresh, &250).await?,
        _ => return Err("the key is new".into()),
    }
    let again = mails.begin(&minted, &mail).await?;
    assert!(matches!(again, Begun::PriorResult(250)));

    let sent = parse_key(&namespace, Some("mail-7"))?.ok_or("a key")?;
    match mails.begin(&sent, &mail).await? {
        Begun::Fresh(fresh) => mails.fail_permanent(fresh, &NoAddress).await?,
        _ => return Err("the key is new".into()),
    }
    match mails.begin(&sent, &mail).await? {
        Begun::PriorError(error) => assert!(error.restore::<NoAddress>().is_ok()),
        _ => return Err("the failure is recorded".into()),
    }
    Ok(())
}

/// Every choice of a class and of the parts can be named and made.
async fn every_option() -> Outcome {
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::new(clock.clone()));
    let onceward = Onceward::builder()
        .clock(clock)
        .entropy(Entropy::seeded(7))
        .sweep_interval(Duration::from_secs(1))
        .drain(Duration::from_secs(1))
        .with_store(store)
        .await?;
    let mut class = Class::interactive();
    class.in_flight = InFlight::Reject;
    class.mismatch = OnMismatch::Conflict;
    class.on_unknown = OnUnknown::Hold;
    class.on_error = OnError::Keep;
    class.on_exhausted = OnExhausted::Pause;
    class.on_store_failure = OnStoreFailure::Reject;
    class.ttl_basis = TtlBasis::Completion;
    let backoff: &mut Backoff = &mut class.backoff;
    backoff.first = Duration::from_millis(10);
    let layer = onceward.layer().class(class).build()?;
    println!("{onceward:?} {layer:?}");

    let mut settings = Settings::at("memory:");
    settings.durability = Durability::Primary;
    Onceward::open(settings).await?.close().await;

    let mut short = Class::interactive();
    short.lease = Duration::from_secs(1);
    let refused = onceward.layer().class(short).build();
    assert!(matches!(refused, Err(BuildError::ShortLease { .. })));
    onceward.close().await;
    Ok(())
}

/// This program is built without the feature `postgres`.
async fn missing_feature() {
    let error = Onceward::open("postgres://localhost/shop").await.err();
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("feature `postgres`"), "{error}");
}
