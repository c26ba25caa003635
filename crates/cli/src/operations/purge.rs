//! `onceward operations purge`: by id, or in bulk by a filter with a count, a question and a
//! progress bar.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::filter::Filter;
use super::{OPERATIONS, operation_path};
use crate::admin::{Client, Role, query, table};
use crate::output;

/// How many operations one request counts or purges.
const COUNT_PAGE: usize = 1_000;
const PURGE_PAGE: usize = 200;
/// Counting stops here; a larger number is shown as `more than`.
const COUNT_MAX: u64 = 100_000;

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
    if args.all || !args.filter.parameters(now)?.is_empty() {
        bail!("give operation ids or a filter, not both");
    }
    let mut total = Total::default();
    for id in &args.ids {
        let body = json!({ "force": args.force, "why": args.why });
        let result = client
            .post(Role::Operate, &operation_path(id, "/purge"), &body)
            .await?;
        let answer = result
            .done()
            .with_context(|| format!("{} was not purged", table::escape(id)))?;
        total.add(&answer);
    }
    total.report(client)
}

/// Counts, asks, then purges page by page.
async fn purge_matching(
    client: &Client,
    args: &PurgeArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let parameters = args.filter.parameters(now)?;
    if parameters.is_empty() != args.all {
        bail!("give operation ids, a filter (such as --tenant T --state unknown), or --all");
    }
    let count = count(client, &parameters).await?;
    if count == 0 {
        return Total::default().report(client);
    }
    if !args.yes {
        confirm(count)?;
    }
    let filter: Map<_, _> = parameters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let mut body = json!({ "force": args.force, "why": args.why, "limit": PURGE_PAGE });
    match args.all {
        true => body["all"] = true.into(),
        false => body["filter"] = filter.into(),
    }
    let bar = progress(count);
    let mut total = Total::default();
    loop {
        let result = client
            .post(Role::Operate, &format!("{OPERATIONS}/purge"), &body)
            .await?;
        let answer = result
            .done()
            .with_context(|| format!("{} operations had been purged", total.purged))?;
        total.add(&answer);
        bar.set_length(count.max(total.processed()));
        bar.set_position(total.processed());
        if answer["more"] != true {
            break;
        }
        body["after"] = answer["after"].clone();
    }
    bar.finish_and_clear();
    total.report(client)
}

async fn count(
    client: &Client,
    parameters: &[(&'static str, Option<String>)],
) -> anyhow::Result<u64> {
    let (mut count, mut after) = (0, None);
    loop {
        let mut parameters = parameters.to_vec();
        parameters.extend([("limit", Some(COUNT_PAGE.to_string())), ("after", after)]);
        let url = query(OPERATIONS, &parameters);
        let page = client.get(Role::Read, &url).await?.done()?;
        count += table::items(&page, "operations").len() as u64;
        after = page["next"].as_str().map(ToOwned::to_owned);
        if after.is_none() || count > COUNT_MAX {
            return Ok(count);
        }
    }
}

/// Asks for confirmation, because a bulk purge frees many keys at once.
fn confirm(count: u64) -> anyhow::Result<()> {
    let number = match count > COUNT_MAX {
        true => format!("more than {COUNT_MAX}"),
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
fn progress(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} operations, {eta} left");
    let bar = ProgressBar::new(count);
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
}

impl Total {
    fn add(&mut self, answer: &Value) {
        self.purged += answer["purged"].as_u64().unwrap_or(0);
        self.refused += answer["refused"].as_u64().unwrap_or(0);
    }

    fn processed(&self) -> u64 {
        self.purged + self.refused
    }

    fn report(&self, client: &Client) -> anyhow::Result<ExitCode> {
        let Self { purged, refused } = self;
        output::print(&match (client.is_json(), purged) {
            (true, _) => format!(
                "{}\n",
                json!({ "purged": purged, "refused": refused, "more": false, "after": null })
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
