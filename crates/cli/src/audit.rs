//! `onceward audit`: who changed what, when and why.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use crate::admin::table::{self, cell};
use crate::admin::{Client, Needs, Reach, moment, query};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    /// How many entries at most, up to 200.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Where the page before ended.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.reach)?;
    let parts = [
        ("limit", Some(args.limit.to_string())),
        ("after", args.after),
    ];
    let told = client
        .get(Needs::Read, &query("/admin/v1/audit", &parts))
        .await?;
    client.tell(&told, |page| listing(page, Timestamp::now()))
}

fn listing(page: &Value, now: Timestamp) -> String {
    let entries = table::listed(page, "entries");
    if entries.is_empty() {
        return "Nothing was changed.\n".to_owned();
    }
    let lines = entries.iter().map(|entry| {
        let mut line = vec![moment::ago(&entry["at"], now)];
        let names = ["who", "from", "action"];
        line.extend(names.iter().map(|name| cell(&entry[name])));
        line.push(on(entry));
        line.extend(["outcome", "why"].iter().map(|name| cell(&entry[name])));
        line
    });
    let lines: Vec<_> = lines.collect();
    let titles = ["WHEN", "WHO", "FROM", "ACTION", "ON", "OUTCOME", "WHY"];
    table::table(&titles, &lines, table::width()) + &table::more(page)
}

/// What it was done on; of many, how many.
fn on(entry: &Value) -> String {
    match entry["result"]["purged"].as_u64() {
        Some(purged) => format!("{purged} operations"),
        None => cell(&entry["target"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_a_table() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a moment");
        let one = json!({
            "at": "2026-11-16T11:00:00.000Z", "who": "ops", "from": "127.0.0.1", "action": "operations.purge",
            "outcome": "done", "why": "a test", "result": { "purged": 12 },
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
