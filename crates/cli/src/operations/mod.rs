//! `onceward operations`: finding and showing operations, and the changes an operator may make to
//! them. Each verb has a file of its own.

mod filter;
mod list;
mod purge;
mod resolve;
mod show;

use std::process::ExitCode;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admin::table::cell;
use crate::admin::{AdminArgs, Client, Role, path};

const OPERATIONS: &str = "/admin/v1/operations";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List matching operations, the most recently claimed or settled first.
    List(list::ListArgs),
    /// Show an operation in full.
    Show(show::ShowArgs),
    /// Delete operations: their keys become free, and a retry runs.
    Purge(purge::PurgeArgs),
    /// Settle an unknown operation.
    Resolve(resolve::ResolveArgs),
    /// Let a paused operation continue.
    Resume {
        /// Operation id, op_…
        #[arg(value_name = "OPERATION")]
        id: String,
        /// The reason for the change, recorded in the audit log.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.admin)?;
    let now = Timestamp::now();
    match args.command {
        Command::List(args) => list::run(&client, args, now).await,
        Command::Show(args) => show::run(&client, &args, now).await,
        Command::Purge(args) => purge::run(&client, &args, now).await,
        Command::Resolve(args) => resolve::run(&client, &args, now).await,
        Command::Resume { id, why } => {
            let body = json!({ "why": why });
            let result = client
                .post(Role::Operate, &operation_path(&id, "/resume"), &body)
                .await?;
            client.report(&result, new_state)
        }
    }
}

/// The API's path of an operation, followed by a verb or nothing.
pub(crate) fn operation_path(id: &str, verb: &str) -> String {
    path("/admin/v1/operations/", id, verb)
}

/// The state of an operation after a change.
pub(crate) fn new_state(answer: &Value) -> String {
    format!(
        "{} is {}.\n",
        cell(&answer["operation_id"]),
        cell(&answer["state"])
    )
}
