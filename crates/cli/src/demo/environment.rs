//! The processes of the demo: the sample service and a gateway in front of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use tempfile::TempDir;

use crate::process::{Process, this_program};
use crate::sample_upstream::SampleUpstream;

/// The running demo.
pub(super) struct Environment {
    sample: SampleUpstream,
    upstream: SocketAddr,
    gateway: Process,
    // Dropped last: the gateway ends before its directory is removed.
    store: TempDir,
}

impl Environment {
    /// Starts everything on free ports.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let (upstream, sample) = SampleUpstream::start(loopback)
            .await
            .context("the sample service cannot listen")?;
        let store = TempDir::with_prefix("onceward-demo-")?;
        let gateway = Process::gateway(
            &this_program()?,
            upstream,
            Process::embedded(store.path()),
            loopback,
        )
        .await?;
        Ok(Self {
            sample,
            upstream,
            gateway,
            store,
        })
    }

    /// The address the gateway listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.gateway.listen()
    }

    /// The address of the gateway's admin listener.
    pub(super) fn admin(&self) -> SocketAddr {
        self.gateway.admin().unwrap_or_else(|| self.address())
    }

    /// The number of payments that the service made.
    pub(super) fn payments(&self) -> u64 {
        self.sample.payments()
    }

    /// Kills the gateway (SIGKILL) and starts it again on the same port and store. Returns the time
    /// that the start took.
    pub(super) async fn kill_and_restart(&mut self) -> anyhow::Result<Duration> {
        let listen = self.gateway.listen();
        self.gateway.kill().await?;
        let start = Instant::now();
        let store = Process::embedded(self.store.path());
        self.gateway = Process::gateway(&this_program()?, self.upstream, store, listen).await?;
        Ok(start.elapsed())
    }

    /// Ends everything and removes the directory.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.gateway.kill().await?;
        self.store.close()?;
        Ok(())
    }
}
