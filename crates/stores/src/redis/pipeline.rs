//! What several callers ask at the same moment goes out together: the server
//! then reads, writes and logs once for all of them. Who asks alone is not kept
//! waiting for others.

use std::sync::Arc;

use futures_util::poll;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connected, Live};

/// How many questions go out together at most.
const TOGETHER_MAX: usize = 64;
/// How many may wait to go out; who comes later waits to wait.
const WAITING_MAX: usize = 1_024;
/// How many times so many are under way at most: a server that does not answer
/// is not asked without end.
const UNDER_WAY_MAX: usize = 256;

/// Takes questions and brings their answers.
pub(super) struct Post {
    questions: mpsc::Sender<Asked>,
    _carrier: AbortOnDropHandle<()>,
}

struct Asked {
    question: Cmd,
    answer: oneshot::Sender<RedisResult<Value>>,
}

impl Post {
    pub(super) fn new(connected: Arc<Connected>) -> Self {
        let (questions, waiting) = mpsc::channel(WAITING_MAX);
        Self {
            questions,
            _carrier: AbortOnDropHandle::new(tokio::spawn(carry(waiting, connected))),
        }
    }

    /// The answer to a question, which may be an error of the server.
    pub(super) async fn ask(&self, question: Cmd) -> RedisResult<Value> {
        let (answer, answered) = oneshot::channel();
        let asked = Asked { question, answer };
        self.questions.send(asked).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

/// Only while the store itself is being dropped.
fn ended() -> RedisError {
    (ErrorKind::Io, "the connection is being closed").into()
}

async fn carry(mut waiting: mpsc::Receiver<Asked>, connected: Arc<Connected>) {
    let mut under_way = JoinSet::new();
    while let Some(first) = waiting.recv().await {
        let mut together = vec![first];
        // First of all: who goes while a connection is made has its question
        // forgotten with it, and what follows, such as taking a claim back, comes
        // behind whatever is sent.
        let live = match connected.live().await {
            Ok(live) => live,
            Err(error) => {
                while let Ok(next) = waiting.try_recv() {
                    together.push(next);
                }
                for asked in together {
                    drop(asked.answer.send(Err(error.clone())));
                }
                continue;
            }
        };
        // Whoever was woken by the same read asks now, too.
        yield_now().await;
        while together.len() < TOGETHER_MAX
            && let Ok(next) = waiting.try_recv()
        {
            together.push(next);
        }
        // What nobody awaits any more was not begun yet.
        together.retain(|asked| !asked.answer.is_closed());
        let mut sent = Box::pin(send(together, connected.clone(), live));
        // On its way after this, so that nothing overtakes it.
        if poll!(&mut sent).is_pending() {
            under_way.spawn(sent);
        }
        while under_way.try_join_next().is_some() {}
        while under_way.len() >= UNDER_WAY_MAX {
            under_way.join_next().await;
        }
    }
}

async fn send(together: Vec<Asked>, connected: Arc<Connected>, live: Live) {
    let mut all = Pipeline::with_capacity(together.len());
    let mut waiting = Vec::with_capacity(together.len());
    for asked in together {
        all.add_command(asked.question);
        waiting.push(asked.answer);
    }
    if waiting.is_empty() {
        return;
    }
    // Who has gone does not hear it.
    match connected.send_all(live, &all, waiting.len()).await {
        Ok(answers) => {
            for (waits, answer) in waiting.into_iter().zip(answers) {
                drop(waits.send(Ok(answer)));
            }
        }
        Err(error) => {
            for waits in waiting {
                drop(waits.send(Err(error.clone())));
            }
        }
    }
}
