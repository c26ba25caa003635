//! Authentication of callers, before anything is looked up.
//!
//! A request has exactly one credential. Its form decides how it is verified:
//! as one of the gateway's API keys, as an issuer's token, by Unkey, or with the
//! scheduler's secrets. The result is a [`VerifiedCaller`], or an [`AuthError`] that
//! becomes a problem. When a verifier does not answer, the request is refused.
//!
//! The scheduler's signature covers the body, so its call is
//! [`Authentication::Signed`] until the body is read; only [`SignedCall::verify`]
//! turns it into a [`VerifiedCaller`].

pub(crate) mod api_keys;
mod credential;
mod jwks;
mod jwt;
mod refusal;
pub(crate) mod scheduler;
mod strict;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unkey;
mod verified_caller;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use onceward_core::clock::Timestamp;
use onceward_core::store::Registry;
use secrecy::ExposeSecret;

pub(crate) use self::refusal::{AuthError, Refusal};
pub(crate) use self::scheduler::{SignedCall, schedule_key};
pub(crate) use self::verified_caller::VerifiedCaller;

use self::api_keys::{ApiKeyRegistry, KeysError};
use self::credential::Credential;
use self::jwks::{JwksTiming, KeyRing};
use self::jwt::{Issuer, Issuers};
use self::unkey::UnkeyVerifier;
use crate::config;
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::GatewayKey;
use crate::upstream::fetch::FetchError;

/// The wall-clock time, against which tokens and signatures are checked. Unlike
/// the stores' clock it follows changes of the system's time.
#[derive(Clone)]
pub(crate) struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl WallClock {
    /// The system's clock.
    #[expect(clippy::disallowed_methods, reason = "the clock that is handed in")]
    pub(crate) fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            Timestamp::default().plus(since.unwrap_or_default())
        })
    }

    /// A clock that returns what this function returns.
    pub(crate) fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// What [`Callers`] needs to verify credentials.
pub(crate) struct Parts {
    /// The store of API keys.
    pub(crate) registry: Arc<dyn Registry>,
    /// The key of the HMAC under which API keys are stored.
    pub(crate) pepper: GatewayKey,
    /// Reads the scheduler's secrets and Unkey's root key.
    pub(crate) secrets: SecretReader,
    /// The time for expiry and tolerance checks.
    pub(crate) clock: WallClock,
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallersError {
    /// The API keys cannot be read.
    #[error("the API keys cannot be read: {0}")]
    Keys(#[from] KeysError),
    /// The URL of an issuer's keys cannot be used.
    #[error("the keys of issuer {issuer} cannot be fetched: {source}")]
    Jwks {
        /// The issuer, as in `iss`.
        issuer: String,
        /// Why the URL cannot be used.
        source: FetchError,
    },
    /// The URL of Unkey cannot be used.
    #[error("the URL of Unkey cannot be used: {0}")]
    Unkey(#[source] FetchError),
}

/// The kind of credential that a request has; `None` if it has none or a
/// malformed one.
pub(crate) fn credential_kind(headers: &HeaderMap) -> Option<config::KnownBy> {
    Some(match credential::read(headers).ok()? {
        Credential::ApiKey(_) => config::KnownBy::ApiKey,
        Credential::Token(_) => config::KnownBy::Jwt,
        Credential::ForeignKey(_) => config::KnownBy::Unkey,
        Credential::Schedule(_) => config::KnownBy::Scheduler,
    })
}

/// Authenticates callers as `[auth]` says.
pub(crate) struct Callers {
    api_keys: Arc<ApiKeyRegistry>,
    api_key_policy: ApiKeyPolicy,
    issuers: Issuers,
    unkey: Option<UnkeyVerifier<VerifiedCaller>>,
    scheduler: Option<config::Scheduler>,
    secrets: SecretReader,
    clock: WallClock,
}

/// Whether the gateway's API keys are accepted as credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiKeyPolicy {
    Accepted,
    Refused,
}

/// The result of checking a request's headers.
#[derive(Debug)]
pub(crate) enum Authentication {
    /// The caller is authenticated.
    Verified(VerifiedCaller),
    /// The signature can be verified only when the body has been read.
    Signed(SignedCall),
}

impl Callers {
    /// Reads the API keys and starts to fetch the issuers' keys, without waiting
    /// for them.
    pub(crate) async fn open(auth: &config::Auth, parts: Parts) -> Result<Self, CallersError> {
        Self::open_with_timing(auth, parts, JwksTiming::default()).await
    }

    async fn open_with_timing(
        auth: &config::Auth,
        parts: Parts,
        timing: JwksTiming,
    ) -> Result<Self, CallersError> {
        let Parts {
            registry,
            pepper,
            secrets,
            clock,
        } = parts;
        let api_keys = Arc::new(ApiKeyRegistry::open(registry, pepper, clock.clone()).await?);
        Self::assemble(auth, api_keys, secrets, clock, |rules| {
            KeyRing::open(&rules.keys, timing).map(Arc::new)
        })
    }

    /// The same for a changed configuration. Both share one set of API keys, so
    /// that a key revoked through either is revoked in both. The keys of an
    /// issuer whose source has not changed stay in use.
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
                None => KeyRing::open(&rules.keys, JwksTiming::default()).map(Arc::new),
            }
        })
    }

    fn assemble(
        auth: &config::Auth,
        api_keys: Arc<ApiKeyRegistry>,
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
            .map(|settings| UnkeyVerifier::of_callers(settings, secrets.clone(), clock.clone()))
            .transpose()
            .map_err(CallersError::Unkey)?;
        Ok(Self {
            api_keys,
            api_key_policy: match auth.api_keys {
                Some(_) => ApiKeyPolicy::Accepted,
                None => ApiKeyPolicy::Refused,
            },
            issuers: Issuers::new(issuers, clock.clone()),
            unkey,
            scheduler: auth.scheduler.clone(),
            secrets,
            clock,
        })
    }

    /// The API keys of this gateway, for managing them.
    pub(crate) fn api_keys(&self) -> &Arc<ApiKeyRegistry> {
        &self.api_keys
    }

    /// How many fetches of each issuer's keys have failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.issuers.all().iter();
        all.map(|issuer| (issuer.rules.issuer.as_str(), issuer.keys.failures()))
    }

    /// The issuers without usable keys, whose tokens are therefore refused: not
    /// fetched yet, or too old.
    #[cfg(test)]
    pub(crate) fn issuers_without_keys(&self) -> Vec<&str> {
        let all = self.issuers.all().iter();
        let waiting = all.filter(|issuer| issuer.keys.current().is_none());
        waiting.map(|issuer| issuer.rules.issuer.as_str()).collect()
    }

    /// Authenticates a request by its headers. Every request is authenticated,
    /// retries included, before anything is looked up.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
    ) -> Result<Authentication, AuthError> {
        let presented = self.identify(headers).await;
        if let Err(error) = &presented {
            log_refusal(error);
        }
        presented
    }

    async fn identify(&self, headers: &HeaderMap) -> Result<Authentication, AuthError> {
        // Boxed: asking an issuer or a key service takes a large future, and verifying an
        // API key none.
        let known = match credential::read(headers)? {
            Credential::ApiKey(text) => match self.api_key_policy {
                ApiKeyPolicy::Accepted => self.api_keys.verify(text)?,
                ApiKeyPolicy::Refused => return Err(Refusal::NotTaken("API keys").into()),
            },
            Credential::Token(token) => Box::pin(self.issuers.verify(token)).await?,
            Credential::ForeignKey(key) => match &self.unkey {
                Some(unkey) => Box::pin(unkey.caller(key)).await?,
                None => return Err(Refusal::NotTaken("foreign keys").into()),
            },
            Credential::Schedule(line) => {
                let signature = Box::pin(self.read_signature(line)).await;
                return signature.map(Authentication::Signed);
            }
        };
        Ok(Authentication::Verified(known))
    }

    async fn read_signature(&self, line: &str) -> Result<SignedCall, AuthError> {
        let Some(scheduler) = &self.scheduler else {
            return Err(Refusal::NotTaken("schedules").into());
        };
        let mut secrets = scheduler::SchedulerSecrets {
            read: Vec::with_capacity(scheduler.secrets.len()),
            unread: 0,
        };
        for value in &scheduler.secrets {
            match self.secrets.read(value).await {
                // An empty or short secret can be guessed.
                Ok(secret) if secret.expose_secret().len() < scheduler::SECRET_BYTES_MIN => {
                    tracing::error!("scheduler secret shorter than 16 bytes; secret ignored");
                }
                Ok(secret) => secrets.read.push(secret),
                Err(error) => {
                    secrets.unread += 1;
                    tracing::error!(%error, "scheduler secret unreadable");
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

/// Logs why a caller was refused, without its credential.
pub(crate) fn log_refusal(error: &AuthError) {
    match error {
        AuthError::Missing => tracing::debug!(target: "onceward::callers", "no credential"),
        AuthError::Unavailable => {
            tracing::warn!(target: "onceward::callers", "credential cannot be verified now");
        }
        _ => tracing::info!(target: "onceward::callers", reason = %error, "caller refused"),
    }
}
