//! `onceward operations show`: one operation in full.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use super::operation_path;
use crate::admin::table::{self, cell};
use crate::admin::{Client, Role, query, timestamps};

#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// Operation id, op_…
    #[arg(value_name = "OPERATION")]
    id: String,
    /// Also show the body of the stored reply.
    #[arg(long)]
    body: bool,
}

pub(super) async fn run(
    client: &Client,
    args: &ShowArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let parameters = [("body", args.body.then(|| "1".to_owned()))];
    let url = query(&operation_path(&args.id, ""), &parameters);
    let result = client.get(Role::Read, &url).await?;
    client.report(&result, |operation| details(operation, now))
}

/// All that the API reports about an operation, one member a line.
pub(super) fn details(operation: &Value, now: Timestamp) -> String {
    let member = |name: &str| cell(&operation[name]);
    let time = |name: &str| timestamps::absolute(&operation[name], now);
    let mut pairs = vec![
        ("operation", member("operation_id")),
        ("state", member("state")),
        ("tenant", member("tenant")),
        ("project", member("project")),
        ("subject", member("subject")),
        ("endpoint", member("endpoint")),
        ("key", member("key")),
        ("name", member("name")),
        ("class", member("class")),
        ("terms", terms(&operation["terms"])),
        ("fence", member("fence")),
        ("attempts", member("attempts")),
        ("created", time("created_at")),
    ];
    for (name, member) in [
        ("lease until", "lease_until"),
        ("due", "due_at"),
        ("completed", "completed_at"),
        ("expires", "expires_at"),
        ("forgotten", "forgotten_at"),
    ] {
        if operation[member].is_string() {
            pairs.push((name, time(member)));
        }
    }
    let reply = &operation["reply"];
    if reply.is_object() {
        let size = match reply["body_bytes"].as_u64() {
            Some(bytes) => format!(", {bytes} bytes"),
            None => String::new(),
        };
        pairs.push((
            "reply",
            format!(
                "{} ({}{size})",
                cell(&reply["status"]),
                cell(&reply["kept"])
            ),
        ));
        for header in reply["headers"].as_array().into_iter().flatten() {
            pairs.push(("", format!("{}: {}", cell(&header[0]), cell(&header[1]))));
        }
    }
    let mut text = table::pairs(&pairs);
    match (reply["body_text"].as_str(), reply["body_base64"].as_str()) {
        (Some(body), _) => text.push_str(&format!("\n{}\n", escape_lines(body))),
        (None, Some(_)) => {
            text.push_str("\nThe body is not text; use --json to get it in base64.\n");
        }
        (None, None) => {}
    }
    text
}

/// The settings of its class that the operation was claimed under, in the words of the
/// configuration.
fn terms(terms: &Value) -> String {
    let settings = [
        ("retention", "retention"),
        ("remember", "remember"),
        ("lease", "lease"),
        ("ttl_basis", "ttl_basis"),
        ("expiry", "expiry"),
        ("on_unknown", "on_unknown"),
    ];
    let settings = settings.map(|(name, member)| format!("{name} = {}", cell(&terms[member])));
    settings.join(", ")
}

/// A body with its line breaks, and with all other control characters escaped.
fn escape_lines(body: &str) -> String {
    let lines: Vec<_> = body.lines().map(table::escape).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_member_has_a_line() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a timestamp");
        let operation = json!({
            "operation_id": "op_1", "state": "completed", "tenant": "acme", "project": "shop",
            "subject": "user:1", "endpoint": "payments.create", "key": "k",
            "name": "t-acme:shop:user:1:k", "class": "financial", "fence": 7, "attempts": 1,
            "created_at": "2026-11-16T10:00:00.000Z", "completed_at": "2026-11-16T10:00:01.000Z",
            "expires_at": "2026-11-23T10:00:01.000Z", "forgotten_at": null, "lease_until": null, "due_at": null,
            "terms": { "retention": "7d", "remember": "30d", "lease": "2m", "ttl_basis": "completion",
                       "expiry": "strict", "on_unknown": "hold" },
            "reply": { "kept": "whole", "status": 201, "headers": [["content-type", "text/plain"]],
                       "body_bytes": 9, "body_text": "paid\n\u{1b}[2J", "body_base64": "" },
        });
        assert_eq!(
            details(&operation, now),
            concat!(
                "operation  op_1\n",
                "state      completed\n",
                "tenant     acme\n",
                "project    shop\n",
                "subject    user:1\n",
                "endpoint   payments.create\n",
                "key        k\n",
                "name       t-acme:shop:user:1:k\n",
                "class      financial\n",
                "terms      retention = 7d, remember = 30d, lease = 2m, ttl_basis = completion, expiry = strict, on_unknown = hold\n",
                "fence      7\n",
                "attempts   1\n",
                "created    2026-11-16T10:00:00.000Z (2h ago)\n",
                "completed  2026-11-16T10:00:01.000Z (1h ago)\n",
                "expires    2026-11-23T10:00:01.000Z (in 6d)\n",
                "reply      201 (whole, 9 bytes)\n",
                "           content-type: text/plain\n",
                "\npaid\n\\u{1b}[2J\n",
            )
        );
    }
}
