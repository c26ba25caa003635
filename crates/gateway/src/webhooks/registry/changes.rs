//! Webhooks made, given other secrets, and taken away.
//!
//! What is asked for is checked whole before anything is drawn or written, and
//! a mistake names the field, what is wrong and what would be right.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use onceward_core::caller::CallerError;
use onceward_core::clock::Timestamp;
use onceward_core::store::{Added, Collection};
use onceward_webhooks::Provider;
use secrecy::{ExposeSecret, SecretString};

use super::document::{self, Held, Kept, Record, caller};
use super::error::WebhooksError;
use super::openbao::{self, Read};
use super::{ID_PREFIX, Resolved, SECRETS_MAX, Shown, WEBHOOKS_MAX, Webhooks};
use crate::config::{Config, Deliver, Mistake, SameBytes, nearest, path_problem};
use crate::secrets::SecretError;

/// How often a new id is drawn that is taken, before something is wrong.
const DRAWS_MAX: usize = 3;
/// Random bytes of an id: more than anybody guesses, and nothing of the tenant.
const ID_BYTES: usize = 20;
/// The longest secret.
const SECRET_BYTES_MAX: usize = 4096;

/// A webhook to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewWebhook {
    /// Whose events they are.
    pub(crate) tenant: String,
    /// Which project's.
    pub(crate) project: String,
    /// Who sends them.
    pub(crate) provider: String,
    /// How they are signed, where the provider has several ways.
    pub(crate) scheme: Option<String>,
    /// Where they go; where the configuration says if nobody does here.
    pub(crate) upstream: Option<String>,
    /// Under which path.
    pub(crate) path: Option<String>,
    /// When they go.
    pub(crate) deliver: Option<Deliver>,
    /// What becomes of the same bytes under another id.
    pub(crate) same_bytes: Option<SameBytes>,
    /// What they are signed with.
    pub(crate) secrets: NewSecrets,
}

/// What a webhook's events are signed with.
#[derive(Clone, Debug)]
pub(crate) enum NewSecrets {
    /// With one of these.
    Given(Vec<SecretString>),
    /// With one that is made here and told the provider.
    Generated,
    /// Nobody says: with what is in OpenBao, where that is configured. Else with
    /// nothing yet: some providers show their secret only to who has a URL.
    Unsaid,
}

/// A webhook that was made.
#[derive(Debug)]
pub(crate) struct Created {
    /// What is kept of it.
    pub(crate) shown: Shown,
    /// The secret, where it was made here: to be shown once.
    pub(crate) secret: Option<SecretString>,
}

/// What giving another secret came to.
#[derive(Debug)]
pub(crate) enum Rotated {
    /// The new one counts, and the old ones for a while.
    Done(Box<Created>),
    /// There is no such webhook.
    Absent,
}

/// What taking a webhook away came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// Nothing comes in by it any more.
    Done,
    /// There is no such webhook.
    Absent,
}

impl Webhooks {
    /// Makes a webhook. Events come in as soon as this answers.
    pub(crate) async fn create(
        &self,
        config: &Config,
        new: NewWebhook,
    ) -> Result<Created, WebhooksError> {
        let now = self.clock.now();
        let mut record = record(&new, now)?;
        let Resolved { provider, .. } = Resolved::of(&record, config)?;
        let (texts, made) = match new.secrets {
            NewSecrets::Given(texts) => (check_secrets(&provider, texts)?, None),
            NewSecrets::Generated => {
                let made = generate(&provider, &new.provider)?;
                (vec![made.clone()], Some(made))
            }
            NewSecrets::Unsaid => (Vec::new(), None),
        };
        let kept = match texts.is_empty() && config.secrets.openbao.is_some() {
            true => {
                self.check_openbao(&record, &provider, config).await?;
                Kept::OpenBao
            }
            false => {
                let held = texts.into_iter().zip(0..).map(|(text, serial)| Held {
                    serial,
                    text,
                    created_at: now,
                    until: None,
                });
                Kept::Sealed(held.collect())
            }
        };
        let _changing = self.changing.lock().await;
        if self.read().len() >= WEBHOOKS_MAX {
            return Err(WebhooksError::TooMany);
        }
        for _ in 0..DRAWS_MAX {
            record.id = draw()?.into();
            let document = document::write(&record, &kept, &self.seal)?;
            let adding = self
                .registry
                .add(Collection::Webhooks, &record.id, document.clone());
            match adding.await? {
                Added::Known => {}
                Added::Done => {
                    return Ok(Created {
                        shown: self.hold(&record.id, document)?,
                        secret: made,
                    });
                }
            }
        }
        Err(WebhooksError::Drawn)
    }

    /// Gives a webhook another secret. The old ones count for `overlap`, unless
    /// they end sooner; the same secret again is not a second one.
    pub(crate) async fn rotate(
        &self,
        config: &Config,
        id: &str,
        secret: Option<SecretString>,
        overlap: Option<Duration>,
    ) -> Result<Rotated, WebhooksError> {
        let now = self.clock.now();
        let _changing = self.changing.lock().await;
        let document = self.registry.read(Collection::Webhooks, id).await?;
        let Some(document) = document.filter(|_| !self.is_deleted(id)) else {
            return Ok(Rotated::Absent);
        };
        let read = document::read(id, &document, &self.seal);
        let (record, kept) = read.map_err(|source| WebhooksError::Damaged {
            id: id.to_owned(),
            source,
        })?;
        let Kept::Sealed(mut held) = kept else {
            let path = openbao::path(&record, config)?;
            return Err(WebhooksError::InOpenBao { path });
        };
        let Resolved { provider, .. } = Resolved::of(&record, config)?;
        let (text, made) = match secret {
            Some(text) => (text, None),
            None => {
                let made = generate(&provider, &record.provider)?;
                (made.clone(), Some(made))
            }
        };
        check_secret("secret", &provider, &text)?;
        let serial = held.iter().map(|held| held.serial).max();
        let end = now.plus(overlap.unwrap_or(config.webhooks.overlap));
        for old in &mut held {
            old.until = Some(old.until.map_or(end, |until| until.min(end)));
        }
        held.retain(|old| old.is_valid(now) && !old.is(&text));
        if held.len() >= SECRETS_MAX {
            return Err(WebhooksError::TooManySecrets);
        }
        held.push(Held {
            serial: serial.map_or(0, |serial| serial.saturating_add(1)),
            text,
            created_at: now,
            until: None,
        });
        let document = document::write(&record, &Kept::Sealed(held), &self.seal)?;
        let put = self
            .registry
            .put(Collection::Webhooks, id, document.clone());
        put.await?;
        let shown = self.hold(id, document)?;
        // Who deletes it waits for us, and removes what was just written.
        if self.is_deleted(id) {
            return Ok(Rotated::Absent);
        }
        Ok(Rotated::Done(Box::new(Created {
            shown,
            secret: made,
        })))
    }

    /// Takes a webhook away, here before anything else is done: while the
    /// registry is slow or fails, this gateway refuses its events all the same,
    /// and asking again finishes the work.
    pub(crate) async fn delete(&self, id: &str) -> Result<Deleted, WebhooksError> {
        if self.held(id).is_some() {
            self.forget(id);
        }
        let _changing = self.changing.lock().await;
        let there = self.registry.read(Collection::Webhooks, id).await?;
        // A change that was under way may have made it known here only now.
        self.forget(id);
        if there.is_some() {
            self.registry.remove(Collection::Webhooks, id).await?;
        }
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.remove(id);
        Ok(match there {
            Some(_) => Deleted::Done,
            None => Deleted::Absent,
        })
    }

    /// Lets nothing in by this webhook from now on, whatever is read meanwhile.
    fn forget(&self, id: &str) {
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        deleted.insert(id.to_owned());
        held.remove(id);
    }

    fn is_deleted(&self, id: &str) -> bool {
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.contains(id)
    }

    /// Holds what was written, unless it has been deleted meanwhile.
    fn hold(&self, id: &str, document: bytes::Bytes) -> Result<Shown, WebhooksError> {
        let entry = self.entry(id, document);
        let entry = Arc::new(entry.map_err(|source| WebhooksError::Damaged {
            id: id.to_owned(),
            source,
        })?);
        let shown = entry.shown(self.clock.now());
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if !deleted.contains(id) {
            let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
            held.insert(entry.record.id.clone(), entry);
        }
        Ok(shown)
    }

    /// Whether OpenBao has what the webhook's events are to be verified with.
    async fn check_openbao(
        &self,
        record: &Record,
        provider: &Provider,
        config: &Config,
    ) -> Result<(), WebhooksError> {
        let path = openbao::path(record, config)?;
        let there = self.sources.load_full().secrets.read_path(&path).await;
        let wrong = match there {
            Ok(fields) => match Read::new(&record.id, fields, provider) {
                Ok(_) => return Ok(()),
                Err(WebhooksError::NoSecret { problem, .. }) => problem.to_string(),
                Err(error) => return Err(error),
            },
            Err(error @ SecretError::Away(_)) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        let right = format!("write it to the field `secret` of {path}, or give secrets");
        Err(WebhooksError::mistaken("secrets", wrong, right))
    }
}

/// What was asked for, its id not yet drawn.
fn record(new: &NewWebhook, now: Timestamp) -> Result<Record, WebhooksError> {
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
    if let Some(path) = &new.path
        && let Some(problem) = path_problem(path)
    {
        let right = "write a path such as \"/hooks/stripe\"";
        return Err(WebhooksError::mistaken("path", problem, right));
    }
    Ok(Record {
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

/// Where events go: an upstream that is configured.
pub(super) fn upstream(said: Option<&Arc<str>>, config: &Config) -> Result<Arc<str>, Mistake> {
    let known: Vec<&str> = config.upstreams.keys().map(AsRef::as_ref).collect();
    let mistake = |problem: String, right: String| Mistake::given("upstream", problem, right);
    let Some(name) = said.or(config.webhooks.upstream.as_ref()) else {
        let right = format!(
            "write one of {}, or upstream in [webhooks] for all",
            known.join(", ")
        );
        return Err(mistake("nobody says where events go".to_owned(), right));
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

/// Secrets that are all the provider's, and none of them twice.
fn check_secrets(
    provider: &Provider,
    texts: Vec<SecretString>,
) -> Result<Vec<SecretString>, WebhooksError> {
    if !(1..=SECRETS_MAX).contains(&texts.len()) {
        let problem = format!("there are {} of them", texts.len());
        let right =
            format!("give 1 to {SECRETS_MAX}, or leave them out for those in OpenBao, or none yet");
        return Err(WebhooksError::mistaken("secrets", problem, right));
    }
    for (at, text) in texts.iter().enumerate() {
        let key = format!("secrets[{at}]");
        check_secret(&key, provider, text)?;
        let same = |other: &SecretString| other.expose_secret() == text.expose_secret();
        if texts[..at].iter().any(same) {
            let problem = "is there already";
            return Err(WebhooksError::mistaken(&key, problem, "give each once"));
        }
    }
    Ok(texts)
}

fn check_secret(key: &str, provider: &Provider, text: &SecretString) -> Result<(), WebhooksError> {
    let right = "give what the provider shows as the webhook's signing secret";
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
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    match provider.generate(&seed) {
        Some(secret) => Ok(secret.into()),
        None => {
            let problem = format!("{name} makes its secrets itself");
            let right = "give the secret that it shows";
            Err(WebhooksError::mistaken("generate", problem, right))
        }
    }
}

/// A new id: Base32 in small letters, which stand plainly in a URL.
fn draw() -> Result<String, getrandom::Error> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes)?;
    let drawn = BASE32_NOPAD.encode(&bytes).to_ascii_lowercase();
    Ok(format!("{ID_PREFIX}{drawn}"))
}
