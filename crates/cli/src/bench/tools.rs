//! The load generators: `wrk` and `h2load` where they are installed, and this program's own.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::load::{Length, Load, Run};
use super::stats::LoadResult;
use super::{h2load, traffic, wrk};

/// A load generator of closed loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Generator {
    Wrk,
    Own,
    H2load,
}

/// The programs that were found on this machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tools {
    /// The generator for HTTP/1.1.
    pub(super) generator: Generator,
    pub(super) h2load: bool,
    /// Whether the traffic to servers can be counted.
    pub(super) ss: bool,
    #[serde(skip)]
    directory: PathBuf,
}

impl Tools {
    /// Looks for programs, which will have their scripts in `directory`.
    pub(super) fn find(directory: PathBuf) -> Self {
        let generator = match is_installed(wrk::PROGRAM) {
            true => Generator::Wrk,
            false => Generator::Own,
        };
        Tools {
            generator,
            h2load: is_installed(h2load::PROGRAM),
            ss: is_installed(traffic::PROGRAM),
            directory,
        }
    }

    /// Runs a closed loop by this generator. All responses are counted as answered, including those
    /// of the warm-up.
    pub(super) async fn run(
        &self,
        generator: Generator,
        load: &Load,
    ) -> anyhow::Result<LoadResult> {
        let (warmup, measured) = match load.length {
            Length::Time { warmup, measured } => (warmup, measured),
            Length::Count(_) => return Run::start(load)?.finish().await,
        };
        let run = async |load: &Load, time: Duration| match generator {
            Generator::Wrk => wrk::run(load, time, &self.directory).await,
            Generator::H2load => h2load::run(load, time, &self.directory).await,
            Generator::Own => Run::start(load)?.finish().await,
        };
        if generator == Generator::Own || warmup.is_zero() {
            return run(load, measured).await;
        }
        let warm_up = Load {
            workload: load.workload.with_other_keys(),
            ..load.clone()
        };
        let warmed_up = run(&warm_up, warmup).await.context("during the warm-up")?;
        let mut result = run(load, measured).await?;
        result.answered += warmed_up.answered;
        result.faults.add(warmed_up.faults);
        Ok(result)
    }

    /// The largest number of requests that such a generator leaves without an answer at its end.
    pub(super) fn unanswered_max(generator: Generator, connections: usize) -> u64 {
        // The warm-up has an end too.
        match generator {
            Generator::Own => 0,
            Generator::Wrk => 2 * connections as u64,
            Generator::H2load => 2 * h2load::STREAMS as u64,
        }
    }
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
