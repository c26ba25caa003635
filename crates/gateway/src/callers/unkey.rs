//! Keys that Unkey gives out: asked at `POST /v2/keys.verifyKey`, version 2.
//!
//! Callers have such keys, and the ids of webhooks may be such keys; they are
//! asked about with different root keys, and what a valid one stands for is
//! read from its answer by who asks.
//!
//! Unkey answers 200 whatever it thinks of a key; what counts is `data.valid`.
//! An answer is believed for less than a minute, a refusal for a few seconds,
//! and one question per key is under way at a time. Keys that have been valid
//! do not queue behind others: whoever sends keys at random would else keep out
//! those who have good ones. When Unkey is away, slow or
//! strange, nobody is let in on an older answer: the client gets a 503.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use onceward_core::caller::{Subject, SubjectKind};
use quick_cache::sync::Cache;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{Instant, timeout};

use super::WallClock;
use super::known::Known;
use super::refusal::{AuthError, Prohibition, Refusal, UnkeyCode};
use crate::config::{self, KnownBy, SecretValue};
use crate::secrets::SecretReader;
use crate::upstream::fetch::{Fetch, FetchError, FetchLimits, Fetched};
use crate::webhooks::registry;

/// The longest key that Unkey takes.
const KEY_BYTES_MAX: usize = 512;
/// The largest answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How many answers are remembered.
const ANSWERS_MAX: usize = 10_000;
/// How many questions are under way at a time about keys that have been valid.
const PROVEN_QUESTIONS_MAX: usize = 64;
/// The same about all other keys, whatever is asked of us.
const QUESTIONS_MAX: usize = 64;
/// How many keys that have been valid are remembered as such.
const PROVEN_MAX: usize = 10_000;
/// How long a refusal is believed.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// How long a failure keeps the same key from being asked about again.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// How long any answer is believed at most.
const CACHE_MAX: Duration = Duration::from_secs(60);

/// Reads from an answer what a valid key stands for.
type Read<T> = fn(key: &str, &Data) -> Result<T, Refusal>;

/// Unkey, as a judge of keys that each stand for a `T`.
pub(crate) struct Unkey<T> {
    fetch: Fetch,
    target: String,
    root_key: SecretValue,
    read: Read<T>,
    secrets: SecretReader,
    clock: WallClock,
    cache_for: Duration,
    deadline: Duration,
    answers: Cache<[u8; 32], Arc<OnceCell<Answer<T>>>>,
    questions: Semaphore,
    /// Keys that were valid when they were last asked about.
    proven: Cache<[u8; 32], ()>,
    proven_questions: Semaphore,
}

/// What became of a question.
struct Answer<T> {
    result: Result<T, AuthError>,
    until: Instant,
}

impl Unkey<Known> {
    /// The judge of callers' keys.
    pub(super) fn of_callers(
        settings: &config::Unkey,
        secrets: SecretReader,
        clock: WallClock,
    ) -> Result<Self, FetchError> {
        let root_key = settings.root_key.clone();
        Self::new(settings, root_key, name, secrets, clock)
    }

    /// Who comes with this key. The id of a webhook is none, whatever Unkey
    /// says: providers know it, and it stands in their settings.
    pub(super) async fn caller(&self, key: &str) -> Result<Known, AuthError> {
        if key.starts_with(registry::ID_PREFIX) {
            return Err(Refusal::NotTaken("ids of webhooks").into());
        }
        self.verify(key).await
    }
}

impl<T: Clone> Unkey<T> {
    pub(crate) fn new(
        settings: &config::Unkey,
        root_key: SecretValue,
        read: Read<T>,
        secrets: SecretReader,
        clock: WallClock,
    ) -> Result<Self, FetchError> {
        let limits = FetchLimits {
            deadline: settings.deadline,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let base = settings.url.trim_end_matches('/');
        // What follows the host is a path of the operator's own.
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
            answers: Cache::new(ANSWERS_MAX),
            questions: Semaphore::new(QUESTIONS_MAX),
            proven: Cache::new(PROVEN_MAX),
            proven_questions: Semaphore::new(PROVEN_QUESTIONS_MAX),
        })
    }

    /// What this key stands for.
    pub(crate) async fn verify(&self, key: &str) -> Result<T, AuthError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Refusal::TooLong.into());
        }
        let digest = Sha256::digest(key).into();
        let question = self.question(digest);
        let answer = question.get_or_init(|| self.ask(key, digest)).await;
        answer.result.clone()
    }

    /// The question that counts now: the last one, or a new one in its place.
    fn question(&self, digest: [u8; 32]) -> Arc<OnceCell<Answer<T>>> {
        let now = Instant::now();
        self.answers.remove_if(&digest, |question| {
            let answer = question.get();
            answer.is_some_and(|answer| answer.until <= now)
        });
        let fresh = || Ok::<_, Infallible>(Arc::default());
        match self.answers.get_or_insert_with(&digest, fresh) {
            Ok(question) => question,
            Err(never) => match never {},
        }
    }

    async fn ask(&self, key: &str, digest: [u8; 32]) -> Answer<T> {
        let turns = match self.proven.get(&digest) {
            Some(()) => &self.proven_questions,
            None => &self.questions,
        };
        let asked = timeout(self.deadline, self.verdict(key, turns)).await;
        let verdict = asked.unwrap_or_else(|_| {
            tracing::warn!("Unkey does not answer in time");
            Verdict::Unavailable
        });
        match verdict {
            Verdict::Known { .. } => self.proven.insert(digest, ()),
            Verdict::Refused(_) => drop(self.proven.remove(&digest)),
            // It may be valid again, or still.
            Verdict::Forbidden | Verdict::TooMany | Verdict::Unavailable => {}
        }
        let now = Instant::now();
        let (result, span) = match verdict {
            Verdict::Known { read, for_ms } => {
                let left = for_ms.map_or(self.cache_for, Duration::from_millis);
                (Ok(read), left.min(self.cache_for))
            }
            Verdict::Refused(refusal) => (Err(refusal.into()), REFUSED_FOR.min(self.cache_for)),
            Verdict::Forbidden => (
                Err(Prohibition::Unkey.into()),
                REFUSED_FOR.min(self.cache_for),
            ),
            Verdict::TooMany => (Err(AuthError::TooMany), FAILED_FOR),
            Verdict::Unavailable => (Err(AuthError::Unavailable), FAILED_FOR),
        };
        Answer {
            result,
            until: now + span,
        }
    }

    async fn verdict(&self, key: &str, turns: &Semaphore) -> Verdict<T> {
        let Ok(_permit) = turns.acquire().await else {
            return Verdict::Unavailable;
        };
        let headers = match self.headers().await {
            Ok(headers) => headers,
            Err(Unsent) => return Verdict::Unavailable,
        };
        // A cost of nothing: a retry must not use up what the key may still do.
        let body = json!({ "key": key, "credits": { "cost": 0 } }).to_string();
        let asked = self.fetch.post(Some(&self.target), headers, body.into());
        match asked.await {
            Ok(answer) => judge(&answer, key, self.read, self.clock.now().unix_ms()),
            Err(error) => {
                tracing::warn!(%error, "Unkey does not answer");
                Verdict::Unavailable
            }
        }
    }

    async fn headers(&self) -> Result<HeaderMap, Unsent> {
        let root_key = self.secrets.read(&self.root_key).await.map_err(|error| {
            tracing::error!(%error, "Unkey's root key cannot be read");
            Unsent
        })?;
        let bearer = format!("Bearer {}", root_key.expose_secret());
        let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| {
            tracing::error!("Unkey's root key holds characters that cannot be sent");
            Unsent
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

/// There is nothing to ask with; the log says why.
struct Unsent;

/// What an answer of Unkey comes to.
enum Verdict<T> {
    Known {
        read: T,
        /// How long the key itself still holds, if it ends.
        for_ms: Option<u64>,
    },
    Refused(Refusal),
    Forbidden,
    TooMany,
    Unavailable,
}

fn judge<T>(answer: &Fetched, key: &str, read: Read<T>, now_ms: u64) -> Verdict<T> {
    match answer.status {
        StatusCode::OK => {}
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            tracing::error!(
                status = status.as_u16(),
                "Unkey refuses the root key; its keys cannot be verified"
            );
            return Verdict::Unavailable;
        }
        status => {
            tracing::warn!(status = status.as_u16(), "Unkey gives no verdict");
            return Verdict::Unavailable;
        }
    }
    let Ok(Body { data }) = serde_json::from_slice(&answer.body) else {
        tracing::warn!("Unkey's answer is not what is documented");
        return Verdict::Unavailable;
    };
    let word = data.code.as_str();
    if data.valid && word == "VALID" {
        return read(key, &data).map_or_else(Verdict::Refused, |read| Verdict::Known {
            read,
            for_ms: data.expires.map(|end| end.saturating_sub(now_ms)),
        });
    }
    match word {
        "NOT_FOUND" => Verdict::Refused(Refusal::Unkey(UnkeyCode::NotFound)),
        "DISABLED" => Verdict::Refused(Refusal::Unkey(UnkeyCode::Disabled)),
        "EXPIRED" => Verdict::Refused(Refusal::Unkey(UnkeyCode::Expired)),
        "FORBIDDEN" | "INSUFFICIENT_PERMISSIONS" | "USAGE_EXCEEDED" => Verdict::Forbidden,
        "RATE_LIMITED" => Verdict::TooMany,
        _ => Verdict::Refused(Refusal::Unkey(UnkeyCode::Other)),
    }
}

/// Whom a valid key names: the tenant is its identity, the rest its metadata.
fn name(_key: &str, data: &Data) -> Result<Known, Refusal> {
    let identity = data.identity.as_ref().ok_or(Refusal::Claim("tenant"))?;
    let project = data.text("project_id", "project")?;
    let subject = match data.text("subject", "subject")? {
        Some(typed) => Subject::parse(typed),
        None => {
            let id = data.key_id.as_deref().ok_or(Refusal::Claim("subject"))?;
            Subject::new(SubjectKind::Service, id)
        }
    };
    Known::claimed(
        &identity.external_id,
        project,
        subject.map_err(Refusal::Caller)?,
        data.permissions.clone().unwrap_or_default(),
        KnownBy::Unkey,
    )
    .map_err(Refusal::Caller)
}

impl Data {
    /// A member of the metadata, which is text where it is there.
    pub(crate) fn text(&self, member: &str, what: &'static str) -> Result<Option<&str>, Refusal> {
        match self.meta.as_ref().and_then(|meta| meta.get(member)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::Claim(what)),
        }
    }
}

#[derive(Deserialize)]
struct Body {
    data: Data,
}

/// What an answer says of a key.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Data {
    valid: bool,
    code: String,
    key_id: Option<String>,
    /// Milliseconds since the epoch.
    expires: Option<u64>,
    identity: Option<Identity>,
    meta: Option<Map<String, Value>>,
    permissions: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    external_id: String,
}
