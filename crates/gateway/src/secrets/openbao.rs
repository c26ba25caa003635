//! OpenBao, and Vault, whose HTTP it speaks: a KV store of version 2.
//!
//! What was read is believed for half a minute. When OpenBao is away after
//! that, the last good value stays in use and a warning says so; but when it
//! says that there is no such secret, or that we may not read it, that counts
//! at once. One request per secret is under way at a time, whoever waits for it.

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

use super::{AwayError, Fields, SecretError};
use crate::config;
use crate::upstream::fetch::{Fetch, FetchLimits, Fetched};

/// How many secrets are remembered.
const PATHS_MAX: usize = 4096;
/// The longest path of a secret, in bytes.
const PATH_BYTES_MAX: usize = 1024;
/// How long a login counts that says nothing of its end.
const LEASE_UNSAID: Duration = Duration::from_secs(60 * 60);
/// What a path's segment holds as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Without it agents and proxies of OpenBao may refuse to pass requests on.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// How long things are believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// A good answer.
    pub(super) fresh: Duration,
    /// A failure, so that not every request waits for the same one again.
    pub(super) failed: Duration,
    /// How long OpenBao may take.
    pub(super) deadline: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(30),
            failed: Duration::from_secs(2),
            deadline: Duration::from_secs(3),
        }
    }
}

/// A KV store of OpenBao.
pub(super) struct OpenBao {
    fetch: Fetch,
    login: config::BaoLogin,
    mount: String,
    namespace: Option<HeaderValue>,
    pace: Pace,
    secrets: Cache<String, Arc<Reading>>,
    session: Mutex<Arc<OnceCell<Session>>>,
}

/// A secret that is being read, or was.
#[derive(Default)]
struct Reading {
    /// What was known before, for as long as OpenBao is away.
    before: Option<Arc<Fields>>,
    cell: OnceCell<Read>,
}

struct Read {
    result: Result<Arc<Fields>, SecretError>,
    until: Instant,
}

/// The right to read.
#[derive(Clone)]
struct Session {
    result: Result<HeaderValue, SecretError>,
    until: Option<Instant>,
}

impl OpenBao {
    pub(super) fn new(settings: &config::OpenBao, pace: Pace) -> Result<Self, SecretError> {
        let limits = FetchLimits {
            deadline: pace.deadline,
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
            pace,
            secrets: Cache::new(PATHS_MAX),
            session: Mutex::default(),
        })
    }

    /// The text fields of a secret.
    pub(super) async fn read(&self, path: &str) -> Result<Arc<Fields>, SecretError> {
        let target = format!("/v1/{}/data/{}", self.mount, encoded(path)?);
        let reading = self.reading(path);
        let asking = || self.ask(path, &target, reading.before.clone());
        reading.cell.get_or_init(asking).await.result.clone()
    }

    /// The reading that counts now: the last one, or a new one in its place.
    fn reading(&self, path: &str) -> Arc<Reading> {
        let now = Instant::now();
        let is_over = |reading: &Arc<Reading>| {
            let read = reading.cell.get();
            read.is_some_and(|read| read.until <= now)
        };
        let before = self
            .secrets
            .remove_if(path, is_over)
            .and_then(|(_, reading)| reading.cell.get()?.result.clone().ok());
        let fresh = || {
            Ok::<_, std::convert::Infallible>(Arc::new(Reading {
                before,
                cell: OnceCell::new(),
            }))
        };
        match self.secrets.get_or_insert_with(path, fresh) {
            Ok(reading) => reading,
            Err(never) => match never {},
        }
    }

    async fn ask(&self, path: &str, target: &str, before: Option<Arc<Fields>>) -> Read {
        let result = match (self.fetch_secret(path, target).await, before) {
            (Err(error @ (SecretError::Away(_) | SecretError::Login(_))), Some(before)) => {
                tracing::warn!(path, cause = %error, "a secret could not be read again; its last value stays in use");
                return Read {
                    result: Ok(before),
                    until: Instant::now() + self.pace.failed,
                };
            }
            (result, _) => result,
        };
        let span = match &result {
            Ok(_) => self.pace.fresh,
            Err(_) => self.pace.failed,
        };
        Read {
            result,
            until: Instant::now() + span,
        }
    }

    async fn fetch_secret(&self, path: &str, target: &str) -> Result<Arc<Fields>, SecretError> {
        let session = self.session();
        let token = self.token(&session).await?;
        let mut fetched = self.get(target, token).await?;
        // A login may have ended before its time; a token that is given cannot be renewed.
        if fetched.status == StatusCode::FORBIDDEN && self.can_log_in() {
            self.forget(&session);
            let token = self.token(&self.session()).await?;
            fetched = self.get(target, token).await?;
        }
        judge(path, &fetched)
    }

    async fn get(&self, target: &str, token: HeaderValue) -> Result<Fetched, AwayError> {
        let mut headers = self.headers();
        headers.insert(TOKEN, token);
        let got = self.fetch.get(Some(target), headers).await;
        got.map_err(AwayError::Fetch)
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

    /// The session that counts now, which may still have to be opened.
    fn session(&self) -> Arc<OnceCell<Session>> {
        let mut held = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let until = held.get().and_then(|session| session.until);
        if until.is_some_and(|until| until <= Instant::now()) {
            *held = Arc::default();
        }
        held.clone()
    }

    /// A new session, unless somebody began one already.
    fn forget(&self, refused: &Arc<OnceCell<Session>>) {
        let mut held = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&held, refused) {
            *held = Arc::default();
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
                    // Well before its end.
                    Ok((_, lease)) => *lease * 2 / 3,
                    Err(_) => self.pace.failed,
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
        let answer = answer.await.map_err(AwayError::Fetch)?;
        match answer.status {
            StatusCode::OK => {}
            // What is wrong with the role or its secret does not pass by itself.
            status @ (StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
                tracing::error!(status = status.as_u16(), "OpenBao refuses the login");
                return Err(SecretError::Login(status));
            }
            status => return Err(AwayError::Status(status).into()),
        }
        let login: Login = parse(&answer.body)?;
        let lease = match login.auth.lease_duration {
            0 => LEASE_UNSAID,
            seconds => Duration::from_secs(seconds),
        };
        Ok((sensitive(&login.auth.client_token.into())?, lease))
    }
}

fn judge(path: &str, fetched: &Fetched) -> Result<Arc<Fields>, SecretError> {
    let path = || path.to_owned();
    match fetched.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(SecretError::Absent { path: path() }),
        StatusCode::FORBIDDEN => return Err(SecretError::Denied { path: path() }),
        status => return Err(AwayError::Status(status).into()),
    }
    let secret: Secret = parse(&fetched.body)?;
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

/// The error does not keep what could not be read: there are secrets in it.
fn parse<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, AwayError> {
    serde_json::from_slice(body).map_err(|_| AwayError::Malformed)
}

fn sensitive(token: &SecretString) -> Result<HeaderValue, SecretError> {
    let mut value = HeaderValue::from_str(token.expose_secret())
        .map_err(|_| SecretError::Unsendable("token"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A path as it stands in a URL. No segment may lead elsewhere.
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
struct Secret {
    data: Versioned,
}

#[derive(Deserialize)]
struct Versioned {
    data: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Login {
    auth: LoginAuth,
}

#[derive(Deserialize)]
struct LoginAuth {
    client_token: String,
    #[serde(default)]
    lease_duration: u64,
}
