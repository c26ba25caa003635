//! Who calls: the door through which every request goes before anything is
//! looked up.
//!
//! A request brings exactly one credential. What it looks like decides who is
//! asked: our own API keys, an issuer's tokens, Unkey, or the scheduler's
//! secrets. The answer is a [`Known`] caller, or an [`AuthError`] that one
//! border turns into a problem. Nothing here ever opens the gate because
//! somebody could not be asked.
//!
//! The scheduler signs the body too, so its call is [`Presented::Signed`] until
//! the body was read; only [`SignedCall::verify`] makes a [`Known`] of it.

pub(crate) mod api_keys;
mod credential;
mod jwks;
mod jwt;
mod known;
mod refusal;
pub(crate) mod scheduler;
mod strict;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unkey;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use onceward_core::clock::Timestamp;
use onceward_core::store::Registry;
use secrecy::ExposeSecret;

pub(crate) use self::known::Known;
pub(crate) use self::refusal::{AuthError, Refusal};
pub(crate) use self::scheduler::{SignedCall, schedule_key};

use self::api_keys::{ApiKeys, KeysError};
use self::credential::Credential;
use self::jwks::{KeyRing, Pace};
use self::jwt::{Issuer, Issuers};
use self::unkey::Unkey;
use crate::config;
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::Secret;
use crate::upstream::fetch::FetchError;

/// The time on the wall, which tokens and signatures are measured by. Unlike
/// the stores' clock it follows the system's when that is set.
#[derive(Clone)]
pub(crate) struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl WallClock {
    /// The system's.
    #[expect(clippy::disallowed_methods, reason = "the clock that is handed in")]
    pub(crate) fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            Timestamp::default().plus(since.unwrap_or_default())
        })
    }

    /// One that tells the time in this way.
    pub(crate) fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// What callers are known with.
pub(crate) struct Parts {
    /// Where API keys are kept.
    pub(crate) registry: Arc<dyn Registry>,
    /// What the hashes of API keys are keyed with.
    pub(crate) pepper: Secret,
    /// Where secrets are read.
    pub(crate) secrets: SecretReader,
    /// What time it is.
    pub(crate) clock: WallClock,
}

/// Why callers cannot be known at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallersError {
    /// The API keys cannot be read.
    #[error("the API keys cannot be read: {0}")]
    Keys(#[from] KeysError),
    /// An issuer's keys are at no URL that could be asked.
    #[error("the keys of {issuer} cannot be asked for: {source}")]
    Jwks {
        /// Whose.
        issuer: String,
        /// What is wrong.
        source: FetchError,
    },
    /// Unkey is at no URL that could be asked.
    #[error("Unkey cannot be asked: {0}")]
    Unkey(#[source] FetchError),
}

/// By what a request means to be known, if it shows anything that can be told.
pub(crate) fn shown(headers: &HeaderMap) -> Option<config::KnownBy> {
    Some(match credential::read(headers).ok()? {
        Credential::ApiKey(_) => config::KnownBy::ApiKey,
        Credential::Token(_) => config::KnownBy::Jwt,
        Credential::ForeignKey(_) => config::KnownBy::Unkey,
        Credential::Schedule(_) => config::KnownBy::Scheduler,
    })
}

/// Everybody who may call, and how they are known.
pub(crate) struct Callers {
    api_keys: Arc<ApiKeys>,
    taking: Taking,
    issuers: Issuers,
    unkey: Option<Unkey<Known>>,
    scheduler: Option<config::Scheduler>,
    secrets: SecretReader,
    clock: WallClock,
}

/// Whether our own API keys are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    ApiKeys,
    NoApiKeys,
}

/// What a request's credential came to.
#[derive(Debug)]
pub(crate) enum Presented {
    /// The caller is known.
    Known(Known),
    /// The caller will be known when the body was read.
    Signed(SignedCall),
}

impl Callers {
    /// Reads the API keys and begins to fetch the issuers' keys, for which it
    /// does not wait.
    pub(crate) async fn open(auth: &config::Auth, parts: Parts) -> Result<Self, CallersError> {
        Self::open_at(auth, parts, Pace::default()).await
    }

    async fn open_at(auth: &config::Auth, parts: Parts, pace: Pace) -> Result<Self, CallersError> {
        let Parts {
            registry,
            pepper,
            secrets,
            clock,
        } = parts;
        let api_keys = Arc::new(ApiKeys::open(registry, pepper, clock.clone()).await?);
        Self::assemble(auth, api_keys, secrets, clock, |rules| {
            KeyRing::open(&rules.keys, pace).map(Arc::new)
        })
    }

    /// The same for a changed configuration. The API keys stay one and the
    /// same, so that a key revoked through either is revoked in both; an
    /// issuer's keys that are where they were stay in use.
    pub(crate) fn reopen(
        &self,
        auth: &config::Auth,
        secrets: SecretReader,
    ) -> Result<Self, CallersError> {
        let (api_keys, clock) = (self.api_keys.clone(), self.clock.clone());
        Self::assemble(auth, api_keys, secrets, clock, |rules| {
            let mut all = self.issuers.all().iter();
            match all.find(|issuer| issuer.rules.keys == rules.keys) {
                Some(issuer) => Ok(issuer.keys.clone()),
                None => KeyRing::open(&rules.keys, Pace::default()).map(Arc::new),
            }
        })
    }

    fn assemble(
        auth: &config::Auth,
        api_keys: Arc<ApiKeys>,
        secrets: SecretReader,
        clock: WallClock,
        ring: impl Fn(&config::Jwt) -> Result<Arc<KeyRing>, FetchError>,
    ) -> Result<Self, CallersError> {
        let issuers = auth.jwt.iter().map(|rules| {
            let keys = ring(rules).map_err(|source| CallersError::Jwks {
                issuer: rules.issuer.clone(),
                source,
            })?;
            Ok(Issuer {
                rules: rules.clone(),
                keys,
            })
        });
        let issuers = issuers.collect::<Result<Vec<_>, CallersError>>()?;
        let unkey = auth
            .unkey
            .as_ref()
            .map(|settings| Unkey::of_callers(settings, secrets.clone(), clock.clone()))
            .transpose()
            .map_err(CallersError::Unkey)?;
        Ok(Self {
            api_keys,
            taking: match auth.api_keys {
                Some(_) => Taking::ApiKeys,
                None => Taking::NoApiKeys,
            },
            issuers: Issuers::new(issuers, clock.clone()),
            unkey,
            scheduler: auth.scheduler.clone(),
            secrets,
            clock,
        })
    }

    /// The keys that this gateway gives out, to be managed.
    pub(crate) fn api_keys(&self) -> &Arc<ApiKeys> {
        &self.api_keys
    }

    /// How often the keys of each issuer could not be had.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.issuers.all().iter();
        all.map(|issuer| (issuer.rules.issuer.as_str(), issuer.keys.failures()))
    }

    /// The issuers whose keys are not there yet, or grew too old: nobody is let
    /// in with their tokens.
    #[cfg(test)]
    pub(crate) fn waits_for(&self) -> Vec<&str> {
        let all = self.issuers.all().iter();
        let waiting = all.filter(|issuer| issuer.keys.current().is_none());
        waiting.map(|issuer| issuer.rules.issuer.as_str()).collect()
    }

    /// Who sends a request with these headers. To be asked for every request,
    /// a retry too, before anything is looked up.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<Presented, AuthError> {
        let presented = self.identify(headers).await;
        if let Err(error) = &presented {
            note(error);
        }
        presented
    }

    async fn identify(&self, headers: &HeaderMap) -> Result<Presented, AuthError> {
        let known = match credential::read(headers)? {
            Credential::ApiKey(text) => match self.taking {
                Taking::ApiKeys => self.api_keys.verify(text)?,
                Taking::NoApiKeys => return Err(Refusal::NotTaken("API keys").into()),
            },
            Credential::Token(token) => self.issuers.verify(token).await?,
            Credential::ForeignKey(key) => match &self.unkey {
                Some(unkey) => unkey.caller(key).await?,
                None => return Err(Refusal::NotTaken("foreign keys").into()),
            },
            Credential::Schedule(line) => {
                return self.read_signature(line).await.map(Presented::Signed);
            }
        };
        Ok(Presented::Known(known))
    }

    async fn read_signature(&self, line: &str) -> Result<SignedCall, AuthError> {
        let Some(scheduler) = &self.scheduler else {
            return Err(Refusal::NotTaken("schedules").into());
        };
        let mut secrets = scheduler::Secrets {
            read: Vec::with_capacity(scheduler.secrets.len()),
            unread: 0,
        };
        for value in &scheduler.secrets {
            match self.secrets.read(value).await {
                // Anybody can sign with nothing.
                Ok(secret) if secret.expose_secret().len() < scheduler::SECRET_BYTES_MIN => {
                    tracing::error!(
                        "a secret of the scheduler is shorter than 16 bytes; it is not used"
                    );
                }
                Ok(secret) => secrets.read.push(secret),
                Err(error) => {
                    secrets.unread += 1;
                    tracing::error!(%error, "a secret of the scheduler cannot be read");
                }
            }
        }
        if secrets.read.is_empty() {
            return Err(AuthError::Unavailable);
        }
        let now = self.clock.now();
        Ok(scheduler::read(line, secrets, scheduler.tolerance, now)?)
    }
}

/// What the log says of who was not let in. What they sent is not in it.
pub(crate) fn note(error: &AuthError) {
    match error {
        AuthError::Missing => tracing::debug!(target: "onceward::callers", "no credential"),
        AuthError::Unavailable => {
            tracing::warn!(target: "onceward::callers", "a caller cannot be verified");
        }
        _ => tracing::info!(target: "onceward::callers", reason = %error, "a caller was refused"),
    }
}
