//! The registry of webhooks: the tenant and project of each id, its provider, its
//! destination, and the secrets that its events are verified with.
//!
//! A webhook is created here and stored in the gateway's own store, or its id is
//! an Unkey key, for which Unkey has a separate root key. Secrets are sealed in
//! the stored document, or are in OpenBao. All own webhooks are in memory, so
//! that an event needs no store access, and every change goes through here.
//!
//! Settings that a webhook leaves out come from the present configuration, so a
//! reload changes them.

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
use onceward_core::identity::{Endpoint, NAME_LENGTH_MAX};
use onceward_core::key::KEY_LENGTH_MAX;
use onceward_core::store::{Collection, PAGE_MAX, Registry, SortOrder};
use onceward_webhooks::{KEYS_MAX as SECRETS_MAX, Provider, SigningKey};
use percent_encoding::utf8_percent_encode;
use quick_cache::sync::Cache;

pub(crate) use self::changes::{Deleted, NewDestination, NewSecrets, NewWebhook, Rotated, Updated};
pub(crate) use self::document::Registration;
pub(crate) use self::error::{NoSecret, WebhooksError};

use self::document::{DocumentError, StoredSecret, StoredSecrets};
use self::openbao::OpenBaoKeys;
use self::seal::SecretSealer;
use self::signing::SigningSecrets;
use crate::callers::WallClock;
use crate::callers::unkey::UnkeyVerifier;
use crate::config::{Config, Deliver, Mistake, SameBytes};
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::GatewayKey;

/// The prefix of an id.
pub(crate) const ID_PREFIX: &str = "wh_";
/// The longest id; Unkey chooses its own.
const ID_BYTES_MAX: usize = 128;
/// The longest tenant and project together, so that the name of an event with
/// the longest key still fits.
const NAMES_LENGTH_MAX: usize =
    NAME_LENGTH_MAX - "t-::service::".len() - WEBHOOK_INGEST.len() - KEY_LENGTH_MAX;
/// The most webhooks.
pub(crate) const WEBHOOKS_MAX: usize = 100_000;
/// For how many webhooks with secrets in OpenBao the keys are cached.
const CACHED_MAX: usize = 10_000;

/// A webhook as the present configuration serves it.
#[derive(Debug)]
pub(crate) struct Webhook {
    /// Its id, which is in its URL.
    pub(crate) id: Arc<str>,
    /// The caller of its events.
    pub(crate) caller: Caller,
    /// The provider, with its signature scheme.
    pub(crate) provider: Provider,
    /// The upstream of its events, which is configured.
    pub(crate) upstream: Arc<str>,
    /// The path at the upstream.
    pub(crate) path: String,
    /// Whether events are queued.
    pub(crate) deliver: Deliver,
    /// What happens to the same bytes under another id.
    pub(crate) same_bytes: SameBytes,
    /// The secrets that events are verified with.
    secrets: SecretSource,
}

/// Where the secrets of a webhook are.
#[derive(Clone, Debug)]
enum SecretSource {
    /// In memory.
    Stored(Arc<RegisteredWebhook>),
    /// In OpenBao, at this path.
    OpenBao(String),
}

/// An own webhook in memory.
#[derive(Debug)]
struct RegisteredWebhook {
    registration: Registration,
    secrets: StoredSecrets,
    /// The stored bytes, to detect a change.
    document: Bytes,
    /// The keys that its secrets were last parsed to.
    parsed: Mutex<Option<Parsed>>,
}

/// Cached keys of a webhook.
#[derive(Debug)]
struct Parsed {
    /// The provider that parsed them: its settings may change.
    by: Provider,
    /// When the first of them ends.
    until: Option<Timestamp>,
    keys: Arc<[SigningKey]>,
}

/// A webhook as operators see it, without its secrets.
#[derive(Clone, Debug)]
pub(crate) struct WebhookView {
    /// The webhook.
    pub(crate) registration: Registration,
    /// Where its secrets are.
    pub(crate) secrets: SecretsView,
}

/// A webhook's secrets as operators see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretsView {
    /// Sealed in the store; those that are valid now, the oldest first.
    Sealed(Vec<SecretView>),
    /// In OpenBao.
    OpenBao,
}

/// A secret as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecretView {
    /// When it was given.
    pub(crate) created_at: Timestamp,
    /// When it ends; the current one has no end.
    pub(crate) until: Option<Timestamp>,
}

/// A webhook's settings with the defaults of the present configuration.
#[derive(Debug)]
pub(crate) struct EffectiveSettings {
    /// The upstream of its events.
    pub(crate) upstream: Option<String>,
    /// The path at the upstream.
    pub(crate) path: Option<String>,
    /// Whether events are queued.
    pub(crate) deliver: Option<Deliver>,
    /// Where its secrets are in OpenBao, if they are there.
    pub(crate) secrets_path: Option<String>,
    /// Why it cannot be served.
    pub(crate) problem: Option<Mistake>,
}

impl WebhookView {
    /// The settings by this configuration.
    pub(crate) fn effective(&self, config: &Config) -> EffectiveSettings {
        let registration = &self.registration;
        let path = match self.secrets {
            SecretsView::Sealed(_) => Ok(None),
            SecretsView::OpenBao => openbao::path(registration, config).map(Some),
        };
        let (secrets_path, unread) = match path {
            Ok(path) => (path, None),
            Err(mistake) => (None, Some(mistake)),
        };
        match ResolvedSettings::of(registration, config) {
            Ok(resolved) => EffectiveSettings {
                upstream: Some(resolved.upstream.to_string()),
                path: Some(resolved.path),
                deliver: Some(resolved.deliver),
                secrets_path,
                problem: unread,
            },
            Err(mistake) => EffectiveSettings {
                upstream: registration.upstream.as_ref().map(ToString::to_string),
                path: registration.path.clone(),
                deliver: registration.deliver,
                secrets_path,
                problem: Some(mistake),
            },
        }
    }
}

/// The other services that are asked; a reload replaces them together.
struct Sources {
    secrets: SecretReader,
    unkey: Option<UnkeyVerifier<Arc<Registration>>>,
}

/// The registry of webhooks.
pub(crate) struct WebhookRegistry {
    registry: Arc<dyn Registry>,
    sealer: SecretSealer,
    signing: SigningSecrets,
    clock: WallClock,
    sources: ArcSwap<Sources>,
    registered: RwLock<HashMap<Arc<str>, Arc<RegisteredWebhook>>>,
    /// Deleted in memory, and not yet confirmed by the registry. Locked before
    /// `registered` where both are needed.
    deleted: Mutex<HashSet<String>>,
    /// Held during each change and its write. Concurrent changes could leave
    /// memory and registry different.
    changing: tokio::sync::Mutex<()>,
    /// The keys of webhooks whose secrets are in OpenBao.
    openbao_keys: Cache<Arc<str>, Arc<OpenBaoKeys>>,
}

impl WebhookRegistry {
    /// Reads all webhooks.
    pub(crate) async fn open(
        registry: Arc<dyn Registry>,
        secret: &GatewayKey,
        config: &Config,
        secrets: SecretReader,
        clock: WallClock,
    ) -> Result<Self, WebhooksError> {
        let webhooks = Self {
            registry,
            sealer: SecretSealer::new(secret),
            signing: SigningSecrets::new(secret),
            sources: ArcSwap::from_pointee(Sources::new(config, secrets, &clock)?),
            clock,
            registered: RwLock::default(),
            deleted: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            openbao_keys: Cache::new(CACHED_MAX),
        };
        webhooks.refresh().await?;
        Ok(webhooks)
    }

    /// Prepares the services of a changed configuration; nothing is in force yet.
    pub(crate) fn reopen(
        &self,
        config: &Config,
        secrets: SecretReader,
    ) -> Result<Reopened, WebhooksError> {
        let sources = Sources::new(config, secrets, &self.clock)?;
        Ok(Reopened(Arc::new(sources)))
    }

    /// Puts prepared services in force.
    pub(crate) fn replace(&self, reopened: Reopened) {
        self.sources.store(reopened.0);
    }

    /// Reads all webhooks again, for a registry that other gateways change too.
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
                let webhook = match self.registered(&id) {
                    // Its keys need not be parsed again.
                    Some(webhook) if webhook.document == document => Ok(webhook),
                    _ => self.parse(&id, document).map(Arc::new),
                };
                match webhook {
                    Ok(webhook) => {
                        read.insert(webhook.registration.id.clone(), webhook);
                    }
                    // Only this webhook's events are refused.
                    Err(source) => {
                        tracing::error!(webhook_id = id, cause = %source, "webhook document damaged; its events are refused");
                    }
                }
            }
        }
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        read.retain(|id, _| !deleted.contains(id.as_ref()));
        *self
            .registered
            .write()
            .unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// The webhook with this id, if it is this provider's. Own webhooks are found
    /// in memory.
    pub(crate) async fn find(
        &self,
        config: &Config,
        provider: &str,
        id: &str,
    ) -> Result<Option<Arc<Webhook>>, WebhooksError> {
        if !is_id(id) {
            return Ok(None);
        }
        if let Some(registered) = self.registered(id) {
            if *registered.registration.provider != *provider {
                return Ok(None);
            }
            let secrets = match registered.secrets {
                StoredSecrets::Sealed(_) => Some(SecretSource::Stored(registered.clone())),
                StoredSecrets::OpenBao => None,
            };
            let webhook = Webhook::of(&registered.registration, secrets, config);
            return webhook.map(|webhook| Some(Arc::new(webhook)));
        }
        let sources = self.sources.load_full();
        let Some(unkey) = &sources.unkey else {
            return Ok(None);
        };
        let Some(named) = unkey::find(unkey, id).await? else {
            return Ok(None);
        };
        if *named.provider != *provider {
            return Ok(None);
        }
        let webhook = Webhook::of(&named, None, config);
        webhook.map(|webhook| Some(Arc::new(webhook)))
    }

    /// The upstream and the path of an own webhook, if it can be served by this
    /// configuration. Asks neither the store nor another service.
    pub(crate) fn destination(&self, config: &Config, id: &str) -> Option<(Arc<str>, String)> {
        let registered = self.registered(id)?;
        let resolved = ResolvedSettings::of(&registered.registration, config).ok()?;
        Some((resolved.upstream, resolved.path))
    }

    /// The keys that the webhook's events are verified with now: at least one.
    pub(crate) async fn keys(&self, webhook: &Webhook) -> Result<Arc<[SigningKey]>, WebhooksError> {
        match &webhook.secrets {
            SecretSource::Stored(registered) => {
                registered.keys(&webhook.provider, self.clock.now())
            }
            SecretSource::OpenBao(path) => {
                let sources = self.sources.load_full();
                let fields = sources.secrets.read_path(path).await?;
                let before = self.openbao_keys.get(&webhook.id);
                if let Some(before) = before.filter(|read| read.is_of(&fields, &webhook.provider)) {
                    return Ok(before.keys.clone());
                }
                let read = OpenBaoKeys::new(&webhook.id, fields, &webhook.provider)?;
                let keys = read.keys.clone();
                self.openbao_keys.insert(webhook.id.clone(), Arc::new(read));
                Ok(keys)
            }
        }
    }

    /// All own webhooks, the oldest first.
    pub(crate) fn list(&self) -> Vec<WebhookView> {
        let now = self.clock.now();
        let mut shown: Vec<_> = self
            .read()
            .values()
            .map(|webhook| webhook.shown(now))
            .collect();
        shown.sort_by(|a, b| {
            let (a, b) = (&a.registration, &b.registration);
            (a.created_at, &a.id).cmp(&(b.created_at, &b.id))
        });
        shown
    }

    /// An own webhook.
    pub(crate) fn show(&self, id: &str) -> Option<WebhookView> {
        let now = self.clock.now();
        self.registered(id).map(|webhook| webhook.shown(now))
    }

    /// Why the own webhooks that are served now could not be served by a changed
    /// configuration. Webhooks that are not served now do not count.
    pub(crate) fn unservable(&self, before: &Config, after: &Config) -> Vec<String> {
        let listed = self.list();
        let unfit = listed.iter().filter_map(|shown| {
            let problem = shown.effective(after).problem?;
            let served = shown.effective(before).problem.is_none();
            let id = &shown.registration.id;
            served.then(|| format!("the webhook {id} could not be served: {problem}"))
        });
        unfit.collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Arc<str>, Arc<RegisteredWebhook>>> {
        self.registered
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn registered(&self, id: &str) -> Option<Arc<RegisteredWebhook>> {
        self.read().get(id).cloned()
    }

    fn parse(&self, id: &str, document: Bytes) -> Result<RegisteredWebhook, DocumentError> {
        let (registration, secrets) = document::read(id, &document, &self.sealer)?;
        Ok(RegisteredWebhook {
            registration,
            secrets,
            document,
            parsed: Mutex::default(),
        })
    }
}

/// The services of a changed configuration, not yet in force.
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

/// A webhook's settings, with defaults from the configuration.
struct ResolvedSettings {
    provider: Provider,
    upstream: Arc<str>,
    path: String,
    deliver: Deliver,
}

impl ResolvedSettings {
    fn of(registration: &Registration, config: &Config) -> Result<Self, Mistake> {
        let webhooks = &config.webhooks;
        check_names(&registration.caller)?;
        let provider = provider::provider(
            webhooks,
            &registration.provider,
            registration.scheme.as_deref(),
        )?;
        if provider.binds_url() && config.server.public_url.is_none() {
            let name = &registration.provider;
            let problem =
                format!("{name} signs the URL, and the gateway does not know its public URL");
            let right =
                "set server.public_url to the URL under which the provider reaches this gateway";
            return Err(Mistake::given("provider", problem, right.to_owned()));
        }
        let upstream = changes::upstream(registration.upstream.as_ref(), config)?;
        let path = registration.path.clone();
        Ok(Self {
            path: path.unwrap_or_else(|| webhooks.path_for(&registration.provider)),
            deliver: registration
                .deliver
                .unwrap_or(match provider.sync_by_default() {
                    true => Deliver::Sync,
                    false => Deliver::Async,
                }),
            upstream,
            provider,
        })
    }
}

impl Webhook {
    /// A webhook by this configuration. Without stored secrets they are in
    /// OpenBao.
    fn of(
        registration: &Registration,
        secrets: Option<SecretSource>,
        config: &Config,
    ) -> Result<Self, WebhooksError> {
        let unfit = |source: Mistake| WebhooksError::Unfit {
            id: registration.id.as_ref().to_owned(),
            source: Box::new(source),
        };
        let resolved = ResolvedSettings::of(registration, config).map_err(unfit)?;
        let secrets = match secrets {
            Some(secrets) => secrets,
            None => SecretSource::OpenBao(openbao::path(registration, config).map_err(unfit)?),
        };
        Ok(Self {
            id: registration.id.clone(),
            caller: registration.caller.clone(),
            provider: resolved.provider,
            upstream: resolved.upstream,
            path: resolved.path,
            deliver: resolved.deliver,
            same_bytes: registration
                .same_bytes
                .unwrap_or(config.webhooks.same_bytes),
            secrets,
        })
    }
}

impl RegisteredWebhook {
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
        let valid: Vec<&StoredSecret> = self.valid(now).collect();
        let no_secret = |problem| WebhooksError::NoSecret {
            id: self.registration.id.as_ref().to_owned(),
            problem,
        };
        let texts = valid.iter().map(|secret| &secret.text);
        let keys = openbao::keys(texts, provider).map_err(no_secret)?;
        if keys.is_empty() {
            return Err(no_secret(NoSecret::Ended));
        }
        *parsed = Some(Parsed {
            by: provider.clone(),
            until: valid.iter().filter_map(|secret| secret.until).min(),
            keys: keys.clone(),
        });
        Ok(keys)
    }

    fn valid(&self, now: Timestamp) -> impl Iterator<Item = &StoredSecret> {
        let secrets = match &self.secrets {
            StoredSecrets::Sealed(secrets) => secrets.as_slice(),
            StoredSecrets::OpenBao => &[],
        };
        secrets.iter().filter(move |secret| secret.is_valid(now))
    }

    fn shown(&self, now: Timestamp) -> WebhookView {
        let secrets = match &self.secrets {
            StoredSecrets::OpenBao => SecretsView::OpenBao,
            StoredSecrets::Sealed(_) => {
                let valid = self.valid(now).map(|secret| SecretView {
                    created_at: secret.created_at,
                    until: secret.until,
                });
                SecretsView::Sealed(valid.collect())
            }
        };
        WebhookView {
            registration: self.registration.clone(),
            secrets,
        }
    }
}

/// Checks that the name of every event fits, however long its key is. Otherwise
/// some events would always be refused.
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
    let problem =
        format!("is too long: the names of some events would exceed {NAME_LENGTH_MAX} characters");
    let right = format!(
        "use at most {NAMES_LENGTH_MAX} characters for tenant and project together, percent-encoded"
    );
    Err(Mistake::given(key, problem, right))
}

/// The webhook's id in the endpoint of its events, which is
/// `webhooks.{provider}.{webhook_id}`.
pub(crate) fn webhook_id_of(endpoint: &Endpoint) -> Option<&str> {
    let (_, id) = endpoint.as_str().rsplit_once('.')?;
    is_id(id).then_some(id)
}

/// Whether this could be the id of a webhook, ours or Unkey's.
fn is_id(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= ID_BYTES_MAX
        && text.strip_prefix(ID_PREFIX).is_some_and(|tail| {
            // A shorter id could be guessed.
            tail.len() >= 16 && tail.bytes().all(letter)
        })
}
