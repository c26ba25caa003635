//! `onceward demo`: every step of the walk-through, checked by the program itself, and what a
//! signal leaves behind.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::fixture::gateway::{onceward, run_to_end};
use crate::fixture::until;

/// The limit for a stage of the walk-through on a slow machine.
const STAGE_MAX: Duration = Duration::from_secs(60);

#[tokio::test]
async fn demo_walks_through_all_steps() {
    let output = run_to_end(&["demo", "--exit"].map(OsString::from)).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("All steps went as expected."), "{said}");
    assert_eq!(said.matches("✓ as expected").count(), 7, "{said}");
}

/// The demo, with its temporary directory in this one.
fn demo(directory: &Path, args: &[&str]) -> Command {
    let mut command = onceward();
    command.arg("demo").args(args).env("TMPDIR", directory);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The processes with this path in their arguments.
fn processes_with(path: &Path) -> Vec<Pid> {
    let path = path.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let with_path = ids.filter(|id: &i32| {
        // A process may end meanwhile.
        let arguments = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(path)
    });
    with_path.filter_map(Pid::from_raw).collect()
}

/// Sends the signal to a demo and checks its status and that nothing remains.
async fn end(mut demo: tokio::process::Child, signal: Signal, directory: &Path) {
    let id = Pid::from_raw(demo.id().unwrap().cast_signed()).unwrap();
    kill_process(id, signal).unwrap();
    let ended = timeout(STAGE_MAX, demo.wait()).await.unwrap().unwrap();
    let orphans = processes_with(directory);
    for orphan in &orphans {
        // The test fails below, and leaves none behind itself.
        let _ = kill_process(*orphan, Signal::KILL);
    }
    assert_eq!(orphans, [], "no gateway outlives the demo");
    let left: Vec<_> = fs::read_dir(directory).unwrap().flatten().collect();
    assert!(left.is_empty(), "no directory outlives the demo: {left:?}");
    assert_eq!(ended.code(), Some(128 + signal.as_raw()));
}

#[rstest]
#[case::first_step(&[], "1. A first payment")]
#[case::first_step_of_exit(&["--exit"], "1. A first payment")]
#[case::slow_upstream(&[], "✂ no response")]
#[case::restart(&["--exit"], "6. The gateway is killed")]
#[case::last_step(&[], "7. A service that crashes")]
#[case::after_the_steps(&[], "Press Ctrl-C to stop.")]
#[tokio::test]
async fn a_signal_at_any_stage_ends_the_gateway_and_removes_its_directory(
    #[case] args: &[&str],
    #[case] stage: &str,
    #[values(Signal::TERM, Signal::INT, Signal::HUP)] signal: Signal,
) {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = demo(directory.path(), args).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let shown = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(stage) {
                return;
            }
        }
        panic!("the demo ended before `{stage}`");
    };
    timeout(STAGE_MAX, shown).await.unwrap();
    end(demo, signal, directory.path()).await;
}

#[rstest]
#[tokio::test]
async fn a_signal_ends_a_gateway_that_is_starting(
    #[values(Signal::TERM, Signal::INT, Signal::HUP)] signal: Signal,
) {
    let directory = tempfile::tempdir().unwrap();
    let demo = demo(directory.path(), &[]).spawn().unwrap();
    until("the gateway starts", async || {
        !processes_with(directory.path()).is_empty()
    })
    .await;
    end(demo, signal, directory.path()).await;
}
