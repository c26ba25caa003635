//! The one function that runs a request at most once: identify, claim, forward,
//! record. The gateway and the tower layer both call it.
//!
//! Everything after a granted claim runs detached from the caller, so a client that
//! disconnects cancels neither the call nor its record. A claim is durable before
//! anything is forwarded; a kept reply is durable before any of it is answered.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AsHeaderName, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use onceward_core::caller::Caller;
use onceward_core::class::{AfterLoss, Class, Expiry, OnUnknown, Terms, TtlBasis};
use onceward_core::engine::{Engine, Entered, Recorded};
use onceward_core::fingerprint::{Algorithm, ComparedParts, Fingerprint, Fingerprinter, Sender};
use onceward_core::identity::{Endpoint, Identity, OperationId};
use onceward_core::key::Key;
use onceward_core::record::{Fence, Record, State};
use onceward_core::store::{ClaimRequest, StoreError};
use tracing::Instrument as _;

use crate::answer;
use crate::attempt::run_detached;
use crate::body::{Body, BoxError};
use crate::body_work::{BodyWork, is_large};
use crate::bypass::without_store;
use crate::duplicate::{mismatched, wait_for};
use crate::fields;
use crate::problem::{Code, Problem};
use crate::rules::{Credentials, DuplicateCreate, Hosts, KeySource, Rules};
use crate::span::operation_span;

/// How often a request is compared with a record that keeps changing meanwhile.
const COMPARISONS_MAX: usize = 3;

/// Headers that some upstreams let replace the method.
static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// The headers by which clients identify themselves to an upstream.
static CREDENTIALS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    header::COOKIE,
];

/// How requests are protected.
#[non_exhaustive]
pub struct Protection {
    /// Runs them.
    pub engine: Arc<Engine>,
    /// Compares them.
    pub fingerprinter: Fingerprinter,
    /// Resolves unknown outcomes, where a class says how.
    pub reconciler: Option<Arc<dyn Reconcile>>,
    /// Works on large bodies.
    pub body_work: BodyWork,
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("engine", &self.engine)
            .field("reconciles", &self.reconciler.is_some())
            .finish_non_exhaustive()
    }
}

/// Asks a service for the outcome of an operation that may have run.
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// Asks, and settles the operation accordingly. An error changes nothing.
    async fn reconcile(&self, record: &Record, class: &Class) -> Reconciled;
}

/// The result of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// The operation is no longer unknown.
    Settled,
    /// It is still unknown.
    Unsure,
}

/// A request to protect, with its whole body.
#[non_exhaustive]
pub struct Call {
    /// The caller.
    pub caller: Caller,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The key.
    pub key: Key,
    /// Where the key came from.
    pub source: KeySource,
    /// The route's class.
    pub class: Arc<Class>,
    /// The other settings of the route.
    pub rules: Arc<Rules>,
    /// Kept as long as the operation runs, such as the permit of a limit; dropped
    /// at once where the request does not run.
    pub held: Option<Box<dyn Any + Send + Sync>>,
    /// The request.
    pub request: Request<Bytes>,
}

/// Without the key and the request, which may hold secrets.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("caller", &self.caller)
            .field("endpoint", &self.endpoint)
            .field("source", &self.source)
            .field("class", &self.class.name)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl Call {
    /// A request of this caller to this endpoint, under a key that the client sent,
    /// with a class and rules.
    pub fn new(
        (caller, endpoint): (Caller, Endpoint),
        key: Key,
        (class, rules): (Arc<Class>, Arc<Rules>),
        request: Request<Bytes>,
    ) -> Self {
        Self {
            caller,
            endpoint,
            key,
            source: KeySource::Header,
            class,
            rules,
            held: None,
            request,
        }
    }

    /// The same with a key from another source.
    #[must_use]
    pub fn with_source(self, source: KeySource) -> Self {
        Self { source, ..self }
    }

    /// The same with a value that is kept as long as the operation runs.
    #[must_use]
    pub fn holding(self, held: impl Any + Send + Sync) -> Self {
        Self {
            held: Some(Box::new(held)),
            ..self
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            caller: self.caller.clone(),
            endpoint: self.endpoint.clone(),
            key: self.key.clone(),
            space: self.rules.space,
        }
    }

    /// The terms of the record. A derived key is remembered for its window only: the
    /// same parts of a request may mean another intent later.
    fn terms(&self) -> Terms {
        let mut terms = self.class.terms();
        if self.rules.joined {
            // Work that is not committed was not done, so this holds in every class.
            terms.after_loss = AfterLoss::Free;
        }
        match self.source {
            KeySource::Header | KeySource::Provider => terms,
            KeySource::Derived { window } => terms.with(|changed| {
                changed.retention = window;
                changed.remember = window;
                changed.ttl_basis = TtlBasis::Completion;
                changed.expiry = Expiry::Strict;
            }),
        }
    }
}

/// The grant under which a request is forwarded.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The operation's id.
    pub id: OperationId,
    /// The fence of this run.
    pub fence: Fence,
    /// The namespaced name of the key.
    pub name: String,
    /// The key as it was sent.
    pub key: Key,
    /// The caller.
    pub caller: Caller,
}

/// Why a forwarded request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// No byte of it was sent: nothing can have happened.
    #[error("nothing was sent: {0}")]
    NotSent(#[source] BoxError),
    /// It was sent, and may have run.
    #[error("sent, but no answer came: {0}")]
    Lost(#[source] BoxError),
}

/// The outcome of a protected request, for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and the reply is kept; this is its state.
    Ran(State),
    /// It ran and the reply is too large to keep.
    RanNotKept,
    /// It ran and the key is free again.
    Released,
    /// It ran, and the store did not take the outcome.
    NotRecorded,
    /// It may have run.
    Lost,
    /// The upstream could not be reached.
    NotSent,
    /// The gateway's own attempts are used up, and it is paused.
    Paused,
    /// A kept reply was given again; this is the operation's state.
    Replayed(State),
    /// A waiter got the answer of the run, which is not kept.
    Shared,
    /// The store was unavailable, and it was forwarded unprotected.
    Bypassed,
    /// It is recorded with its request, to be delivered.
    Queued,
    /// It runs elsewhere; the caller got 202 and a URL to ask.
    Accepted,
    /// The status of an operation was read.
    StatusRead,
    /// Refused.
    Refused(Code),
}

impl Outcome {
    /// The word in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ran(state) => state.as_str(),
            Self::RanNotKept => "not-kept",
            Self::Released => "released",
            Self::NotRecorded => "not-recorded",
            Self::Lost => "unknown",
            Self::NotSent => "not-sent",
            Self::Paused => "paused",
            Self::Replayed(_) => "replayed",
            Self::Shared => "shared",
            Self::Bypassed => "bypassed",
            Self::Queued => "queued",
            Self::Accepted => "accepted",
            Self::StatusRead => "status-read",
            Self::Refused(code) => code.as_str(),
        }
    }
}

/// The response to a protected request, and its outcome.
pub struct ProtectedResponse {
    /// The outcome, for metrics and logs.
    pub outcome: Outcome,
    /// The operation, where the client may know it.
    pub id: Option<OperationId>,
    /// The response.
    pub response: Result<Response<Body>, Problem>,
}

/// Without headers and body, which may hold secrets.
impl fmt::Debug for ProtectedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.response.as_ref().map(Response::status);
        f.debug_struct("ProtectedResponse")
            .field("outcome", &self.outcome)
            .field("id", &self.id)
            .field("status", &status.map_err(Problem::code))
            .finish_non_exhaustive()
    }
}

impl ProtectedResponse {
    pub(crate) fn answered(outcome: Outcome, id: OperationId, response: Response<Body>) -> Self {
        Self {
            outcome,
            id: Some(id),
            response: Ok(response),
        }
    }

    pub(crate) fn problem(outcome: Outcome, id: Option<OperationId>, problem: Problem) -> Self {
        Self {
            outcome,
            id,
            response: Err(problem),
        }
    }

    /// A refusal.
    pub fn refused(problem: Problem) -> Self {
        let id = problem.operation_id();
        Self::problem(Outcome::Refused(problem.code()), id, problem)
    }

    /// From a record that no longer runs.
    pub(crate) fn from_record(record: &Record) -> Self {
        let response = answer::of_record(record);
        Self {
            outcome: match &response {
                Ok(_) => Outcome::Replayed(record.state),
                Err(problem) => Outcome::Refused(problem.code()),
            },
            id: Some(record.id),
            response,
        }
    }
}

/// Runs a request at most once per granted claim. `forward` is called with the
/// grant: once, or as often as the class lets the gateway itself try within one
/// claim; without a grant only where the store is unavailable and the class says
/// `bypass`.
pub async fn run<F, Fut>(protection: &Arc<Protection>, call: Call, forward: F) -> ProtectedResponse
where
    F: FnMut(Request<Bytes>, Option<Granted>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    let identified = match identify(protection, call).await {
        Ok(identified) => identified,
        Err(problem) => return ProtectedResponse::refused(problem),
    };
    match identified.recall(protection) {
        Some(replayed) => replayed,
        None => identified.run(protection, forward).await,
    }
}

/// A call with the claim that it makes: the first step of [`run`], for a caller that
/// prepares the rest only where a request is not a replay.
pub struct IdentifiedCall {
    call: Call,
    claim: ClaimRequest,
}

impl fmt::Debug for IdentifiedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifiedCall")
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

/// Identifies a request: the key that it claims, and the fingerprint by which it is
/// compared.
pub async fn identify(protection: &Arc<Protection>, call: Call) -> Result<IdentifiedCall, Problem> {
    let bytes = call.request.body().len();
    if !is_large(bytes) {
        // Without another reference to the protection: all threads share its count.
        return protection.identify(call);
    }
    let there = Arc::clone(protection);
    let identifying = (protection.body_work).run(bytes, move || there.identify(call));
    // Boxed: most bodies are small.
    Box::pin(identifying).await
}

impl IdentifiedCall {
    /// The replay of an operation that the store has in memory.
    pub fn recall(&self, protection: &Protection) -> Option<ProtectedResponse> {
        let record = protection.engine.recall(&self.claim)?;
        let ended = ProtectedResponse::from_record(&record);
        Some(apply_duplicate_create(ended, &self.call.rules))
    }

    /// The same call with a value that is kept as long as the operation runs.
    #[must_use]
    pub fn holding(self, held: impl Any + Send + Sync) -> Self {
        Self {
            call: self.call.holding(held),
            ..self
        }
    }

    /// Claims, forwards and records: the rest of [`run`].
    pub async fn run<F, Fut>(self, protection: &Arc<Protection>, forward: F) -> ProtectedResponse
    where
        F: FnMut(Request<Bytes>, Option<Granted>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
    {
        let rules = self.call.rules.clone();
        let ended = claim_and_run(protection, self, forward).await;
        apply_duplicate_create(ended, &rules)
    }
}

async fn claim_and_run<F, Fut>(
    protection: &Arc<Protection>,
    mut identified: IdentifiedCall,
    mut forward: F,
) -> ProtectedResponse
where
    F: FnMut(Request<Bytes>, Option<Granted>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<Body>, Unanswered>> + Send + 'static,
{
    onceward_core::crash_point!("before-claim");
    let entry = enter(protection, &mut identified).await;
    let IdentifiedCall { mut call, claim } = identified;
    if !matches!(entry, Ok(Entered::Lead(_)) | Err(_)) {
        // The request has been compared, and a waiter no longer needs its body.
        *call.request.body_mut() = Bytes::new();
        call.held = None;
    }
    onceward_core::crash_point!("after-claim");
    // Boxed, here and below: each way would otherwise enlarge the future of every
    // request.
    match entry {
        Ok(Entered::Lead(lead)) => {
            let identity = claim.identity;
            let granted = Granted {
                id: lead.id(),
                fence: lead.fence(),
                // It was found short enough before the claim.
                name: identity.name().unwrap_or_default(),
                key: identity.key,
                caller: identity.caller,
            };
            run_detached(protection, lead, call, granted, forward).await
        }
        Ok(Entered::Follow(follow)) => Box::pin(wait_for(&call, &follow)).await,
        Ok(
            Entered::Finished(record)
            | Entered::Expired(record)
            | Entered::Paused(record)
            | Entered::Unknown(record),
        ) => ProtectedResponse::from_record(&record),
        Ok(Entered::Mismatch) => Box::pin(mismatched(protection, &call, &claim.digest)).await,
        Err(error) => {
            let chosen = (&*call.class, &*call.rules);
            let forward = || forward(call.request, None);
            Box::pin(without_store(&protection.engine, chosen, &error, forward)).await
        }
    }
}

/// Claims the operation, or learns its state. Where the class says so, an unknown
/// outcome is reconciled first, and the claim tried once more.
async fn enter(
    protection: &Arc<Protection>,
    identified: &mut IdentifiedCall,
) -> Result<Entered, StoreError> {
    let entered = claim(protection, identified).await?;
    if let Entered::Unknown(record) = &entered
        && Box::pin(protection.reconcile(record, &identified.call.class)).await
            == Reconciled::Settled
    {
        return Box::pin(claim(protection, identified)).await;
    }
    Ok(entered)
}

/// Claims the operation. A mismatch is reported only after the record was read,
/// because the client then uses a new key.
async fn claim(
    protection: &Arc<Protection>,
    IdentifiedCall { call, claim }: &mut IdentifiedCall,
) -> Result<Entered, StoreError> {
    match protection.engine.claim(claim).await? {
        Entered::Mismatch => {
            let (identity, fingerprint) = (&claim.identity, claim.fingerprint);
            Box::pin(compare_as_recorded(protection, call, identity, fingerprint)).await
        }
        entered => Ok(entered),
    }
}

/// Claims an operation whose record did not match. A record that was made under the
/// other rule about hosts (by a version that never compared them, or by a layer with
/// `ignore_host`) is compared as it was made.
async fn compare_as_recorded(
    protection: &Arc<Protection>,
    call: &mut Call,
    identity: &Identity,
    fingerprint: Fingerprint,
) -> Result<Entered, StoreError> {
    let engine = &protection.engine;
    let terms = call.terms();
    let enter = |fingerprint| engine.enter(identity.clone(), fingerprint, terms.clone());
    for _ in 0..COMPARISONS_MAX {
        let record = engine.look(&identity.digest()).await?;
        // Without one, the key became free in between.
        if let Some(record) = record.filter(|record| record.state != State::Released) {
            let hosts = match record.fingerprint.algorithm.compares_host() {
                true => Hosts::Compared,
                false => Hosts::Ignored,
            };
            let as_recorded = match hosts == call.rules.hosts {
                true => fingerprint,
                false => fingerprint_under(protection, call, identity, hosts).await,
            };
            if record.fingerprint != as_recorded {
                return Ok(Entered::Mismatch);
            }
            match enter(as_recorded).await? {
                // The key is free. The record of a new run follows the present rule:
                // under the other one, virtual hosts could share its reply.
                Entered::Lead(lead) if as_recorded != fingerprint => {
                    let span = operation_span(lead.id(), lead.fence(), identity);
                    if lead.withdraw().instrument(span).await == Recorded::NotYet {
                        return Err(StoreError::Unavailable("a claim was not given back".into()));
                    }
                }
                // The record was replaced in between.
                Entered::Mismatch => {}
                entered => return Ok(entered),
            }
        }
        let entered = enter(fingerprint).await?;
        if !matches!(entered, Entered::Mismatch) {
            return Ok(entered);
        }
    }
    Err(StoreError::Unavailable("the record keeps changing".into()))
}

/// The fingerprint of a request under another rule about hosts than its own.
async fn fingerprint_under(
    protection: &Arc<Protection>,
    call: &mut Call,
    identity: &Identity,
    hosts: Hosts,
) -> Fingerprint {
    let (there, identity) = (Arc::clone(protection), identity.clone());
    let copy = Call {
        caller: call.caller.clone(),
        endpoint: call.endpoint.clone(),
        key: call.key.clone(),
        source: call.source,
        class: Arc::clone(&call.class),
        rules: Arc::clone(&call.rules),
        // It goes along, because it may count the body's bytes.
        held: call.held.take(),
        request: call.request.clone(),
    };
    let comparing = move || (there.fingerprint(&copy, &identity, hosts), copy.held);
    let bytes = call.request.body().len();
    let (fingerprint, held) = protection.body_work.run(bytes, comparing).await;
    call.held = held;
    fingerprint
}

/// The fingerprint of requests that are compared by their key alone.
pub fn key_only_fingerprint() -> Fingerprint {
    Fingerprint {
        algorithm: Algorithm::Raw1,
        digest: [0; 32],
        sender: [0; 16],
    }
}

/// Turns a replayed 201 into 200, where the route says so.
pub(crate) fn apply_duplicate_create(
    mut ended: ProtectedResponse,
    rules: &Rules,
) -> ProtectedResponse {
    if let Ok(response) = &mut ended.response {
        let replayed = response.headers().contains_key(fields::IDEMPOTENT_REPLAYED);
        let created = response.status() == StatusCode::CREATED;
        if replayed && created && rules.duplicate_create == DuplicateCreate::Ok {
            *response.status_mut() = StatusCode::OK;
        }
    }
    ended
}

/// The method, and the other one that some upstreams let a header put in its place.
fn effective_method(request: &Request<Bytes>) -> Cow<'_, str> {
    let method = request.method().as_str();
    let headers = request.headers();
    let overriding = METHOD_OVERRIDES.iter().find_map(|name| headers.get(name));
    match overriding {
        None => method.into(),
        Some(other) => format!("{method} {}", String::from_utf8_lossy(other.as_bytes())).into(),
    }
}

/// The headers by which clients identify themselves to the upstream, where they
/// are compared.
fn compared_credentials<'a>(rules: &Rules, headers: &'a HeaderMap) -> Vec<(&'a str, &'a [u8])> {
    match rules.credentials {
        Credentials::Compared => lines(headers, CREDENTIALS.iter()),
        Credentials::Trusted => Vec::new(),
    }
}

/// All lines of these headers.
fn lines<'a, 'b: 'a, N>(
    headers: &'b HeaderMap,
    names: impl Iterator<Item = &'a N>,
) -> Vec<(&'a str, &'b [u8])>
where
    N: AsRef<str> + ?Sized + 'a,
    &'a N: AsHeaderName,
{
    names
        .flat_map(|name| {
            let lines = headers.get_all(name).iter();
            lines.map(move |line| (name.as_ref(), line.as_bytes()))
        })
        .collect()
}

/// The Host that a client asked for. HTTP/2 may name it in the request's target
/// alone.
pub(crate) fn host<'a>(headers: &'a HeaderMap, uri: Option<&'a Uri>) -> &'a [u8] {
    match (headers.get(header::HOST), uri.and_then(Uri::authority)) {
        (Some(host), _) => host.as_bytes(),
        (None, Some(authority)) => authority.as_str().as_bytes(),
        // HTTP/1.0 need not name one.
        (None, None) => b"",
    }
}

impl Protection {
    /// Protection by this engine, without a reconciler.
    pub fn new(engine: Arc<Engine>, fingerprinter: Fingerprinter) -> Self {
        Self {
            engine,
            fingerprinter,
            reconciler: None,
            body_work: BodyWork::default(),
        }
    }

    /// The same with a reconciler of unknown outcomes.
    #[must_use]
    pub fn with_reconciler(self, reconciler: Arc<dyn Reconcile>) -> Self {
        Self {
            reconciler: Some(reconciler),
            ..self
        }
    }

    /// Identifies a request on this thread.
    fn identify(&self, call: Call) -> Result<IdentifiedCall, Problem> {
        let identity = call.identity();
        identity.check_name().map_err(Problem::invalid_key)?;
        let fingerprint = self.fingerprint(&call, &identity, call.rules.hosts);
        let claim = (self.engine).claim_request(identity, fingerprint, call.terms());
        Ok(IdentifiedCall { call, claim })
    }

    /// The fingerprint of a request.
    fn fingerprint(&self, call: &Call, identity: &Identity, hosts: Hosts) -> Fingerprint {
        if call.source == KeySource::Provider {
            return key_only_fingerprint();
        }
        let request = &call.request;
        let (headers, uri) = (request.headers(), request.uri());
        let selection = &*call.rules.selection;
        let fingerprint = self.fingerprinter.fingerprint(&ComparedParts {
            method: &effective_method(request),
            path: uri.path(),
            query: uri.query(),
            content_type: headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes),
            body: request.body(),
            host: match hosts {
                Hosts::Compared => Some(host(headers, Some(uri))),
                Hosts::Ignored => None,
            },
            credentials: &compared_credentials(&call.rules, headers),
            identity_parts: &identity.compared_parts(),
            selection,
            headers: &lines(headers, selection.headers()),
        });
        match call.rules.many_paths {
            true => self.fingerprinter.sent_to(uri.path(), fingerprint),
            false => fingerprint,
        }
    }

    /// Whether an operation was sent to this path, where its route has several.
    pub(crate) fn is_at(&self, record: &Record, rules: &Rules, path: &str) -> bool {
        !rules.many_paths || self.fingerprinter.is_sent_to(path, &record.fingerprint)
    }

    /// Whether a request with these headers may read a record: it needs the
    /// credentials of the operation where callers are not authenticated, and its Host
    /// where that was compared.
    pub(crate) fn is_sender(
        &self,
        record: &Record,
        rules: &Rules,
        headers: &HeaderMap,
        host: &[u8],
    ) -> bool {
        let fingerprint = &record.fingerprint;
        let trusted = rules.credentials == Credentials::Trusted;
        if trusted && !fingerprint.algorithm.compares_host() {
            return true;
        }
        let sender = Sender {
            credentials: &compared_credentials(rules, headers),
            host,
        };
        match rules.many_paths {
            false => self.fingerprinter.is_from(fingerprint, sender),
            true => self.fingerprinter.is_from_any_path(fingerprint, sender),
        }
    }

    /// Asks the service for the outcome of an unknown operation, if its class has a
    /// `reconcile_url`.
    pub async fn reconcile(&self, record: &Record, class: &Class) -> Reconciled {
        match &self.reconciler {
            Some(reconciler) if class.on_unknown == OnUnknown::Reconcile => {
                let span = operation_span(record.id, record.fence, &record.identity);
                reconciler.reconcile(record, class).instrument(span).await
            }
            _ => Reconciled::Unsure,
        }
    }
}

/// Logs an error of the store, and makes the problem for the client.
pub fn store_unavailable(error: &StoreError) -> Problem {
    tracing::error!(%error, "the store is unavailable");
    Problem::store_unavailable(error)
}
