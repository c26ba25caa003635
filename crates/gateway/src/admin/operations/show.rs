//! `GET /admin/v1/operations/{operation_id}`: everything known about one operation.

use axum::extract::State;
use axum::{Extension, Json};
use data_encoding::BASE64;
use onceward_core::class::{AfterLoss, OnUnknown, Terms};
use onceward_core::record::{self, Answer, Field, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list::OperationSummary;
use super::{no_operation, read};
use crate::admin::AdminState;
use crate::admin::extract::{PathParam, QueryParams, parse_operation_id};
use crate::admin::operators::Operator;
use crate::admin::problem::Problem;
use crate::config::units::Time;

/// What to show of an operation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct ShowQuery {
    /// 1 to include the body of the kept reply.
    #[schemars(range(min = 0, max = 1))]
    body: Option<u8>,
}

/// Everything known about an operation.
#[derive(Serialize, JsonSchema)]
pub(in crate::admin) struct Operation {
    #[serde(flatten)]
    summary: OperationSummary,
    /// The namespaced name of its key, as upstreams receive it.
    name: Option<String>,
    /// The fence of its last grant.
    fence: u64,
    /// Whether the gateway delivers it by itself.
    delivered: bool,
    /// When its lease ends, while it is running.
    lease_until: Option<String>,
    /// When it is due, while it is queued.
    due_at: Option<String>,
    /// When its key is forgotten.
    forgotten_at: Option<String>,
    /// The settings of its class when it was claimed; a later change of the class does not alter them.
    terms: OperationTerms,
    /// The algorithm of its fingerprint.
    fingerprint: String,
    /// The stored part of the upstream's response.
    reply: Option<KeptReply>,
}

/// The settings of a class that an operation keeps from its claim on.
#[derive(Serialize, JsonSchema)]
struct OperationTerms {
    lease: Time,
    retention: Time,
    remember: Time,
    /// What happens if its lease ends without an outcome: `hold` (the operation
    /// is unknown; also where the class reconciles) or `retry` (the key is free).
    on_unknown: &'static str,
    ttl_basis: &'static str,
    expiry: &'static str,
    keep_expired: Time,
}

/// The stored part of the upstream's response.
#[derive(Serialize, JsonSchema)]
struct KeptReply {
    /// `whole`; `not-kept`, where it was too large or a stream; `gone`, where it has expired.
    kept: &'static str,
    /// The HTTP status.
    status: u16,
    /// The header lines, name and value, in order.
    headers: Vec<(String, String)>,
    /// The trailer lines.
    trailers: Vec<(String, String)>,
    /// The size of the body.
    body_bytes: Option<usize>,
    /// The body, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    /// The body as text, where it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_text: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyBody {
    Shown,
    Omitted,
}

pub(in crate::admin) async fn show(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    QueryParams(query): QueryParams<ShowQuery>,
) -> Result<Json<Operation>, Problem> {
    let id = parse_operation_id(&id)?;
    let body = match query.body {
        None | Some(0) => ReplyBody::Omitted,
        Some(1) => ReplyBody::Shown,
        Some(_) => return Err(Problem::bad_request("`body` must be 0 or 1.")),
    };
    let record = read(admin.inspect.as_ref(), id).await?;
    let record = record.ok_or_else(no_operation)?;
    if body == ReplyBody::Shown {
        tracing::info!(target: "onceward::audit", who = &*operator.name, from = %operator.from, operation_id = %id, "operator read the body of a reply");
    }
    Ok(Json(Operation::of(&record, body)))
}

impl Operation {
    fn of(record: &Record, body: ReplyBody) -> Self {
        let until = |state| (record.state == state).then(|| record.until.to_string());
        Self {
            summary: OperationSummary::of(record),
            name: record.identity.name().ok(),
            fence: record.fence.0,
            delivered: record.delivered,
            lease_until: until(record::State::Running),
            due_at: until(record::State::Queued),
            forgotten_at: record.forgotten_at().map(|at| at.to_string()),
            terms: OperationTerms::of(&record.terms),
            fingerprint: record.fingerprint.algorithm.as_str().to_owned(),
            reply: record
                .answer
                .as_ref()
                .map(|answer| KeptReply::of(answer, body)),
        }
    }
}

impl OperationTerms {
    fn of(terms: &Terms) -> Self {
        Self {
            lease: Time::of(terms.lease),
            retention: Time::of(terms.retention),
            remember: Time::of(terms.remember),
            on_unknown: match terms.after_loss {
                AfterLoss::Free => OnUnknown::Retry.as_str(),
                _ => OnUnknown::Hold.as_str(),
            },
            ttl_basis: terms.ttl_basis.as_str(),
            expiry: terms.expiry.as_str(),
            keep_expired: Time::of(terms.keep_expired),
        }
    }
}

impl KeptReply {
    fn of(answer: &Answer, body: ReplyBody) -> Self {
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
        let shown = (body == ReplyBody::Shown).then_some(&reply.body);
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
