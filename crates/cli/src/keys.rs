//! `onceward keys`: API keys, made, listed and taken back. A key is shown once.

use std::process::ExitCode;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admin::moment::{self, Side};
use crate::admin::table::{self, cell};
use crate::admin::{Client, Needs, Reach, path, query};

const KEYS: &str = "/admin/v1/keys";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a key, and shows it this once.
    Create(Create),
    /// The keys, the oldest first.
    List {
        /// Of this tenant.
        #[arg(long, value_name = "T")]
        tenant: Option<String>,
        /// Of this project.
        #[arg(long, value_name = "P")]
        project: Option<String>,
        /// How many at most, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Where the page before ended.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Takes a key back: it lets nobody in any more.
    Revoke {
        /// Its id, as `keys list` tells it.
        #[arg(value_name = "ID")]
        id: String,
        /// Why; the audit keeps it.
        #[arg(
            long,
            value_name = "REASON",
            default_value = "revoked on the command line"
        )]
        why: String,
    },
}

#[derive(clap::Args)]
struct Create {
    /// Whose it is.
    #[arg(long, value_name = "T")]
    tenant: String,
    /// Which project's; without one it is good only on routes of a wider scope.
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// Who acts with it: user:…, service:…, tenant_member:… or client:…
    #[arg(long, value_name = "TYPE:ID")]
    subject: String,
    /// What it may do; may come again.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// What it is for.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// When it ends by itself: 90d, or a moment in RFC 3339.
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Why; the audit keeps it.
    #[arg(
        long,
        value_name = "REASON",
        default_value = "created on the command line"
    )]
    why: String,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.reach)?;
    let now = Timestamp::now();
    match args.command {
        Command::Create(ask) => {
            let expires = ask.expires.as_deref();
            let expires = expires
                .map(|text| moment::parse(text, Side::Future, now))
                .transpose()?;
            let body = json!({
                "tenant": ask.tenant,
                "project": ask.project,
                "subject": ask.subject,
                "scopes": ask.scopes,
                "name": ask.name,
                "expires_at": expires,
                "why": ask.why,
            });
            let told = client.post(Needs::Admin, KEYS, &body).await?;
            client.tell(&told, created)
        }
        Command::List {
            tenant,
            project,
            limit,
            after,
        } => {
            let parts = [
                ("tenant", tenant),
                ("project", project),
                ("limit", Some(limit.to_string())),
                ("after", after),
            ];
            let told = client.get(Needs::Read, &query(KEYS, &parts)).await?;
            client.tell(&told, |page| listing(page, now))
        }
        Command::Revoke { id, why } => {
            let url = path("/admin/v1/keys/", &id, "/revoke");
            let told = client
                .post(Needs::Admin, &url, &json!({ "why": why }))
                .await?;
            client.tell(&told, |answer| match answer["already"] == true {
                true => format!("{} was revoked already.\n", cell(&answer["id"])),
                false => format!("{} is revoked.\n", cell(&answer["id"])),
            })
        }
    }
}

/// The key alone on its line, to be copied.
fn created(answer: &Value) -> String {
    format!(
        "{}\n\nThis is shown once and kept nowhere. Its id is {}.\n",
        cell(&answer["secret"]),
        cell(&answer["key"]["id"])
    )
}

fn listing(page: &Value, now: Timestamp) -> String {
    let keys = table::listed(page, "keys");
    if keys.is_empty() {
        return "There are no keys.\n".to_owned();
    }
    let titles = [
        "ID", "STATE", "TENANT", "PROJECT", "SUBJECT", "SCOPES", "NAME", "CREATED", "EXPIRES",
    ];
    let lines = keys.iter().map(|key| {
        let names = [
            "id", "state", "tenant", "project", "subject", "scopes", "name",
        ];
        let mut line: Vec<_> = names.iter().map(|name| cell(&key[name])).collect();
        line.extend(["created_at", "expires_at"].map(|name| moment::ago(&key[name], now)));
        line
    });
    let lines: Vec<_> = lines.collect();
    table::table(&titles, &lines, table::width()) + &table::more(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_in_words() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a moment");
        let key = json!({
            "id": "abc", "state": "active", "tenant": "acme", "project": null, "subject": "service:worker",
            "scopes": ["pay", "read"], "name": "", "created_at": "2026-11-16T10:00:00.000Z", "expires_at": null,
        });
        assert_eq!(
            listing(&json!({ "keys": [key], "next": null }), now),
            concat!(
                "ID   STATE   TENANT  PROJECT  SUBJECT         SCOPES    NAME  CREATED  EXPIRES\n",
                "abc  active  acme    -        service:worker  pay,read  -     2h ago   -\n",
            )
        );
        let answer = json!({ "secret": "ow_abc_xyz", "key": { "id": "abc" } });
        assert_eq!(
            created(&answer),
            "ow_abc_xyz\n\nThis is shown once and kept nowhere. Its id is abc.\n"
        );
    }
}
