//! The demo's stage: the sample service and a gateway process before it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use tempfile::TempDir;

use crate::process::Process;
use crate::sample::Sample;

/// What the demo runs on.
pub(super) struct Stage {
    sample: Sample,
    upstream: SocketAddr,
    gateway: Process,
    // Dropped last: the gateway ends before its directory goes.
    store: TempDir,
}

impl Stage {
    /// Starts everything on free ports.
    pub(super) async fn set() -> anyhow::Result<Self> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let (upstream, sample) = Sample::start(loopback)
            .await
            .context("the sample service cannot listen")?;
        let store = TempDir::with_prefix("onceward-demo-")?;
        let gateway = Process::gateway(upstream, store.path(), loopback).await?;
        Ok(Self {
            sample,
            upstream,
            gateway,
            store,
        })
    }

    /// Where the gateway listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.gateway.listen()
    }

    /// Where the gateway's admin listener is.
    pub(super) fn admin(&self) -> SocketAddr {
        self.gateway.admin().unwrap_or_else(|| self.address())
    }

    /// How many payments were really made.
    pub(super) fn payments(&self) -> u64 {
        self.sample.payments()
    }

    /// Kills the gateway without warning (SIGKILL) and starts another on the
    /// same port and store; tells how long that took.
    pub(super) async fn kill_and_restart(&mut self) -> anyhow::Result<Duration> {
        let listen = self.gateway.listen();
        self.gateway.kill().await?;
        let start = Instant::now();
        self.gateway = Process::gateway(self.upstream, self.store.path(), listen).await?;
        Ok(start.elapsed())
    }

    /// Ends everything and removes the directory.
    pub(super) async fn clear(mut self) -> anyhow::Result<()> {
        self.gateway.kill().await?;
        self.store.close()?;
        Ok(())
    }
}
