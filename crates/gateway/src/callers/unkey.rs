//! Verifies keys of Unkey, with version 2 of its API: `POST /v2/keys.verifyKey`.
//!
//! Callers' keys and the ids of webhooks are verified with different root keys;
//! each use reads its own meaning from the data of a valid key.
//!
//! Unkey answers 200 for invalid keys too; `data.valid` decides. A result is
//! cached for less than a minute, a refusal for a few seconds, and at most one
//! request per key is under way. Keys that have been valid have their own
//! permits, so that random keys cannot delay them. When Unkey is unavailable,
//! slow, or sends something undocumented, no expired result is used: the client
//! receives 503.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use onceward_core::caller::{Subject, SubjectKind};
use onceward_core::deadline::within;
use quick_cache::sync::Cache;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use super::WallClock;
use super::refusal::{AuthError, Prohibition, Refusal, UnkeyCode};
use super::verified_caller::VerifiedCaller;
use crate::config::{self, KnownBy, SecretValue};
use crate::secrets::SecretReader;
use crate::upstream::fetch::{Fetch, FetchError, FetchLimits, Fetched};
use crate::webhooks::registry;

/// The longest key that Unkey accepts.
const KEY_BYTES_MAX: usize = 512;
/// The largest response of Unkey.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// How many results are cached.
const RESULTS_MAX: usize = 10_000;
/// The most simultaneous requests about keys that have been valid.
const PROVEN_REQUESTS_MAX: usize = 64;
/// The most simultaneous requests about all other keys.
const REQUESTS_MAX: usize = 64;
/// How many keys are remembered as having been valid.
const PROVEN_MAX: usize = 10_000;
/// How long a refusal is cached.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// How long a failure is cached.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// How long any result is cached at most.
const CACHE_MAX: Duration = Duration::from_secs(60);

/// Reads from the data of a valid key what it stands for.
type ReadKeyData<T> = fn(key: &str, &KeyData) -> Result<T, Refusal>;

/// Verifies keys that each stand for a `T`.
pub(crate) struct UnkeyVerifier<T> {
    fetch: Fetch,
    target: String,
    root_key: SecretValue,
    read: ReadKeyData<T>,
    secrets: SecretReader,
    clock: WallClock,
    cache_for: Duration,
    deadline: Duration,
    results: Cache<[u8; 32], Arc<OnceCell<CachedResult<T>>>>,
    permits: Semaphore,
    /// Keys that were valid when they were last verified.
    proven: Cache<[u8; 32], ()>,
    proven_permits: Semaphore,
}

/// The result of a verification, and how long it is used.
struct CachedResult<T> {
    result: Result<T, AuthError>,
    until: Instant,
}

impl UnkeyVerifier<VerifiedCaller> {
    /// A verifier of callers' keys.
    pub(super) fn of_callers(
        settings: &config::Unkey,
        secrets: SecretReader,
        clock: WallClock,
    ) -> Result<Self, FetchError> {
        let root_key = settings.root_key.clone();
        Self::new(settings, root_key, read_caller, secrets, clock)
    }

    /// Verifies a caller's key. The id of a webhook is never a caller's key,
    /// even if Unkey has it: providers know it, because it is in their settings.
    pub(super) async fn caller(&self, key: &str) -> Result<VerifiedCaller, AuthError> {
        if key.starts_with(registry::ID_PREFIX) {
            return Err(Refusal::NotTaken("ids of webhooks").into());
        }
        self.verify(key).await
    }
}

impl<T: Clone> UnkeyVerifier<T> {
    pub(crate) fn new(
        settings: &config::Unkey,
        root_key: SecretValue,
        read: ReadKeyData<T>,
        secrets: SecretReader,
        clock: WallClock,
    ) -> Result<Self, FetchError> {
        let limits = FetchLimits {
            deadline: settings.deadline,
            answer_bytes_max: RESPONSE_BYTES_MAX,
        };
        let base = settings.url.trim_end_matches('/');
        // The configured URL may have a path after the host.
        let path = base.splitn(4, '/').nth(3).unwrap_or_default();
        let slash = if path.is_empty() { "" } else { "/" };
        Ok(Self {
            fetch: Fetch::new(base, limits)?,
            target: format!("{slash}{path}/v2/keys.verifyKey"),
            root_key,
            read,
            secrets,
            clock,
            cache_for: settings.cache.min(CACHE_MAX),
            deadline: settings.deadline,
            results: Cache::new(RESULTS_MAX),
            permits: Semaphore::new(REQUESTS_MAX),
            proven: Cache::new(PROVEN_MAX),
            proven_permits: Semaphore::new(PROVEN_REQUESTS_MAX),
        })
    }

    /// Verifies a key and returns what it stands for.
    pub(crate) async fn verify(&self, key: &str) -> Result<T, AuthError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Refusal::TooLong.into());
        }
        let digest = Sha256::digest(key).into();
        let cached = self.cached(digest);
        let answer = cached.get_or_init(|| self.verify_now(key, digest)).await;
        answer.result.clone()
    }

    /// The cached verification of a key, or a new one if it has expired.
    fn cached(&self, digest: [u8; 32]) -> Arc<OnceCell<CachedResult<T>>> {
        let now = Instant::now();
        self.results.remove_if(&digest, |cached| {
            let answer = cached.get();
            answer.is_some_and(|answer| answer.until <= now)
        });
        let fresh = || Ok::<_, Infallible>(Arc::default());
        match self.results.get_or_insert_with(&digest, fresh) {
            Ok(cached) => cached,
            Err(never) => match never {},
        }
    }

    async fn verify_now(&self, key: &str, digest: [u8; 32]) -> CachedResult<T> {
        let permits = match self.proven.get(&digest) {
            Some(()) => &self.proven_permits,
            None => &self.permits,
        };
        let asked = within(self.deadline, self.request_check(key, permits)).await;
        let check = asked.unwrap_or_else(|_| {
            tracing::warn!("Unkey did not answer in time");
            KeyCheck::Unavailable
        });
        match check {
            KeyCheck::Valid { .. } => self.proven.insert(digest, ()),
            KeyCheck::Refused(_) => drop(self.proven.remove(&digest)),
            // The key may still be valid.
            KeyCheck::Forbidden | KeyCheck::RateLimited | KeyCheck::Unavailable => {}
        }
        let now = Instant::now();
        let (result, span) = match check {
            KeyCheck::Valid { read, for_ms } => {
                let left = for_ms.map_or(self.cache_for, Duration::from_millis);
                (Ok(read), left.min(self.cache_for))
            }
            KeyCheck::Refused(refusal) => (Err(refusal.into()), REFUSED_FOR.min(self.cache_for)),
            KeyCheck::Forbidden => (
                Err(Prohibition::Unkey.into()),
                REFUSED_FOR.min(self.cache_for),
            ),
            KeyCheck::RateLimited => (Err(AuthError::TooMany), FAILED_FOR),
            KeyCheck::Unavailable => (Err(AuthError::Unavailable), FAILED_FOR),
        };
        CachedResult {
            result,
            until: now + span,
        }
    }

    async fn request_check(&self, key: &str, permits: &Semaphore) -> KeyCheck<T> {
        let Ok(_permit) = permits.acquire().await else {
            return KeyCheck::Unavailable;
        };
        let headers = match self.headers().await {
            Ok(headers) => headers,
            Err(RequestError) => return KeyCheck::Unavailable,
        };
        // Cost 0: a retry must not consume credits of the key.
        let body = json!({ "key": key, "credits": { "cost": 0 } }).to_string();
        let asked = self.fetch.post(Some(&self.target), headers, body.into());
        match asked.await {
            Ok(answer) => interpret(&answer, key, self.read, self.clock.now().unix_ms()),
            Err(error) => {
                tracing::warn!(%error, "Unkey unreachable");
                KeyCheck::Unavailable
            }
        }
    }

    async fn headers(&self) -> Result<HeaderMap, RequestError> {
        let root_key = self.secrets.read(&self.root_key).await.map_err(|error| {
            tracing::error!(%error, "root key of Unkey unreadable");
            RequestError
        })?;
        let bearer = format!("Bearer {}", root_key.expose_secret());
        let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| {
            tracing::error!("root key of Unkey has characters that are not allowed in a header");
            RequestError
        })?;
        bearer.set_sensitive(true);
        Ok(HeaderMap::from_iter([
            (header::AUTHORIZATION, bearer),
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            ),
        ]))
    }
}

/// The request cannot be sent; the reason has been logged.
struct RequestError;

/// What a response of Unkey means.
enum KeyCheck<T> {
    Valid {
        read: T,
        /// How long the key itself is still valid, if it expires.
        for_ms: Option<u64>,
    },
    Refused(Refusal),
    Forbidden,
    RateLimited,
    Unavailable,
}

fn interpret<T>(answer: &Fetched, key: &str, read: ReadKeyData<T>, now_ms: u64) -> KeyCheck<T> {
    match answer.status {
        StatusCode::OK => {}
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            tracing::error!(
                status = status.as_u16(),
                "Unkey refused the root key; keys cannot be verified"
            );
            return KeyCheck::Unavailable;
        }
        status => {
            tracing::warn!(
                status = status.as_u16(),
                "unexpected status from Unkey; key not verified"
            );
            return KeyCheck::Unavailable;
        }
    }
    let Ok(VerifyKeyResponse { data }) = serde_json::from_slice(&answer.body) else {
        tracing::warn!("response of Unkey has an undocumented form; key not verified");
        return KeyCheck::Unavailable;
    };
    let code = data.code.as_str();
    if data.valid && code == "VALID" {
        return read(key, &data).map_or_else(KeyCheck::Refused, |read| KeyCheck::Valid {
            read,
            for_ms: data.expires.map(|end| end.saturating_sub(now_ms)),
        });
    }
    match code {
        "NOT_FOUND" => KeyCheck::Refused(Refusal::Unkey(UnkeyCode::NotFound)),
        "DISABLED" => KeyCheck::Refused(Refusal::Unkey(UnkeyCode::Disabled)),
        "EXPIRED" => KeyCheck::Refused(Refusal::Unkey(UnkeyCode::Expired)),
        "FORBIDDEN" | "INSUFFICIENT_PERMISSIONS" | "USAGE_EXCEEDED" => KeyCheck::Forbidden,
        "RATE_LIMITED" => KeyCheck::RateLimited,
        _ => KeyCheck::Refused(Refusal::Unkey(UnkeyCode::Other)),
    }
}

/// The caller that a valid key names: the tenant is its identity, the project
/// and the subject are in its metadata.
fn read_caller(_key: &str, data: &KeyData) -> Result<VerifiedCaller, Refusal> {
    let identity = data.identity.as_ref().ok_or(Refusal::Claim("tenant"))?;
    let project = data.text("project_id", "project")?;
    let subject = match data.text("subject", "subject")? {
        Some(typed) => Subject::parse(typed),
        None => {
            let id = data.key_id.as_deref().ok_or(Refusal::Claim("subject"))?;
            Subject::new(SubjectKind::Service, id)
        }
    };
    VerifiedCaller::claimed(
        &identity.external_id,
        project,
        subject.map_err(Refusal::Caller)?,
        data.permissions.clone().unwrap_or_default(),
        KnownBy::Unkey,
    )
    .map_err(Refusal::Caller)
}

impl KeyData {
    /// A member of the metadata, which must be a string if it is present.
    pub(crate) fn text(&self, member: &str, what: &'static str) -> Result<Option<&str>, Refusal> {
        match self.meta.as_ref().and_then(|meta| meta.get(member)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::Claim(what)),
        }
    }
}

#[derive(Deserialize)]
struct VerifyKeyResponse {
    data: KeyData,
}

/// Unkey's data about a key.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyData {
    valid: bool,
    code: String,
    key_id: Option<String>,
    /// Milliseconds since the epoch.
    expires: Option<u64>,
    identity: Option<KeyIdentity>,
    meta: Option<Map<String, Value>>,
    permissions: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyIdentity {
    external_id: String,
}
