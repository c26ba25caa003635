//! `onceward demo`: a walk through what the gateway does, on one machine.
//!
//! It runs a sample payments service and a gateway process with the embedded store in a temporary
//! directory, and goes through seven situations. Each step shows the request, the response and the
//! number of payments made, and checks them: with `--exit` a failed check makes the exit status 1.

mod client;
mod environment;
mod walkthrough;

use std::process::ExitCode;

use environment::Environment;
use tokio::signal::unix::{SignalKind, signal};

use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit after the walk-through, with status 1 if a step failed.
    #[arg(long)]
    exit: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut environment = Environment::start().await?;
    let failed = walkthrough::run(&mut environment).await?;
    if !args.exit {
        keep_running(&environment).await?;
    }
    environment.stop().await?;
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Leaves everything running for the user's own requests.
async fn keep_running(environment: &Environment) -> anyhow::Result<()> {
    let at = environment.address();
    output::print(&format!(
        r#"
The service and the gateway are still running. Try these yourself, each line twice:

  curl -i http://{at}/payments -H 'Idempotency-Key: mine-1' -H 'Content-Type: application/json' -d '{{"amount":4200,"currency":"EUR"}}'
  curl -i http://{at}/payments -H 'Idempotency-Key: mine-1' -H 'Content-Type: application/json' -d '{{"amount":1,"currency":"EUR"}}'
  curl -i http://{at}/payments/by-idempotency-key/mine-1
  curl -i http://{at}/payments/by-idempotency-key/mine-1/status
  curl -s http://{at}/payments/count
  curl -s http://{admin}/metrics | grep idempotency

Press Ctrl-C to stop.
"#,
        admin = environment.admin(),
    ))?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
