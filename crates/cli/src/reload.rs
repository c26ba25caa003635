//! `onceward reload`: the gateway reads its configuration again.

use std::process::ExitCode;

use serde_json::json;

use crate::admin::table::cell;
use crate::admin::{Client, Needs, Reach};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,
    /// Why; the audit keeps it.
    #[arg(long, value_name = "REASON")]
    why: String,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.reach)?;
    let body = json!({ "why": args.why });
    let told = client.post(Needs::Admin, "/admin/v1/reload", &body).await?;
    client.tell(&told, |answer| format!("{}\n", cell(&answer["detail"])))
}
