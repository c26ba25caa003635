//! Asking a service what became of an operation that may have run.
//!
//! The question is `GET {reconcile_url}` with the key as it was forwarded, the
//! fence, the operation's id and the caller. The answer says *ran* with the
//! reply, *not run* (then the service promises to refuse this fence and all
//! lower ones), or *unsure*. Whatever else comes changes nothing: the operation
//! stays unknown.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use data_encoding::BASE64;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onceward_core::class::Class;
use onceward_core::identity::Digest;
use onceward_core::record::{Record, Reply};
use onceward_core::store::{Changed, Inspect, Resolution};
use onceward_http::fields;
use onceward_http::run::{Reconcile, Reconciled};
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::fetch::{Fetch, FetchLimits};

/// How long the service may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// The largest answer: a reply, and what is around it.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// Asks, one question at a time per operation.
pub(crate) struct Reconciler {
    inspect: Arc<dyn Inspect>,
    asking: Mutex<HashMap<Digest, Arc<OnceCell<Reconciled>>>>,
    clients: Mutex<HashMap<Arc<str>, Fetch>>,
}

/// What a service answers.
#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Word {
    Ran { reply: WireReply },
    NotRun,
    Unsure,
}

/// A reply in JSON; also what an operator gives who resolves one by hand.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WireReply {
    status: u16,
    #[serde(default)]
    headers: WireHeaders,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    body_base64: Option<String>,
}

/// Headers as an object, or as pairs where one name has several lines.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum WireHeaders {
    Object(HashMap<String, String>),
    Pairs(Vec<(String, String)>),
}

impl Default for WireHeaders {
    fn default() -> Self {
        Self::Pairs(Vec::new())
    }
}

/// Why a reply in JSON is not one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireReplyError {
    #[error("`status` is {0}; a final HTTP status is right, from 200 to 599")]
    Status(u16),
    #[error("`headers` has the line `{0}`, which is not a header")]
    Header(String),
    #[error("`body_base64` is not base64")]
    Base64,
    #[error("`body` and `body_base64` are both there; one is right")]
    TwoBodies,
}

impl WireReply {
    /// The reply, with the headers that are kept of any.
    pub(crate) fn to_reply(&self) -> Result<Reply, WireReplyError> {
        if !(200..=599).contains(&self.status) {
            return Err(WireReplyError::Status(self.status));
        }
        let body = match (&self.body, &self.body_base64) {
            (Some(_), Some(_)) => return Err(WireReplyError::TwoBodies),
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(encoded)) => BASE64
                .decode(encoded.as_bytes())
                .map_err(|_| WireReplyError::Base64)?,
            (None, None) => Vec::new(),
        };
        let pairs: Vec<(&String, &String)> = match &self.headers {
            WireHeaders::Object(object) => object.iter().collect(),
            WireHeaders::Pairs(pairs) => pairs.iter().map(|(n, v)| (n, v)).collect(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let line = HeaderName::try_from(name)
                .ok()
                .zip(HeaderValue::try_from(value).ok());
            let (name, value) = line.ok_or_else(|| WireReplyError::Header(name.clone()))?;
            headers.append(name, value);
        }
        fields::strip_hop_by_hop(&mut headers);
        fields::strip_ours(&mut headers);
        Ok(Reply {
            status: self.status,
            headers: fields::kept(&headers),
            body: Bytes::from(body),
            trailers: Vec::new(),
        })
    }
}

impl Reconciler {
    pub(crate) fn new(inspect: Arc<dyn Inspect>) -> Self {
        Self {
            inspect,
            asking: Mutex::default(),
            clients: Mutex::default(),
        }
    }

    async fn ask_and_settle(&self, record: &Record, url: &Arc<str>) -> Reconciled {
        let resolution = match self.ask(record, url).await {
            Ok(Word::Ran { reply }) => match reply.to_reply() {
                Ok(reply) => Resolution::Ran(Arc::new(reply)),
                Err(error) => {
                    tracing::warn!(operation_id = %record.id, %error, "a reconciler's reply cannot be kept");
                    return Reconciled::Unsure;
                }
            },
            Ok(Word::NotRun) => Resolution::NotRun,
            Ok(Word::Unsure) => return Reconciled::Unsure,
            Err(reason) => {
                tracing::warn!(operation_id = %record.id, reason, "nobody could be asked about an unknown outcome");
                return Reconciled::Unsure;
            }
        };
        let (id, fence) = (record.id, Some(record.fence));
        match self.inspect.resolve(id, fence, resolution).await {
            Ok(Changed::Done) => {
                tracing::info!(operation_id = %record.id, "reconciled");
                Reconciled::Settled
            }
            // Somebody else was quicker.
            Ok(Changed::Absent | Changed::Refused(_)) => Reconciled::Settled,
            Err(error) => {
                tracing::warn!(operation_id = %record.id, %error, "a reconciled outcome could not be recorded");
                Reconciled::Unsure
            }
        }
    }

    async fn ask(&self, record: &Record, url: &Arc<str>) -> Result<Word, String> {
        let client = self.client(url)?;
        let fetched = client.get(None, question(record)).await;
        let fetched = fetched.map_err(|error| error.to_string())?;
        if fetched.status != StatusCode::OK {
            return Err(format!("the answer's status is {}", fetched.status));
        }
        serde_json::from_slice(&fetched.body).map_err(|error| format!("the answer: {error}"))
    }

    fn client(&self, url: &Arc<str>) -> Result<Fetch, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(url) {
            return Ok(client.clone());
        }
        let limits = FetchLimits {
            deadline: DEADLINE,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let client = Fetch::new(url, limits).map_err(|error| error.to_string())?;
        clients.insert(url.clone(), client.clone());
        Ok(client)
    }

    /// The question that is being asked about an operation, new or not.
    fn question_about(&self, digest: &Digest) -> Arc<OnceCell<Reconciled>> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.entry(*digest).or_default().clone()
    }

    fn forget(&self, digest: &Digest) {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.remove(digest);
    }
}

/// A question that is being asked; forgotten when it is answered, or when nobody
/// waits for the answer any longer.
struct Question<'a> {
    reconciler: &'a Reconciler,
    digest: Digest,
    answer: Arc<OnceCell<Reconciled>>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.reconciler.forget(&self.digest);
    }
}

#[async_trait]
impl Reconcile for Reconciler {
    async fn reconcile(&self, record: &Record, class: &Class) -> Reconciled {
        let Some(url) = &class.reconcile_url else {
            return Reconciled::Unsure;
        };
        let question = Question {
            reconciler: self,
            digest: record.digest,
            answer: self.question_about(&record.digest),
        };
        *question
            .answer
            .get_or_init(|| self.ask_and_settle(record, url))
            .await
    }
}

fn question(record: &Record) -> HeaderMap {
    let caller = &record.identity.caller;
    let said = [
        (
            fields::IDEMPOTENCY_KEY,
            record.identity.name().unwrap_or_default(),
        ),
        (fields::IDEMPOTENCY_FENCE, record.fence.0.to_string()),
        (fields::OPERATION_ID, record.id.to_string()),
        (fields::TENANT_ID, caller.tenant().to_owned()),
        (fields::PROJECT_ID, caller.project().to_owned()),
        (fields::SUBJECT, caller.subject().to_string()),
    ];
    let lines = said.into_iter().filter_map(|(name, value)| {
        let value = HeaderValue::try_from(value).ok()?;
        Some((name, value))
    });
    lines.collect()
}
