//! `onceward serve`: runs the gateway until a signal stops it.
//!
//! The gateway prints one line of JSON to standard output when it is ready, and logs to standard
//! error, one JSON object a line. It keeps serving when either is closed. SIGTERM and Ctrl-C drain:
//! running operations finish and are recorded. A second signal ends the process at once, which
//! loses nothing that was acknowledged. SIGHUP reloads the configuration.

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

use crate::{log, output};

/// The environment variable for the secret of gateways that share a store.
const KEY_VARIABLE: &str = "ONCEWARD_KEY";
/// The minimum length of that secret.
const KEY_LENGTH_MIN: usize = 16;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Protect this service, with no configuration: http://HOST:PORT, https://HOST:PORT, or
    /// h2c://HOST:PORT for HTTP/2.
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    upstream: Option<String>,
    /// Configuration file; the gateway reloads it when it changes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["upstream", "listen", "admin", "store"])]
    config: Option<PathBuf>,
    /// Address to listen on for requests [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address to listen on for operators: /livez, /readyz, /metrics, /admin/v1 [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Store for operations: embedded:DIR; postgres://… or redis://…, which several gateways can
    /// share if each has the same ONCEWARD_KEY in its environment; or memory:, which keeps nothing
    /// after the process ends [default: embedded:./onceward-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Log level or filter: error, warn, info, debug, or for example info,onceward::access=off.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = log::parse_filter)]
    log: EnvFilter,
    /// Upstream timeout, in milliseconds.
    #[arg(long, hide = true)]
    upstream_timeout_ms: Option<u64>,
    /// Lease of a claim, in milliseconds.
    #[arg(long, hide = true)]
    lease_ms: Option<u64>,
    /// Drain limit, in milliseconds.
    #[arg(long, hide = true)]
    drain_ms: Option<u64>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    log::to_stderr(args.log.clone());
    #[cfg(feature = "failpoints")]
    let _points = fail::FailScenario::setup();
    let mut terminate =
        signal(SignalKind::terminate()).context("cannot install the SIGTERM handler")?;
    let mut interrupt =
        signal(SignalKind::interrupt()).context("cannot install the SIGINT handler")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot install the SIGHUP handler")?;

    let (config, file) = configuration(&args)?;
    let knows_callers = config.auth.knows_callers();
    let routes = config.routes.len();
    let gateway = Gateway::start(config, file).await?;
    let (listen, admin) = (gateway.listen(), gateway.admin());
    tracing::info!(%listen, %admin, upstream = args.upstream, routes, "serving");
    if !knows_callers {
        tracing::warn!(
            "no [auth] configured: all clients share one caller and are distinguished only by the credentials they send"
        );
    }
    let ready = serde_json::json!({ "listen": listen, "admin": admin });
    if let Err(error) = output::print(&format!("{ready}\n")) {
        tracing::warn!(%error, "cannot write the ready line to standard output");
    }

    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            // The gateway logs and audits the outcome.
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
            tracing::warn!("stopped with clients still connected; no operation was running");
        }
        Drained::Cut { running } => {
            tracing::warn!(
                running,
                "stopped with operations still running; they are now unknown, or free on joined routes"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The configuration from the command line, or from the file that it names.
fn configuration(args: &Args) -> anyhow::Result<(Config, Option<ConfigFile>)> {
    let (mut config, file) = match (&args.upstream, &args.config) {
        (Some(upstream), _) => (Config::unconfigured(upstream), None),
        (None, Some(path)) => {
            let file = ConfigFile::new(path.clone(), crate::check::environment());
            (read(&file)?, Some(file))
        }
        (None, None) => bail!("give --upstream URL or --config FILE"),
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

/// The `secrets.key` that all gateways on a shared store need.
fn shared_key() -> anyhow::Result<SecretString> {
    let key = match std::env::var(KEY_VARIABLE) {
        Ok(key) => key,
        Err(VarError::NotPresent) => bail!(
            "gateways that share a store need the same secrets.key: set {KEY_VARIABLE} to the same {KEY_LENGTH_MIN} or more random characters for each of them"
        ),
        Err(VarError::NotUnicode(_)) => bail!("{KEY_VARIABLE} is not valid UTF-8"),
    };
    let length = key.chars().count();
    if length < KEY_LENGTH_MIN {
        bail!("{KEY_VARIABLE} has {length} characters; use at least {KEY_LENGTH_MIN} random ones");
    }
    Ok(key.into())
}

/// Loads a file. The error has all mistakes in it; warnings are logged.
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
