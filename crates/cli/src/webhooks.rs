//! `onceward webhooks`: URLs for providers, made, listed, given other secrets
//! and taken away; and an event delivered again.
//!
//! A secret as an argument is in every list of processes and in the shell's
//! history, so it is read from standard input or from a file just as well.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admin::moment;
use crate::admin::table::{self, cell};
use crate::admin::{Client, Needs, Reach, path, query};
use crate::operations::standing;

const WEBHOOKS: &str = "/admin/v1/webhooks";
/// The most bytes that are read as secrets.
const SECRETS_BYTES_MAX: u64 = 64 << 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a webhook: a URL for a provider.
    Create(Create),
    /// The webhooks, the oldest first, without their secrets.
    List {
        /// Of this tenant.
        #[arg(long, value_name = "T")]
        tenant: Option<String>,
        /// Of this project.
        #[arg(long, value_name = "P")]
        project: Option<String>,
        /// Of this provider.
        #[arg(long, value_name = "NAME")]
        provider: Option<String>,
        /// How many at most, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Where the page before ended.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Changes where a webhook's events go; queued events follow.
    Update {
        /// Its id, wh_…
        #[arg(value_name = "WEBHOOK")]
        id: String,
        /// The upstream. Default: unchanged.
        #[arg(long, value_name = "U", required_unless_present = "path")]
        upstream: Option<String>,
        /// The path at the upstream. Default: unchanged.
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
        /// The reason, for the audit.
        #[arg(
            long,
            value_name = "REASON",
            default_value = "updated on the command line"
        )]
        why: String,
    },
    /// Gives a webhook another secret; the old ones count for a while.
    Rotate {
        /// Its id, wh_…
        #[arg(value_name = "WEBHOOK")]
        id: String,
        #[command(flatten)]
        secrets: Secrets,
        /// How long the old ones still count: 24h, or 0s to end them now. Default: as the configuration says.
        #[arg(long, value_name = "TIME")]
        overlap: Option<String>,
        /// Why; the audit keeps it.
        #[arg(
            long,
            value_name = "REASON",
            default_value = "rotated on the command line"
        )]
        why: String,
    },
    /// Takes a webhook away: nothing comes in by it any more.
    Delete {
        /// Its id, wh_…
        #[arg(value_name = "WEBHOOK")]
        id: String,
        /// Why; the audit keeps it.
        #[arg(
            long,
            value_name = "REASON",
            default_value = "deleted on the command line"
        )]
        why: String,
    },
    /// Delivers a stored event again, under a new fence.
    Redeliver {
        /// The event's operation, op_…
        #[arg(value_name = "OPERATION")]
        id: String,
        /// Why; the audit keeps it.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
}

#[derive(clap::Args)]
struct Create {
    /// Whose events they are.
    #[arg(long, value_name = "T")]
    tenant: String,
    /// Which project's.
    #[arg(long, value_name = "P")]
    project: String,
    /// Who sends them: stripe, github, twilio, twilio-events, standard-webhooks, svix, slack, shopify, square, adyen, postmark, or a name of the configuration.
    #[arg(long, value_name = "NAME")]
    provider: String,
    /// Which upstream they go to. Default: as the configuration says.
    #[arg(long, value_name = "U")]
    upstream: Option<String>,
    /// Under which path of the upstream. Default: as the configuration says.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    secrets: Secrets,
    /// When they go: after they were acknowledged, or within the provider's request. Default: async, but sync for twilio.
    #[arg(long, value_name = "HOW", value_parser = ["async", "sync"])]
    deliver: Option<String>,
    /// How they are signed, where the provider has several ways: sha1 or sha256 (twilio), webhooks or events (shopify), payments or platform (adyen).
    #[arg(long, value_name = "SCHEME")]
    scheme: Option<String>,
    /// What becomes of the same bytes under another id that is not signed. Default: as the configuration says.
    #[arg(long, value_name = "WHAT", value_parser = ["deliver", "refuse"])]
    same_bytes: Option<String>,
    /// Why; the audit keeps it.
    #[arg(
        long,
        value_name = "REASON",
        default_value = "created on the command line"
    )]
    why: String,
}

/// What the provider signs with; without any of it, what is in OpenBao, or
/// nothing yet.
#[derive(clap::Args)]
#[group(multiple = false)]
struct Secrets {
    /// The secret that the provider shows; may come again. As an argument others on this machine can see it: - reads it from standard input, one on each line.
    #[arg(long = "secret", value_name = "SECRET")]
    given: Vec<String>,
    /// The same from a file, one on each line.
    #[arg(long = "secret-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Makes one and shows it this once, for a provider that takes it.
    #[arg(long)]
    generate: bool,
}

impl Secrets {
    /// The secrets; none where none are given.
    fn read(&self) -> anyhow::Result<Option<Vec<String>>> {
        if let Some(path) = &self.file {
            return from_file(path).map(Some);
        }
        match self.given.as_slice() {
            [] => Ok(None),
            [one] if one == "-" => {
                if std::io::stdin().is_terminal() {
                    eprintln!("Type the secret, one on each line, and end with Ctrl-D:");
                }
                lines(std::io::stdin().lock(), "standard input").map(Some)
            }
            given if given.iter().any(|one| one == "-") => {
                bail!("--secret - reads all secrets from standard input; give no other beside it")
            }
            given => Ok(Some(given.to_vec())),
        }
    }
}

fn from_file(path: &Path) -> anyhow::Result<Vec<String>> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{name} cannot be read"))?;
    lines(file, &name)
}

/// Secrets, one on each line; what is blank is none.
fn lines(from: impl Read, name: &str) -> anyhow::Result<Vec<String>> {
    let mut text = String::new();
    let read = from.take(SECRETS_BYTES_MAX + 1).read_to_string(&mut text);
    let bytes = read.with_context(|| format!("{name} cannot be read as text"))?;
    if bytes as u64 > SECRETS_BYTES_MAX {
        bail!("{name} holds more than 64KiB: these are no secrets");
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let secrets: Vec<_> = lines.map(ToOwned::to_owned).collect();
    match secrets.is_empty() {
        true => bail!("there is no secret in {name}"),
        false => Ok(secrets),
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.reach)?;
    match args.command {
        Command::Create(ask) => {
            let body = json!({
                "tenant": ask.tenant,
                "project": ask.project,
                "provider": ask.provider,
                "secrets": ask.secrets.read()?,
                "generate": ask.secrets.generate,
                "scheme": ask.scheme,
                "upstream": ask.upstream,
                "path": ask.path,
                "deliver": ask.deliver,
                "same_bytes": ask.same_bytes,
                "why": ask.why,
            });
            let told = client.post(Needs::Admin, WEBHOOKS, &body).await?;
            client.tell(&told, created)
        }
        Command::List {
            tenant,
            project,
            provider,
            limit,
            after,
        } => {
            let parts = [
                ("tenant", tenant),
                ("project", project),
                ("provider", provider),
                ("limit", Some(limit.to_string())),
                ("after", after),
            ];
            let told = client.get(Needs::Read, &query(WEBHOOKS, &parts)).await?;
            client.tell(&told, |page| listing(page, Timestamp::now()))
        }
        Command::Update {
            id,
            upstream,
            path: new_path,
            why,
        } => {
            let body = json!({ "upstream": upstream, "path": new_path, "why": why });
            let url = path("/admin/v1/webhooks/", &id, "/update");
            let told = client.post(Needs::Admin, &url, &body).await?;
            client.tell(&told, |webhook| {
                format!(
                    "Events of {} go to {}{}.\n",
                    cell(&webhook["webhook_id"]),
                    cell(&webhook["upstream"]),
                    cell(&webhook["path"])
                )
            })
        }
        Command::Rotate {
            id,
            secrets,
            overlap,
            why,
        } => {
            let secret = match secrets.read()?.as_deref() {
                None => None,
                Some([one]) => Some(one.clone()),
                Some(_) => bail!("a rotation takes one secret: the new one"),
            };
            if secret.is_none() && !secrets.generate {
                bail!("give the new secret by --secret - or --secret-file, or --generate one");
            }
            let body = json!({
                "secret": secret,
                "generate": secrets.generate,
                "overlap": overlap,
                "why": why,
            });
            let url = path("/admin/v1/webhooks/", &id, "/rotate");
            let told = client.post(Needs::Admin, &url, &body).await?;
            client.tell(&told, rotated)
        }
        Command::Delete { id, why } => {
            let url = path("/admin/v1/webhooks/", &id, "/delete");
            let told = client
                .post(Needs::Admin, &url, &json!({ "why": why }))
                .await?;
            client.tell(&told, |answer| {
                format!("{} is deleted.\n", cell(&answer["webhook_id"]))
            })
        }
        Command::Redeliver { id, why } => {
            let url = path("/admin/v1/operations/", &id, "/redeliver");
            let told = client
                .post(Needs::Operate, &url, &json!({ "why": why }))
                .await?;
            client.tell(&told, standing)
        }
    }
}

/// The URL alone on its line, to be copied; then what else is to be told whom.
fn created(answer: &Value) -> String {
    let webhook = &answer["webhook"];
    let mut text = format!("{}\n\n", cell(&answer["url"]));
    text.push_str(&format!(
        "Give this URL to {}. Its id is {}.\n",
        cell(&webhook["provider"]),
        cell(&answer["webhook_id"])
    ));
    text.push_str(&secret(answer));
    let upstream = cell(&webhook["upstream"]);
    let signing = match answer["signing_secret"].as_str() {
        Some(made) => table::plain(made),
        // Whoever configured it has it.
        None => format!("the signing_secret of upstream {upstream}"),
    };
    text.push_str(&format!(
        "Events go to {upstream}{}, signed as Standard Webhooks with {signing}\n",
        cell(&webhook["path"]),
    ));
    let secrets = &webhook["secrets"];
    if secrets["kept"] == "openbao" {
        let path = cell(&secrets["path"]);
        text.push_str(&format!("Its secrets are in OpenBao, at {path}\n"));
    } else if secrets["valid"].as_array().is_some_and(Vec::is_empty) {
        text.push_str(&format!(
            "It accepts nothing before it has the secret that the provider shows: onceward webhooks rotate {} --secret -\n",
            cell(&answer["webhook_id"])
        ));
    }
    text
}

fn rotated(answer: &Value) -> String {
    let id = cell(&answer["webhook_id"]);
    let ends = ends(&answer["webhook"]["secrets"]["valid"]);
    let old = match ends.last() {
        None => "the old ones have ended".to_owned(),
        Some(last) => format!("the old ones count until {last}"),
    };
    format!("{id} has a new secret; {old}.\n{}", secret(answer))
}

/// The secret, where it was made for the provider.
fn secret(answer: &Value) -> String {
    match answer["secret"].as_str() {
        None => String::new(),
        Some(secret) => format!(
            "Give it this secret, which is shown once: {}\n",
            table::plain(secret)
        ),
    }
}

/// When secrets end that do, the first first.
fn ends(valid: &Value) -> Vec<String> {
    let valid = valid.as_array().map(Vec::as_slice).unwrap_or_default();
    let ends = valid.iter().filter(|one| !one["until"].is_null());
    let mut ends: Vec<_> = ends.map(|one| cell(&one["until"])).collect();
    ends.sort();
    ends
}

fn listing(page: &Value, now: Timestamp) -> String {
    let webhooks = table::listed(page, "webhooks");
    if webhooks.is_empty() {
        return "There are no webhooks.\n".to_owned();
    }
    let titles = [
        "WEBHOOK", "TENANT", "PROJECT", "PROVIDER", "UPSTREAM", "PATH", "DELIVER", "SECRETS",
        "CREATED",
    ];
    let lines = webhooks.iter().map(|webhook| {
        let names = [
            "webhook_id",
            "tenant",
            "project",
            "provider",
            "upstream",
            "path",
            "deliver",
        ];
        let mut line: Vec<_> = names.iter().map(|name| cell(&webhook[name])).collect();
        line.push(secrets_of(&webhook["secrets"]));
        line.push(moment::ago(&webhook["created_at"], now));
        line
    });
    let lines: Vec<_> = lines.collect();
    let mut text = table::table(&titles, &lines, table::width());
    for webhook in webhooks {
        if let Some(problem) = webhook["problem"].as_str() {
            let id = cell(&webhook["webhook_id"]);
            let problem = table::plain(problem);
            text.push_str(&format!("{id} cannot be served: {problem}\n"));
        }
    }
    text + &table::more(page)
}

/// How many are valid, or where they are.
fn secrets_of(secrets: &Value) -> String {
    match secrets["valid"].as_array() {
        None => cell(&secrets["kept"]),
        Some(valid) => match ends(&secrets["valid"]).len() {
            0 => valid.len().to_string(),
            ending => format!("{}, {ending} ending", valid.len()),
        },
    }
}

#[cfg(test)]
mod tests {
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
    fn webhooks_are_told_in_words() {
        let now = "2026-11-16T12:00:00Z".parse().expect("a moment");
        let mut unfit = webhook();
        unfit["upstream"] = Value::Null;
        unfit["problem"] = "upstream: nobody says where events go\u{1b}[2J".into();
        unfit["secrets"] = json!({ "kept": "openbao", "path": "a/b", "valid": null });
        let page = json!({ "webhooks": [webhook(), unfit], "next": "wh_abc" });
        assert_eq!(
            listing(&page, now),
            concat!(
                "WEBHOOK  TENANT  PROJECT  PROVIDER  UPSTREAM  PATH            DELIVER  SECRETS      CREATED\n",
                "wh_abc   acme    shop     svix      payments  /webhooks/svix  async    2, 1 ending  2h ago\n",
                "wh_abc   acme    shop     svix      -         /webhooks/svix  async    openbao      2h ago\n",
                "wh_abc cannot be served: upstream: nobody says where events go\\u{1b}[2J\n",
                "There are more: --after wh_abc\n",
            )
        );
        let none = json!({ "webhooks": [], "next": null });
        assert_eq!(listing(&none, now), "There are no webhooks.\n");
    }

    #[test]
    fn what_to_tell_whom_is_told() {
        let mut answer = json!({
            "webhook_id": "wh_abc", "url": "https://x.example/api/v1/webhooks/svix/wh_abc",
            "secret": "whsec_a", "signing_secret": "whsec_b", "webhook": webhook(),
        });
        assert_eq!(
            created(&answer),
            concat!(
                "https://x.example/api/v1/webhooks/svix/wh_abc\n\n",
                "Give this URL to svix. Its id is wh_abc.\n",
                "Give it this secret, which is shown once: whsec_a\n",
                "Events go to payments/webhooks/svix, signed as Standard Webhooks with whsec_b\n",
            )
        );
        assert_eq!(
            rotated(&answer),
            concat!(
                "wh_abc has a new secret; the old ones count until 2026-11-17T10:00:00.000Z.\n",
                "Give it this secret, which is shown once: whsec_a\n",
            )
        );
        answer["secret"] = Value::Null;
        answer["signing_secret"] = Value::Null;
        answer["webhook"]["secrets"] = json!({ "kept": "openbao", "path": "a/b", "valid": null });
        assert_eq!(
            created(&answer),
            concat!(
                "https://x.example/api/v1/webhooks/svix/wh_abc\n\n",
                "Give this URL to svix. Its id is wh_abc.\n",
                "Events go to payments/webhooks/svix, signed as Standard Webhooks with the signing_secret of upstream payments\n",
                "Its secrets are in OpenBao, at a/b\n",
            )
        );
    }

    #[test]
    fn secrets_stand_one_on_each_line() {
        let read = |text: &str| lines(text.as_bytes(), "here").map_err(|error| error.to_string());
        assert_eq!(read("a\n"), Ok(vec!["a".to_owned()]));
        assert_eq!(
            read("a\r\n\n b\n"),
            Ok(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(read(" \n"), Err("there is no secret in here".to_owned()));
        let long = "x".repeat(65_537);
        assert_eq!(
            read(&long),
            Err("here holds more than 64KiB: these are no secrets".to_owned())
        );
    }
}
