//! Child processes of a command: this program as a sample service or as a gateway.
//!
//! They are processes, not threads, so that a gateway has its own memory, scheduling and death, as
//! in production. Each prints one line of JSON with its addresses when it is ready. Dropping a
//! [`Process`], or the future that starts it, kills it and waits for its end: a directory that is
//! removed next has no writer any more.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const START_MAX: Duration = Duration::from_secs(30);
/// The limit for the end of a killed process. Only a stuck disk delays it.
const END_MAX: Duration = Duration::from_secs(5);
/// The interval between checks for that end.
const END_POLL: Duration = Duration::from_millis(1);

/// A child process that is ready.
pub(crate) struct Process {
    child: OwnedChild,
    ready: Ready,
    drain: JoinHandle<()>,
}

/// The line that a child prints when it is ready.
#[derive(Deserialize)]
struct Ready {
    listen: SocketAddr,
    admin: Option<SocketAddr>,
}

impl Process {
    /// A sample service on a free port.
    pub(crate) async fn sample() -> anyhow::Result<Self> {
        Self::start(["sample", "--listen", "127.0.0.1:0"].map(OsString::from)).await
    }

    /// A gateway on `listen` in front of `upstream`, with the embedded store in `store`.
    pub(crate) async fn gateway(
        upstream: SocketAddr,
        store: &Path,
        listen: SocketAddr,
    ) -> anyhow::Result<Self> {
        let mut url = OsString::from("embedded:");
        url.push(store);
        Self::start([
            "serve".into(),
            "--upstream".into(),
            format!("http://{upstream}").into(),
            "--listen".into(),
            listen.to_string().into(),
            "--admin".into(),
            "127.0.0.1:0".into(),
            "--log".into(),
            "error".into(),
            "--store".into(),
            url,
        ])
        .await
    }

    /// A gateway with this configuration file.
    pub(crate) async fn configured(config: &Path) -> anyhow::Result<Self> {
        Self::start([
            "serve".into(),
            "--config".into(),
            config.into(),
            "--log".into(),
            "error".into(),
        ])
        .await
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
            .spawn()
            .map(OwnedChild)
            .with_context(|| format!("cannot start `{name}`"))?;
        let stdout = child.0.stdout.take().expect("standard output is piped");
        let mut stdout = BufReader::new(stdout);
        let ready = timeout(START_MAX, read_ready(&mut stdout)).await;
        let ready = ready.map_err(anyhow::Error::from).flatten();
        let ready = ready.with_context(|| format!("`{name}` did not become ready"))?;
        let drain = tokio::spawn(drain(stdout));
        Ok(Process {
            child,
            ready,
            drain,
        })
    }

    /// The address it listens on.
    pub(crate) fn listen(&self) -> SocketAddr {
        self.ready.listen
    }

    /// The address of its admin listener, if it has one.
    pub(crate) fn admin(&self) -> Option<SocketAddr> {
        self.ready.admin
    }

    /// Kills it and waits for its end.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.0.kill().await?)
    }

    /// Its peak resident memory, as the kernel counts it.
    pub(crate) fn peak_memory_bytes(&self) -> Option<u64> {
        let id = self.child.0.id()?;
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        peak_memory_kib(&status).map(|kib| kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.drain.abort();
    }
}

/// A child process, ready or not, that ends before its owner goes on.
struct OwnedChild(Child);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // An error means that it has ended.
        if self.0.start_kill().is_err() {
            return;
        }
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && start.elapsed() < END_MAX {
            thread::sleep(END_POLL);
        }
    }
}

async fn read_ready(stdout: &mut BufReader<ChildStdout>) -> anyhow::Result<Ready> {
    let mut line = String::new();
    ensure!(stdout.read_line(&mut line).await? > 0, "it exited");
    serde_json::from_str(&line).with_context(|| format!("unexpected output {line:?}"))
}

/// Discards further output, so that the child does not block on a full pipe.
async fn drain(mut stdout: BufReader<ChildStdout>) {
    // An error means that the child has exited.
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
    fn peak_memory_is_read_from_proc_status() {
        let status = "Name:\tonceward\nVmPeak:\t  99 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(peak_memory_kib(status), Some(12345));
        assert_eq!(peak_memory_kib("Name:\tonceward\n"), None);
    }
}
