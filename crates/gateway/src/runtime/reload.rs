//! A changed configuration, put in force while requests are served.
//!
//! It is read and checked whole before anything changes; a mistake changes
//! nothing and is told. Then everything new takes its place at once, and what
//! is under way goes on by the old rules. What cannot change while the gateway
//! runs (where it listens, its store, its secret) is refused by name.

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

/// How long a file must stay as it is before it is read: editors write in steps.
const SETTLE: Duration = Duration::from_millis(200);
/// How long reading a file may take.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The file that a gateway follows.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// The environment that it is read with.
    pub environment: BTreeMap<String, String>,
    /// What was in it when this was made.
    seen: Option<Content>,
}

/// What a file holds, for comparing.
type Content = [u8; 32];

impl ConfigFile {
    /// The file at this path. Made before the configuration is loaded from it, so
    /// that no change is missed that comes later.
    pub fn new(path: PathBuf, environment: BTreeMap<String, String>) -> Self {
        Self {
            seen: content(&path),
            path,
            environment,
        }
    }
}

/// Puts changes in force.
pub(crate) struct Reloader {
    pub(crate) file: Option<ConfigFile>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) operators: Arc<Operators>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) tls: Option<Arc<ListenerTls>>,
    /// Held by the reload under way.
    pub(crate) reloading: tokio::sync::Mutex<()>,
}

impl Reloader {
    /// Reads the file and puts it in force; `by` says at whose word.
    pub(crate) async fn reload(&self, by: &str) -> Result<String, String> {
        let answer = self.try_reload().await;
        let outcome = match &answer {
            Ok(_) => ChangeOutcome::Done(serde_json::Value::Null),
            Err(why) => ChangeOutcome::Refused(why.clone()),
        };
        let change = Change::by_gateway(by, Action::Reload);
        if let Err(error) = self.audit.note(change, outcome).await {
            tracing::warn!(%error, "a reload could not be noted in the audit");
        }
        answer
    }

    async fn try_reload(&self) -> Result<String, String> {
        let _reloading = self.reloading.lock().await;
        let metrics = self.runtime.metrics();
        match self.put_in_force().await {
            Ok(detail) => {
                metrics.reload_done();
                tracing::info!(detail, "the configuration was read again");
                Ok(detail)
            }
            Err(why) => {
                metrics.reload_failed();
                tracing::error!(why, "the configuration was not taken; the old one holds");
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
                "{} cannot change while the gateway runs: restart it, or take the change back.",
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
        // From here on nothing can fail.
        let routes = plan.config.routes.len();
        webhooks.replace(reopened);
        self.runtime.replace_plan(plan, base).await;
        self.operators.replace(operators);
        Ok(format!(
            "{routes} routes are served; {} configuration warnings.",
            warnings.len()
        ))
    }

    /// The way in which operators ask for it, if there is a file. The audit
    /// entry is theirs.
    pub(crate) fn by_operators(self: &Arc<Self>) -> Option<Reload> {
        self.file.as_ref()?;
        let reloader = self.clone();
        Some(Arc::new(move || {
            let reloader = reloader.clone();
            Box::pin(async move { reloader.try_reload().await })
        }))
    }

    /// Follows the file for as long as the gateway lives.
    pub(crate) async fn watch(self: Arc<Self>) {
        let Some(file) = &self.file else {
            return std::future::pending().await;
        };
        let (tell, mut told) = mpsc::channel(1);
        // The directory is watched, and whatever changes in it: editors put a new
        // file in the old one's place, and the file may be a link to another.
        let directory = file
            .path
            .parent()
            .filter(|path| !path.as_os_str().is_empty());
        let directory = directory.unwrap_or_else(|| std::path::Path::new("."));
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // One word is enough, however many changes there were.
                let _ = tell.try_send(());
            }
        });
        let mut watcher = match watcher {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(%error, "the configuration file cannot be followed; use SIGHUP or the admin API");
                return std::future::pending().await;
            }
        };
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, "the configuration file cannot be followed; use SIGHUP or the admin API");
            return std::future::pending().await;
        }
        let mut seen = file.seen;
        loop {
            // The first time without a word: it may have changed since it was read
            // for the start.
            let path = file.path.clone();
            let now = run_blocking(move || content(&path)).await.flatten();
            // Touched, or gone for a moment: nothing to read.
            if now.is_some() && now != seen {
                seen = now;
                // The log and the audit tell what came of it.
                let _ = self.reload("file").await;
            }
            if told.recv().await.is_none() {
                return;
            }
            tokio::time::sleep(SETTLE).await;
        }
    }
}

/// Reads a configuration. A file that does not answer, for example on a network
/// drive that is gone, delays only this reload.
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

fn content(path: &Path) -> Option<Content> {
    let bytes = std::fs::read(path).ok()?;
    Some(Sha256::digest(bytes).into())
}

/// Runs blocking work on its own thread, and returns its result if it ends within
/// [`READ_DEADLINE`].
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, result) = tokio::sync::oneshot::channel();
    // Not a thread of the async runtime, which would wait for it when it ends.
    std::thread::spawn(move || drop(sender.send(work())));
    within(READ_DEADLINE, result).await.ok()?.ok()
}

/// What differs and cannot change while the gateway runs.
fn unchangeable(before: &Config, after: &Config) -> Vec<&'static str> {
    let (old, new) = (&before.server, &after.server);
    let key = |config: &Config| {
        let key = config.secrets.key.as_ref();
        key.map(|key| key.expose_secret().to_owned())
    };
    // How long a step may take is a limit, and changes with the others.
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
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs.map(|(name, _)| name).collect()
}
