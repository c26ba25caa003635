//! `onceward reload`: makes the gateway read its configuration again.

use std::process::ExitCode;

use serde_json::json;

use crate::admin::table::cell;
use crate::admin::{AdminArgs, Client, Role};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
    /// The reason for the change, recorded in the audit log.
    #[arg(long, value_name = "REASON")]
    why: String,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.admin)?;
    let body = json!({ "why": args.why });
    let result = client.post(Role::Admin, "/admin/v1/reload", &body).await?;
    client.report(&result, |answer| format!("{}\n", cell(&answer["detail"])))
}
