//! The keys of an issuer, kept fresh.
//!
//! One task per issuer fetches; requests only look at what it last held. So
//! there is never more than one fetch at a time, a slow endpoint delays nobody
//! whose key is known, and a client that goes away cancels nothing. A token
//! that names an unknown key makes the task look again, though not more often
//! than every 30 seconds and not for a name that was looked for in vain; only
//! such a token waits, at most as long as one fetch takes.
//!
//! When fetching fails the last good keys stay in use for a day. Without any
//! keys nobody is let in.

mod set;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use jsonwebtoken::Algorithm;
use quick_cache::sync::Cache;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

pub(super) use self::set::{KID_BYTES_MAX, KeySet, SetError};
use crate::config::JwksSource;
use crate::upstream::fetch::{Fetch, FetchError, FetchLimits, Fetched};

/// The largest document.
const DOCUMENT_BYTES_MAX: usize = 256 * 1024;
/// How many names of unknown keys are remembered.
const UNKNOWN_KIDS_MAX: usize = 1024;

/// How often, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Between two fetches when all is well. A file is read again too, even
    /// unchanged, so that its keys do not grow too old to be used.
    pub(super) refresh: Duration,
    /// Between two looks at a file.
    pub(super) look: Duration,
    /// After a failure without keys; doubles up to `forced`.
    pub(super) retry: Duration,
    /// At least between the beginnings of two fetches that tokens ask for.
    pub(super) forced: Duration,
    /// How long the name of an unknown key makes nobody look again.
    pub(super) unknown: Duration,
    /// How long good keys are used when fetching fails.
    pub(super) keep: Duration,
    /// How long a fetch may take.
    pub(super) deadline: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(10 * 60),
            look: Duration::from_secs(2),
            retry: Duration::from_secs(1),
            forced: Duration::from_secs(30),
            unknown: Duration::from_secs(60),
            keep: Duration::from_secs(24 * 60 * 60),
            deadline: Duration::from_secs(3),
        }
    }
}

/// Where a token's key was found, or why not.
#[derive(Debug)]
pub(super) enum Found {
    /// Among these; `find` on them gives it.
    In(Arc<KeySet>),
    /// The issuer has no such key.
    Nowhere,
    /// The issuer cannot be asked.
    Unavailable,
}

/// The keys of one issuer.
pub(super) struct KeyRing {
    shared: Arc<Shared>,
    _keeper: AbortOnDropHandle<()>,
}

struct Shared {
    pace: Pace,
    held: watch::Sender<Held>,
    tries: Mutex<Tries>,
    wanted: Notify,
    /// How often fetching failed.
    failures: AtomicU64,
    unknown: Cache<String, Instant>,
}

/// What the last fetch came to.
#[derive(Clone, Debug, Default)]
struct Held {
    good: Option<Good>,
    last: Last,
}

#[derive(Clone, Debug)]
struct Good {
    keys: Arc<KeySet>,
    at: Instant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    #[default]
    NotYet,
    Good,
    Failed,
}

/// When fetches began, and whether one is under way or asked for.
#[derive(Debug, Default)]
struct Tries {
    began: Option<Instant>,
    under_way: bool,
}

/// Whether a fetch will end soon.
enum Asked {
    Soon,
    NotNow,
}

impl KeyRing {
    /// Begins to fetch. Does not wait for it.
    pub(super) fn open(source: &JwksSource, pace: Pace) -> Result<Self, FetchError> {
        let place = Place::new(source, pace)?;
        let shared = Arc::new(Shared {
            pace,
            held: watch::Sender::default(),
            tries: Mutex::new(Tries {
                began: None,
                under_way: true,
            }),
            wanted: Notify::new(),
            failures: AtomicU64::new(0),
            unknown: Cache::new(UNKNOWN_KIDS_MAX),
        });
        let keeper = tokio::spawn(keep(shared.clone(), place));
        Ok(Self {
            shared,
            _keeper: AbortOnDropHandle::new(keeper),
        })
    }

    /// How often fetching failed.
    pub(super) fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// The keys in use; none before the first were there, or when the last
    /// good ones grew too old.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.shared.keys()
    }

    /// The keys among which one fits such a header.
    pub(super) async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Found {
        let shared = &self.shared;
        if let Some(found) = shared.find(kid, algorithm) {
            return found;
        }
        // Subscribed before asking, so that no end of a fetch is missed.
        let mut ends = shared.held.subscribe();
        match shared.ask(kid) {
            Asked::NotNow => shared.not_found(),
            Asked::Soon => {
                let ended = timeout(shared.pace.deadline, ends.changed()).await;
                if !matches!(ended, Ok(Ok(()))) {
                    return Found::Unavailable;
                }
                shared.find(kid, algorithm).unwrap_or_else(|| {
                    shared.remember(kid);
                    shared.not_found()
                })
            }
        }
    }
}

impl Shared {
    fn keys(&self) -> Option<Arc<KeySet>> {
        let held = self.held.borrow();
        let good = held.good.as_ref()?;
        (good.at.elapsed() <= self.pace.keep).then(|| good.keys.clone())
    }

    fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<Found> {
        let keys = self.keys()?;
        keys.find(kid, algorithm)?;
        Some(Found::In(keys))
    }

    /// Without keys, or with an issuer that did not answer when last asked,
    /// nobody can say that there is no such key.
    fn not_found(&self) -> Found {
        match self.last() {
            Last::Good if self.keys().is_some() => Found::Nowhere,
            _ => Found::Unavailable,
        }
    }

    fn last(&self) -> Last {
        self.held.borrow().last
    }

    fn ask(&self, kid: Option<&str>) -> Asked {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        if tries.under_way {
            return Asked::Soon;
        }
        let in_vain = kid
            .and_then(|kid| self.unknown.get(kid))
            .is_some_and(|since| since.elapsed() < self.pace.unknown);
        let recent = |began: Instant| began.elapsed() < self.pace.forced;
        if in_vain || tries.began.is_some_and(recent) {
            return Asked::NotNow;
        }
        tries.under_way = true;
        self.wanted.notify_one();
        Asked::Soon
    }

    /// Only a set that was really there says that a key is unknown.
    fn remember(&self, kid: Option<&str>) {
        if let Some(kid) = kid
            && self.last() == Last::Good
        {
            self.unknown.insert(kid.to_owned(), Instant::now());
        }
    }

    /// Returns when somebody asks. A call that a fetch has answered since is not one.
    async fn asked(&self) {
        loop {
            self.wanted.notified().await;
            let tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
            if tries.under_way {
                return;
            }
        }
    }

    fn begin(&self) {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        tries.began = Some(Instant::now());
        tries.under_way = true;
    }

    /// Tells everybody who waits.
    fn end(&self, fetched: Result<KeySet, LoadError>) -> Last {
        let last = match fetched {
            Ok(_) => Last::Good,
            Err(_) => Last::Failed,
        };
        {
            let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
            tries.under_way = false;
        }
        self.held.send_modify(|held| {
            held.last = last;
            if let Ok(keys) = fetched {
                held.good = Some(Good {
                    keys: Arc::new(keys),
                    at: Instant::now(),
                });
            }
        });
        last
    }
}

/// Fetches for ever, at its pace or when a token asks for it.
async fn keep(shared: Arc<Shared>, mut place: Place) {
    let mut failures: u32 = 0;
    loop {
        shared.begin();
        let fetched = place.load().await;
        if fetched.is_err() {
            shared.failures.fetch_add(1, Ordering::Relaxed);
        }
        match &fetched {
            Ok(_) if failures > 0 => tracing::info!(place = place.name(), "keys are there again"),
            Ok(_) => {}
            Err(error) => tracing::warn!(
                place = place.name(),
                cause = cause(error),
                "an issuer's keys cannot be had; the last good ones stay in use"
            ),
        }
        let last = shared.end(fetched);
        failures = match last {
            Last::Failed => failures.saturating_add(1),
            Last::Good | Last::NotYet => 0,
        };
        let pause = pause(&shared, failures);
        tokio::select! {
            () = place.rest(pause) => {}
            () = shared.asked() => {}
        }
    }
}

/// How long to rest after so many failures.
fn pause(shared: &Shared, failures: u32) -> Duration {
    let pace = &shared.pace;
    match failures {
        0 => pace.refresh,
        // Nobody can be let in before there are keys: be quick.
        n if shared.keys().is_none() => {
            let doubled = pace.retry.saturating_mul(1 << (n - 1).min(10));
            doubled.min(pace.forced)
        }
        _ => pace.forced.min(pace.refresh),
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

/// Where keys come from.
enum Place {
    Url {
        fetch: Fetch,
        name: String,
    },
    File {
        path: PathBuf,
        seen: Option<Stamp>,
        look: Duration,
    },
}

/// By which a changed file is known.
type Stamp = (SystemTime, u64);

/// Why there are no keys this time.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Fetch(FetchError),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("the file cannot be read")]
    File(#[source] std::io::Error),
    #[error("the file is larger than 256 KiB")]
    TooLarge,
    #[error(transparent)]
    Set(SetError),
}

impl Place {
    fn new(source: &JwksSource, pace: Pace) -> Result<Self, FetchError> {
        let limits = FetchLimits {
            deadline: pace.deadline,
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
                look: pace.look,
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
                whole(fetch.get(None, headers).await.map_err(LoadError::Fetch)?)?
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

    /// Rests this long, or until the file has changed.
    async fn rest(&self, pause: Duration) {
        let Self::File { path, seen, look } = self else {
            return sleep(pause).await;
        };
        let begin = Instant::now();
        while begin.elapsed() < pause {
            sleep(*look).await;
            if stamp(path).await != *seen {
                return;
            }
        }
    }
}

/// A redirect is not followed, so it is not an answer.
fn whole(fetched: Fetched) -> Result<bytes::Bytes, LoadError> {
    match fetched.status {
        StatusCode::OK => Ok(fetched.body),
        status => Err(LoadError::Status(status)),
    }
}

async fn stamp(path: &PathBuf) -> Option<Stamp> {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
