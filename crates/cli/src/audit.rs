//! `onceward audit`: the changes that operators made, with who, when and why.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use crate::admin::table::{self, cell};
use crate::admin::{AdminArgs, Client, Role, query, timestamps};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
    /// Maximum number of entries to list, up to 200.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Cursor from the previous page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.admin)?;
    let parameters = [
        ("limit", Some(args.limit.to_string())),
        ("after", args.after),
    ];
    let url = query("/admin/v1/audit", &parameters);
    let result = client.get(Role::Read, &url).await?;
    client.report(&result, |page| listing(page, Timestamp::now()))
}

fn listing(page: &Value, now: Timestamp) -> String {
    let entries = table::items(page, "entries");
    if entries.is_empty() {
        return "No changes recorded.\n".to_owned();
    }
    let rows = entries.iter().map(|entry| {
        let mut row = vec![timestamps::relative(&entry["at"], now)];
        let names = ["who", "from", "action"];
        row.extend(names.iter().map(|name| cell(&entry[name])));
        row.push(target(entry));
        row.extend(["outcome", "why"].iter().map(|name| cell(&entry[name])));
        row
    });
    let rows: Vec<_> = rows.collect();
    let titles = ["WHEN", "WHO", "FROM", "ACTION", "ON", "OUTCOME", "WHY"];
    table::table(&titles, &rows, table::width()) + &table::next_page_hint(page)
}

/// The target of the change, or for a bulk change the number of operations.
fn target(entry: &Value) -> String {
    match entry["result"]["done"].as_u64() {
        Some(1) => "1 operation".to_owned(),
        Some(done) => format!("{done} operations"),
        None => cell(&entry["target"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_a_table() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a timestamp");
        let one = json!({
            "at": "2026-11-16T11:00:00.000Z", "who": "ops", "from": "127.0.0.1", "action": "operations.purge",
            "outcome": "done", "why": "a test", "result": { "done": 12 },
        });
        let other = json!({
            "at": "2026-11-16T10:00:00.000Z", "who": "file", "action": "configuration.reload", "outcome": "refused",
        });
        assert_eq!(
            listing(&json!({ "entries": [one, other], "next": null }), now),
            concat!(
                "WHEN    WHO   FROM       ACTION                ON             OUTCOME  WHY\n",
                "1h ago  ops   127.0.0.1  operations.purge      12 operations  done     a test\n",
                "2h ago  file  -          configuration.reload  -              refused  -\n",
            )
        );
    }
}
