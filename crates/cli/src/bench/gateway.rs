//! The gateway that is measured: a fresh process with a store of its own, or one that was given.
//!
//! It is primed when it is opened, so that its oldest records are the ones replayed: on a full
//! store they were written a million records ago.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::process::Process;

use super::load::{Length, Load, Run};
use super::script::{REPLAY_KEYS, Script, Seed};
use super::tally::Answers;
use super::target::Target;

const PRIME_CONNECTIONS: usize = 16;
/// Filling is quickest with many at once, which share a sync.
const FILL_CONNECTIONS: usize = 256;
const BAR_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Gateway {
    target: Target,
    primed: Seed,
    // Dropped in this order: the process ends before its directory goes.
    process: Option<Process>,
    store: Option<TempDir>,
}

impl Gateway {
    /// A new process with an empty store in a directory of its own under `stores`.
    pub(super) async fn fresh(upstream: Target, stores: &Path) -> anyhow::Result<Self> {
        let store = TempDir::with_prefix_in("store-", stores)?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let process = Process::gateway(upstream.addr(), store.path(), listen).await?;
        let target = Target::at(process.listen())?;
        let primed = prime(target).await?;
        Ok(Gateway {
            target,
            primed,
            process: Some(process),
            store: Some(store),
        })
    }

    /// One that already runs; its store and memory are nobody's business.
    pub(super) async fn given(target: Target) -> anyhow::Result<Self> {
        let primed = prime(target).await?;
        Ok(Gateway {
            target,
            primed,
            process: None,
            store: None,
        })
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    pub(super) fn first(&self) -> anyhow::Result<Script> {
        seed().map(Script::First)
    }

    pub(super) fn replay(&self) -> Script {
        Script::Replay(self.primed)
    }

    /// Records so many operations, each by a request like any other, and shows how far it is.
    pub(super) async fn fill(&self, records: u64) -> anyhow::Result<()> {
        let bar = ProgressBar::new(records).with_style(style(
            "filling the store {bar:30} {human_pos} of {human_len} records, {rate}, {eta} left",
        ));
        let length = Length::Count(records);
        let run = start(self.target, self.first()?, FILL_CONNECTIONS, length)?;
        let begun = run.begun();
        let mut finish = pin!(run.finish());
        let outcome = loop {
            tokio::select! {
                outcome = &mut finish => break outcome?,
                () = sleep(BAR_PAUSE) => bar.set_position(begun()),
            }
        };
        bar.finish_and_clear();
        expect_clean("filling the store", &outcome.answers)
    }

    /// The most memory that the process ever had resident.
    pub(super) fn peak_memory_bytes(&self) -> Option<u64> {
        self.process.as_ref().and_then(Process::peak_memory_bytes)
    }

    /// Ends it and removes its store, both before this returns. Dropping does the same, later.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        if let Some(mut process) = self.process {
            process.kill().await?;
        }
        self.store.map_or(Ok(()), TempDir::close)?;
        Ok(())
    }
}

pub(super) fn seed() -> anyhow::Result<Seed> {
    getrandom::u64()
        .map(Seed)
        .map_err(|error| anyhow!("the system has no randomness: {error}"))
}

/// `{rate}` in a template is steps per second, whole.
pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates are literals that parse")
        .with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
            // What cannot be drawn is only missing on the screen.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        })
}

async fn prime(target: Target) -> anyhow::Result<Seed> {
    let seed = seed()?;
    let length = Length::Count(REPLAY_KEYS);
    let run = start(target, Script::First(seed), PRIME_CONNECTIONS, length)?;
    expect_clean("priming the gateway", &run.finish().await?.answers)?;
    Ok(seed)
}

fn start(
    target: Target,
    script: Script,
    connections: usize,
    length: Length,
) -> anyhow::Result<Run> {
    Run::start(Load {
        target,
        script,
        connections,
        threads: 1,
        length,
    })
}

fn expect_clean(what: &str, answers: &Answers) -> anyhow::Result<()> {
    let Answers {
        faults,
        first_fault,
        ..
    } = answers;
    let first = first_fault.as_deref().unwrap_or_default();
    ensure!(
        *faults == 0,
        "{what} went wrong {faults} times, first: {first}"
    );
    Ok(())
}
