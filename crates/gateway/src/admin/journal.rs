//! Looking at the audit, page by page, the latest first.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Desk;
use super::audit::Entry;
use super::page::limited;
use super::problem::Problem;
use super::read::Queried;

/// How many entries a page has where nobody says.
const PAGE_DEFAULT: usize = 50;
/// The largest page.
const PAGE_MAX: usize = 200;

/// Which page.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// How many entries at most, from 1 to 200. Default: 50.
    limit: Option<usize>,
    /// Where the page before ended: its `next`.
    after: Option<String>,
}

/// A page of the audit.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AuditPage")]
pub(super) struct Page {
    /// The entries, the latest first.
    entries: Vec<Entry>,
    /// Where the next page begins; null at the end.
    next: Option<String>,
}

pub(super) async fn list(
    State(desk): State<Desk>,
    Queried(query): Queried<PageQuery>,
) -> Result<Json<Page>, Problem> {
    let limit = limited(query.limit, PAGE_DEFAULT, PAGE_MAX)?;
    // One more tells whether there is a next page.
    let entries = desk.audit.entries(query.after.as_deref(), limit + 1).await;
    let mut entries = entries.map_err(|error| Problem::unread(&error))?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let last = entries.last().map(|entry| entry.id().to_owned());
    Ok(Json(Page {
        entries,
        next: last.filter(|_| more),
    }))
}
