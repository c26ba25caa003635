//! Webhooks created, updated, given other secrets, and deleted.
//!
//! A request is checked completely before anything is generated or written, and
//! a mistake names the field, the problem and a correction.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use onceward_core::caller::CallerError;
use onceward_core::clock::Timestamp;
use onceward_core::store::{Added, Collection};
use onceward_webhooks::Provider;
use secrecy::{ExposeSecret, SecretString};

use super::document::{self, Registration, StoredSecret, StoredSecrets, caller};
use super::error::WebhooksError;
use super::openbao::{self, OpenBaoKeys};
use super::{ID_PREFIX, ResolvedSettings, SECRETS_MAX, WEBHOOKS_MAX, WebhookRegistry, WebhookView};
use crate::config::{Config, Deliver, Mistake, SameBytes, nearest, path_problem};
use crate::secrets::SecretError;
use crate::secrets::random::random_bytes;

/// How many ids are generated before a webhook is given up because all were taken.
const ID_ATTEMPTS_MAX: usize = 3;
/// Random bytes of an id: too many to guess, and unrelated to the tenant.
const ID_BYTES: usize = 20;
/// The longest secret.
const SECRET_BYTES_MAX: usize = 4096;

/// A webhook to be created.
#[derive(Clone, Debug)]
pub(crate) struct NewWebhook {
    /// The tenant of its events.
    pub(crate) tenant: String,
    /// The project of its events.
    pub(crate) project: String,
    /// The provider's name.
    pub(crate) provider: String,
    /// The provider's signature scheme, if it has several.
    pub(crate) scheme: Option<String>,
    /// The upstream of its events; the configuration's if none.
    pub(crate) upstream: Option<String>,
    /// The path at the upstream; the configuration's if none.
    pub(crate) path: Option<String>,
    /// Whether events are queued; the provider's default if none.
    pub(crate) deliver: Option<Deliver>,
    /// What happens to the same bytes under another id.
    pub(crate) same_bytes: Option<SameBytes>,
    /// The secrets that the provider signs with.
    pub(crate) secrets: NewSecrets,
}

/// The secrets of a new webhook.
#[derive(Clone, Debug)]
pub(crate) enum NewSecrets {
    /// One of these.
    Given(Vec<SecretString>),
    /// One that is generated here, to be entered at the provider.
    Generated,
    /// Those in OpenBao, if that is configured. Otherwise none yet: some
    /// providers show their secret only after they have the URL.
    Omitted,
}

/// A webhook that was created or given another secret.
#[derive(Debug)]
pub(crate) struct Created {
    /// The webhook.
    pub(crate) shown: WebhookView,
    /// The secret, if it was generated: to be shown once.
    pub(crate) secret: Option<SecretString>,
}

/// The result of [`WebhookRegistry::rotate`].
#[derive(Debug)]
pub(crate) enum Rotated {
    /// The new secret is valid, and the old ones for a while.
    Done(Box<Created>),
    /// The webhook does not exist.
    Absent,
}

/// A new destination of a webhook. `None` keeps the current value.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewDestination {
    /// The upstream.
    pub(crate) upstream: Option<String>,
    /// The path at the upstream.
    pub(crate) path: Option<String>,
}

/// The result of [`WebhookRegistry::update`].
#[derive(Debug)]
pub(crate) enum Updated {
    /// Events go to the new destination.
    Done(Box<WebhookView>),
    /// The webhook does not exist.
    Absent,
}

/// The result of [`WebhookRegistry::delete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// The webhook no longer accepts events.
    Done,
    /// The webhook does not exist.
    Absent,
}

impl WebhookRegistry {
    /// Creates a webhook. It accepts events as soon as this returns.
    pub(crate) async fn create(
        &self,
        config: &Config,
        new: NewWebhook,
    ) -> Result<Created, WebhooksError> {
        let now = self.clock.now();
        let mut registration = registration(&new, now)?;
        let ResolvedSettings { provider, .. } = ResolvedSettings::of(&registration, config)?;
        let (texts, generated) = match new.secrets {
            NewSecrets::Given(texts) => (check_secrets(&provider, texts)?, None),
            NewSecrets::Generated => {
                let generated = generate(&provider, &new.provider)?;
                (vec![generated.clone()], Some(generated))
            }
            NewSecrets::Omitted => (Vec::new(), None),
        };
        let secrets = match texts.is_empty() && config.secrets.openbao.is_some() {
            true => {
                self.check_openbao(&registration, &provider, config).await?;
                StoredSecrets::OpenBao
            }
            false => {
                let stored = texts.into_iter().zip(0..);
                let stored = stored.map(|(text, serial)| StoredSecret {
                    serial,
                    text,
                    created_at: now,
                    until: None,
                });
                StoredSecrets::Sealed(stored.collect())
            }
        };
        let _changing = self.changing.lock().await;
        if self.read().len() >= WEBHOOKS_MAX {
            return Err(WebhooksError::TooMany);
        }
        for _ in 0..ID_ATTEMPTS_MAX {
            registration.id = random_id()?.into();
            let document = document::write(&registration, &secrets, &self.sealer)?;
            let adding =
                self.registry
                    .add(Collection::Webhooks, &registration.id, document.clone());
            match adding.await? {
                Added::Known => {}
                Added::Done => {
                    return Ok(Created {
                        shown: self.insert(&registration.id, document)?,
                        secret: generated,
                    });
                }
            }
        }
        Err(WebhooksError::NoFreeId)
    }

    /// Changes where a webhook's events go, queued ones included.
    pub(crate) async fn update(
        &self,
        config: &Config,
        id: &str,
        new: NewDestination,
    ) -> Result<Updated, WebhooksError> {
        let _changing = self.changing.lock().await;
        let Some((mut registration, secrets)) = self.stored(id).await? else {
            return Ok(Updated::Absent);
        };
        if let Some(path) = new.path {
            check_path(&path)?;
            registration.path = Some(path);
        }
        if let Some(upstream) = new.upstream {
            registration.upstream = Some(upstream.into());
        }
        ResolvedSettings::of(&registration, config)?;
        let document = document::write(&registration, &secrets, &self.sealer)?;
        match self.replace_document(id, document).await? {
            Some(shown) => Ok(Updated::Done(Box::new(shown))),
            None => Ok(Updated::Absent),
        }
    }

    /// Gives a webhook another secret. The old ones stay valid for `overlap`,
    /// unless they end sooner; the same secret again does not count twice.
    pub(crate) async fn rotate(
        &self,
        config: &Config,
        id: &str,
        secret: Option<SecretString>,
        overlap: Option<Duration>,
    ) -> Result<Rotated, WebhooksError> {
        let now = self.clock.now();
        let _changing = self.changing.lock().await;
        let Some((registration, secrets)) = self.stored(id).await? else {
            return Ok(Rotated::Absent);
        };
        let StoredSecrets::Sealed(mut secrets) = secrets else {
            let path = openbao::path(&registration, config)?;
            return Err(WebhooksError::InOpenBao { path });
        };
        let ResolvedSettings { provider, .. } = ResolvedSettings::of(&registration, config)?;
        let (text, generated) = match secret {
            Some(text) => (text, None),
            None => {
                let generated = generate(&provider, &registration.provider)?;
                (generated.clone(), Some(generated))
            }
        };
        check_secret("secret", &provider, &text)?;
        let end = now.plus(overlap.unwrap_or(config.webhooks.overlap));
        add_secret(&mut secrets, text, now, end)?;
        let secrets = StoredSecrets::Sealed(secrets);
        let document = document::write(&registration, &secrets, &self.sealer)?;
        match self.replace_document(id, document).await? {
            Some(shown) => Ok(Rotated::Done(Box::new(Created {
                shown,
                secret: generated,
            }))),
            None => Ok(Rotated::Absent),
        }
    }

    /// The stored form of a webhook that exists and is not being deleted.
    async fn stored(
        &self,
        id: &str,
    ) -> Result<Option<(Registration, StoredSecrets)>, WebhooksError> {
        let document = self.registry.read(Collection::Webhooks, id).await?;
        let Some(document) = document.filter(|_| !self.is_deleted(id)) else {
            return Ok(None);
        };
        let read = document::read(id, &document, &self.sealer);
        let read = read.map_err(|source| WebhooksError::Damaged {
            id: id.to_owned(),
            source,
        })?;
        Ok(Some(read))
    }

    /// Writes a changed document. Returns none if the webhook was deleted
    /// meanwhile: the deletion waits for this change, and removes the document.
    async fn replace_document(
        &self,
        id: &str,
        document: bytes::Bytes,
    ) -> Result<Option<WebhookView>, WebhooksError> {
        let put = self
            .registry
            .put(Collection::Webhooks, id, document.clone());
        put.await?;
        let shown = self.insert(id, document)?;
        Ok((!self.is_deleted(id)).then_some(shown))
    }

    /// Deletes a webhook, first in this gateway's memory: while the registry is
    /// slow or fails, this gateway already refuses its events, and deleting again
    /// finishes the work.
    pub(crate) async fn delete(&self, id: &str) -> Result<Deleted, WebhooksError> {
        if self.registered(id).is_some() {
            self.forget(id);
        }
        let _changing = self.changing.lock().await;
        let stored = self.registry.read(Collection::Webhooks, id).await?;
        // A change that was under way may have inserted it only now.
        self.forget(id);
        if stored.is_some() {
            self.registry.remove(Collection::Webhooks, id).await?;
        }
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.remove(id);
        Ok(match stored {
            Some(_) => Deleted::Done,
            None => Deleted::Absent,
        })
    }

    /// Refuses this webhook's events from now on, even if a refresh reads its
    /// document meanwhile.
    fn forget(&self, id: &str) {
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = self.registered.write();
        let mut registered = registered.unwrap_or_else(PoisonError::into_inner);
        deleted.insert(id.to_owned());
        registered.remove(id);
    }

    fn is_deleted(&self, id: &str) -> bool {
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.contains(id)
    }

    /// Puts a written document into memory, unless it was deleted meanwhile.
    fn insert(&self, id: &str, document: bytes::Bytes) -> Result<WebhookView, WebhooksError> {
        let webhook = self.parse(id, document);
        let webhook = Arc::new(webhook.map_err(|source| WebhooksError::Damaged {
            id: id.to_owned(),
            source,
        })?);
        let shown = webhook.shown(self.clock.now());
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if !deleted.contains(id) {
            let registered = self.registered.write();
            let mut registered = registered.unwrap_or_else(PoisonError::into_inner);
            registered.insert(webhook.registration.id.clone(), webhook);
        }
        Ok(shown)
    }

    /// Checks that OpenBao has the webhook's secrets.
    async fn check_openbao(
        &self,
        registration: &Registration,
        provider: &Provider,
        config: &Config,
    ) -> Result<(), WebhooksError> {
        let path = openbao::path(registration, config)?;
        let read = self.sources.load_full().secrets.read_path(&path).await;
        let wrong = match read {
            Ok(fields) => match OpenBaoKeys::new(&registration.id, fields, provider) {
                Ok(_) => return Ok(()),
                Err(WebhooksError::NoSecret { problem, .. }) => problem.to_string(),
                Err(error) => return Err(error),
            },
            Err(error @ SecretError::Unavailable(_)) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        let right = format!("write it to the field `secret` of {path}, or give secrets");
        Err(WebhooksError::mistaken("secrets", wrong, right))
    }
}

/// Adds a secret to a webhook, and sets an end for the others.
fn add_secret(
    secrets: &mut Vec<StoredSecret>,
    text: SecretString,
    now: Timestamp,
    end: Timestamp,
) -> Result<(), WebhooksError> {
    let serial = secrets.iter().map(|secret| secret.serial).max();
    for old in secrets.iter_mut() {
        old.until = Some(old.until.map_or(end, |until| until.min(end)));
    }
    secrets.retain(|old| old.is_valid(now) && !old.is(&text));
    if secrets.len() >= SECRETS_MAX {
        return Err(WebhooksError::TooManySecrets);
    }
    secrets.push(StoredSecret {
        serial: serial.map_or(0, |serial| serial.saturating_add(1)),
        text,
        created_at: now,
        until: None,
    });
    Ok(())
}

/// The new webhook, without an id.
fn registration(new: &NewWebhook, now: Timestamp) -> Result<Registration, WebhooksError> {
    let caller = caller(&new.tenant, &new.project).map_err(|error| {
        let key = match error {
            CallerError::Empty("project")
            | CallerError::TooLong("project")
            | CallerError::Control("project")
            | CallerError::Blank("project")
            | CallerError::Reserved("project") => "project",
            _ => "tenant",
        };
        let right = "write 1 to 256 bytes that do not begin with _";
        WebhooksError::mistaken(key, error.to_string(), right)
    })?;
    if let Some(path) = &new.path {
        check_path(path)?;
    }
    Ok(Registration {
        id: "".into(),
        caller,
        provider: new.provider.as_str().into(),
        scheme: new.scheme.as_deref().map(Into::into),
        upstream: new.upstream.as_deref().map(Into::into),
        path: new.path.clone(),
        deliver: new.deliver,
        same_bytes: new.same_bytes,
        created_at: now,
    })
}

fn check_path(path: &str) -> Result<(), WebhooksError> {
    match path_problem(path) {
        None => Ok(()),
        Some(problem) => {
            let right = "write a path such as \"/hooks/stripe\"";
            Err(WebhooksError::mistaken("path", problem, right))
        }
    }
}

/// The upstream of a webhook's events, which must be configured.
pub(super) fn upstream(chosen: Option<&Arc<str>>, config: &Config) -> Result<Arc<str>, Mistake> {
    let known: Vec<&str> = config.upstreams.keys().map(AsRef::as_ref).collect();
    let mistake = |problem: String, right: String| Mistake::given("upstream", problem, right);
    let Some(name) = chosen.or(config.webhooks.upstream.as_ref()) else {
        let right = format!(
            "write one of {}, or upstream in [webhooks] for all",
            known.join(", ")
        );
        return Err(mistake("the webhook has no upstream".to_owned(), right));
    };
    if !config.upstreams.contains_key(name) {
        let shown: String = name.chars().take(64).collect();
        let right = match nearest(name, &known) {
            (Some(close), _) => format!("did you mean {close:?}?"),
            (None, known) => format!("write one of {}", known.join(", ")),
        };
        return Err(mistake(format!("there is no [upstreams.{shown}]"), right));
    }
    Ok(name.clone())
}

/// Checks that all secrets have the provider's form, and that none is repeated.
fn check_secrets(
    provider: &Provider,
    texts: Vec<SecretString>,
) -> Result<Vec<SecretString>, WebhooksError> {
    if !(1..=SECRETS_MAX).contains(&texts.len()) {
        let problem = format!("{} secrets were given", texts.len());
        let right =
            format!("give 1 to {SECRETS_MAX}, or omit them to use OpenBao or to add one later");
        return Err(WebhooksError::mistaken("secrets", problem, right));
    }
    for (at, text) in texts.iter().enumerate() {
        let key = format!("secrets[{at}]");
        check_secret(&key, provider, text)?;
        let same = |other: &SecretString| other.expose_secret() == text.expose_secret();
        if texts[..at].iter().any(same) {
            let problem = "is a duplicate";
            return Err(WebhooksError::mistaken(&key, problem, "give each once"));
        }
    }
    Ok(texts)
}

fn check_secret(key: &str, provider: &Provider, text: &SecretString) -> Result<(), WebhooksError> {
    let right = "give the signing secret that the provider shows for the webhook";
    if text.expose_secret().len() > SECRET_BYTES_MAX {
        let problem = format!("is longer than {SECRET_BYTES_MAX} bytes");
        return Err(WebhooksError::mistaken(key, problem, right));
    }
    match provider.key(text.expose_secret()) {
        Ok(_) => Ok(()),
        Err(error) => Err(WebhooksError::mistaken(key, error.to_string(), right)),
    }
}

fn generate(provider: &Provider, name: &str) -> Result<SecretString, WebhooksError> {
    let seed = random_bytes()?;
    match provider.generate(&seed) {
        Some(secret) => Ok(secret.into()),
        None => {
            let problem = format!("{name} generates its secrets itself");
            let right = "give the secret that the provider shows";
            Err(WebhooksError::mistaken("generate", problem, right))
        }
    }
}

/// A new id in lower-case Base32, which needs no escaping in a URL.
fn random_id() -> Result<String, getrandom::Error> {
    let bytes = random_bytes::<ID_BYTES>()?;
    let encoded = BASE32_NOPAD.encode(&bytes).to_ascii_lowercase();
    Ok(format!("{ID_PREFIX}{encoded}"))
}
