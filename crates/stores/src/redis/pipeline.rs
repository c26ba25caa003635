//! Commands of several callers, sent in one pipeline: the server then reads,
//! writes and logs once for all of them. A single command is sent without delay.

use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{LiveConnection, Reconnecting};
use crate::mailbox::{Outbox, Responder, responder};

/// The most commands in one pipeline.
const PIPELINE_MAX: usize = 256;
/// The most commands that wait to be sent; further callers wait to enter.
const WAITING_MAX: usize = 1_024;
/// The number of pipelines under way from which on commands are collected: until one of
/// them is answered, or for [`COLLECT_MAX`]. Callers run on other threads, and a pipeline
/// for each command would cost a wake of every thread for each.
const AT_ONCE: usize = 2;
/// How long commands are collected at most, so that a distant server does not delay them
/// by another round trip.
const COLLECT_MAX: Duration = Duration::from_millis(1);
/// The most pipelines under way, so that a server that does not answer is not
/// sent commands without end.
const UNDER_WAY_MAX: usize = 256;

/// Sends the commands of all callers of a connection.
pub(super) struct CommandPipeline {
    commands: mpsc::Sender<PendingCommand>,
    _task: AbortOnDropHandle<()>,
}

struct PendingCommand {
    command: Cmd,
    answer: Responder<RedisResult<Value>>,
}

impl CommandPipeline {
    pub(super) fn new(reconnecting: Arc<Reconnecting>) -> Self {
        let (commands, waiting) = mpsc::channel(WAITING_MAX);
        Self {
            commands,
            _task: AbortOnDropHandle::new(tokio::spawn(run(waiting, reconnecting))),
        }
    }

    /// Sends a command and returns its answer, which may be an error of the server.
    pub(super) async fn send(&self, command: Cmd) -> RedisResult<Value> {
        let (answer, answered) = responder();
        let pending = PendingCommand { command, answer };
        self.commands.send(pending).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

/// Occurs only while the store itself is being dropped.
fn closed() -> RedisError {
    (ErrorKind::Io, "the connection is being closed").into()
}

async fn run(mut waiting: mpsc::Receiver<PendingCommand>, reconnecting: Arc<Reconnecting>) {
    let mut under_way = JoinSet::new();
    while let Some(first) = waiting.recv().await {
        let mut together = vec![first];
        // Connect before anything else is taken: the command of a caller that gives
        // up during the connection attempt is dropped, and what follows, such as
        // taking a claim back, is sent behind everything that was sent.
        let live = match reconnecting.live().await {
            Ok(live) => live,
            Err(error) => {
                while let Ok(next) = waiting.try_recv() {
                    together.push(next);
                }
                refuse(together.into_iter().map(|pending| pending.answer), &error);
                continue;
            }
        };
        if under_way.len() >= AT_ONCE {
            tokio::select! {
                _ = under_way.join_next() => {}
                () = sleep(COLLECT_MAX) => {}
            }
        }
        // Callers that the same read woke send their next commands now.
        yield_now().await;
        while together.len() < PIPELINE_MAX
            && let Ok(next) = waiting.try_recv()
        {
            together.push(next);
        }
        // A command whose caller has gone was not begun yet.
        together.retain(|pending| !pending.answer.is_gone());
        let mut sent = Box::pin(send(together, reconnecting.clone(), live));
        // The first poll sends the pipeline, so that no later one overtakes it.
        if poll!(&mut sent).is_pending() {
            under_way.spawn(sent);
        }
        while under_way.try_join_next().is_some() {}
        while under_way.len() >= UNDER_WAY_MAX {
            under_way.join_next().await;
        }
    }
}

async fn send(
    together: Vec<PendingCommand>,
    reconnecting: Arc<Reconnecting>,
    live: LiveConnection,
) {
    let mut all = Pipeline::with_capacity(together.len());
    let mut callers = Vec::with_capacity(together.len());
    for pending in together {
        all.add_command(pending.command);
        callers.push(pending.answer);
    }
    if callers.is_empty() {
        return;
    }
    match reconnecting.send_all(live, &all, callers.len()).await {
        Ok(answers) => {
            let mut outbox = Outbox::default();
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that has gone misses its answer.
                outbox.add(caller, Ok(answer), drop);
            }
        }
        Err(error) => refuse(callers, &error),
    }
}

fn refuse(callers: impl IntoIterator<Item = Responder<RedisResult<Value>>>, error: &RedisError) {
    let mut outbox = Outbox::default();
    for caller in callers {
        outbox.add(caller, Err(error.clone()), drop);
    }
}
