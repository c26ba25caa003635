//! Reloads a changed configuration while requests are served.
//!
//! The whole configuration is read and checked first; a mistake is reported and
//! changes nothing. Then the new plan replaces the old plan at once, and requests
//! under way finish with the old plan. A changed setting that cannot change at run
//! time (listeners, the store, the gateway's key) refuses the reload; the error
//! names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use onceward_core::deadline::within;
use secrecy::ExposeSecret;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::admin::{Action, Audit, Change, ChangeOutcome, Operators, Reload};
use crate::config::{self, Config, Loaded};
use crate::listen::tls::ListenerTls;
use crate::runtime::Runtime;
use crate::runtime::classes::ConfiguredClasses;
use crate::runtime::plan::Plan;
use crate::runtime::start::operator_tokens;
use crate::secrets::SecretReader;

/// The pause between a change and reading the file, because editors write in steps.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// The deadline of reading a file.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The configuration file that a gateway watches.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The environment variables that are substituted in it.
    pub environment: BTreeMap<String, String>,
    /// Its content when this value was made.
    seen: Option<ContentDigest>,
}

/// A digest of a file's content, for comparison.
type ContentDigest = [u8; 32];

impl ConfigFile {
    /// The file at this path. Create this value before loading the configuration
    /// from the file, so that no later change is missed.
    pub fn new(path: PathBuf, environment: BTreeMap<String, String>) -> Self {
        Self {
            seen: content_digest(&path),
            path,
            environment,
        }
    }
}

/// Reloads the configuration and puts it in force.
pub(crate) struct Reloader {
    pub(crate) file: Option<ConfigFile>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) operators: Arc<Operators>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) tls: Option<Arc<ListenerTls>>,
    /// Locked during a reload.
    pub(crate) reloading: tokio::sync::Mutex<()>,
}

impl Reloader {
    /// Reloads the configuration and records the reload and its cause in the audit.
    pub(crate) async fn reload(&self, by: &str) -> Result<String, String> {
        let answer = self.try_reload().await;
        let outcome = match &answer {
            Ok(_) => ChangeOutcome::Done(serde_json::Value::Null),
            Err(why) => ChangeOutcome::Refused(why.clone()),
        };
        let change = Change::by_gateway(by, Action::Reload);
        if let Err(error) = self.audit.note(change, outcome).await {
            tracing::warn!(%error, "reload not recorded in the audit");
        }
        answer
    }

    async fn try_reload(&self) -> Result<String, String> {
        let _reloading = self.reloading.lock().await;
        let metrics = self.runtime.metrics();
        match self.put_in_force().await {
            Ok(detail) => {
                metrics.reload_done();
                tracing::info!(detail, "configuration reloaded");
                Ok(detail)
            }
            Err(why) => {
                metrics.reload_failed();
                tracing::error!(
                    why,
                    "configuration refused; the previous one stays in force"
                );
                Err(why)
            }
        }
    }

    async fn put_in_force(&self) -> Result<String, String> {
        let Some(file) = &self.file else {
            return Err("This gateway runs without a configuration file.".to_owned());
        };
        let Loaded { config, warnings } = load(file.clone()).await?;
        let before = self.runtime.plan();
        let fixed = unchangeable(&before.config, &config);
        if !fixed.is_empty() {
            return Err(format!(
                "{} cannot change while the gateway runs: restart it, or revert the change.",
                fixed.join(", ")
            ));
        }
        let secrets = SecretReader::new(&config.secrets).map_err(|error| error.to_string())?;
        let operators = operator_tokens(&config, &secrets).await;
        let operators = operators.map_err(|error| error.to_string())?;
        let callers = before.callers.reopen(&config.auth, secrets.clone());
        let callers = callers.map_err(|error| error.to_string())?;
        let webhooks = self.runtime.webhooks();
        let reopened = webhooks.reopen(&config, secrets);
        let reopened = reopened.map_err(|error| error.to_string())?;
        let misfits = webhooks.unservable(&before.config, &config);
        if !misfits.is_empty() {
            return Err(misfits.join("\n"));
        }
        let metrics = self.runtime.metrics();
        let plan = Plan::new(config, callers, metrics, Some(&before));
        let plan = plan.map_err(|error| error.to_string())?;
        let base = ConfiguredClasses::of(&plan);
        let misfits = self.runtime.classes().misfits(&base);
        if !misfits.is_empty() {
            return Err(misfits.join("\n"));
        }
        if let Some(tls) = &self.tls {
            tls.reload().map_err(|error| error.to_string())?;
        }
        // From here on, no step can fail.
        let routes = plan.config.routes.len();
        webhooks.replace(reopened);
        self.runtime.replace_plan(plan, base).await;
        self.operators.replace(operators);
        Ok(format!(
            "{routes} routes are served; {} configuration warnings.",
            warnings.len()
        ))
    }

    /// The reload action of the admin API, if there is a file. The admin API
    /// records the action in the audit.
    pub(crate) fn by_operators(self: &Arc<Self>) -> Option<Reload> {
        self.file.as_ref()?;
        let reloader = self.clone();
        Some(Arc::new(move || {
            let reloader = reloader.clone();
            Box::pin(async move { reloader.try_reload().await })
        }))
    }

    /// Watches the file and reloads it when it changes, until the task is
    /// dropped.
    pub(crate) async fn watch(self: Arc<Self>) {
        let Some(file) = &self.file else {
            return std::future::pending().await;
        };
        let (changed, mut changes) = mpsc::channel(1);
        // The whole directory is watched: editors replace the file by a new one,
        // and the file may be a link to another.
        let directory = file
            .path
            .parent()
            .filter(|path| !path.as_os_str().is_empty());
        let directory = directory.unwrap_or_else(|| std::path::Path::new("."));
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // One message stands for any number of changes.
                let _ = changed.try_send(());
            }
        });
        let mut watcher = match watcher {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(%error, "configuration file cannot be watched; reload by SIGHUP or the admin API");
                return std::future::pending().await;
            }
        };
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, "configuration file cannot be watched; reload by SIGHUP or the admin API");
            return std::future::pending().await;
        }
        let mut seen = file.seen;
        loop {
            // The first comparison comes before the first message: the file may
            // have changed since the gateway read it at start.
            let path = file.path.clone();
            let now = run_blocking(move || content_digest(&path)).await.flatten();
            // A file that was only touched, or is absent while an editor replaces
            // it, is not reloaded.
            if now.is_some() && now != seen {
                seen = now;
                // The result is in the log and the audit.
                let _ = self.reload("file").await;
            }
            if changes.recv().await.is_none() {
                return;
            }
            tokio::time::sleep(DEBOUNCE).await;
        }
    }
}

/// Reads a configuration. A file that blocks, for example on an unreachable network
/// drive, delays only this reload.
async fn load(file: ConfigFile) -> Result<Loaded, String> {
    let reading = move || config::load(&file.path, &file.environment);
    match run_blocking(reading).await {
        Some(read) => read.map_err(|mistakes| {
            let mistakes: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
            mistakes.join("\n")
        }),
        None => Err(format!(
            "The file could not be read within {READ_DEADLINE:?}."
        )),
    }
}

fn content_digest(path: &Path) -> Option<ContentDigest> {
    let bytes = std::fs::read(path).ok()?;
    Some(Sha256::digest(bytes).into())
}

/// Runs blocking work on a separate thread; `None` after [`READ_DEADLINE`].
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    // A thread of the async runtime would delay shutdown.
    std::thread::spawn(move || drop(done.send(work())));
    within(READ_DEADLINE, result).await.ok()?.ok()
}

/// The settings that differ and cannot change while the gateway runs.
fn unchangeable(before: &Config, after: &Config) -> Vec<&'static str> {
    let (old, new) = (&before.server, &after.server);
    let key = |config: &Config| {
        let key = config.secrets.key.as_ref();
        key.map(|key| key.expose_secret().to_owned())
    };
    // The store's deadline is a limit and may change, like other limits.
    let store = |config: &Config| {
        let mut store = config.store.clone();
        store.deadline = Duration::ZERO;
        store
    };
    let differs = [
        ("server.listen", old.listen != new.listen),
        ("server.admin", old.admin != new.admin),
        ("server.tls", old.tls != new.tls),
        (
            "server.trusted_proxies",
            old.trusted_proxies != new.trusted_proxies,
        ),
        (
            "server.proxy_protocol",
            old.proxy_protocol != new.proxy_protocol,
        ),
        (
            "server.head_deadline",
            old.head_deadline != new.head_deadline,
        ),
        (
            "server.write_deadline",
            old.write_deadline != new.write_deadline,
        ),
        ("server.threads", old.threads != new.threads),
        (
            "limits.connections",
            before.limits.connections != after.limits.connections,
        ),
        (
            "limits.streams",
            before.limits.streams != after.limits.streams,
        ),
        ("store", store(before) != store(after)),
        ("secrets.key", key(before) != key(after)),
        ("telemetry", before.telemetry != after.telemetry),
        (
            "server.admin_token",
            !old.admin_tokens.is_empty() && new.admin_tokens.is_empty(),
        ),
        // A file may be read while it is half written, and without `[auth]`
        // every client is let in.
        (
            "auth",
            before.auth.knows_callers() && !after.auth.knows_callers(),
        ),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs.map(|(name, _)| name).collect()
}
