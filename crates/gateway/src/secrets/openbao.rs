//! OpenBao, and Vault, which has the same HTTP API: a KV store of version 2.
//!
//! A secret is cached for half a minute. When OpenBao is unavailable after that,
//! the last good value stays in use and a warning is logged; an answer that the
//! secret does not exist or may not be read takes effect at once. At most one
//! request per secret is under way; all readers wait for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use quick_cache::sync::Cache;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{SecretError, SecretFields, UnavailableError};
use crate::config;
use crate::upstream::fetch::{Fetch, FetchLimits, Fetched};

/// How many secrets are cached.
const PATHS_MAX: usize = 4096;
/// The longest path of a secret, in bytes.
const PATH_BYTES_MAX: usize = 1024;
/// How long a login is used that has no lease duration.
const DEFAULT_LEASE: Duration = Duration::from_secs(60 * 60);
/// The characters of a path segment that are percent-encoded.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Agents and proxies of OpenBao may require this header.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// How long results are cached, and the time limit of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheTiming {
    /// A secret that was read.
    pub(super) fresh: Duration,
    /// A failure, so that requests do not each wait for the same one again.
    pub(super) failed: Duration,
    /// The time limit of a request to OpenBao.
    pub(super) deadline: Duration,
}

impl Default for CacheTiming {
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(30),
            failed: Duration::from_secs(2),
            deadline: Duration::from_secs(3),
        }
    }
}

/// A KV store of OpenBao.
pub(super) struct OpenBaoClient {
    fetch: Fetch,
    login: config::BaoLogin,
    mount: String,
    namespace: Option<HeaderValue>,
    timing: CacheTiming,
    secrets: Cache<String, Arc<CachedSecret>>,
    session: Mutex<Arc<OnceCell<Session>>>,
}

/// A secret that is being read, or has been.
#[derive(Default)]
struct CachedSecret {
    /// The previous value, used while OpenBao is unavailable.
    previous: Option<Arc<SecretFields>>,
    cell: OnceCell<ReadResult>,
}

struct ReadResult {
    result: Result<Arc<SecretFields>, SecretError>,
    until: Instant,
}

/// A login, or why it failed.
#[derive(Clone)]
struct Session {
    result: Result<HeaderValue, SecretError>,
    until: Option<Instant>,
}

impl OpenBaoClient {
    pub(super) fn new(
        settings: &config::OpenBao,
        timing: CacheTiming,
    ) -> Result<Self, SecretError> {
        let limits = FetchLimits {
            deadline: timing.deadline,
            ..FetchLimits::default()
        };
        let fetch = Fetch::new(&settings.address, limits);
        let namespace = settings.namespace.as_deref().map(HeaderValue::from_str);
        Ok(Self {
            fetch: fetch.map_err(|error| SecretError::Setup(Arc::new(error)))?,
            login: settings.login.clone(),
            mount: encoded(&settings.mount)?,
            namespace: namespace
                .transpose()
                .map_err(|_| SecretError::Unsendable("namespace"))?,
            timing,
            secrets: Cache::new(PATHS_MAX),
            session: Mutex::default(),
        })
    }

    /// The text fields of a secret.
    pub(super) async fn read(&self, path: &str) -> Result<Arc<SecretFields>, SecretError> {
        let target = format!("/v1/{}/data/{}", self.mount, encoded(path)?);
        let cached = self.cached(path);
        let refresh = || self.refresh(path, &target, cached.previous.clone());
        cached.cell.get_or_init(refresh).await.result.clone()
    }

    /// The cached secret, or a new entry if it has expired.
    fn cached(&self, path: &str) -> Arc<CachedSecret> {
        let now = Instant::now();
        let is_over = |cached: &Arc<CachedSecret>| {
            let read = cached.cell.get();
            read.is_some_and(|read| read.until <= now)
        };
        let previous = self
            .secrets
            .remove_if(path, is_over)
            .and_then(|(_, cached)| cached.cell.get()?.result.clone().ok());
        let fresh = || {
            Ok::<_, std::convert::Infallible>(Arc::new(CachedSecret {
                previous,
                cell: OnceCell::new(),
            }))
        };
        match self.secrets.get_or_insert_with(path, fresh) {
            Ok(cached) => cached,
            Err(never) => match never {},
        }
    }

    async fn refresh(
        &self,
        path: &str,
        target: &str,
        previous: Option<Arc<SecretFields>>,
    ) -> ReadResult {
        let result = match (self.fetch_secret(path, target).await, previous) {
            (
                Err(error @ (SecretError::Unavailable(_) | SecretError::Login(_))),
                Some(previous),
            ) => {
                tracing::warn!(path, cause = %error, "secret not refreshed; last value stays in use");
                return ReadResult {
                    result: Ok(previous),
                    until: Instant::now() + self.timing.failed,
                };
            }
            (result, _) => result,
        };
        let span = match &result {
            Ok(_) => self.timing.fresh,
            Err(_) => self.timing.failed,
        };
        ReadResult {
            result,
            until: Instant::now() + span,
        }
    }

    async fn fetch_secret(
        &self,
        path: &str,
        target: &str,
    ) -> Result<Arc<SecretFields>, SecretError> {
        let session = self.session();
        let token = self.token(&session).await?;
        let mut fetched = self.get(target, token).await?;
        // A login may have been revoked before its end. A configured token cannot be
        // renewed.
        if fetched.status == StatusCode::FORBIDDEN && self.can_log_in() {
            self.forget(&session);
            let token = self.token(&self.session()).await?;
            fetched = self.get(target, token).await?;
        }
        read_fields(path, &fetched)
    }

    async fn get(&self, target: &str, token: HeaderValue) -> Result<Fetched, UnavailableError> {
        let mut headers = self.headers();
        headers.insert(TOKEN, token);
        let got = self.fetch.get(Some(target), headers).await;
        got.map_err(UnavailableError::Fetch)
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST, HeaderValue::from_static("true"));
        if let Some(namespace) = &self.namespace {
            headers.insert(NAMESPACE, namespace.clone());
        }
        headers
    }

    fn can_log_in(&self) -> bool {
        matches!(self.login, config::BaoLogin::AppRole { .. })
    }

    /// The current session, which may still have to be opened.
    fn session(&self) -> Arc<OnceCell<Session>> {
        let mut current = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let until = current.get().and_then(|session| session.until);
        if until.is_some_and(|until| until <= Instant::now()) {
            *current = Arc::default();
        }
        current.clone()
    }

    /// Discards a refused session, unless it has been replaced already.
    fn forget(&self, refused: &Arc<OnceCell<Session>>) {
        let mut current = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&current, refused) {
            *current = Arc::default();
        }
    }

    async fn token(&self, session: &OnceCell<Session>) -> Result<HeaderValue, SecretError> {
        session.get_or_init(|| self.log_in()).await.result.clone()
    }

    async fn log_in(&self) -> Session {
        match &self.login {
            config::BaoLogin::Token(token) => Session {
                result: sensitive(token),
                until: None,
            },
            config::BaoLogin::AppRole { role_id, secret_id } => {
                let opened = self.log_in_as(role_id, secret_id).await;
                let span = match &opened {
                    // Renewed well before the lease ends.
                    Ok((_, lease)) => *lease * 2 / 3,
                    Err(_) => self.timing.failed,
                };
                Session {
                    result: opened.map(|(token, _)| token),
                    until: Some(Instant::now() + span),
                }
            }
        }
    }

    async fn log_in_as(
        &self,
        role_id: &str,
        secret_id: &SecretString,
    ) -> Result<(HeaderValue, Duration), SecretError> {
        let body = json!({ "role_id": role_id, "secret_id": secret_id.expose_secret() });
        let mut headers = self.headers();
        let kind = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, kind);
        let target = Some("/v1/auth/approle/login");
        let answer = self.fetch.post(target, headers, body.to_string().into());
        let answer = answer.await.map_err(UnavailableError::Fetch)?;
        match answer.status {
            StatusCode::OK => {}
            // A wrong role or secret id does not become right by retrying.
            status @ (StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
                tracing::error!(status = status.as_u16(), "OpenBao refused the login");
                return Err(SecretError::Login(status));
            }
            status => return Err(UnavailableError::Status(status).into()),
        }
        let login: LoginResponse = parse(&answer.body)?;
        let lease = match login.auth.lease_duration {
            0 => DEFAULT_LEASE,
            seconds => Duration::from_secs(seconds),
        };
        Ok((sensitive(&login.auth.client_token.into())?, lease))
    }
}

fn read_fields(path: &str, fetched: &Fetched) -> Result<Arc<SecretFields>, SecretError> {
    let path = || path.to_owned();
    match fetched.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(SecretError::Absent { path: path() }),
        StatusCode::FORBIDDEN => return Err(SecretError::Denied { path: path() }),
        status => return Err(UnavailableError::Status(status).into()),
    }
    let secret: KvSecret = parse(&fetched.body)?;
    // A version that was deleted has no data.
    let Some(data) = secret.data.data else {
        return Err(SecretError::Absent { path: path() });
    };
    let texts = data.into_iter().filter_map(|(field, value)| match value {
        Value::String(text) => Some((field, text.into())),
        _ => None,
    });
    Ok(Arc::new(texts.collect()))
}

/// Parses a response. The error does not keep the body, which may hold secrets.
fn parse<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, UnavailableError> {
    serde_json::from_slice(body).map_err(|_| UnavailableError::Malformed)
}

fn sensitive(token: &SecretString) -> Result<HeaderValue, SecretError> {
    let mut value = HeaderValue::from_str(token.expose_secret())
        .map_err(|_| SecretError::Unsendable("token"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A path percent-encoded for a URL. Segments that lead elsewhere are refused.
fn encoded(path: &str) -> Result<String, SecretError> {
    let trimmed = path.trim_matches('/');
    let good = |segment: &str| !matches!(segment, "" | "." | "..");
    if path.len() > PATH_BYTES_MAX || !trimmed.split('/').all(good) {
        return Err(SecretError::Path {
            path: path.chars().take(PATH_BYTES_MAX).collect(),
        });
    }
    let segments = trimmed
        .split('/')
        .map(|segment| utf8_percent_encode(segment, SEGMENT).to_string());
    Ok(segments.collect::<Vec<_>>().join("/"))
}

#[derive(Deserialize)]
struct KvSecret {
    data: KvVersion,
}

#[derive(Deserialize)]
struct KvVersion {
    data: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct LoginResponse {
    auth: LoginAuth,
}

#[derive(Deserialize)]
struct LoginAuth {
    client_token: String,
    #[serde(default)]
    lease_duration: u64,
}
