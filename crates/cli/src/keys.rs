//! `onceward keys`: creating, listing and revoking API keys. A key is shown only when it is created.

use std::process::ExitCode;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admin::table::{self, cell};
use crate::admin::timestamps::{self, Direction};
use crate::admin::{AdminArgs, Client, CommandOutput, Role, path, query};

const KEYS: &str = "/admin/v1/keys";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a key and print it. It cannot be shown again.
    Create(CreateKey),
    /// List the keys, the oldest first.
    List {
        /// Only keys of this tenant.
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// Only keys of this project.
        #[arg(long, value_name = "PROJECT")]
        project: Option<String>,
        /// Maximum number of keys to list, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Cursor from the previous page.
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
    },
    /// Revoke a key: requests with it are refused from then on.
    Revoke {
        /// Key id, as shown by `keys list`.
        #[arg(value_name = "ID")]
        id: String,
        /// The reason for the change, recorded in the audit log.
        #[arg(
            long,
            value_name = "REASON",
            default_value = "revoked on the command line"
        )]
        why: String,
    },
}

#[derive(clap::Args)]
struct CreateKey {
    /// Tenant of the caller.
    #[arg(long, value_name = "TENANT")]
    tenant: String,
    /// Project of the caller; without one the key is accepted only on routes with a wider scope.
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// Subject of the caller: user:…, service:…, tenant_member:… or client:…
    #[arg(long, value_name = "TYPE:ID")]
    subject: String,
    /// Scope that the key grants; repeatable.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Description of the key.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// When the key expires: 90d, or a timestamp in RFC 3339.
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// The reason for the change, recorded in the audit log.
    #[arg(
        long,
        value_name = "REASON",
        default_value = "created on the command line"
    )]
    why: String,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.admin)?;
    let now = Timestamp::now();
    match args.command {
        Command::Create(key) => {
            let expires = key.expires.as_deref();
            let expires = expires
                .map(|text| timestamps::parse(text, Direction::Future, now))
                .transpose()?;
            let body = json!({
                "tenant": key.tenant,
                "project": key.project,
                "subject": key.subject,
                "scopes": key.scopes,
                "name": key.name,
                "expires_at": expires,
                "why": key.why,
            });
            let result = client.post(Role::Admin, KEYS, &body).await?;
            client.report_with_notes(&result, created)
        }
        Command::List {
            tenant,
            project,
            limit,
            after,
        } => {
            let parameters = [
                ("tenant", tenant),
                ("project", project),
                ("limit", Some(limit.to_string())),
                ("after", after),
            ];
            let result = client.get(Role::Read, &query(KEYS, &parameters)).await?;
            client.report(&result, |page| listing(page, now))
        }
        Command::Revoke { id, why } => {
            let url = path("/admin/v1/keys/", &id, "/revoke");
            let result = client
                .post(Role::Admin, &url, &json!({ "why": why }))
                .await?;
            client.report(&result, |answer| match answer["already"] == true {
                true => format!("{} was already revoked.\n", cell(&answer["id"])),
                false => format!("{} is revoked.\n", cell(&answer["id"])),
            })
        }
    }
}

/// The key alone, so that `KEY=$(onceward keys create …)` captures it.
fn created(answer: &Value) -> CommandOutput {
    let id = cell(&answer["key"]["id"]);
    CommandOutput {
        result: format!("{}\n", cell(&answer["secret"])),
        notes: format!("Key id: {id}. The key is stored as a hash and cannot be shown again.\n"),
    }
}

fn listing(page: &Value, now: Timestamp) -> String {
    let keys = table::items(page, "keys");
    if keys.is_empty() {
        return "No keys.\n".to_owned();
    }
    let titles = [
        "ID", "STATE", "TENANT", "PROJECT", "SUBJECT", "SCOPES", "NAME", "CREATED", "EXPIRES",
    ];
    let rows = keys.iter().map(|key| {
        let names = [
            "id", "state", "tenant", "project", "subject", "scopes", "name",
        ];
        let mut row: Vec<_> = names.iter().map(|name| cell(&key[name])).collect();
        row.extend(["created_at", "expires_at"].map(|name| timestamps::relative(&key[name], now)));
        row
    });
    let rows: Vec<_> = rows.collect();
    table::table(&titles, &rows, table::width()) + &table::next_page_hint(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_a_table() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a timestamp");
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
    }

    #[test]
    fn the_result_of_a_creation_is_the_key_alone() {
        let report = created(&json!({ "secret": "ow_abc_xyz", "key": { "id": "abc" } }));
        assert_eq!(report.result, "ow_abc_xyz\n");
        assert_eq!(
            report.notes,
            "Key id: abc. The key is stored as a hash and cannot be shown again.\n"
        );
    }
}
