//! `onceward demo`: a walk through what the gateway does, on one machine.
//!
//! It runs a sample payments service and a gateway process with the embedded store in a temporary
//! directory, and goes through seven situations. Each step shows the request, the response and the
//! number of payments made, and checks them: with `--exit` a failed check makes the exit status 1.
//! SIGINT, SIGTERM and SIGHUP end it at any stage; the gateway and the directory never outlive it.

mod client;
mod environment;
mod walkthrough;

use std::process::ExitCode;

use environment::Environment;

use crate::output;
use crate::signals::EndSignals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit after the walk-through, with status 1 if a step failed.
    #[arg(long)]
    exit: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut signals = EndSignals::install()?;
    tokio::select! {
        // First, because Ctrl-C ends the gateway too, and the step that runs would fail.
        biased;
        signal = signals.receive() => Ok(signal.exit_code()),
        result = demonstrate(args) => result,
    }
}

/// Starts everything, goes through the steps and ends everything. Dropping the future ends
/// everything too.
async fn demonstrate(args: Args) -> anyhow::Result<ExitCode> {
    let mut environment = Environment::start().await?;
    let failed = walkthrough::run(&mut environment).await?;
    if !args.exit {
        print_suggestions(&environment)?;
        // Everything runs on for the user's own requests, until a signal arrives.
        std::future::pending::<()>().await;
    }
    environment.stop().await?;
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Prints requests that the user can send.
fn print_suggestions(environment: &Environment) -> anyhow::Result<()> {
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
    ))
}
