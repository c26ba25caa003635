//! Group commit: what several callers ask at the same moment goes to the server
//! as one transaction, in one go, and is acknowledged when that has committed.
//! A commit is what costs most; so the more there is to do, the less each step
//! costs. Who asks alone gets a statement of its own, without delay.
//!
//! What is sent is followed to its end, also when whoever asked has gone: a
//! claim that nobody heard of is taken back by who sent it. Another connection
//! could come too early for that, while the claim is still under way.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use futures_util::future::join_all;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::connect::Pooler;
use super::driver::{Cells, Driver as _, Statement, Value};
use super::fault::Fault;
use super::session::Session;

/// How many steps one transaction takes at most: up to so many `join_all` polls
/// one after the other, and steps must be sent before their commit.
const STEPS_MAX: usize = 30;
/// How many steps may wait for their turn; who comes later waits to wait.
const WAITING_MAX: usize = 4_096;
/// How many transactions are under way at once: while one commits, the next is
/// being filled.
const WORKERS: usize = 4;
/// How long what was sent is followed.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = Result<Vec<Cells>, Fault>;

/// A statement with its values.
pub(crate) struct Said {
    pub(crate) statement: Arc<Statement>,
    pub(crate) values: Vec<Value>,
}

/// A statement that somebody awaits, and what to do if it gave something to
/// somebody who has gone.
struct Step {
    said: Said,
    otherwise: Option<Said>,
    answer: oneshot::Sender<Answer>,
}

/// Takes steps together.
pub(crate) struct Batches {
    steps: mpsc::Sender<Step>,
    _workers: Vec<AbortOnDropHandle<()>>,
}

impl Batches {
    /// Workers who send on without delay; a transaction that takes longer than
    /// `deadline` keeps nobody waiting but those in it.
    pub(crate) fn new(pool: &Pool, pooler: Pooler, deadline: Duration) -> Self {
        let (steps, waiting) = mpsc::channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let sender = Arc::new(Sender {
            pool: pool.clone(),
            pooler,
            tasks: TaskTracker::new(),
        });
        let work = |_| {
            let work = work(waiting.clone(), sender.clone(), deadline);
            AbortOnDropHandle::new(tokio::spawn(work))
        };
        Self {
            steps,
            _workers: (0..WORKERS).map(work).collect(),
        }
    }

    /// One statement, committed when it is answered. Where it gave a row and
    /// nobody waits for that any more, `otherwise` is said.
    pub(crate) async fn rows(&self, said: Said, otherwise: Option<Said>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let step = Step {
            said,
            otherwise,
            answer,
        };
        // The workers live as long as this does.
        self.steps.send(step).await.map_err(|_| Fault::Ended)?;
        answered.await.map_err(|_| Fault::Ended)?
    }
}

async fn work(
    waiting: Arc<Mutex<mpsc::Receiver<Step>>>,
    sender: Arc<Sender>,
    deadline: Duration,
) {
    loop {
        let mut steps = Vec::new();
        if waiting.lock().await.recv_many(&mut steps, STEPS_MAX).await == 0 {
            return;
        }
        // What nobody awaits any more was not begun yet.
        steps.retain(|step| !step.answer.is_closed());
        if steps.is_empty() {
            continue;
        }
        let sent = sender.tasks.spawn(sender.clone().send(steps));
        // What takes longer goes on by itself.
        let _ = timeout(deadline, sent).await;
    }
}

/// Speaks to the server.
struct Sender {
    pool: Pool,
    pooler: Pooler,
    tasks: TaskTracker,
}

/// Why a transaction has no answers.
enum Refusal {
    /// Nothing of it happened.
    NotCommitted,
    /// It may have happened.
    Unsure(Fault),
}

impl Sender {
    async fn send(self: Arc<Self>, steps: Vec<Step>) {
        if steps.len() == 1 {
            for step in steps {
                self.clone().send_alone(step).await;
            }
            return;
        }
        let taken = timeout(PATIENCE, self.transact(&steps)).await;
        match taken.unwrap_or(Err(Refusal::Unsure(Fault::TooSlow(PATIENCE)))) {
            Ok(answers) => {
                for (step, answer) in steps.into_iter().zip(answers) {
                    self.answer(step, Ok(answer));
                }
            }
            // One spoiled it for all: each by itself.
            Err(Refusal::NotCommitted) => {
                for step in steps {
                    self.tasks.spawn(self.clone().send_alone(step));
                }
            }
            Err(Refusal::Unsure(fault)) => {
                let fault = Arc::new(fault);
                for step in steps {
                    self.answer(step, Err(Fault::Together(fault.clone())));
                }
            }
        }
    }

    async fn send_alone(self: Arc<Self>, step: Step) {
        let answer = self.take(&step.said).await;
        self.answer(step, answer);
    }

    fn answer(self: &Arc<Self>, step: Step, answer: Answer) {
        let Err(Ok(unheard)) = step.answer.send(answer) else {
            return;
        };
        if let Some(otherwise) = step.otherwise.filter(|_| !unheard.is_empty()) {
            let sender = self.clone();
            self.tasks.spawn(async move {
                if let Err(error) = sender.take(&otherwise).await {
                    tracing::warn!(%error, "a claim that nobody heard of is left to its lease");
                }
            });
        }
    }

    /// One statement by itself.
    async fn take(&self, said: &Said) -> Answer {
        let taken = async {
            let mut session = Session::borrow(&self.pool, self.pooler).await?;
            session.rows(&said.statement, &said.values).await
        };
        let taken = timeout(PATIENCE, taken).await;
        taken.unwrap_or(Err(Fault::TooSlow(PATIENCE)))
    }

    /// All steps as one transaction, sent without waiting in between.
    async fn transact(&self, steps: &[Step]) -> Result<Vec<Vec<Cells>>, Refusal> {
        let session = Session::borrow(&self.pool, self.pooler).await;
        let mut session = session.map_err(Refusal::Unsure)?;
        for step in steps {
            // Prepared beforehand: what is sent together must be ready to go.
            let prepared = session.prepare(&step.said.statement).await;
            prepared.map_err(Refusal::Unsure)?;
        }
        let (begun, answers, committed) = {
            let begin = session.begin_together();
            let said = steps.iter().map(|step| &step.said);
            let all = join_all(said.map(|said| session.run(&said.statement, &said.values)));
            let commit = session.commit_together();
            // Polled in this order, they are sent in this order.
            tokio::join!(biased; begin, all, commit)
        };
        begun.map_err(Refusal::Unsure)?;
        let answers: Result<Vec<_>, Fault> = answers.into_iter().collect();
        match (answers, committed) {
            (Ok(answers), Ok(())) => {
                session.rest();
                Ok(answers)
            }
            // The commit of a failed transaction rolls it back.
            (Err(_), Ok(())) => {
                session.rest();
                Err(Refusal::NotCommitted)
            }
            (_, Err(fault)) => Err(Refusal::Unsure(fault)),
        }
    }
}
