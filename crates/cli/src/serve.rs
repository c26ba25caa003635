//! `onceward serve`: the gateway, until it is told to stop.
//!
//! Standard output gets one line of JSON when the gateway is ready; the log, one
//! JSON object a line, goes to standard error. SIGTERM and Ctrl-C drain: what
//! runs is finished and recorded. A second one ends it at once, which loses
//! nothing that was acknowledged. SIGHUP reads the configuration again.

use std::env::VarError;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use onceward_gateway::config::{self, Config, StoreKind};
use onceward_gateway::{ConfigFile, Drained, Gateway};
use secrecy::SecretString;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The variable with the secret of gateways that share a store.
const KEY_VARIABLE: &str = "ONCEWARD_KEY";
/// The shortest that is let pass as a secret.
const KEY_LENGTH_MIN: usize = 16;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The service to protect, with no configuration: http://HOST:PORT, https://HOST:PORT, or
    /// h2c://HOST:PORT for HTTP/2.
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    upstream: Option<String>,
    /// The configuration; `onceward check` tells its mistakes. It is followed when it changes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["upstream", "listen", "admin", "store"])]
    config: Option<PathBuf>,
    /// Where to listen for requests [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where to listen for operators: /livez, /readyz, /metrics, /admin/v1 [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Where operations are kept: embedded:DIR; postgres://… or redis://…, which several gateways
    /// can share and which need the same ONCEWARD_KEY in the environment of each; or memory: to
    /// forget them at the end [default: embedded:./onceward-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// What to log: error, warn, info, debug, or a filter such as info,onceward::access=off.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: EnvFilter,
    /// How long the upstream may take, in milliseconds.
    #[arg(long, hide = true)]
    upstream_timeout_ms: Option<u64>,
    /// How long a claim lasts without renewal, in milliseconds.
    #[arg(long, hide = true)]
    lease_ms: Option<u64>,
    /// How long a stop waits for what runs, in milliseconds.
    #[arg(long, hide = true)]
    drain_ms: Option<u64>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    log_to_stderr(args.log.clone());
    #[cfg(feature = "failpoints")]
    let _points = fail::FailScenario::setup();
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be awaited")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be awaited")?;
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be awaited")?;

    let (config, file) = configuration(&args)?;
    let knows_callers = config.auth.knows_callers();
    let routes = config.routes.len();
    let gateway = Gateway::start(config, file).await?;
    let (listen, admin) = (gateway.listen(), gateway.admin());
    tracing::info!(%listen, %admin, upstream = args.upstream, routes, "serving");
    if !knows_callers {
        tracing::warn!(
            "no callers are configured: every client is the same caller, told apart only by the credentials it sends"
        );
    }
    println!(
        "{}",
        serde_json::json!({ "listen": listen, "admin": admin })
    );

    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            // The log and the audit tell what came of it.
            _ = hangup.recv() => drop(gateway.reload().await),
        }
    }
    let drain = args.drain_ms.map(Duration::from_millis);
    let drain = drain.unwrap_or_else(|| gateway.drain_limit());
    tracing::info!("draining");
    let drained = tokio::select! {
        drained = gateway.drain(drain) => drained,
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
                "stopped while operations ran; they are unknown now, or free where their route is joined"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the command line says, or the file that it names.
fn configuration(args: &Args) -> anyhow::Result<(Config, Option<ConfigFile>)> {
    let (mut config, file) = match (&args.upstream, &args.config) {
        (Some(upstream), _) => (Config::unconfigured(upstream), None),
        (None, Some(path)) => {
            let file = ConfigFile::new(path.clone(), crate::check::environment());
            (read(&file)?, Some(file))
        }
        (None, None) => bail!("say what to protect: --upstream URL, or --config FILE"),
    };
    let server = &mut config.server;
    server.listen = args.listen.clone().unwrap_or(server.listen.clone());
    server.admin = args.admin.clone().unwrap_or(server.admin.clone());
    if let Some(url) = &args.store {
        config.store = url.as_str().into();
    }
    if args.upstream.is_some() && config.store_kind().is_some_and(StoreKind::is_shared) {
        config.secrets.key = Some(shared_key()?);
    }
    if let Some(timeout) = args.upstream_timeout_ms.map(Duration::from_millis) {
        for upstream in config.upstreams.values_mut() {
            upstream.timeout = timeout;
        }
    }
    if let Some(lease) = args.lease_ms.map(Duration::from_millis) {
        for class in config.classes.values_mut() {
            class.lease = lease;
        }
    }
    Ok((config, file))
}

/// The secret that all gateways on a store share.
fn shared_key() -> anyhow::Result<SecretString> {
    let key = match std::env::var(KEY_VARIABLE) {
        Ok(key) => key,
        Err(VarError::NotPresent) => bail!(
            "gateways that share a store need the same secret: set {KEY_VARIABLE} to {KEY_LENGTH_MIN} characters or more, at random, for each of them"
        ),
        Err(VarError::NotUnicode(_)) => bail!("{KEY_VARIABLE} is not text in UTF-8"),
    };
    let length = key.chars().count();
    if length < KEY_LENGTH_MIN {
        bail!("{KEY_VARIABLE} has {length} characters; take {KEY_LENGTH_MIN} or more, at random");
    }
    Ok(key.into())
}

/// Reads a file, with every mistake in it; warnings go to the log.
fn read(file: &ConfigFile) -> anyhow::Result<Config> {
    match config::load(&file.path, &file.environment) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                tracing::warn!(warning = warning.to_string(), "configuration warning");
            }
            Ok(loaded.config)
        }
        Err(mistakes) => {
            let mistakes: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
            bail!("{}", mistakes.join("\n"))
        }
    }
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
