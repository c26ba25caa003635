//! `onceward operations purge`: by id, or in bulk by a filter with a preview, a question and a
//! progress bar.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::filter::Filter;
use super::{OPERATIONS, operation_path};
use crate::admin::{Client, Role, table};
use crate::output;

#[derive(clap::Args)]
pub(super) struct PurgeArgs {
    /// Operation ids, op_…; without any, the matching operations are purged.
    #[arg(value_name = "OPERATION")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Purge every operation.
    #[arg(long)]
    all: bool,
    /// Also purge running operations; a retry could then run them a second time.
    #[arg(long)]
    force: bool,
    /// Do not ask before a bulk purge.
    #[arg(long)]
    yes: bool,
    /// The reason for the change, recorded in the audit log.
    #[arg(long, value_name = "REASON")]
    why: String,
}

pub(super) async fn run(
    client: &Client,
    args: &PurgeArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    match args.ids.is_empty() {
        true => purge_matching(client, args, now).await,
        false => purge_by_id(client, args, now).await,
    }
}

async fn purge_by_id(
    client: &Client,
    args: &PurgeArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    if args.all {
        bail!(
            "--all and operation ids exclude each other: drop --all to purge these operations, or drop the ids to purge every operation"
        );
    }
    if !args.filter.parameters(now)?.is_empty() {
        bail!("give operation ids or a filter, not both");
    }
    let mut total = Total::default();
    for id in &args.ids {
        let body = json!({ "force": args.force, "why": args.why });
        let result = client
            .post(Role::Operate, &operation_path(id, "/purge"), &body)
            .await?;
        result
            .done()
            .with_context(|| format!("{} was not purged", table::escape(id)))?;
        total.purged += 1;
    }
    total.report(client)
}

/// Previews, asks, then purges the frozen set. Where more operations match than
/// one set holds, the next set follows.
async fn purge_matching(
    client: &Client,
    args: &PurgeArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let parameters = args.filter.parameters(now)?;
    let options = parameters.iter().map(|(name, _)| format!("--{name}"));
    let options = Vec::from_iter(options).join(" ");
    match (options.as_str(), args.all) {
        ("", false) => {
            bail!("give operation ids, a filter (such as --tenant T --state unknown), or --all")
        }
        ("", true) | (_, false) => {}
        (given, true) => bail!(
            "--all and a filter exclude each other: drop --all to purge the matching operations, or drop {given} to purge every operation"
        ),
    }
    let filter: Map<_, _> = parameters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let mut body = json!({ "force": args.force, "why": args.why });
    match args.all {
        true => body["all"] = true.into(),
        false => body["filter"] = filter.into(),
    }
    let mut total = Total::default();
    let mut confirmed = args.yes;
    let bar = progress();
    loop {
        let preview = post_purge(client, &body, &total).await?;
        let count = preview["count"].as_u64().unwrap_or(0);
        if count > 0 && !confirmed {
            confirm(count, !preview["next"].is_null())?;
            confirmed = true;
        }
        bar.inc_length(count);
        if preview["set"].is_string() {
            purge_set(client, args, &preview["set"], &mut total, &bar).await?;
        }
        if preview["next"].is_null() {
            break;
        }
        body["after"] = preview["next"].clone();
    }
    bar.finish_and_clear();
    total.report(client)
}

/// Purges a frozen set, batch by batch.
async fn purge_set(
    client: &Client,
    args: &PurgeArgs,
    set: &Value,
    total: &mut Total,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let body = json!({ "set": set, "why": args.why });
    loop {
        let answer = post_purge(client, &body, total).await?;
        total.add(&answer);
        bar.set_position(total.processed());
        if answer["remaining"].as_u64().unwrap_or(0) == 0 {
            return Ok(());
        }
    }
}

async fn post_purge(client: &Client, body: &Value, total: &Total) -> anyhow::Result<Value> {
    let url = format!("{OPERATIONS}/purge");
    let result = client.post(Role::Operate, &url, body).await?;
    match total.purged {
        0 => result.done(),
        purged => result
            .done()
            .with_context(|| format!("{purged} operations had been purged")),
    }
}

/// Asks for confirmation, because a bulk purge frees many keys at once.
fn confirm(count: u64, more: bool) -> anyhow::Result<()> {
    let number = match more {
        true => format!("{count} or more"),
        false => count.to_string(),
    };
    if !std::io::stdin().is_terminal() {
        bail!("this purges {number} operations; confirm with --yes");
    }
    output::note(&format!(
        "This purges {number} operations. Their keys become free, and retries run. Type `purge` to continue: "
    ));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "purge" {
        bail!("nothing was purged");
    }
    Ok(())
}

/// A progress bar on standard error, drawn only on a terminal.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} operations, {eta} left");
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The sum over several requests.
#[derive(Default)]
struct Total {
    purged: u64,
    refused: u64,
    skipped: u64,
}

impl Total {
    fn add(&mut self, answer: &Value) {
        let number = |name: &str| answer[name].as_u64().unwrap_or(0);
        self.purged += number("done");
        self.refused += number("refused");
        self.skipped += number("skipped");
    }

    fn processed(&self) -> u64 {
        self.purged + self.refused + self.skipped
    }

    fn report(&self, client: &Client) -> anyhow::Result<ExitCode> {
        let Self {
            purged,
            refused,
            skipped,
        } = self;
        output::print(&match (client.is_json(), purged) {
            (true, _) => format!(
                "{}\n",
                json!({ "purged": purged, "refused": refused, "skipped": skipped })
            ),
            (false, 1) => "1 operation purged.\n".to_owned(),
            (false, purged) => format!("{purged} operations purged.\n"),
        })?;
        if *refused > 0 {
            bail!("{refused} running operations were not purged; use --force to purge them too");
        }
        Ok(ExitCode::SUCCESS)
    }
}
