//! The registry of webhooks: which id belongs to whom, from which provider its
//! events come, where they go, and with which secrets they are verified.
//!
//! A webhook is made here and kept in the gateway's own store, or its id is a
//! key of Unkey's, which has a root key of its own for them. Secrets are sealed
//! in the document, or live in OpenBao. The own ones are all in memory, so that
//! an event asks no store, and each change goes through here.
//!
//! A webhook says as little as it can: what it does not say is taken from the
//! configuration of the moment, so a reload moves it.

mod changes;
mod document;
mod error;
mod openbao;
mod provider;
mod seal;
mod signing;
#[cfg(test)]
mod tests;
mod unkey;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use onceward_core::caller::{Caller, WEBHOOK_INGEST};
use onceward_core::clock::Timestamp;
use onceward_core::identity::NAME_LENGTH_MAX;
use onceward_core::key::KEY_LENGTH_MAX;
use onceward_core::store::{Collection, PAGE_MAX, Registry, SortOrder};
use onceward_webhooks::{KEYS_MAX as SECRETS_MAX, Provider, SigningKey};
use percent_encoding::utf8_percent_encode;
use quick_cache::sync::Cache;

pub(crate) use self::changes::{Deleted, NewSecrets, NewWebhook, Rotated};
pub(crate) use self::document::Record;
pub(crate) use self::error::{NoSecret, WebhooksError};

use self::document::{DocumentError, Held, Kept};
use self::openbao::Read;
use self::seal::Seal;
use self::signing::Signing;
use crate::callers::WallClock;
use crate::callers::unkey::Unkey;
use crate::config::{Config, Deliver, Mistake, SameBytes};
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::Secret;

/// What an id begins with.
pub(crate) const ID_PREFIX: &str = "wh_";
/// The longest id; Unkey's are its own.
const ID_BYTES_MAX: usize = 128;
/// The longest tenant and project together, as they stand in the name of an
/// event with the longest key.
const NAMES_LENGTH_MAX: usize =
    NAME_LENGTH_MAX - "t-::service::".len() - WEBHOOK_INGEST.len() - KEY_LENGTH_MAX;
/// The most webhooks.
pub(crate) const WEBHOOKS_MAX: usize = 100_000;
/// Of how many webhooks with secrets in OpenBao the keys are held.
const READ_MAX: usize = 10_000;

/// A webhook, as it is to be served by the configuration of this moment.
#[derive(Debug)]
pub(crate) struct Webhook {
    /// Its id, which is in its URL.
    pub(crate) id: Arc<str>,
    /// As whom its events come in.
    pub(crate) caller: Caller,
    /// Who sends them, with the scheme that they are signed by.
    pub(crate) provider: Provider,
    /// Where they go; the configuration has it.
    pub(crate) upstream: Arc<str>,
    /// Under which path.
    pub(crate) path: String,
    /// When they go.
    pub(crate) deliver: Deliver,
    /// What becomes of the same bytes under another id.
    pub(crate) same_bytes: SameBytes,
    /// What they are verified with.
    secrets: Secrets,
}

/// Where the secrets of a webhook are.
#[derive(Clone, Debug)]
enum Secrets {
    /// In memory.
    Held(Arc<Entry>),
    /// In OpenBao, at this path.
    OpenBao(String),
}

/// A webhook in memory.
#[derive(Debug)]
struct Entry {
    record: Record,
    kept: Kept,
    /// What was read, for telling whether it is still the same.
    document: Bytes,
    /// What its secrets were last parsed to.
    parsed: Mutex<Option<Parsed>>,
}

/// The keys of a webhook for a while.
#[derive(Debug)]
struct Parsed {
    /// By whom they were parsed: a provider's settings may change.
    by: Provider,
    /// When the first of them ends.
    until: Option<Timestamp>,
    keys: Arc<[SigningKey]>,
}

/// A webhook as operators see it: no secret is in it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// What was said of it.
    pub(crate) record: Record,
    /// Where its secrets are.
    pub(crate) secrets: ShownSecrets,
}

/// What operators see of a webhook's secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShownSecrets {
    /// They are sealed in the store; those that are valid now, the oldest first.
    Sealed(Vec<ShownSecret>),
    /// They are in OpenBao.
    OpenBao,
}

/// What operators see of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShownSecret {
    /// When it was given.
    pub(crate) created_at: Timestamp,
    /// When it ends; one that is current has no end.
    pub(crate) until: Option<Timestamp>,
}

/// What the configuration of now makes of a webhook, as far as it can.
#[derive(Debug)]
pub(crate) struct Looked {
    /// Where its events go.
    pub(crate) upstream: Option<String>,
    /// Under which path.
    pub(crate) path: Option<String>,
    /// When they go.
    pub(crate) deliver: Option<Deliver>,
    /// Where its secrets are, if they are in OpenBao.
    pub(crate) secrets_path: Option<String>,
    /// Why it cannot be served.
    pub(crate) problem: Option<Mistake>,
}

impl Shown {
    /// Looks at it by this configuration.
    pub(crate) fn looked(&self, config: &Config) -> Looked {
        let record = &self.record;
        let path = match self.secrets {
            ShownSecrets::Sealed(_) => Ok(None),
            ShownSecrets::OpenBao => openbao::path(record, config).map(Some),
        };
        let (secrets_path, unread) = match path {
            Ok(path) => (path, None),
            Err(mistake) => (None, Some(mistake)),
        };
        match Resolved::of(record, config) {
            Ok(resolved) => Looked {
                upstream: Some(resolved.upstream.to_string()),
                path: Some(resolved.path),
                deliver: Some(resolved.deliver),
                secrets_path,
                problem: unread,
            },
            Err(mistake) => Looked {
                upstream: record.upstream.as_ref().map(ToString::to_string),
                path: record.path.clone(),
                deliver: record.deliver,
                secrets_path,
                problem: Some(mistake),
            },
        }
    }
}

/// Who else is asked; a reload replaces it whole.
struct Sources {
    secrets: SecretReader,
    unkey: Option<Unkey<Arc<Record>>>,
}

/// All webhooks.
pub(crate) struct Webhooks {
    registry: Arc<dyn Registry>,
    seal: Seal,
    signing: Signing,
    clock: WallClock,
    sources: ArcSwap<Sources>,
    held: RwLock<HashMap<Arc<str>, Arc<Entry>>>,
    /// Deleted here, while the registry has not confirmed it. Locked before
    /// `held` by who needs both.
    deleted: Mutex<HashSet<String>>,
    /// Held over each change and its write. Two changes at once could leave in
    /// memory what the registry no longer says.
    changing: tokio::sync::Mutex<()>,
    /// The keys of webhooks whose secrets are in OpenBao.
    read: Cache<Arc<str>, Arc<Read>>,
}

impl Webhooks {
    /// Reads all webhooks.
    pub(crate) async fn open(
        registry: Arc<dyn Registry>,
        secret: &Secret,
        config: &Config,
        secrets: SecretReader,
        clock: WallClock,
    ) -> Result<Self, WebhooksError> {
        let webhooks = Self {
            registry,
            seal: Seal::new(secret),
            signing: Signing::new(secret),
            sources: ArcSwap::from_pointee(Sources::new(config, secrets, &clock)?),
            clock,
            held: RwLock::default(),
            deleted: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            read: Cache::new(READ_MAX),
        };
        webhooks.refresh().await?;
        Ok(webhooks)
    }

    /// Asks others as a changed configuration says. Nothing changes if it fails.
    pub(crate) fn reopen(
        &self,
        config: &Config,
        secrets: SecretReader,
    ) -> Result<Reopened, WebhooksError> {
        let sources = Sources::new(config, secrets, &self.clock)?;
        Ok(Reopened(Arc::new(sources)))
    }

    /// Puts in force what was opened.
    pub(crate) fn replace(&self, reopened: Reopened) {
        self.sources.store(reopened.0);
    }

    /// Reads all webhooks again, for a registry that others change too.
    pub(crate) async fn refresh(&self) -> Result<(), WebhooksError> {
        let _changing = self.changing.lock().await;
        let mut read = HashMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self
                .registry
                .documents(
                    Collection::Webhooks,
                    SortOrder::Ascending,
                    after.as_deref(),
                    PAGE_MAX,
                )
                .await?;
            let Some((last, _)) = page.last() else {
                break;
            };
            after = Some(last.clone());
            if read.len() + page.len() > WEBHOOKS_MAX {
                return Err(WebhooksError::Overfull);
            }
            for (id, document) in page {
                let entry = match self.held(&id) {
                    // Its keys need not be parsed again.
                    Some(entry) if entry.document == document => Ok(entry),
                    _ => self.entry(&id, document).map(Arc::new),
                };
                match entry {
                    Ok(entry) => {
                        read.insert(entry.record.id.clone(), entry);
                    }
                    // Its events are refused; all others still come in.
                    Err(source) => {
                        tracing::error!(webhook_id = id, cause = %source, "a webhook's document is damaged; its events are not accepted");
                    }
                }
            }
        }
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        read.retain(|id, _| !deleted.contains(id.as_ref()));
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// The webhook with this id, if events of this provider come to it. Own ones
    /// are found without waiting for anybody.
    pub(crate) async fn find(
        &self,
        config: &Config,
        provider: &str,
        id: &str,
    ) -> Result<Option<Arc<Webhook>>, WebhooksError> {
        if !is_id(id) {
            return Ok(None);
        }
        if let Some(entry) = self.held(id) {
            if *entry.record.provider != *provider {
                return Ok(None);
            }
            let secrets = match entry.kept {
                Kept::Sealed(_) => Some(Secrets::Held(entry.clone())),
                Kept::OpenBao => None,
            };
            let webhook = Webhook::of(&entry.record, secrets, config);
            return webhook.map(|webhook| Some(Arc::new(webhook)));
        }
        let sources = self.sources.load_full();
        let Some(unkey) = &sources.unkey else {
            return Ok(None);
        };
        let Some(named) = unkey::named(unkey, id).await? else {
            return Ok(None);
        };
        if *named.provider != *provider {
            return Ok(None);
        }
        let webhook = Webhook::of(&named, None, config);
        webhook.map(|webhook| Some(Arc::new(webhook)))
    }

    /// What the webhook's events are verified with now: at least one key.
    pub(crate) async fn keys(&self, webhook: &Webhook) -> Result<Arc<[SigningKey]>, WebhooksError> {
        match &webhook.secrets {
            Secrets::Held(entry) => entry.keys(&webhook.provider, self.clock.now()),
            Secrets::OpenBao(path) => {
                let sources = self.sources.load_full();
                let fields = sources.secrets.read_path(path).await?;
                let before = self.read.get(&webhook.id);
                if let Some(before) = before.filter(|read| read.is_of(&fields, &webhook.provider)) {
                    return Ok(before.keys.clone());
                }
                let read = Read::new(&webhook.id, fields, &webhook.provider)?;
                let keys = read.keys.clone();
                self.read.insert(webhook.id.clone(), Arc::new(read));
                Ok(keys)
            }
        }
    }

    /// All own webhooks, the oldest first.
    pub(crate) fn list(&self) -> Vec<Shown> {
        let now = self.clock.now();
        let mut shown: Vec<_> = self.read().values().map(|entry| entry.shown(now)).collect();
        shown.sort_by(|a, b| {
            let (a, b) = (&a.record, &b.record);
            (a.created_at, &a.id).cmp(&(b.created_at, &b.id))
        });
        shown
    }

    /// One of them.
    pub(crate) fn show(&self, id: &str) -> Option<Shown> {
        let now = self.clock.now();
        self.held(id).map(|entry| entry.shown(now))
    }

    /// The own webhooks that a changed configuration could no longer serve, and
    /// why. Those that cannot be served as it is are no reason not to change it.
    pub(crate) fn misfits(&self, before: &Config, after: &Config) -> Vec<String> {
        let listed = self.list();
        let unfit = listed.iter().filter_map(|shown| {
            let problem = shown.looked(after).problem?;
            let served = shown.looked(before).problem.is_none();
            let id = &shown.record.id;
            served.then(|| format!("the webhook {id} could not be served: {problem}"))
        });
        unfit.collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Arc<str>, Arc<Entry>>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, id: &str) -> Option<Arc<Entry>> {
        self.read().get(id).cloned()
    }

    fn entry(&self, id: &str, document: Bytes) -> Result<Entry, DocumentError> {
        let (record, kept) = document::read(id, &document, &self.seal)?;
        Ok(Entry {
            record,
            kept,
            document,
            parsed: Mutex::default(),
        })
    }
}

/// What a changed configuration asks others with, opened and not yet in force.
pub(crate) struct Reopened(Arc<Sources>);

impl Sources {
    fn new(
        config: &Config,
        secrets: SecretReader,
        clock: &WallClock,
    ) -> Result<Self, WebhooksError> {
        let unkey = unkey::open(&config.auth, &secrets, clock);
        Ok(Self {
            unkey: unkey.map_err(WebhooksError::UnkeySetup)?,
            secrets,
        })
    }
}

/// What the configuration makes of what a webhook says.
struct Resolved {
    provider: Provider,
    upstream: Arc<str>,
    path: String,
    deliver: Deliver,
}

impl Resolved {
    fn of(record: &Record, config: &Config) -> Result<Self, Mistake> {
        let webhooks = &config.webhooks;
        check_names(&record.caller)?;
        let provider = provider::provider(webhooks, &record.provider, record.scheme.as_deref())?;
        if provider.binds_url() && config.server.public_url.is_none() {
            let name = &record.provider;
            let problem = format!("{name} signs the URL, and nobody says what it is");
            let right = "set server.public_url to where the provider finds this gateway";
            return Err(Mistake::given("provider", problem, right.to_owned()));
        }
        let upstream = changes::upstream(record.upstream.as_ref(), config)?;
        let path = record.path.clone();
        Ok(Self {
            path: path.unwrap_or_else(|| webhooks.path_for(&record.provider)),
            deliver: record.deliver.unwrap_or(match provider.sync_by_default() {
                true => Deliver::Sync,
                false => Deliver::Async,
            }),
            upstream,
            provider,
        })
    }
}

impl Webhook {
    /// A webhook by the configuration of now; without secrets at hand they are
    /// in OpenBao.
    fn of(
        record: &Record,
        secrets: Option<Secrets>,
        config: &Config,
    ) -> Result<Self, WebhooksError> {
        let unfit = |source: Mistake| WebhooksError::Unfit {
            id: record.id.as_ref().to_owned(),
            source: Box::new(source),
        };
        let resolved = Resolved::of(record, config).map_err(unfit)?;
        let secrets = match secrets {
            Some(secrets) => secrets,
            None => Secrets::OpenBao(openbao::path(record, config).map_err(unfit)?),
        };
        Ok(Self {
            id: record.id.clone(),
            caller: record.caller.clone(),
            provider: resolved.provider,
            upstream: resolved.upstream,
            path: resolved.path,
            deliver: resolved.deliver,
            same_bytes: record.same_bytes.unwrap_or(config.webhooks.same_bytes),
            secrets,
        })
    }
}

impl Entry {
    fn keys(
        &self,
        provider: &Provider,
        now: Timestamp,
    ) -> Result<Arc<[SigningKey]>, WebhooksError> {
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parsed) = parsed.as_ref()
            && parsed.until.is_none_or(|until| now < until)
            && provider::same(&parsed.by, provider)
        {
            return Ok(parsed.keys.clone());
        }
        let valid: Vec<&Held> = self.valid(now).collect();
        let no_secret = |problem| WebhooksError::NoSecret {
            id: self.record.id.as_ref().to_owned(),
            problem,
        };
        let texts = valid.iter().map(|held| &held.text);
        let keys = openbao::keys(texts, provider).map_err(no_secret)?;
        if keys.is_empty() {
            return Err(no_secret(NoSecret::Ended));
        }
        *parsed = Some(Parsed {
            by: provider.clone(),
            until: valid.iter().filter_map(|held| held.until).min(),
            keys: keys.clone(),
        });
        Ok(keys)
    }

    fn valid(&self, now: Timestamp) -> impl Iterator<Item = &Held> {
        let held = match &self.kept {
            Kept::Sealed(held) => held.as_slice(),
            Kept::OpenBao => &[],
        };
        held.iter().filter(move |held| held.is_valid(now))
    }

    fn shown(&self, now: Timestamp) -> Shown {
        let secrets = match &self.kept {
            Kept::OpenBao => ShownSecrets::OpenBao,
            Kept::Sealed(_) => {
                let valid = self.valid(now).map(|held| ShownSecret {
                    created_at: held.created_at,
                    until: held.until,
                });
                ShownSecrets::Sealed(valid.collect())
            }
        };
        Shown {
            record: self.record.clone(),
            secrets,
        }
    }
}

/// Whether each event has a name, however long its key: one without would be
/// refused whenever it comes.
fn check_names(caller: &Caller) -> Result<(), Mistake> {
    let length = |name| -> usize {
        let parts = utf8_percent_encode(name, openbao::PLAIN);
        parts.map(str::len).sum()
    };
    let (tenant, project) = (length(caller.tenant()), length(caller.project()));
    if tenant + project <= NAMES_LENGTH_MAX {
        return Ok(());
    }
    let key = match tenant > project {
        true => "tenant",
        false => "project",
    };
    let problem = format!(
        "is so long that some events would have a name of more than {NAME_LENGTH_MAX} characters"
    );
    let right = format!(
        "take a tenant and a project of {NAMES_LENGTH_MAX} characters together, percent-encoded"
    );
    Err(Mistake::given(key, problem, right))
}

/// Whether this could be the id of a webhook, ours or Unkey's.
fn is_id(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= ID_BYTES_MAX
        && text.strip_prefix(ID_PREFIX).is_some_and(|tail| {
            // Less could be guessed, whoever made it.
            tail.len() >= 16 && tail.bytes().all(letter)
        })
}
