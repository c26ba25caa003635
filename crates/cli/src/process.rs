//! Child processes of a command: this program as a sample service or as a gateway.
//!
//! They are processes, not threads, so that a gateway has its own memory, scheduling and death, as
//! in production. Each prints one line of JSON with its addresses when it is ready. Dropping a
//! [`Process`], or the future that starts it, kills it and waits for its end: a directory that is
//! removed next has no writer any more.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The environment variable with the key of gateways that share a store.
const KEY_VARIABLE: &str = "ONCEWARD_KEY";
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
        let args = ["sample", "--listen", "127.0.0.1:0"].map(OsString::from);
        Self::start(&this_program()?, args, None).await
    }

    /// A gateway of `program` on `listen` in front of `upstream`, with the store at this URL.
    pub(crate) async fn gateway(
        program: &Path,
        upstream: SocketAddr,
        store: OsString,
        listen: SocketAddr,
    ) -> anyhow::Result<Self> {
        Self::start_gateway(program, upstream, store, listen, None).await
    }

    /// The same with a store that several gateways share, for which they need the same key.
    pub(crate) async fn sharing_gateway(
        program: &Path,
        upstream: SocketAddr,
        store: OsString,
        listen: SocketAddr,
        key: &str,
    ) -> anyhow::Result<Self> {
        let key = Some((KEY_VARIABLE, key));
        Self::start_gateway(program, upstream, store, listen, key).await
    }

    async fn start_gateway(
        program: &Path,
        upstream: SocketAddr,
        store: OsString,
        listen: SocketAddr,
        key: Option<(&str, &str)>,
    ) -> anyhow::Result<Self> {
        let args = [
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
            store,
        ];
        Self::start(program, args, key).await
    }

    /// The URL of an embedded store in this directory.
    pub(crate) fn embedded(directory: &Path) -> OsString {
        let mut url = OsString::from("embedded:");
        url.push(directory);
        url
    }

    /// A gateway of `program` with this configuration file.
    pub(crate) async fn configured(program: &Path, config: &Path) -> anyhow::Result<Self> {
        let args = [
            "serve".into(),
            "--config".into(),
            config.into(),
            "--log".into(),
            "error".into(),
        ];
        Self::start(program, args, None).await
    }

    async fn start(
        program: &Path,
        args: impl IntoIterator<Item = OsString>,
        key: Option<(&str, &str)>,
    ) -> anyhow::Result<Self> {
        let args = Vec::from_iter(args);
        let name = args
            .first()
            .and_then(|arg| arg.to_str())
            .unwrap_or_default()
            .to_owned();
        let mut child = Command::new(program)
            .args(&args)
            .envs(key)
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

    /// Its process id, unless it was killed.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.0.id()
    }

    /// Its resident memory, as the kernel counts it.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()?)).ok()?;
        Memory::parse(&status)
    }
}

/// The path of this program.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
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

/// Resident memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) now_bytes: u64,
    pub(crate) peak_bytes: u64,
}

impl Memory {
    /// From `/proc/PID/status`.
    fn parse(status: &str) -> Option<Self> {
        let bytes = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib = line
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse::<u64>()
                .ok()?;
            Some(kib * 1024)
        };
        Some(Memory {
            now_bytes: bytes("VmRSS:")?,
            peak_bytes: bytes("VmHWM:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_proc_status() {
        let status = "Name:\tonceward\nVmPeak:\t  99 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n";
        let expected = Memory {
            now_bytes: 1024,
            peak_bytes: 12345 * 1024,
        };
        assert_eq!(Memory::parse(status), Some(expected));
        assert_eq!(Memory::parse("Name:\tonceward\n"), None);
    }
}
