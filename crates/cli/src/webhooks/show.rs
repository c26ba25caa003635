//! The API's answers about webhooks, for people.

use jiff::Timestamp;
use serde_json::Value;

use crate::admin::table::{self, cell};
use crate::admin::{CommandOutput, timestamps};

/// The URL alone, so that `URL=$(onceward webhooks create …)` captures it; the rest is notes.
pub(super) fn created(answer: &Value) -> CommandOutput {
    let webhook = &answer["webhook"];
    let id = cell(&answer["webhook_id"]);
    let mut notes = format!(
        "Webhook id: {id}. Give the URL to {}.\n",
        cell(&webhook["provider"])
    );
    notes.push_str(&generated_secret(answer));
    let upstream = cell(&webhook["upstream"]);
    let signing = match answer["signing_secret"].as_str() {
        Some(secret) => table::escape(secret),
        // A configured one is not shown.
        None => format!("the signing_secret of upstream {upstream}"),
    };
    notes.push_str(&format!(
        "Events are delivered to {upstream}{}, signed as Standard Webhooks with {signing}\n",
        cell(&webhook["path"]),
    ));
    let secrets = &webhook["secrets"];
    if secrets["kept"] == "openbao" {
        let path = cell(&secrets["path"]);
        notes.push_str(&format!("Its secrets are in OpenBao, at {path}\n"));
    } else if secrets["valid"].as_array().is_some_and(Vec::is_empty) {
        notes.push_str(&format!(
            "It rejects all events until it has the secret that the provider shows: onceward webhooks rotate {id} --secret -\n"
        ));
    }
    CommandOutput {
        result: format!("{}\n", cell(&answer["url"])),
        notes,
    }
}

pub(super) fn rotated(answer: &Value) -> CommandOutput {
    let id = cell(&answer["webhook_id"]);
    let ends = ends(&answer["webhook"]["secrets"]["valid"]);
    let old = match ends.last() {
        None => "the old secrets are no longer valid".to_owned(),
        Some(last) => format!("the old secrets are valid until {last}"),
    };
    CommandOutput {
        result: format!("{id} has a new secret; {old}.\n"),
        notes: generated_secret(answer),
    }
}

/// The secret that the gateway generated, if it did.
fn generated_secret(answer: &Value) -> String {
    match answer["secret"].as_str() {
        None => String::new(),
        Some(secret) => format!(
            "Give the provider this secret, which cannot be shown again: {}\n",
            table::escape(secret)
        ),
    }
}

/// When the secrets that expire do so, the earliest first.
fn ends(valid: &Value) -> Vec<String> {
    let valid = valid.as_array().map(Vec::as_slice).unwrap_or_default();
    let ends = valid.iter().filter(|one| !one["until"].is_null());
    let mut ends: Vec<_> = ends.map(|one| cell(&one["until"])).collect();
    ends.sort();
    ends
}

pub(super) fn listing(page: &Value, now: Timestamp) -> String {
    let webhooks = table::items(page, "webhooks");
    if webhooks.is_empty() {
        return "No webhooks.\n".to_owned();
    }
    let titles = [
        "WEBHOOK", "TENANT", "PROJECT", "PROVIDER", "UPSTREAM", "PATH", "DELIVER", "SECRETS",
        "CREATED",
    ];
    let rows = webhooks.iter().map(|webhook| {
        let names = [
            "webhook_id",
            "tenant",
            "project",
            "provider",
            "upstream",
            "path",
            "deliver",
        ];
        let mut row: Vec<_> = names.iter().map(|name| cell(&webhook[name])).collect();
        row.push(secrets_summary(&webhook["secrets"]));
        row.push(timestamps::relative(&webhook["created_at"], now));
        row
    });
    let rows: Vec<_> = rows.collect();
    let mut text = table::table(&titles, &rows, table::width());
    for webhook in webhooks {
        if let Some(problem) = webhook["problem"].as_str() {
            let id = cell(&webhook["webhook_id"]);
            let problem = table::escape(problem);
            text.push_str(&format!("{id} cannot be served: {problem}\n"));
        }
    }
    text + &table::next_page_hint(page)
}

/// How many secrets are valid and how many of them expire, or where they are stored.
fn secrets_summary(secrets: &Value) -> String {
    match secrets["valid"].as_array() {
        None => cell(&secrets["kept"]),
        Some(valid) => match ends(&secrets["valid"]).len() {
            0 => valid.len().to_string(),
            expiring => format!("{}, {expiring} expiring", valid.len()),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn webhook() -> Value {
        json!({
            "webhook_id": "wh_abc", "tenant": "acme", "project": "shop", "provider": "svix",
            "upstream": "payments", "path": "/webhooks/svix", "deliver": "async",
            "secrets": { "kept": "sealed", "path": null, "valid": [
                { "created_at": "2026-11-15T10:00:00.000Z", "until": "2026-11-17T10:00:00.000Z" },
                { "created_at": "2026-11-16T10:00:00.000Z", "until": null },
            ] },
            "problem": null, "created_at": "2026-11-16T10:00:00.000Z",
        })
    }

    #[test]
    fn webhooks_are_a_table() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a timestamp");
        let mut unfit = webhook();
        unfit["upstream"] = Value::Null;
        unfit["problem"] = "upstream: none is configured\u{1b}[2J".into();
        unfit["secrets"] = json!({ "kept": "openbao", "path": "a/b", "valid": null });
        let page = json!({ "webhooks": [webhook(), unfit], "next": "wh_abc" });
        assert_eq!(
            listing(&page, now),
            concat!(
                "WEBHOOK  TENANT  PROJECT  PROVIDER  UPSTREAM  PATH            DELIVER  SECRETS        CREATED\n",
                "wh_abc   acme    shop     svix      payments  /webhooks/svix  async    2, 1 expiring  2h ago\n",
                "wh_abc   acme    shop     svix      -         /webhooks/svix  async    openbao        2h ago\n",
                "wh_abc cannot be served: upstream: none is configured\\u{1b}[2J\n",
                "More results: --after wh_abc\n",
            )
        );
        let none = json!({ "webhooks": [], "next": null });
        assert_eq!(listing(&none, now), "No webhooks.\n");
    }

    #[test]
    fn the_result_of_a_creation_is_the_url_alone() {
        let mut answer = json!({
            "webhook_id": "wh_abc", "url": "https://x.example/api/v1/webhooks/svix/wh_abc",
            "secret": "whsec_a", "signing_secret": "whsec_b", "webhook": webhook(),
        });
        let report = created(&answer);
        assert_eq!(
            report.result,
            "https://x.example/api/v1/webhooks/svix/wh_abc\n"
        );
        assert_eq!(
            report.notes,
            concat!(
                "Webhook id: wh_abc. Give the URL to svix.\n",
                "Give the provider this secret, which cannot be shown again: whsec_a\n",
                "Events are delivered to payments/webhooks/svix, signed as Standard Webhooks with whsec_b\n",
            )
        );
        let report = rotated(&answer);
        assert_eq!(
            report.result,
            "wh_abc has a new secret; the old secrets are valid until 2026-11-17T10:00:00.000Z.\n"
        );
        assert_eq!(
            report.notes,
            "Give the provider this secret, which cannot be shown again: whsec_a\n"
        );
        answer["secret"] = Value::Null;
        answer["signing_secret"] = Value::Null;
        answer["webhook"]["secrets"] = json!({ "kept": "openbao", "path": "a/b", "valid": null });
        assert_eq!(
            created(&answer).notes,
            concat!(
                "Webhook id: wh_abc. Give the URL to svix.\n",
                "Events are delivered to payments/webhooks/svix, signed as Standard Webhooks with the signing_secret of upstream payments\n",
                "Its secrets are in OpenBao, at a/b\n",
            )
        );
    }
}
