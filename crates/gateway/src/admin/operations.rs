//! Operations over the wire: found, looked at, purged, resolved, resumed,
//! delivered again.
//!
//! Of a request nothing is shown but what names it; of a reply its head, and its
//! body only to who asks for it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use data_encoding::BASE64;
use onceward_core::class::Terms;
use onceward_core::identity::OperationId;
use onceward_core::record::{Answer, Fence, Field, Record, Reply, State as OperationState};
use onceward_core::store::{
    Changed, Cursor, Filter, Force, Inspect, PageRequest, Resolution, StoreError,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::extract::{
    JsonBody, PathParam, QueryParams, RequestBody, parse_operation_id, parse_time, parse_why,
};
use super::operators::Operator;
use super::page::{self, parse_limit};
use super::problem::Problem;
use super::{Action, AdminState, Applied, Change};
use crate::config::units::Time;
use crate::runtime::reconcile::WireReply;

/// How many operations one request purges at most.
const PURGE_MAX: usize = 500;
/// How many of them at a time.
const PURGE_AT_ONCE: usize = 32;
/// How long a listing may take.
const LIST_DEADLINE: Duration = Duration::from_secs(15);
/// How long a look or a change may take.
const STORE_DEADLINE: Duration = Duration::from_secs(2);

/// Which operations, and which page of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Of this tenant.
    tenant: Option<String>,
    /// Of this project.
    project: Option<String>,
    /// Of this endpoint.
    endpoint: Option<String>,
    /// In this state now: queued, running, completed, failed, released, unknown, paused or expired.
    state: Option<String>,
    /// With this key, as its sender gave it.
    key: Option<String>,
    /// First seen at this moment or later, RFC 3339.
    since: Option<String>,
    /// First seen before this parse_time, RFC 3339.
    before: Option<String>,
    /// How many at most, from 1 to 1000. Default: 100.
    limit: Option<usize>,
    /// Where the page before ended: its `next`.
    after: Option<String>,
}

/// Which operations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WireFilter {
    /// Of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Of this project.
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    /// Of this endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// In this state now.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// With this key, as its sender gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// First seen at this moment or later, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// First seen before this parse_time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

impl WireFilter {
    fn parse(self) -> Result<Filter, Problem> {
        let state = self.state.as_deref().map(|word| {
            let known = OperationState::ALL.into_iter();
            let mut known = known.filter(|state| state.as_str() == word);
            known.next().ok_or_else(|| {
                let words = OperationState::ALL.map(OperationState::as_str);
                Problem::bad_request(format!("`state` is one of {}.", words.join(", ")))
            })
        });
        let at = |name, text: &Option<String>| {
            text.as_deref()
                .map(|text| parse_time(name, text))
                .transpose()
        };
        Ok(Filter {
            state: state.transpose()?,
            since: at("since", &self.since)?,
            before: at("before", &self.before)?,
            tenant: self.tenant,
            project: self.project,
            endpoint: self.endpoint,
            key: self.key,
        })
    }
}

/// A page of operations.
#[derive(Serialize, JsonSchema)]
pub(super) struct OperationsPage {
    /// The operations, the last claimed or settled first.
    operations: Vec<Summary>,
    /// Where the next page begins; null at the end. A page may be short, and
    /// even empty, before the end.
    next: Option<String>,
}

/// An operation in short.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OperationSummary")]
pub(super) struct Summary {
    /// Its id.
    operation_id: String,
    /// Whose it is.
    tenant: String,
    /// Which project's.
    project: String,
    /// Operator sent it: `{type}:{id}`.
    subject: String,
    /// Where to.
    endpoint: String,
    /// The key, as its sender gave it.
    key: String,
    /// Its state now.
    state: &'static str,
    /// Its class.
    class: String,
    /// How often it was granted.
    attempts: u32,
    /// When it was first recorded.
    created_at: String,
    /// When its outcome was recorded.
    completed_at: Option<String>,
    /// When its reply expires.
    expires_at: Option<String>,
    /// The upstream's status.
    original_status: Option<u16>,
}

/// An operation with all that is known of it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Operation {
    #[serde(flatten)]
    summary: Summary,
    /// The namespaced name of its key, as upstreams know it.
    name: Option<String>,
    /// The fence of its last grant.
    fence: u64,
    /// Whether the gateway delivers it by itself.
    delivered: bool,
    /// When its lease ends, while it runs.
    lease_until: Option<String>,
    /// When it is due, while it is queued.
    due_at: Option<String>,
    /// When its key is forgotten.
    forgotten_at: Option<String>,
    /// What it was claimed under; a change of its class leaves these alone.
    terms: WireTerms,
    /// How its request was compared: the name of the algorithm.
    fingerprint: String,
    /// What is kept of the upstream's answer.
    reply: Option<KeptReply>,
}

/// What was frozen of a class at the claim.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Terms")]
pub(super) struct WireTerms {
    lease: Time,
    retention: Time,
    remember: Time,
    /// What a lost lease means: `hold`, it is unknown; `free`, the key is free.
    after_loss: &'static str,
    ttl_basis: &'static str,
    expiry: &'static str,
    keep_expired: Time,
}

/// What is kept of the upstream's answer.
#[derive(Serialize, JsonSchema)]
pub(super) struct KeptReply {
    /// `whole`; `not-kept`, it was too large or a stream; `gone`, it has expired.
    kept: &'static str,
    /// The HTTP status.
    status: u16,
    /// The header lines, name and value, in order.
    headers: Vec<(String, String)>,
    /// The trailer lines.
    trailers: Vec<(String, String)>,
    /// How large the body is.
    body_bytes: Option<usize>,
    /// The body, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    /// The same as text, where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_text: Option<String>,
}

/// Whether a look includes the reply's body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    Shown,
    LeftOut,
}

/// How to look at one operation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowQuery {
    /// 1 to see the body of the kept reply too.
    #[schemars(range(min = 0, max = 1))]
    body: Option<u8>,
}

pub(super) async fn list(
    State(admin): State<AdminState>,
    QueryParams(query): QueryParams<ListQuery>,
) -> Result<Json<OperationsPage>, Problem> {
    let limit = parse_limit(query.limit, page::DEFAULT, page::MAX)?;
    let after = cursor(query.after.as_deref())?;
    let filter = WireFilter {
        tenant: query.tenant,
        project: query.project,
        endpoint: query.endpoint,
        state: query.state,
        key: query.key,
        since: query.since,
        before: query.before,
    };
    let filter = filter.parse()?;
    let listing = admin.inspect.list(&filter, PageRequest { limit, after });
    let page = listing
        .await_within(LIST_DEADLINE)
        .await
        .map_err(|error| Problem::store_read(&error))?;
    let operations = page.records.iter().map(|record| Summary::of(record));
    Ok(Json(OperationsPage {
        operations: operations.collect(),
        next: page.next.map(|cursor| cursor.0.to_string()),
    }))
}

pub(super) async fn show(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    QueryParams(query): QueryParams<ShowQuery>,
) -> Result<Json<Operation>, Problem> {
    let id = parse_operation_id(&id)?;
    let body = match query.body {
        None | Some(0) => Body::LeftOut,
        Some(1) => Body::Shown,
        Some(_) => return Err(Problem::bad_request("`body` is 0 or 1.")),
    };
    let showing = admin.inspect.show(id).await_within(STORE_DEADLINE);
    let record = showing.await.map_err(|error| Problem::store_read(&error))?;
    let record = record.ok_or_else(no_operation)?;
    if body == Body::Shown {
        tracing::info!(target: "onceward::audit", who = &*operator.name, from = %operator.from, operation_id = %id, "an operator looked at a reply's body");
    }
    Ok(Json(Operation::of(&record, body)))
}

/// Which operations to purge: one by its id, those that a filter matches, or all.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PurgeAsk {
    /// This one.
    operation_id: Option<String>,
    /// Those that match.
    filter: Option<WireFilter>,
    /// Every operation there is: true with no filter.
    #[serde(default)]
    all: bool,
    /// Also what runs now.
    #[serde(default)]
    force: bool,
    /// How many this request purges at most, from 1 to 500. Default: 500.
    limit: Option<usize>,
    /// Where the request before ended: its `after`.
    after: Option<String>,
    /// Why; the audit keeps it.
    why: String,
}

/// A wish to purge the operation that the path names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PurgeOne {
    /// Also if it runs now.
    #[serde(default)]
    force: bool,
    /// Why; the audit keeps it.
    why: String,
}

impl RequestBody for PurgeAsk {}
impl RequestBody for PurgeOne {}

/// What was purged.
#[derive(Serialize, JsonSchema)]
pub(super) struct Purged {
    /// How many operations are forgotten.
    purged: usize,
    /// How many were left because they run.
    refused: usize,
    /// Whether there may be more to purge.
    more: bool,
    /// Where to go on: `after` of the next request.
    after: Option<String>,
}

/// What to purge, once it is clear.
enum Doomed {
    One(OperationId),
    Many(WireFilter, PageRequest),
}

impl PurgeAsk {
    fn doomed(&self) -> Result<Doomed, Problem> {
        let one = self
            .operation_id
            .as_deref()
            .map(parse_operation_id)
            .transpose()?;
        let filtered = self.filter.as_ref().filter(|filter| filter.narrows());
        let paged = self.limit.is_some() || self.after.is_some();
        let filter = match (one, filtered, self.all) {
            (Some(id), None, false) if self.filter.is_none() && !paged => {
                return Ok(Doomed::One(id));
            }
            (Some(_), ..) => {
                return Err(Problem::bad_request(
                    "`operation_id` stands alone: without `filter`, `all`, `limit` and `after`.",
                ));
            }
            (None, Some(filter), false) => filter.clone(),
            (None, None, true) => WireFilter::default(),
            (None, Some(_), true) => {
                return Err(Problem::bad_request(
                    "`filter` and `all` do not go together.",
                ));
            }
            (None, None, false) => {
                return Err(Problem::bad_request(
                    "Say what to purge: `operation_id`, a `filter` that has something in it, or `all`.",
                ));
            }
        };
        let limit = parse_limit(self.limit, PURGE_MAX, PURGE_MAX)?;
        let after = cursor(self.after.as_deref())?;
        Ok(Doomed::Many(filter, PageRequest { limit, after }))
    }
}

impl WireFilter {
    /// Whether it leaves anything out.
    fn narrows(&self) -> bool {
        let parts = [
            &self.tenant,
            &self.project,
            &self.endpoint,
            &self.state,
            &self.key,
            &self.since,
            &self.before,
        ];
        parts.iter().any(|part| part.is_some())
    }
}

pub(super) async fn purge(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(ask): JsonBody<PurgeAsk>,
) -> Result<Json<Purged>, Problem> {
    let force = force(ask.force);
    let change = Change::by(&operator, Action::Purge, &parse_why(&ask.why)?);
    match ask.doomed()? {
        Doomed::One(id) => purge_id(&admin, change, id, force).await,
        Doomed::Many(wire, page) => {
            let filter = wire.clone().parse()?;
            let change = change.with_request(json!({
                "filter": wire,
                "force": ask.force,
                "limit": page.limit,
                "after": ask.after,
            }));
            let inspect = admin.inspect.clone();
            let work = purge_page(inspect, filter, page, force);
            admin.change(change, work).await.map(Json)
        }
    }
}

pub(super) async fn purge_one(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(ask): JsonBody<PurgeOne>,
) -> Result<Json<Purged>, Problem> {
    let change = Change::by(&operator, Action::Purge, &parse_why(&ask.why)?);
    purge_id(&admin, change, parse_operation_id(&id)?, force(ask.force)).await
}

async fn purge_id(
    admin: &AdminState,
    change: Change,
    id: OperationId,
    force: Force,
) -> Result<Json<Purged>, Problem> {
    let change = change
        .on(id.to_string())
        .with_request(json!({ "force": force == Force::Yes }));
    let inspect = admin.inspect.clone();
    let work = async move {
        let before = inspect.show(id).await_within(STORE_DEADLINE).await;
        let before = before.map_err(|error| Problem::store_read(&error))?;
        let changed = inspect.purge(id, force).await_within(STORE_DEADLINE).await;
        match changed.map_err(|error| Problem::store_write(&error))? {
            Changed::Done => {}
            Changed::Absent => return Err(no_operation()),
            Changed::Refused(state) => {
                return Err(Problem::wrong_state(
                    state,
                    "The operation runs. Purged now, it could run a second time; with `force` it is purged all the same.",
                ));
            }
        }
        Ok(Applied {
            // What is purged can be looked up nowhere but here.
            result: json!({ "was": before.map(|record| named(&record)) }),
            answer: Purged {
                purged: 1,
                refused: 0,
                more: false,
                after: None,
            },
        })
    };
    admin.change(change, work).await.map(Json)
}

/// Purges one page of what matches. What comes in meanwhile is on pages before
/// this one, so going on from `after` ends.
async fn purge_page(
    inspect: Arc<dyn Inspect>,
    filter: Filter,
    page: PageRequest,
    force: Force,
) -> Result<Applied<Purged>, Problem> {
    let listing = inspect.list(&filter, page).await_within(LIST_DEADLINE);
    let page = listing.await.map_err(|error| Problem::store_read(&error))?;
    let filter = Arc::new(filter);
    let (mut purged, mut refused) = (Vec::new(), 0);
    for records in page.records.chunks(PURGE_AT_ONCE) {
        let mut purging = JoinSet::new();
        for record in records {
            purging.spawn(purge_if(
                inspect.clone(),
                filter.clone(),
                record.clone(),
                force,
            ));
        }
        let mut unsure = None;
        for ended in purging.join_all().await {
            match ended {
                Ok(Doom::Purged(was)) => purged.push(was),
                Ok(Doom::Refused) => refused += 1,
                Ok(Doom::Gone) => {}
                Err(error) => unsure = Some(error),
            }
        }
        if let Some(error) = unsure {
            return Err(broke_off(&error, &purged));
        }
    }
    Ok(Applied {
        answer: Purged {
            purged: purged.len(),
            refused,
            more: page.next.is_some(),
            after: page.next.map(|cursor| cursor.0.to_string()),
        },
        result: json!({ "purged": purged.len(), "refused": refused, "were": purged }),
    })
}

/// The audit must know what is gone also when the rest is not certain.
fn broke_off(error: &StoreError, purged: &[Value]) -> Problem {
    tracing::error!(%error, "the store did not take all of a purge");
    let ids: Vec<_> = purged
        .iter()
        .filter_map(|was| was["operation_id"].as_str())
        .collect();
    Problem::store_unavailable(format!(
        "The store did not confirm all of it; {} operations are certain to be purged: {}. Look what is left, then try again.",
        ids.len(),
        ids.join(" ")
    ))
}

/// What became of one of many.
enum Doom {
    Purged(Value),
    Refused,
    Gone,
}

/// Purges an operation if it still matches. It may have moved on since it was
/// listed: one that has just completed is not the unknown one that was meant.
async fn purge_if(
    inspect: Arc<dyn Inspect>,
    filter: Arc<Filter>,
    listed: Arc<Record>,
    force: Force,
) -> Result<Doom, StoreError> {
    let now = inspect.show(listed.id).await_within(STORE_DEADLINE).await?;
    let Some(record) = now.filter(|record| filter.matches(record)) else {
        return Ok(Doom::Gone);
    };
    let changed = inspect.purge(record.id, force).await_within(STORE_DEADLINE);
    Ok(match changed.await? {
        Changed::Done => Doom::Purged(named(&record)),
        Changed::Refused(_) => Doom::Refused,
        Changed::Absent => Doom::Gone,
    })
}

/// What an entry tells of an operation that is not there any more.
fn named(record: &Record) -> Value {
    json!({
        "operation_id": record.id.to_string(),
        "name": record.identity.name().ok(),
        "endpoint": record.identity.endpoint.as_str(),
        "state": record.state.as_str(),
    })
}

/// Somebody's word on an unknown outcome.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResolveAsk {
    /// Which operation.
    operation_id: String,
    /// What became of it.
    outcome: Word,
    /// The fence that is spoken of, as it was seen; whichever is the last, if it
    /// is left out.
    fence: Option<u64>,
    /// What it answered; only with `ran`.
    reply: Option<WireReply>,
    /// Why; the audit keeps it.
    why: String,
}

/// The same on the operation that the path names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResolveOne {
    /// What became of it.
    outcome: Word,
    /// The fence that is spoken of, as it was seen; whichever is the last, if it
    /// is left out.
    fence: Option<u64>,
    /// What it answered; only with `ran`.
    reply: Option<WireReply>,
    /// Why; the audit keeps it.
    why: String,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// It ran, and `reply` is what it answered.
    Ran,
    /// It did not run, and will not under its fence or a lower one.
    NotRun,
    /// Nobody knows; it stays unknown, and the audit has the reason.
    Unsure,
}

impl RequestBody for ResolveAsk {
    fn bytes_max(admin: &AdminState) -> usize {
        resolve_bytes_max(admin)
    }
}

impl RequestBody for ResolveOne {
    fn bytes_max(admin: &AdminState) -> usize {
        resolve_bytes_max(admin)
    }
}

fn resolve_bytes_max(admin: &AdminState) -> usize {
    WireReply::bytes_max(admin.reply_limit)
}

/// An operation after a change.
#[derive(Serialize, JsonSchema)]
pub(super) struct Standing {
    /// Which.
    operation_id: String,
    /// Its state now.
    state: &'static str,
}

pub(super) async fn resolve(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(ask): JsonBody<ResolveAsk>,
) -> Result<Json<Standing>, Problem> {
    let id = parse_operation_id(&ask.operation_id)?;
    let word = (ask.outcome, ask.fence);
    resolve_id(&admin, &operator, id, word, ask.reply, &ask.why).await
}

pub(super) async fn resolve_one(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(ask): JsonBody<ResolveOne>,
) -> Result<Json<Standing>, Problem> {
    let id = parse_operation_id(&id)?;
    let word = (ask.outcome, ask.fence);
    resolve_id(&admin, &operator, id, word, ask.reply, &ask.why).await
}

async fn resolve_id(
    admin: &AdminState,
    operator: &Operator,
    id: OperationId,
    (word, fence): (Word, Option<u64>),
    reply: Option<WireReply>,
    reason: &str,
) -> Result<Json<Standing>, Problem> {
    let reply = reply
        .map(|reply| checked(&reply, admin.reply_limit))
        .transpose()?;
    let asked = json!({
        "outcome": word,
        "fence": fence,
        "status": reply.as_ref().map(|reply| reply.status),
        "body_bytes": reply.as_ref().map(|reply| reply.body.len()),
    });
    let change = Change::by(operator, Action::Resolve, &parse_why(reason)?)
        .on(id.to_string())
        .with_request(asked);
    let resolution = match (word, reply) {
        (Word::Ran, Some(reply)) => Some(Resolution::Ran(Arc::new(reply))),
        (Word::Ran, None) => {
            return Err(Problem::bad_request(
                "With `ran` goes the `reply`: retries will be given it.",
            ));
        }
        (Word::NotRun | Word::Unsure, Some(_)) => {
            return Err(Problem::bad_request("A `reply` goes with `ran` only."));
        }
        (Word::NotRun, None) => Some(Resolution::NotRun),
        (Word::Unsure, None) => None,
    };
    let inspect = admin.inspect.clone();
    let work = async move {
        let Some(resolution) = resolution else {
            let state = state(inspect.as_ref(), id)
                .await?
                .ok_or_else(no_operation)?;
            return match state {
                OperationState::Unknown => Ok(standing(id, Some(state))),
                state => Err(not_unknown(state)),
            };
        };
        let changed = inspect
            .resolve(id, fence.map(Fence), resolution)
            .await_within(STORE_DEADLINE);
        match changed
            .await
            .map_err(|error| Problem::store_write(&error))?
        {
            Changed::Done => Ok(standing(id, state(inspect.as_ref(), id).await?)),
            Changed::Absent => Err(no_operation()),
            Changed::Refused(state) => Err(not_unknown(state)),
        }
    };
    admin.change(change, work).await.map(Json)
}

fn not_unknown(state: OperationState) -> Problem {
    let detail = match state {
        OperationState::Unknown => {
            "The operation ran again under another fence since; look at it, and name that."
                .to_owned()
        }
        _ => format!(
            "Only an unknown operation is resolved; this one is {}.",
            state.as_str()
        ),
    };
    Problem::wrong_state(state, detail)
}

fn checked(reply: &WireReply, limit: usize) -> Result<Reply, Problem> {
    let reply = reply.to_reply(limit);
    reply.map_err(|error| Problem::bad_request(format!("`reply`: {error}.")))
}

/// An operation, and why something is done to it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationAsk {
    /// Which operation.
    operation_id: String,
    /// Why; the audit keeps it.
    why: String,
}

/// The same for the operation that the path names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationOne {
    /// Why; the audit keeps it.
    why: String,
}

impl RequestBody for OperationAsk {}
impl RequestBody for OperationOne {}

/// What sets an operation going again.
#[derive(Clone, Copy)]
enum Push {
    /// A paused one goes on.
    Resume,
    /// A stored request is delivered again.
    Redeliver,
}

pub(super) async fn resume(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(ask): JsonBody<OperationAsk>,
) -> Result<Json<Standing>, Problem> {
    let id = parse_operation_id(&ask.operation_id)?;
    push(&admin, &operator, Push::Resume, id, &ask.why).await
}

pub(super) async fn resume_one(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(ask): JsonBody<OperationOne>,
) -> Result<Json<Standing>, Problem> {
    push(
        &admin,
        &operator,
        Push::Resume,
        parse_operation_id(&id)?,
        &ask.why,
    )
    .await
}

pub(super) async fn redeliver(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(ask): JsonBody<OperationAsk>,
) -> Result<Json<Standing>, Problem> {
    let id = parse_operation_id(&ask.operation_id)?;
    push(&admin, &operator, Push::Redeliver, id, &ask.why).await
}

pub(super) async fn redeliver_one(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(ask): JsonBody<OperationOne>,
) -> Result<Json<Standing>, Problem> {
    push(
        &admin,
        &operator,
        Push::Redeliver,
        parse_operation_id(&id)?,
        &ask.why,
    )
    .await
}

async fn push(
    admin: &AdminState,
    operator: &Operator,
    push: Push,
    id: OperationId,
    reason: &str,
) -> Result<Json<Standing>, Problem> {
    let action = match push {
        Push::Resume => Action::Resume,
        Push::Redeliver => Action::Redeliver,
    };
    let change = Change::by(operator, action, &parse_why(reason)?).on(id.to_string());
    let (inspect, courier_wakeup) = (admin.inspect.clone(), admin.courier_wakeup.clone());
    let work = async move {
        let pushed = match push {
            Push::Resume => inspect.resume(id),
            Push::Redeliver => inspect.redeliver(id),
        };
        let changed = pushed.await_within(STORE_DEADLINE).await;
        match changed.map_err(|error| Problem::store_write(&error))? {
            Changed::Done => {
                courier_wakeup.notify_one();
                Ok(standing(id, state(inspect.as_ref(), id).await?))
            }
            Changed::Absent => Err(no_operation()),
            Changed::Refused(state) => Err(push.refused(state)),
        }
    };
    admin.change(change, work).await.map(Json)
}

impl Push {
    fn refused(self, state: OperationState) -> Problem {
        let is = state.as_str();
        let detail = match (self, state) {
            (Self::Resume, _) => format!("Only a paused operation is resumed; this one is {is}."),
            (Self::Redeliver, OperationState::Queued | OperationState::Running) => {
                format!("It is being delivered already: it is {is}.")
            }
            (Self::Redeliver, OperationState::Expired) => {
                "Its request is gone with its reply: let the provider send it again.".to_owned()
            }
            (Self::Redeliver, _) => format!(
                "Only an event that the gateway delivers by itself is delivered again; this operation is {is}, and its request is not kept. Purge it to let the sender send it again."
            ),
        };
        Problem::wrong_state(state, detail)
    }
}

async fn state(inspect: &dyn Inspect, id: OperationId) -> Result<Option<OperationState>, Problem> {
    let record = inspect.show(id).await_within(STORE_DEADLINE).await;
    let record = record.map_err(|error| Problem::store_read(&error))?;
    Ok(record.map(|record| record.state))
}

/// An operation that is gone again by now was free.
fn standing(id: OperationId, state: Option<OperationState>) -> Applied<Standing> {
    let state = state.unwrap_or(OperationState::Released).as_str();
    Applied {
        result: json!({ "state": state }),
        answer: Standing {
            operation_id: id.to_string(),
            state,
        },
    }
}

fn force(wanted: bool) -> Force {
    match wanted {
        true => Force::Yes,
        false => Force::No,
    }
}

fn no_operation() -> Problem {
    Problem::not_found("There is no operation with this id.")
}

fn cursor(text: Option<&str>) -> Result<Option<Cursor>, Problem> {
    let parse = |text: &str| text.parse().map(Cursor);
    let cursor = text.map(parse).transpose();
    cursor.map_err(|_| Problem::bad_request("`after` is what the page before gave."))
}

/// A step of the store with a deadline.
trait AwaitWithin<T>: Future<Output = Result<T, StoreError>> + Sized + Send {
    async fn await_within(self, limit: Duration) -> Result<T, StoreError> {
        match timeout(limit, self).await {
            Ok(answer) => answer,
            Err(late) => Err(StoreError::Unavailable(Box::new(late))),
        }
    }
}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> AwaitWithin<T> for F {}

impl Summary {
    fn of(record: &Record) -> Self {
        let caller = &record.identity.caller;
        Self {
            operation_id: record.id.to_string(),
            tenant: caller.tenant().to_owned(),
            project: caller.project().to_owned(),
            subject: caller.subject().to_string(),
            endpoint: record.identity.endpoint.to_string(),
            key: record.identity.key.to_string(),
            state: record.state.as_str(),
            class: record.terms.class.as_ref().to_owned(),
            attempts: record.attempts,
            created_at: record.created_at.to_string(),
            completed_at: record.completed_at.map(|at| at.to_string()),
            expires_at: record.expires_at().map(|at| at.to_string()),
            original_status: record.answer.as_ref().map(Answer::status),
        }
    }
}

impl Operation {
    fn of(record: &Record, body: Body) -> Self {
        let until = |state| (record.state == state).then(|| record.until.to_string());
        Self {
            summary: Summary::of(record),
            name: record.identity.name().ok(),
            fence: record.fence.0,
            delivered: record.delivered,
            lease_until: until(OperationState::Running),
            due_at: until(OperationState::Queued),
            forgotten_at: record.forgotten_at().map(|at| at.to_string()),
            terms: WireTerms::of(&record.terms),
            fingerprint: record.fingerprint.algorithm.as_str().to_owned(),
            reply: record
                .answer
                .as_ref()
                .map(|answer| KeptReply::of(answer, body)),
        }
    }
}

impl WireTerms {
    fn of(terms: &Terms) -> Self {
        Self {
            lease: Time::of(terms.lease),
            retention: Time::of(terms.retention),
            remember: Time::of(terms.remember),
            after_loss: terms.after_loss.as_str(),
            ttl_basis: terms.ttl_basis.as_str(),
            expiry: terms.expiry.as_str(),
            keep_expired: Time::of(terms.keep_expired),
        }
    }
}

impl KeptReply {
    fn of(answer: &Answer, body: Body) -> Self {
        let bare = |kept, status| Self {
            kept,
            status,
            headers: Vec::new(),
            trailers: Vec::new(),
            body_bytes: None,
            body_base64: None,
            body_text: None,
        };
        let reply = match answer {
            Answer::NotKept { status } => return bare("not-kept", *status),
            Answer::Gone { status } => return bare("gone", *status),
            Answer::Kept(reply) => reply,
        };
        let shown = (body == Body::Shown).then_some(&reply.body);
        Self {
            headers: lines(&reply.headers),
            trailers: lines(&reply.trailers),
            body_bytes: Some(reply.body.len()),
            body_base64: shown.map(|body| BASE64.encode(body)),
            body_text: shown.and_then(|body| String::from_utf8(body.to_vec()).ok()),
            ..bare("whole", reply.status)
        }
    }
}

fn lines(fields: &[Field]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let lines = fields.iter().map(|(name, value)| (text(name), text(value)));
    lines.collect()
}
