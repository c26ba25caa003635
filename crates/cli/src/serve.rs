//! `onceward serve`: the gateway, until it is told to stop.
//!
//! Standard output gets one line of JSON when the gateway is ready; the log, one
//! JSON object a line, goes to standard error. SIGTERM and Ctrl-C drain: what
//! runs is finished and recorded. A second one ends it at once, which loses
//! nothing that was acknowledged.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use onceward_gateway::{Drained, Gateway, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The service to protect: http://HOST:PORT, or h2c://HOST:PORT for HTTP/2.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Where to listen for requests.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Where to listen for operators: /livez, /readyz, /metrics.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    admin: String,
    /// Where operations are kept: embedded:DIR, or memory: to forget them at the end.
    #[arg(long, value_name = "URL", default_value = "embedded:./onceward-data")]
    store: String,
    /// What to log: error, warn, info, debug, or a filter such as info,onceward::access=off.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: EnvFilter,
    /// How long the upstream may take, in milliseconds.
    #[arg(long, hide = true, default_value_t = 30_000)]
    upstream_timeout_ms: u64,
    /// How long a claim lasts without renewal, in milliseconds.
    #[arg(long, hide = true, default_value_t = 60_000)]
    lease_ms: u64,
    /// How long a stop waits for what runs, in milliseconds.
    #[arg(long, hide = true, default_value_t = 30_000)]
    drain_ms: u64,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    log_to_stderr(args.log);
    #[cfg(feature = "failpoints")]
    let _points = fail::FailScenario::setup();
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be awaited")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be awaited")?;

    let mut settings = Settings::new(&args.upstream);
    settings.listen = args.listen;
    settings.admin = args.admin;
    settings.store = args.store;
    settings.upstream_timeout = Duration::from_millis(args.upstream_timeout_ms);
    settings.class.lease = Duration::from_millis(args.lease_ms);
    let gateway = Gateway::start(settings).await?;
    let (listen, admin) = (gateway.listen(), gateway.admin());
    tracing::info!(%listen, %admin, upstream = args.upstream, "serving");
    tracing::warn!(
        "no callers are configured: every client is the same caller, told apart only by the credentials it sends"
    );
    println!(
        "{}",
        serde_json::json!({ "listen": listen, "admin": admin })
    );

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("draining");
    let drained = tokio::select! {
        drained = gateway.drain(Duration::from_millis(args.drain_ms)) => drained,
        _ = terminate.recv() => return Ok(ExitCode::FAILURE),
        _ = interrupt.recv() => return Ok(ExitCode::FAILURE),
    };
    match drained {
        Drained::Whole => tracing::info!("stopped"),
        Drained::Cut { running: 0 } => {
            tracing::warn!("stopped before all clients had gone; every operation had ended");
        }
        Drained::Cut { running } => {
            tracing::warn!(
                running,
                "stopped while operations ran; they are unknown now"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn log_to_stderr(filter: EnvFilter) {
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}
