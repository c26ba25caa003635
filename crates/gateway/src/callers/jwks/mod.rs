//! The keys of an issuer, fetched again regularly.
//!
//! One task per issuer fetches; requests read its last result. So there is at
//! most one fetch at a time, a slow endpoint does not delay tokens with a known
//! key, and a client that disconnects cancels no fetch. A token with an unknown
//! key id makes the task fetch again, at most every 30 seconds and not for an id
//! that a recent fetch did not have; only such a token waits, for at most one
//! fetch.
//!
//! When fetching fails, the last good keys stay in use for a day. Without keys
//! all tokens of the issuer are refused.

mod set;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use jsonwebtoken::Algorithm;
use onceward_core::deadline::within;
use quick_cache::sync::Cache;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

pub(super) use self::set::{KID_BYTES_MAX, KeySet, KeySetError};
use crate::config::JwksSource;
use crate::upstream::fetch::{Fetch, FetchError, FetchLimits, Fetched};

/// The largest JWKS document.
const DOCUMENT_BYTES_MAX: usize = 256 * 1024;
/// How many unknown key ids are remembered.
const UNKNOWN_KIDS_MAX: usize = 1024;

/// Intervals and limits of fetching keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JwksTiming {
    /// The interval between fetches that succeed. An unchanged file is read again
    /// too, so that its keys do not become too old.
    pub(super) refresh: Duration,
    /// How often a file is checked for changes.
    pub(super) poll: Duration,
    /// The pause after a failure while there are no keys; doubles up to `forced`.
    pub(super) retry: Duration,
    /// The minimum time between the starts of two fetches that tokens cause.
    pub(super) forced: Duration,
    /// How long an unknown key id causes no further fetch.
    pub(super) unknown: Duration,
    /// How long good keys stay in use when fetching fails.
    pub(super) keep: Duration,
    /// The time limit of a fetch.
    pub(super) deadline: Duration,
}

impl Default for JwksTiming {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(10 * 60),
            poll: Duration::from_secs(2),
            retry: Duration::from_secs(1),
            forced: Duration::from_secs(30),
            unknown: Duration::from_secs(60),
            keep: Duration::from_secs(24 * 60 * 60),
            deadline: Duration::from_secs(3),
        }
    }
}

/// The result of looking for a token's key.
#[derive(Debug)]
pub(super) enum KeyLookup {
    /// The set that has the key; [`KeySet::find`] returns it.
    Found(Arc<KeySet>),
    /// The issuer has no such key.
    NoSuchKey,
    /// There are no current keys, so the key may exist.
    Unavailable,
}

/// The keys of one issuer.
pub(super) struct KeyRing {
    state: Arc<KeyRingState>,
    _task: AbortOnDropHandle<()>,
}

struct KeyRingState {
    timing: JwksTiming,
    fetched_keys: watch::Sender<FetchedKeys>,
    progress: Mutex<FetchProgress>,
    requested: Notify,
    /// How many fetches have failed.
    failures: AtomicU64,
    unknown: Cache<String, Instant>,
}

/// The last good keys, and how the last fetch ended.
#[derive(Clone, Debug, Default)]
struct FetchedKeys {
    good: Option<GoodKeys>,
    last: FetchStatus,
}

#[derive(Clone, Debug)]
struct GoodKeys {
    keys: Arc<KeySet>,
    at: Instant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FetchStatus {
    #[default]
    NotYet,
    Succeeded,
    Failed,
}

/// When the last fetch began, and whether one is running or requested.
#[derive(Debug, Default)]
struct FetchProgress {
    began: Option<Instant>,
    under_way: bool,
}

/// Whether a token with an unknown key should wait for a fetch.
enum FetchRequest {
    Pending,
    NotAllowed,
}

impl KeyRing {
    /// Starts to fetch, without waiting for the result.
    pub(super) fn open(source: &JwksSource, timing: JwksTiming) -> Result<Self, FetchError> {
        let loader = KeyLoader::new(source, timing)?;
        let state = Arc::new(KeyRingState {
            timing,
            fetched_keys: watch::Sender::default(),
            progress: Mutex::new(FetchProgress {
                began: None,
                under_way: true,
            }),
            requested: Notify::new(),
            failures: AtomicU64::new(0),
            unknown: Cache::new(UNKNOWN_KIDS_MAX),
        });
        let task = tokio::spawn(fetch_forever(state.clone(), loader));
        Ok(Self {
            state,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// How many fetches have failed.
    pub(super) fn failures(&self) -> u64 {
        self.state.failures.load(Ordering::Relaxed)
    }

    /// The keys in use; `None` before the first fetch has succeeded, and when
    /// the last good keys are too old.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.state.keys()
    }

    /// Finds the key for a token with this header; fetches if it is unknown.
    pub(super) async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> KeyLookup {
        let state = &self.state;
        if let Some(found) = state.find(kid, algorithm) {
            return found;
        }
        // Subscribed before the request, so that the end of the fetch is not missed.
        let mut ends = state.fetched_keys.subscribe();
        match state.request_fetch(kid) {
            FetchRequest::NotAllowed => state.not_found(),
            FetchRequest::Pending => {
                let ended = within(state.timing.deadline, ends.changed()).await;
                if !matches!(ended, Ok(Ok(()))) {
                    return KeyLookup::Unavailable;
                }
                state.find(kid, algorithm).unwrap_or_else(|| {
                    state.remember(kid);
                    state.not_found()
                })
            }
        }
    }
}

impl KeyRingState {
    fn keys(&self) -> Option<Arc<KeySet>> {
        let fetched_keys = self.fetched_keys.borrow();
        let good = fetched_keys.good.as_ref()?;
        (good.at.elapsed() <= self.timing.keep).then(|| good.keys.clone())
    }

    fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<KeyLookup> {
        let keys = self.keys()?;
        keys.find(kid, algorithm)?;
        Some(KeyLookup::Found(keys))
    }

    /// Only after a successful fetch with usable keys is it certain that a key
    /// does not exist.
    fn not_found(&self) -> KeyLookup {
        match self.last() {
            FetchStatus::Succeeded if self.keys().is_some() => KeyLookup::NoSuchKey,
            _ => KeyLookup::Unavailable,
        }
    }

    fn last(&self) -> FetchStatus {
        self.fetched_keys.borrow().last
    }

    fn request_fetch(&self, kid: Option<&str>) -> FetchRequest {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.under_way {
            return FetchRequest::Pending;
        }
        let is_unknown = kid
            .and_then(|kid| self.unknown.get(kid))
            .is_some_and(|since| since.elapsed() < self.timing.unknown);
        let recent = |began: Instant| began.elapsed() < self.timing.forced;
        if is_unknown || progress.began.is_some_and(recent) {
            return FetchRequest::NotAllowed;
        }
        progress.under_way = true;
        self.requested.notify_one();
        FetchRequest::Pending
    }

    /// Remembers a key id as unknown, if the last fetch succeeded.
    fn remember(&self, kid: Option<&str>) {
        if let Some(kid) = kid
            && self.last() == FetchStatus::Succeeded
        {
            self.unknown.insert(kid.to_owned(), Instant::now());
        }
    }

    /// Waits until a fetch is requested. Skips requests that a fetch has answered
    /// meanwhile.
    async fn wait_for_request(&self) {
        loop {
            self.requested.notified().await;
            let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if progress.under_way {
                return;
            }
        }
    }

    fn begin(&self) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.began = Some(Instant::now());
        progress.under_way = true;
    }

    /// Stores the result of a fetch and wakes the waiting tokens.
    fn end(&self, fetched: Result<KeySet, LoadError>) -> FetchStatus {
        let last = match fetched {
            Ok(_) => FetchStatus::Succeeded,
            Err(_) => FetchStatus::Failed,
        };
        {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.under_way = false;
        }
        self.fetched_keys.send_modify(|fetched_keys| {
            fetched_keys.last = last;
            if let Ok(keys) = fetched {
                fetched_keys.good = Some(GoodKeys {
                    keys: Arc::new(keys),
                    at: Instant::now(),
                });
            }
        });
        last
    }
}

/// Fetches keys regularly, and when a token requires it. Never returns.
async fn fetch_forever(state: Arc<KeyRingState>, mut loader: KeyLoader) {
    let mut failures: u32 = 0;
    loop {
        state.begin();
        let fetched = loader.load().await;
        if fetched.is_err() {
            state.failures.fetch_add(1, Ordering::Relaxed);
        }
        match &fetched {
            Ok(_) if failures > 0 => tracing::info!(
                source = loader.name(),
                "issuer keys fetched again after failures"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(
                source = loader.name(),
                cause = cause(error),
                "issuer keys not fetched; last good keys stay in use"
            ),
        }
        let last = state.end(fetched);
        failures = match last {
            FetchStatus::Failed => failures.saturating_add(1),
            FetchStatus::Succeeded | FetchStatus::NotYet => 0,
        };
        let pause = pause(&state, failures);
        tokio::select! {
            () = loader.wait(pause) => {}
            () = state.wait_for_request() => {}
        }
    }
}

/// The pause before the next fetch, after this many failures in a row.
fn pause(state: &KeyRingState, failures: u32) -> Duration {
    let timing = &state.timing;
    match failures {
        0 => timing.refresh,
        // All tokens are refused until there are keys, so retry soon.
        n if state.keys().is_none() => {
            let doubled = timing.retry.saturating_mul(1 << (n - 1).min(10));
            doubled.min(timing.forced)
        }
        _ => timing.forced.min(timing.refresh),
    }
}

/// An error and its causes in one line.
fn cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

/// Loads an issuer's keys from their source.
enum KeyLoader {
    Url {
        fetch: Fetch,
        name: String,
    },
    File {
        path: PathBuf,
        seen: Option<FileStamp>,
        poll: Duration,
    },
}

/// Modification time and length, which change when a file changes.
type FileStamp = (SystemTime, u64);

/// Why keys could not be loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Fetch(FetchError),
    #[error("the endpoint answered {0}")]
    Status(StatusCode),
    #[error("the file cannot be read")]
    File(#[source] std::io::Error),
    #[error("the file is larger than 256 KiB")]
    TooLarge,
    #[error(transparent)]
    Set(KeySetError),
}

impl KeyLoader {
    fn new(source: &JwksSource, timing: JwksTiming) -> Result<Self, FetchError> {
        let limits = FetchLimits {
            deadline: timing.deadline,
            answer_bytes_max: DOCUMENT_BYTES_MAX,
        };
        Ok(match source {
            JwksSource::Url(url) => Self::Url {
                fetch: Fetch::new(url, limits)?,
                // A query may be a secret.
                name: url.split(['?', '#']).next().unwrap_or_default().to_owned(),
            },
            JwksSource::File(path) => Self::File {
                path: path.clone(),
                seen: None,
                poll: timing.poll,
            },
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Url { name, .. } => name.clone(),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    async fn load(&mut self) -> Result<KeySet, LoadError> {
        let document = match self {
            Self::Url { fetch, .. } => {
                let accept = HeaderValue::from_static("application/json");
                let headers = HeaderMap::from_iter([(header::ACCEPT, accept)]);
                require_ok(fetch.get(None, headers).await.map_err(LoadError::Fetch)?)?
            }
            Self::File { path, seen, .. } => {
                *seen = stamp(path).await;
                if seen.is_some_and(|(_, bytes)| bytes > DOCUMENT_BYTES_MAX as u64) {
                    return Err(LoadError::TooLarge);
                }
                tokio::fs::read(path).await.map_err(LoadError::File)?.into()
            }
        };
        KeySet::parse(&document).map_err(LoadError::Set)
    }

    /// Waits this long, or until the file has changed.
    async fn wait(&self, pause: Duration) {
        let Self::File { path, seen, poll } = self else {
            return sleep(pause).await;
        };
        let begin = Instant::now();
        while begin.elapsed() < pause {
            sleep(*poll).await;
            if stamp(path).await != *seen {
                return;
            }
        }
    }
}

/// The document of a 200. Redirects are not followed, so they are errors too.
fn require_ok(fetched: Fetched) -> Result<bytes::Bytes, LoadError> {
    match fetched.status {
        StatusCode::OK => Ok(fetched.body),
        status => Err(LoadError::Status(status)),
    }
}

async fn stamp(path: &PathBuf) -> Option<FileStamp> {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
