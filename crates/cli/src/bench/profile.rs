//! Records a profile of a gateway during a scenario, by `perf`, for `make profile`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use tokio::process::{Child, Command};

use super::cost::Server;
use super::load::Length;

/// Not a divisor of the rates of timers, which it would hit again and again.
const SAMPLES_PER_SECOND: &str = "997";

/// A running recording.
pub(super) struct Recording(Child);

/// Records the stacks of a server for the length of a load, to `DIRECTORY/NAME.data`.
pub(super) fn record(
    directory: &Path,
    name: &str,
    server: &Server,
    length: Length,
) -> anyhow::Result<Recording> {
    let seconds = match length {
        Length::Time { warmup, measured } => (warmup + measured).as_secs(),
        Length::Count(_) => 1,
    };
    let child = Command::new("perf")
        .args(["record", "--quiet", "--call-graph", "fp", "--freq"])
        .args([SAMPLES_PER_SECOND, "--pid", &server.ids(), "--output"])
        .arg(directory.join(format!("{name}.data")))
        .args(["--", "sleep", &seconds.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start perf")?;
    Ok(Recording(child))
}

impl Recording {
    /// Waits until the recording is written.
    pub(super) async fn finish(mut self) -> anyhow::Result<()> {
        let status = self.0.wait().await?;
        ensure!(status.success(), "perf failed: {status}");
        Ok(())
    }
}
