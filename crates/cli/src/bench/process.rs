//! The processes that a bench starts: a sample upstream and gateways, each this same program.
//!
//! Processes, not threads, so that a gateway's memory and scheduling are its own, as they are in
//! service. Each says in one line of JSON on its standard output where it listens. Dropping one
//! ends it by its id; a gateway's store survives that by design, and nobody needs it afterwards.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::target::Target;

const START_MAX: Duration = Duration::from_secs(30);

/// A child of ours that listens.
pub(super) struct Process {
    child: Child,
    target: Target,
    drain: JoinHandle<()>,
}

/// The line that a child prints when it is ready.
#[derive(Deserialize)]
struct Ready {
    listen: SocketAddr,
}

impl Process {
    pub(super) async fn sample() -> anyhow::Result<Self> {
        Self::start(["sample", "--listen", "127.0.0.1:0"].map(OsString::from)).await
    }

    /// A gateway before `upstream`, with the embedded store in `store`.
    pub(super) async fn gateway(upstream: Target, store: &Path) -> anyhow::Result<Self> {
        let mut url = OsString::from("embedded:");
        url.push(store);
        let options = [
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--log",
            "warn",
        ];
        let upstream = [
            "serve".into(),
            "--upstream".into(),
            upstream.to_string().into(),
        ];
        let args = upstream.into_iter().chain(options.map(OsString::from));
        Self::start(args.chain(["--store".into(), url])).await
    }

    async fn start(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Self> {
        let args = Vec::from_iter(args);
        let name = args
            .first()
            .and_then(|arg| arg.to_str())
            .unwrap_or_default()
            .to_owned();
        let mut child = Command::new(std::env::current_exe()?)
            .args(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("`{name}` cannot be started"))?;
        let stdout = child.stdout.take().expect("its standard output is a pipe");
        let mut stdout = BufReader::new(stdout);
        let ready = timeout(START_MAX, read_ready(&mut stdout)).await;
        let ready = ready.map_err(anyhow::Error::from).flatten();
        let ready = ready.with_context(|| format!("`{name}` did not say where it listens"))?;
        let drain = tokio::spawn(drain(stdout));
        Ok(Process {
            child,
            target: Target::at(ready.listen)?,
            drain,
        })
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    /// Ends it, and returns when it is gone.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// The most memory that it ever had resident, as the kernel counts it.
    pub(super) fn peak_memory_bytes(&self) -> Option<u64> {
        let id = self.child.id()?;
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        peak_memory_kib(&status).map(|kib| kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.drain.abort();
    }
}

async fn read_ready(stdout: &mut BufReader<ChildStdout>) -> anyhow::Result<Ready> {
    let mut line = String::new();
    ensure!(stdout.read_line(&mut line).await? > 0, "it ended");
    serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))
}

/// A child that goes on printing must not block on a full pipe.
async fn drain(mut stdout: BufReader<ChildStdout>) {
    // A broken pipe means that the child ended.
    let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
}

fn peak_memory_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_kernels_words() {
        let status = "Name:\tonceward\nVmPeak:\t  99 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(peak_memory_kib(status), Some(12345));
        assert_eq!(peak_memory_kib("Name:\tonceward\n"), None);
    }
}
