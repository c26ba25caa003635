//! Standard output that is closed before a command writes to it, as `head` does to a pipe: the
//! command ends quietly with the status that a shell reports for SIGPIPE.

use std::io::PipeReader;
use std::process::Stdio;
use std::time::Duration;

use rstest::rstest;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::fixture::BODY;
use crate::fixture::command::{CommandOutput, command_at, finish};
use crate::fixture::gateway::{gateway, onceward};
use crate::fixture::origin::{Behaviour, origin};

/// 128 + SIGPIPE.
const CLOSED: i32 = 141;

/// A standard output without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop::<PipeReader>(reader);
    writer.into()
}

async fn finish_closed(mut command: Command) -> CommandOutput {
    command.stdout(closed()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let output = timeout(Duration::from_secs(60), child.wait_with_output()).await;
    output.unwrap().unwrap().into()
}

fn quiet() -> CommandOutput {
    CommandOutput {
        code: CLOSED,
        out: String::new(),
        err: String::new(),
    }
}

#[rstest]
#[case::schema(&["schema"])]
#[case::completions(&["completions", "bash"])]
#[case::sql(&["migrate", "print"])]
#[case::check(&["check", "/nowhere/onceward.toml"])]
#[case::demo(&["demo"])]
#[tokio::test]
async fn a_command_without_a_gateway_ends_quietly(#[case] args: &[&str]) {
    let mut command = onceward();
    command.args(args);
    assert_eq!(finish_closed(command).await, quiet(), "{args:?}");
}

#[tokio::test]
async fn commands_against_a_gateway_end_quietly() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    let reply = gateway.post("k", BODY).await.unwrap();
    let id = reply.header("x-operation-id");
    let commands: [&[&str]; 9] = [
        &["audit"],
        &["audit", "--json"],
        &["keys", "list"],
        &["webhooks", "list"],
        &["classes", "list"],
        &["operations", "list"],
        &["operations", "list", "--json"],
        &["operations", "show", id],
        &["operations", "purge", id, "--why", "a test"],
    ];
    for args in commands {
        let command = command_at(gateway.admin_address(), None, args);
        assert_eq!(finish_closed(command).await, quiet(), "{args:?}");
    }
}

/// Help and version are printed by the argument parser.
#[rstest]
#[case(&["--help"])]
#[case(&["--version"])]
#[case(&["operations", "--help"])]
#[tokio::test]
async fn help_ends_quietly(#[case] args: &[&str]) {
    let mut command = onceward();
    command.args(args);
    let output = finish_closed(command).await;
    assert_eq!((output.code, output.err.as_str()), (0, ""), "{args:?}");
}

#[tokio::test]
async fn an_error_message_needs_no_standard_error() {
    let mut command = onceward();
    command.args(["migrate", "print", "--partitions", "1"]);
    command.stderr(closed());
    assert_eq!(finish(command).await.code, 1);
}

/// A gateway is not ended by a closed log or by a closed standard output.
#[tokio::test]
async fn a_gateway_keeps_serving_when_its_output_is_closed() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let mut command = onceward();
    command.args(plan.args()).stdout(Stdio::piped());
    let mut child = command.stderr(closed()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = timeout(Duration::from_secs(30), lines.next_line()).await;
    let ready = ready.unwrap().unwrap().expect("it becomes ready");
    drop(lines);
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let address = ready["listen"].as_str().unwrap().parse().unwrap();
    let mut client = crate::fixture::client::Client::new(address);
    for key in ["one", "two"] {
        assert_eq!(client.post(key, BODY).await.unwrap().status, 201);
    }
    let id = child.id().unwrap().cast_signed();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, Signal::TERM).unwrap();
    let ended = timeout(Duration::from_secs(30), child.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(0));
}
