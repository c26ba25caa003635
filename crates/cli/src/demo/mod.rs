//! `onceward demo`: everything on one machine, and a walk through what it does.
//!
//! A sample payments service, a real gateway process with the embedded store in
//! a temporary directory, and seven things that go wrong. Each step shows the
//! request, the answer and the payments really made, and is checked: a step that
//! is not as it should be makes `--exit` end with code 1.

mod client;
mod stage;
mod walk;

use std::process::ExitCode;

use stage::Stage;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// End after the walk, with code 1 if any step was not as it should be.
    #[arg(long)]
    exit: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut stage = Stage::set().await?;
    let wrong = walk::walk(&mut stage).await?;
    if !args.exit {
        stay(&stage).await?;
    }
    stage.clear().await?;
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Stays up for the reader's own tries.
async fn stay(stage: &Stage) -> anyhow::Result<()> {
    let at = stage.address();
    println!(
        r#"
Everything is still up. Try it yourself; run each line twice:

  curl -i http://{at}/payments -H 'Idempotency-Key: mine-1' -H 'Content-Type: application/json' -d '{{"amount":4200,"currency":"EUR"}}'
  curl -i http://{at}/payments -H 'Idempotency-Key: mine-1' -H 'Content-Type: application/json' -d '{{"amount":1,"currency":"EUR"}}'
  curl -i http://{at}/payments/by-idempotency-key/mine-1
  curl -i http://{at}/payments/by-idempotency-key/mine-1/status
  curl -s http://{at}/payments/count
  curl -s http://{admin}/metrics | grep idempotency

Ctrl-C ends it."#,
        admin = stage.admin(),
    );
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
