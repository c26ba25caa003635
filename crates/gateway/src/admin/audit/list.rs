//! `GET /admin/v1/audit`: the audit log, page by page, the latest entries first.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AuditEntry;
use crate::admin::AdminState;
use crate::admin::extract::QueryParams;
use crate::admin::page::parse_limit;
use crate::admin::problem::Problem;

/// The page size where the request names none.
const PAGE_DEFAULT: usize = 50;
/// The largest page.
const PAGE_MAX: usize = 200;

/// Which page of the audit log.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct AuditQuery {
    /// The largest number of entries, from 1 to 200. Default: 50.
    limit: Option<usize>,
    /// The cursor from the previous page: its `next`.
    after: Option<String>,
}

/// A page of the audit log.
#[derive(Serialize, JsonSchema)]
pub(in crate::admin) struct AuditPage {
    /// The entries, the latest first.
    entries: Vec<AuditEntry>,
    /// The cursor of the next page; null on the last page.
    next: Option<String>,
}

pub(in crate::admin) async fn list(
    State(admin): State<AdminState>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Json<AuditPage>, Problem> {
    let limit = parse_limit(query.limit, PAGE_DEFAULT, PAGE_MAX)?;
    // One entry more shows whether there is a next page.
    let entries = admin.audit.entries(query.after.as_deref(), limit + 1).await;
    let mut entries = entries.map_err(|error| Problem::store_read(&error))?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let last = entries.last().map(|entry| entry.id().to_owned());
    Ok(Json(AuditPage {
        entries,
        next: last.filter(|_| more),
    }))
}
