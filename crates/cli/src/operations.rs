//! `onceward operations`: finding them, looking at one, and the operator's hand:
//! purge, resolve, resume.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Subcommand, ValueEnum};
use data_encoding::BASE64;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::admin::moment::{self, Side};
use crate::admin::table::{self, cell};
use crate::admin::{Client, Needs, Reach, Told, path, query};

const OPERATIONS: &str = "/admin/v1/operations";
/// How many operations one request counts or purges.
const COUNT_PAGE: usize = 1_000;
const PURGE_PAGE: usize = 200;
/// How far counting goes before a bulk purge; more is only `more than`.
const COUNT_MAX: u64 = 100_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Operations that match, the last claimed or settled first.
    List {
        #[command(flatten)]
        filter: Filter,
        /// How many at most, up to 1000.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Where the page before ended.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// All that is known of an operation.
    Show {
        /// Its id, op_…
        #[arg(value_name = "OPERATION")]
        id: String,
        /// Shows the body of the kept reply too.
        #[arg(long)]
        body: bool,
    },
    /// Forgets operations: their keys are free, and a retry runs.
    Purge(Purge),
    /// Says what became of an unknown operation.
    Resolve(Resolve),
    /// Lets a paused operation go on.
    Resume {
        /// Its id, op_…
        #[arg(value_name = "OPERATION")]
        id: String,
        /// Why; the audit keeps it.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
}

/// Which operations.
#[derive(clap::Args, Clone)]
struct Filter {
    /// Of this tenant.
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// Of this project.
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// Of this endpoint.
    #[arg(long, value_name = "SERVICE.HANDLER")]
    endpoint: Option<String>,
    /// In this state now: queued, running, completed, failed, released, unknown, paused, expired.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// With this key, as its sender gave it.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// First seen since then: 2h, 7d, or a moment in RFC 3339.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// First seen before then.
    #[arg(long, value_name = "WHEN")]
    before: Option<String>,
}

impl Filter {
    /// The parts that are there, by the API's names.
    fn parts(&self, now: Timestamp) -> anyhow::Result<Vec<(&'static str, Option<String>)>> {
        let when = |text: &Option<String>| {
            let parse = |text: &String| moment::parse(text, Side::Past, now);
            text.as_ref().map(parse).transpose()
        };
        let parts = vec![
            ("tenant", self.tenant.clone()),
            ("project", self.project.clone()),
            ("endpoint", self.endpoint.clone()),
            ("state", self.state.clone()),
            ("key", self.key.clone()),
            ("since", when(&self.since)?),
            ("before", when(&self.before)?),
        ];
        Ok(parts
            .into_iter()
            .filter(|(_, part)| part.is_some())
            .collect())
    }
}

#[derive(clap::Args)]
struct Purge {
    /// Their ids, op_…; without any, those that match.
    #[arg(value_name = "OPERATION")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Every operation there is.
    #[arg(long)]
    all: bool,
    /// Also those that run now: they could run a second time.
    #[arg(long)]
    force: bool,
    /// Does not ask before purging many.
    #[arg(long)]
    yes: bool,
    /// Why; the audit keeps it.
    #[arg(long, value_name = "REASON")]
    why: String,
}

#[derive(clap::Args)]
struct Resolve {
    /// Its id, op_…
    #[arg(value_name = "OPERATION")]
    id: String,
    /// What became of it.
    #[arg(long, value_name = "OUTCOME")]
    outcome: Outcome,
    /// Which run is spoken of, as `operations show` tells it; without it the one that is the last
    /// now, which is shown first.
    #[arg(long, value_name = "N")]
    fence: Option<u64>,
    /// With `ran`: the status of its reply.
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// With `ran`: a header of its reply; may come again.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// With `ran`: the body of its reply.
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// With `ran`: a file that holds the body.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// Why; the audit keeps it.
    #[arg(long, value_name = "REASON")]
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Outcome {
    /// It ran; retries are given this reply.
    Ran,
    /// It did not run and never will: the key is free.
    NotRun,
    /// Nobody knows; only the audit is told.
    Unsure,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.reach)?;
    let now = Timestamp::now();
    match args.command {
        Command::List {
            filter,
            limit,
            after,
        } => {
            let mut parts = filter.parts(now)?;
            parts.extend([("limit", Some(limit.to_string())), ("after", after)]);
            let told = client.get(Needs::Read, &query(OPERATIONS, &parts)).await?;
            client.tell(&told, |page| listing(page, now))
        }
        Command::Show { id, body } => {
            let parts = [("body", body.then(|| "1".to_owned()))];
            let url = query(&path("/admin/v1/operations/", &id, ""), &parts);
            let told = client.get(Needs::Read, &url).await?;
            client.tell(&told, |operation| shown(operation, now))
        }
        Command::Purge(ask) if ask.ids.is_empty() => purge_many(&client, &ask, now).await,
        Command::Purge(ask) => purge_these(&client, &ask, now).await,
        Command::Resolve(ask) => resolve(&client, &ask, now).await,
        Command::Resume { id, why } => {
            let url = path("/admin/v1/operations/", &id, "/resume");
            let told = client
                .post(Needs::Operate, &url, &json!({ "why": why }))
                .await?;
            client.tell(&told, standing)
        }
    }
}

/// Names the run that is spoken of, so that a word on one never settles a later one.
async fn resolve(client: &Client, ask: &Resolve, now: Timestamp) -> anyhow::Result<ExitCode> {
    let mut body = ask.body()?;
    body["fence"] = match ask.fence {
        Some(fence) => fence.into(),
        None => {
            let url = path("/admin/v1/operations/", &ask.id, "");
            let told = client.get(Needs::Operate, &url).await?;
            let Told::Done(operation) = &told else {
                return client.tell(&told, |_| String::new());
            };
            if !client.is_json() {
                println!("{}", shown(&operation.value, now));
            }
            operation.value["fence"].clone()
        }
    };
    let url = path("/admin/v1/operations/", &ask.id, "/resolve");
    let told = client.post(Needs::Operate, &url, &body).await?;
    client.tell(&told, standing)
}

fn listing(page: &Value, now: Timestamp) -> String {
    let operations = table::listed(page, "operations");
    if operations.is_empty() && page["next"].is_null() {
        return "No operation matches.\n".to_owned();
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
    let lines = operations.iter().map(|operation| {
        let names = [
            "operation_id",
            "state",
            "tenant",
            "project",
            "endpoint",
            "key",
            "original_status",
        ];
        let mut line: Vec<_> = names.iter().map(|name| cell(&operation[name])).collect();
        line.push(moment::ago(&operation["created_at"], now));
        line
    });
    let lines: Vec<_> = lines.collect();
    table::table(&titles, &lines, table::width()) + &table::more(page)
}

fn shown(operation: &Value, now: Timestamp) -> String {
    let told = |name: &str| cell(&operation[name]);
    let when = |name: &str| moment::at(&operation[name], now);
    let terms = &operation["terms"];
    let term = |name: &str| cell(&terms[name]);
    let mut pairs = vec![
        ("operation", told("operation_id")),
        ("state", told("state")),
        ("tenant", told("tenant")),
        ("project", told("project")),
        ("subject", told("subject")),
        ("endpoint", told("endpoint")),
        ("key", told("key")),
        ("name", told("name")),
        ("class", told("class")),
        (
            "terms",
            format!(
                "retention {}, remember {}, lease {}, counted from {}, expiry {}, after loss {}",
                term("retention"),
                term("remember"),
                term("lease"),
                term("ttl_basis"),
                term("expiry"),
                term("after_loss"),
            ),
        ),
        ("fence", told("fence")),
        ("attempts", told("attempts")),
        ("created", when("created_at")),
    ];
    for (name, member) in [
        ("lease until", "lease_until"),
        ("due", "due_at"),
        ("completed", "completed_at"),
        ("expires", "expires_at"),
        ("forgotten", "forgotten_at"),
    ] {
        if operation[member].is_string() {
            pairs.push((name, when(member)));
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
        for line in reply["headers"].as_array().into_iter().flatten() {
            pairs.push(("", format!("{}: {}", cell(&line[0]), cell(&line[1]))));
        }
    }
    let mut text = table::list(&pairs);
    match (reply["body_text"].as_str(), reply["body_base64"].as_str()) {
        (Some(body), _) => text.push_str(&format!("\n{}\n", lines(body))),
        (None, Some(_)) => text.push_str("\nThe body is not text; --json has it in base64.\n"),
        (None, None) => {}
    }
    text
}

/// A body with its lines, and nothing else that moves the cursor.
fn lines(body: &str) -> String {
    let lines: Vec<_> = body.lines().map(table::plain).collect();
    lines.join("\n")
}

pub(crate) fn standing(answer: &Value) -> String {
    format!(
        "{} is {}.\n",
        cell(&answer["operation_id"]),
        cell(&answer["state"])
    )
}

async fn purge_these(client: &Client, ask: &Purge, now: Timestamp) -> anyhow::Result<ExitCode> {
    if ask.all || !ask.filter.parts(now)?.is_empty() {
        bail!("name operations by their ids, or by what they match; not both");
    }
    let mut sum = Sum::default();
    for id in &ask.ids {
        let url = path("/admin/v1/operations/", id, "/purge");
        let body = json!({ "force": ask.force, "why": ask.why });
        let told = client.post(Needs::Operate, &url, &body).await?;
        let answer = told
            .done()
            .with_context(|| format!("{} was not purged", table::plain(id)))?;
        sum.add(&answer);
    }
    sum.tell(client)
}

/// Counts first, asks, then purges page by page.
async fn purge_many(client: &Client, ask: &Purge, now: Timestamp) -> anyhow::Result<ExitCode> {
    let parts = ask.filter.parts(now)?;
    if parts.is_empty() != ask.all {
        bail!(
            "say which operations: their ids, what they match (such as --tenant T --state unknown), or --all"
        );
    }
    let count = count(client, &parts).await?;
    if count == 0 {
        return Sum::default().tell(client);
    }
    if !ask.yes {
        confirm(count)?;
    }
    let filter: Map<_, _> = parts
        .into_iter()
        .map(|(name, part)| (name.to_owned(), part.into()))
        .collect();
    let mut body = json!({ "force": ask.force, "why": ask.why, "limit": PURGE_PAGE });
    match ask.all {
        true => body["all"] = true.into(),
        false => body["filter"] = filter.into(),
    }
    let bar = progress(count);
    let mut sum = Sum::default();
    loop {
        let told = client
            .post(Needs::Operate, &format!("{OPERATIONS}/purge"), &body)
            .await?;
        let answer = told
            .done()
            .with_context(|| format!("{} operations were purged before", sum.purged))?;
        sum.add(&answer);
        bar.set_length(count.max(sum.all()));
        bar.set_position(sum.all());
        if answer["more"] != true {
            break;
        }
        body["after"] = answer["after"].clone();
    }
    bar.finish_and_clear();
    sum.tell(client)
}

async fn count(client: &Client, parts: &[(&'static str, Option<String>)]) -> anyhow::Result<u64> {
    let (mut count, mut after) = (0, None);
    loop {
        let mut parts = parts.to_vec();
        parts.extend([("limit", Some(COUNT_PAGE.to_string())), ("after", after)]);
        let page = client
            .get(Needs::Read, &query(OPERATIONS, &parts))
            .await?
            .done()?;
        count += page["operations"].as_array().map_or(0, Vec::len) as u64;
        after = page["next"].as_str().map(ToOwned::to_owned);
        if after.is_none() || count > COUNT_MAX {
            return Ok(count);
        }
    }
}

/// Many keys at once are free after this: somebody has to say so.
fn confirm(count: u64) -> anyhow::Result<()> {
    let how_many = match count > COUNT_MAX {
        true => format!("more than {COUNT_MAX}"),
        false => count.to_string(),
    };
    if !std::io::stdin().is_terminal() {
        bail!("this purges {how_many} operations: say --yes");
    }
    let mut stderr = std::io::stderr();
    write!(
        stderr,
        "This purges {how_many} operations; their keys are free then, and retries run. Type `purge` to go on: "
    )?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "purge" {
        bail!("nothing was purged");
    }
    Ok(())
}

/// On standard error, and only on a terminal.
fn progress(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} operations, {eta} left");
    let bar = ProgressBar::new(count);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What several requests purged.
#[derive(Default)]
struct Sum {
    purged: u64,
    refused: u64,
}

impl Sum {
    fn add(&mut self, answer: &Value) {
        self.purged += answer["purged"].as_u64().unwrap_or(0);
        self.refused += answer["refused"].as_u64().unwrap_or(0);
    }

    fn all(&self) -> u64 {
        self.purged + self.refused
    }

    fn tell(&self, client: &Client) -> anyhow::Result<ExitCode> {
        let Self { purged, refused } = self;
        if client.is_json() {
            println!(
                "{}",
                json!({ "purged": purged, "refused": refused, "more": false, "after": null })
            );
        } else {
            println!(
                "{purged} {} purged.",
                if *purged == 1 {
                    "operation"
                } else {
                    "operations"
                }
            );
        }
        if *refused > 0 {
            bail!("{refused} were left because they run; --force purges them all the same");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Resolve {
    fn body(&self) -> anyhow::Result<Value> {
        let outcome = match self.outcome {
            Outcome::Ran => "ran",
            Outcome::NotRun => "not_run",
            Outcome::Unsure => "unsure",
        };
        let mut body = json!({ "outcome": outcome, "why": self.why });
        if let Some(reply) = self.reply()? {
            body["reply"] = reply;
        }
        Ok(body)
    }

    fn reply(&self) -> anyhow::Result<Option<Value>> {
        let given = self.status.is_some()
            || !self.headers.is_empty()
            || self.body.is_some()
            || self.body_file.is_some();
        match (self.outcome, self.status) {
            (Outcome::Ran, Some(status)) => self.made(status).map(Some),
            (Outcome::Ran, None) => {
                bail!("with `--outcome ran` goes --status, and the reply's --header and --body")
            }
            (_, _) if given => bail!("a reply goes with `--outcome ran` only"),
            (_, _) => Ok(None),
        }
    }

    fn made(&self, status: u16) -> anyhow::Result<Value> {
        let mut headers = Vec::new();
        for line in &self.headers {
            let Some((name, value)) = line.split_once(':') else {
                bail!("`{}` is no header: write NAME: VALUE", table::plain(line));
            };
            headers.push((name.trim(), value.trim()));
        }
        let mut reply = json!({ "status": status, "headers": headers });
        if let Some(body) = &self.body {
            reply["body"] = body.as_str().into();
        }
        if let Some(file) = &self.body_file {
            let bytes = std::fs::read(file)
                .with_context(|| format!("{} cannot be read", file.display()))?;
            reply["body_base64"] = BASE64.encode(&bytes).into();
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-16T12:00:00Z".parse().expect("a moment")
    }

    #[test]
    fn a_page_is_a_table() {
        let page = json!({
            "operations": [{
                "operation_id": "op_1", "state": "unknown", "tenant": "acme", "project": "shop",
                "endpoint": "payments.create", "key": "k\u{1b}[2J", "original_status": null,
                "created_at": "2026-11-16T10:00:00.000Z",
            }],
            "next": "17",
        });
        assert_eq!(
            listing(&page, now()),
            concat!(
                "OPERATION  STATE    TENANT  PROJECT  ENDPOINT         KEY         STATUS  CREATED\n",
                "op_1       unknown  acme    shop     payments.create  k\\u{1b}[2J  -       2h ago\n",
                "There are more: --after 17\n",
            )
        );
        let none = json!({ "operations": [], "next": null });
        assert_eq!(listing(&none, now()), "No operation matches.\n");
    }

    #[test]
    fn an_operation_is_told_line_by_line() {
        let operation = json!({
            "operation_id": "op_1", "state": "completed", "tenant": "acme", "project": "shop",
            "subject": "user:1", "endpoint": "payments.create", "key": "k",
            "name": "t-acme:shop:user:1:k", "class": "financial", "fence": 7, "attempts": 1,
            "created_at": "2026-11-16T10:00:00.000Z", "completed_at": "2026-11-16T10:00:01.000Z",
            "expires_at": "2026-11-23T10:00:01.000Z", "forgotten_at": null, "lease_until": null, "due_at": null,
            "terms": { "retention": "7d", "remember": "30d", "lease": "2m", "ttl_basis": "completion",
                       "expiry": "strict", "after_loss": "hold" },
            "reply": { "kept": "whole", "status": 201, "headers": [["content-type", "text/plain"]],
                       "body_bytes": 9, "body_text": "paid\n\u{1b}[2J", "body_base64": "" },
        });
        assert_eq!(
            shown(&operation, now()),
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
                "terms      retention 7d, remember 30d, lease 2m, counted from completion, expiry strict, after loss hold\n",
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
