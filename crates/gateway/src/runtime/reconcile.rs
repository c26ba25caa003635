//! Asks a service whether an operation with an unknown outcome has run.
//!
//! The request is `GET {reconcile_url}` with the operation's namespaced name as
//! its key, whatever form of the key was forwarded, and with the fence, the
//! operation's id and the caller. The answer is *ran* with the reply, *not run*
//! (the service then promises to refuse this fence and all lower ones), or
//! *unsure*. After any other response the operation stays unknown.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use data_encoding::BASE64;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onceward_core::class::Class;
use onceward_core::identity::Digest;
use onceward_core::record::{Fence, Record, Reply};
use onceward_core::store::{Changed, Inspect, Resolution};
use onceward_http::fields;
use onceward_http::run::{Reconcile, Reconciled};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::upstream::fetch::{Fetch, FetchLimits};

/// The deadline of a request to the service.
const DEADLINE: Duration = Duration::from_secs(5);
/// The default limit of a reply's body.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// Asks services about operations, with at most one request per grant at a time.
pub(crate) struct Reconciler {
    inspect: Arc<dyn Inspect>,
    reply_limit: usize,
    pending: Mutex<HashMap<GrantId, PendingRequest>>,
    clients: Mutex<HashMap<Arc<str>, Fetch>>,
}

/// The subject of a request: an operation and one of its grants.
type GrantId = (Digest, Fence);

/// A request that is under way.
#[derive(Default)]
struct PendingRequest {
    answer: Arc<OnceCell<Reconciled>>,
    /// How many tasks wait for the answer.
    waiters: usize,
}

/// The service's answer.
#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum ReconcileAnswer {
    Ran { reply: WireReply },
    NotRun,
    Unsure,
}

/// A reply in JSON. Operators send the same form when they resolve an operation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Reply")]
pub(crate) struct WireReply {
    /// The HTTP status, from 200 to 599.
    #[schemars(range(min = 200, max = 599))]
    status: u16,
    /// Header lines: an object, or pairs of name and value.
    #[serde(default)]
    headers: WireHeaders,
    /// The body, if it is text.
    #[serde(default)]
    body: Option<String>,
    /// The body in base64, instead of `body`.
    #[serde(default)]
    body_base64: Option<String>,
}

/// Headers as an object, or as pairs where one name has several lines.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ReplyHeaders")]
enum WireHeaders {
    Object(HashMap<String, String>),
    Pairs(Vec<(String, String)>),
}

impl Default for WireHeaders {
    fn default() -> Self {
        Self::Pairs(Vec::new())
    }
}

/// Why a reply in JSON is not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireReplyError {
    #[error("`status` is {0}; it must be a final HTTP status, from 200 to 599")]
    Status(u16),
    #[error("`headers` has the name `{0}`, which is not a valid header or has an invalid value")]
    Header(String),
    #[error("`body_base64` is not base64")]
    Base64,
    #[error("`body` and `body_base64` are both present; send only one")]
    TwoBodies,
    #[error("the body is larger than the maximum of {0} bytes for a stored reply")]
    TooLarge(usize),
    #[error("a response with status {0} has no body")]
    NeedlessBody(u16),
}

impl WireReply {
    /// The largest JSON document for a reply whose body has at most `limit`
    /// bytes: escapes and headers need additional space.
    pub(crate) fn bytes_max(limit: usize) -> usize {
        limit.saturating_mul(2).saturating_add(64 << 10)
    }

    /// The reply to store, with the headers that are stored of any reply. The
    /// body may have at most `limit` bytes.
    pub(crate) fn to_reply(&self, limit: usize) -> Result<Reply, WireReplyError> {
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
        if body.len() > limit {
            return Err(WireReplyError::TooLarge(limit));
        }
        if matches!(self.status, 204 | 205 | 304) && !body.is_empty() {
            return Err(WireReplyError::NeedlessBody(self.status));
        }
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
        let copy = Bytes::copy_from_slice;
        Ok(Reply {
            status: self.status,
            headers: fields::kept(&headers)
                .map(|(name, value)| (copy(name), copy(value)))
                .collect(),
            body: Bytes::from(body),
            trailers: Vec::new(),
        })
    }
}

impl Reconciler {
    pub(crate) fn new(inspect: Arc<dyn Inspect>) -> Self {
        Self {
            inspect,
            reply_limit: REPLY_BYTES_MAX,
            pending: Mutex::default(),
            clients: Mutex::default(),
        }
    }

    /// Sets the limit of a reply's body.
    #[must_use]
    pub(crate) fn with_reply_limit(self, reply_limit: usize) -> Self {
        Self {
            reply_limit,
            ..self
        }
    }

    async fn ask_and_settle(&self, record: &Record, url: &Arc<str>) -> Reconciled {
        let resolution = match self.ask(record, url).await {
            Ok(ReconcileAnswer::Ran { reply }) => match reply.to_reply(self.reply_limit) {
                Ok(reply) => Resolution::Ran(Arc::new(reply)),
                Err(error) => {
                    tracing::warn!(%error, "reconciliation reply cannot be stored; outcome stays unknown");
                    return Reconciled::Unsure;
                }
            },
            Ok(ReconcileAnswer::NotRun) => Resolution::NotRun,
            Ok(ReconcileAnswer::Unsure) => return Reconciled::Unsure,
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "reconciliation request failed; outcome stays unknown"
                );
                return Reconciled::Unsure;
            }
        };
        let (id, fence) = (record.id, Some(record.fence));
        match self.inspect.resolve(id, fence, resolution).await {
            Ok(Changed::Done) => {
                tracing::info!("operation reconciled");
                Reconciled::Settled
            }
            // A retry or an operator settled the operation in the meantime.
            Ok(Changed::Absent | Changed::Refused(_)) => Reconciled::Settled,
            Err(error) => {
                tracing::warn!(%error, "reconciled outcome could not be recorded; outcome stays unknown");
                Reconciled::Unsure
            }
        }
    }

    async fn ask(&self, record: &Record, url: &Arc<str>) -> Result<ReconcileAnswer, String> {
        let client = self.client(url)?;
        let fetched = client.get(None, request_headers(record)).await;
        let fetched = fetched.map_err(|error| error.to_string())?;
        if fetched.status != StatusCode::OK {
            return Err(format!("the service answered {}", fetched.status));
        }
        serde_json::from_slice(&fetched.body).map_err(|error| format!("invalid answer: {error}"))
    }

    fn client(&self, url: &Arc<str>) -> Result<Fetch, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(url) {
            return Ok(client.clone());
        }
        let limits = FetchLimits {
            deadline: DEADLINE,
            answer_bytes_max: WireReply::bytes_max(self.reply_limit),
        };
        let client = Fetch::new(url, limits).map_err(|error| error.to_string())?;
        clients.insert(url.clone(), client.clone());
        Ok(client)
    }

    /// Joins the request about a grant that is under way, or registers a new one.
    fn join_request(&self, subject: GrantId) -> Waiter<'_> {
        let mut pending = self.pending();
        let request = pending.entry(subject).or_default();
        request.waiters += 1;
        Waiter {
            reconciler: self,
            subject,
            answer: request.answer.clone(),
        }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<GrantId, PendingRequest>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that waits for an answer. Dropping the last waiter removes the request;
/// until then, the same request is not sent a second time.
struct Waiter<'a> {
    reconciler: &'a Reconciler,
    subject: GrantId,
    answer: Arc<OnceCell<Reconciled>>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut request) = self.reconciler.pending().entry(self.subject) {
            request.get_mut().waiters -= 1;
            if request.get().waiters == 0 {
                request.remove();
            }
        }
    }
}

#[async_trait]
impl Reconcile for Reconciler {
    async fn reconcile(&self, record: &Record, class: &Class) -> Reconciled {
        let Some(url) = &class.reconcile_url else {
            return Reconciled::Unsure;
        };
        let waiter = self.join_request((record.digest, record.fence));
        *waiter
            .answer
            .get_or_init(|| self.ask_and_settle(record, url))
            .await
    }
}

fn request_headers(record: &Record) -> HeaderMap {
    let caller = &record.identity.caller;
    let fields = [
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
    let lines = fields.into_iter().filter_map(|(name, value)| {
        let value = HeaderValue::try_from(value).ok()?;
        Some((name, value))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use onceward_core::caller::{Caller, Subject};
    use onceward_core::clock::SystemClock;
    use onceward_core::fingerprint::{Algorithm, Fingerprint};
    use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
    use onceward_core::key::Key;
    use onceward_core::memory::MemoryStore;
    use onceward_core::record::{Attempt, Settlement, State};
    use onceward_core::store::{Claim, ClaimRequest, Store};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::callers::tests::stub_server::{self, StubServer};

    /// An operation with an unknown outcome, and its service.
    struct ReconcileFixture {
        store: Arc<MemoryStore>,
        service: StubServer,
        class: Class,
        record: Arc<Record>,
    }

    impl ReconcileFixture {
        async fn new(service: StubServer) -> Self {
            let class =
                Class::interactive().with(|class| class.reconcile_url = Some(service.url().into()));
            let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
            let subject = Subject::parse("user:1").expect("a subject");
            let identity = Identity {
                caller: Caller::trusted("acme", "shop", subject).expect("a caller"),
                endpoint: Endpoint::new("payments.create"),
                key: Key::parse("k").expect("a key"),
                space: KeySpace::Endpoint,
            };
            let digest = identity.digest();
            let request = ClaimRequest {
                digest,
                identity,
                fingerprint: Fingerprint {
                    algorithm: Algorithm::Json1,
                    digest: [1; 32],
                    sender: [0; 16],
                },
                terms: class.terms(),
                attempt: Attempt(1),
                id: OperationId::new(&digest, 1),
            };
            let claim = store.claim(&request).await.expect("the store answers");
            let Claim::Granted(grant) = claim else {
                panic!("{claim:?}");
            };
            let lost = store.settle(&digest, grant.fence, Settlement::Lost);
            lost.await.expect("the store answers");
            let record = store.get(&digest).await.expect("the store answers");
            Self {
                store,
                service,
                class,
                record: record.expect("it is on record"),
            }
        }

        fn reconciler(&self) -> Reconciler {
            Reconciler::new(self.store.clone())
        }

        async fn state(&self) -> State {
            let record = self.store.get(&self.record.digest).await;
            let record = record.expect("the store answers");
            record.expect("it is on record").state
        }
    }

    fn ran(reply: &Value) -> Value {
        json!({ "outcome": "ran", "reply": reply })
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_the_request_to_the_others() {
        let slow = Duration::from_millis(300);
        let unsure = json!({ "outcome": "unsure" });
        let service = StubServer::new(move |_| stub_server::json(200, &unsure).after(slow)).await;
        let fixture = ReconcileFixture::new(service).await;
        let reconciler = fixture.reconciler();
        let ask = || reconciler.reconcile(&fixture.record, &fixture.class);
        let gone = async {
            let gone = tokio::time::timeout(Duration::from_millis(50), ask()).await;
            assert!(gone.is_err());
            ask().await
        };
        let (first, later) = tokio::join!(ask(), gone);
        assert_eq!([first, later], [Reconciled::Unsure; 2]);
        assert_eq!(fixture.service.count(), 1);
        assert!(reconciler.pending().is_empty());
        // The answer is not cached.
        assert_eq!(ask().await, Reconciled::Unsure);
        assert_eq!(fixture.service.count(), 2);
    }

    #[rstest]
    #[case::fits(json!({ "status": 200, "body": "1234" }), Reconciled::Settled, State::Completed)]
    #[case::too_large(json!({ "status": 200, "body": "12345" }), Reconciled::Unsure, State::Unknown)]
    #[case::too_large_in_base64(json!({ "status": 200, "body_base64": "MTIzNDU=" }), Reconciled::Unsure, State::Unknown)]
    #[case::nothing(json!({ "status": 204 }), Reconciled::Settled, State::Completed)]
    #[case::something_with_204(json!({ "status": 204, "body": "1" }), Reconciled::Unsure, State::Unknown)]
    #[case::something_with_304(json!({ "status": 304, "body": "1" }), Reconciled::Unsure, State::Unknown)]
    #[tokio::test]
    async fn only_a_reply_that_can_be_stored_settles(
        #[case] reply: Value,
        #[case] want: Reconciled,
        #[case] state: State,
    ) {
        let answer = ran(&reply);
        let service = StubServer::new(move |_| stub_server::json(200, &answer)).await;
        let fixture = ReconcileFixture::new(service).await;
        let reconciler = fixture.reconciler().with_reply_limit(4);
        let reconciled = reconciler.reconcile(&fixture.record, &fixture.class).await;
        assert_eq!((reconciled, fixture.state().await), (want, state));
        let seen = fixture.service.seen();
        let key = seen[0].header("idempotency-key");
        assert_eq!(key, Some("t-acme:shop:user:1:k"));
    }
}
