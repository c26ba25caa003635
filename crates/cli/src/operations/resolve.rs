//! `onceward operations resolve`: the operator's decision about an unknown operation.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use data_encoding::BASE64;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::show::details;
use super::{new_state, operation_path};
use crate::admin::{ApiResult, Client, Role, table};
use crate::output;

#[derive(clap::Args)]
pub(super) struct ResolveArgs {
    /// Operation id, op_…
    #[arg(value_name = "OPERATION")]
    id: String,
    /// What happened to the operation.
    #[arg(long, value_name = "OUTCOME")]
    outcome: ResolvedOutcome,
    /// Fence of the run to settle, as shown by `operations show`. Default: the latest run, which is
    /// shown first.
    #[arg(long, value_name = "N")]
    fence: Option<u64>,
    /// With `ran`: status of the reply.
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// With `ran`: header of the reply; repeatable.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// With `ran`: body of the reply.
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// With `ran`: file that contains the body of the reply.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// The reason for the change, recorded in the audit log.
    #[arg(long, value_name = "REASON")]
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ResolvedOutcome {
    /// It ran; retries get the given reply.
    Ran,
    /// It did not run and never will; the key becomes free.
    NotRun,
    /// Not known; only the audit log records it.
    Unsure,
}

/// Sends the fence with the decision, so that a decision about one run never settles a later one.
pub(super) async fn run(
    client: &Client,
    args: &ResolveArgs,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let mut body = args.request()?;
    body["fence"] = match args.fence {
        Some(fence) => fence.into(),
        None => {
            let url = operation_path(&args.id, "");
            let result = client.get(Role::Operate, &url).await?;
            let ApiResult::Done(operation) = &result else {
                return client.report(&result, |_| String::new());
            };
            if !client.is_json() {
                output::print(&format!("{}\n", details(&operation.value, now)))?;
            }
            operation.value["fence"].clone()
        }
    };
    let url = operation_path(&args.id, "/resolve");
    let result = client.post(Role::Operate, &url, &body).await?;
    client.report(&result, new_state)
}

impl ResolveArgs {
    fn request(&self) -> anyhow::Result<Value> {
        let outcome = match self.outcome {
            ResolvedOutcome::Ran => "ran",
            ResolvedOutcome::NotRun => "not_run",
            ResolvedOutcome::Unsure => "unsure",
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
            (ResolvedOutcome::Ran, Some(status)) => self.build_reply(status).map(Some),
            (ResolvedOutcome::Ran, None) => {
                bail!("`--outcome ran` requires --status, and takes --header and --body")
            }
            (_, _) if given => bail!("a reply requires `--outcome ran`"),
            (_, _) => Ok(None),
        }
    }

    fn build_reply(&self, status: u16) -> anyhow::Result<Value> {
        let mut headers = Vec::new();
        for header in &self.headers {
            let Some((name, value)) = header.split_once(':') else {
                bail!(
                    "invalid header `{}`: write NAME: VALUE",
                    table::escape(header)
                );
            };
            headers.push((name.trim(), value.trim()));
        }
        let mut reply = json!({ "status": status, "headers": headers });
        if let Some(body) = &self.body {
            reply["body"] = body.as_str().into();
        }
        if let Some(file) = &self.body_file {
            let bytes =
                std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            reply["body_base64"] = BASE64.encode(&bytes).into();
        }
        Ok(reply)
    }
}
