//! `GET /admin/v1/operations`: the operations that match a filter, page by page.

use axum::Json;
use axum::extract::State;
use onceward_core::deadline::store_within;
use onceward_core::record::{Answer, Record};
use onceward_core::store::PageRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LIST_DEADLINE;
use super::filter::{OperationFilter, parse_cursor};
use crate::admin::AdminState;
use crate::admin::extract::QueryParams;
use crate::admin::page::{self, parse_limit};
use crate::admin::problem::Problem;

/// Which operations, and which page of them. The members of the filter stand
/// here one by one because a query has no nested members.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct ListQuery {
    /// The tenant.
    tenant: Option<String>,
    /// The project.
    project: Option<String>,
    /// The endpoint.
    endpoint: Option<String>,
    /// The state: queued, running, completed, failed, released, unknown, paused or expired.
    state: Option<String>,
    /// The key, as its sender sent it.
    key: Option<String>,
    /// Created at this time or later, RFC 3339.
    since: Option<String>,
    /// Created before this time, RFC 3339.
    before: Option<String>,
    /// The largest number of operations, from 1 to 1000. Default: 100.
    limit: Option<usize>,
    /// The cursor from the previous page: its `next`.
    after: Option<String>,
}

/// A page of operations.
#[derive(Serialize, JsonSchema)]
pub(in crate::admin) struct OperationsPage {
    /// The operations, the most recently claimed or settled first.
    operations: Vec<OperationSummary>,
    /// The cursor of the next page; null on the last page. A page before the
    /// last may be short, and even empty.
    next: Option<String>,
}

/// An operation in a listing.
#[derive(Serialize, JsonSchema)]
pub(super) struct OperationSummary {
    /// The operation's id.
    operation_id: String,
    /// The tenant of its caller.
    tenant: String,
    /// The project of its caller.
    project: String,
    /// The subject of its caller: `{type}:{id}`.
    subject: String,
    /// Its endpoint.
    endpoint: String,
    /// The key, as its sender sent it.
    key: String,
    /// The state of its record: queued, running, completed, failed, released, unknown, paused or expired.
    state: &'static str,
    /// Its retention class.
    class: String,
    /// How often it was granted.
    attempts: u32,
    /// When it was first recorded.
    created_at: String,
    /// When its outcome was recorded.
    completed_at: Option<String>,
    /// When its reply expires.
    expires_at: Option<String>,
    /// The status of the upstream's response.
    original_status: Option<u16>,
}

pub(in crate::admin) async fn list(
    State(admin): State<AdminState>,
    QueryParams(query): QueryParams<ListQuery>,
) -> Result<Json<OperationsPage>, Problem> {
    let limit = parse_limit(query.limit, page::DEFAULT, page::MAX)?;
    let after = parse_cursor(query.after.as_deref())?;
    let filter = OperationFilter {
        tenant: query.tenant,
        project: query.project,
        endpoint: query.endpoint,
        state: query.state,
        key: query.key,
        since: query.since,
        before: query.before,
    };
    let filter = filter.parse()?;
    let listing = admin
        .inspect
        .list(&filter, PageRequest::first(limit).after(after));
    let page = store_within(LIST_DEADLINE, listing).await;
    let page = page.map_err(|error| Problem::store_read(&error))?;
    let operations = page.records.iter();
    Ok(Json(OperationsPage {
        operations: operations
            .map(|record| OperationSummary::of(record))
            .collect(),
        next: page.next.map(|cursor| cursor.0.to_string()),
    }))
}

impl OperationSummary {
    pub(super) fn of(record: &Record) -> Self {
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
