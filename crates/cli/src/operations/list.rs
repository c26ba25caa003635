//! `onceward operations list`: a page of operations as a table.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use super::OPERATIONS;
use super::filter::Filter;
use crate::admin::table::{self, cell};
use crate::admin::{Client, Role, query, timestamps};

#[derive(clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: Filter,
    /// Maximum number of operations to list, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Cursor from the previous page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

pub(super) async fn run(
    client: &Client,
    args: ListArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let mut parameters = args.filter.parameters(now)?;
    parameters.extend([
        ("limit", Some(args.limit.to_string())),
        ("after", args.after),
    ]);
    let url = query(OPERATIONS, &parameters);
    let result = client.get(Role::Read, &url).await?;
    client.report(&result, |page| listing(page, now))
}

fn listing(page: &Value, now: Timestamp) -> String {
    let operations = table::items(page, "operations");
    if operations.is_empty() && page["next"].is_null() {
        return "No matching operations.\n".to_owned();
    }
    let titles = [
        "OPERATION",
        "STATE",
        "TENANT",
        "PROJECT",
        "ENDPOINT",
        "KEY",
        "STATUS",
        "CREATED",
    ];
    let rows = operations.iter().map(|operation| {
        let names = [
            "operation_id",
            "state",
            "tenant",
            "project",
            "endpoint",
            "key",
            "original_status",
        ];
        let mut row: Vec<_> = names.iter().map(|name| cell(&operation[name])).collect();
        row.push(timestamps::relative(&operation["created_at"], now));
        row
    });
    let rows: Vec<_> = rows.collect();
    table::table(&titles, &rows, table::width()) + &table::next_page_hint(page)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_a_table() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a timestamp");
        let page = json!({
            "operations": [{
                "operation_id": "op_1", "state": "unknown", "tenant": "acme", "project": "shop",
                "endpoint": "payments.create", "key": "k\u{1b}[2J", "original_status": null,
                "created_at": "2026-11-16T10:00:00.000Z",
            }],
            "next": "17",
        });
        assert_eq!(
            listing(&page, now),
            concat!(
                "OPERATION  STATE    TENANT  PROJECT  ENDPOINT         KEY         STATUS  CREATED\n",
                "op_1       unknown  acme    shop     payments.create  k\\u{1b}[2J  -       2h ago\n",
                "More results: --after 17\n",
            )
        );
        let none = json!({ "operations": [], "next": null });
        assert_eq!(listing(&none, now), "No matching operations.\n");
    }
}
