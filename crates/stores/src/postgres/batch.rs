//! Group commit: what several callers ask at the same moment goes to the server
//! as one transaction, in one go, and is acknowledged when that has committed.
//! A commit is what costs most; so the more there is to do, the less each step
//! costs. Who asks alone gets a statement of its own, without delay.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use futures_util::future::join_all;
use tokio::sync::{Mutex, mpsc, oneshot};
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

type Answer = Result<Vec<Cells>, Fault>;

/// One statement that somebody awaits.
struct Step {
    statement: Arc<Statement>,
    values: Vec<Value>,
    answer: oneshot::Sender<Answer>,
}

/// Takes steps together.
pub(crate) struct Batches {
    steps: mpsc::Sender<Step>,
    _workers: Vec<AbortOnDropHandle<()>>,
}

impl Batches {
    pub(crate) fn new(pool: &Pool, pooler: Pooler, deadline: Duration) -> Self {
        let (steps, waiting) = mpsc::channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let work = |_| {
            let worker = Worker {
                pool: pool.clone(),
                pooler,
                deadline,
                waiting: waiting.clone(),
                alone: TaskTracker::new(),
            };
            AbortOnDropHandle::new(tokio::spawn(worker.run()))
        };
        Self {
            steps,
            _workers: (0..WORKERS).map(work).collect(),
        }
    }

    /// One statement, committed when it is answered.
    pub(crate) async fn rows(&self, statement: &Arc<Statement>, values: Vec<Value>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let step = Step {
            statement: statement.clone(),
            values,
            answer,
        };
        // The workers live as long as this does.
        self.steps.send(step).await.map_err(|_| Fault::Ended)?;
        answered.await.map_err(|_| Fault::Ended)?
    }
}

struct Worker {
    pool: Pool,
    pooler: Pooler,
    deadline: Duration,
    waiting: Arc<Mutex<mpsc::Receiver<Step>>>,
    alone: TaskTracker,
}

impl Worker {
    async fn run(self) {
        let mut steps = Vec::new();
        while self.waiting.lock().await.recv_many(&mut steps, STEPS_MAX).await > 0 {
            // Nobody awaits what was cancelled while it waited, and it was not begun.
            steps.retain(|step| !step.answer.is_closed());
            match steps.len() {
                0 => {}
                1 => self.take_alone(&mut steps).await,
                _ => self.take_together(&mut steps).await,
            }
        }
    }

    async fn take_alone(&self, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            let taken = take(&self.pool, self.pooler, self.deadline, &step).await;
            // Who does not wait any more needs no answer.
            let _ = step.answer.send(taken);
        }
    }

    async fn take_together(&self, steps: &mut Vec<Step>) {
        let taken = match tokio::time::timeout(self.deadline, self.transact(steps)).await {
            Ok(taken) => taken,
            Err(_) => Err(Refusal::Unsure(Fault::TooSlow(self.deadline))),
        };
        match taken {
            Ok(answers) => {
                for (step, answer) in steps.drain(..).zip(answers) {
                    let _ = step.answer.send(Ok(answer));
                }
            }
            // One spoiled it for all: each by itself. They do not hold up
            // what comes next.
            Err(Refusal::NotCommitted) => {
                for step in steps.drain(..) {
                    let (pool, pooler, deadline) = (self.pool.clone(), self.pooler, self.deadline);
                    self.alone.spawn(async move {
                        let taken = take(&pool, pooler, deadline, &step).await;
                        let _ = step.answer.send(taken);
                    });
                }
            }
            Err(Refusal::Unsure(fault)) => {
                let fault = Arc::new(fault);
                for step in steps.drain(..) {
                    let _ = step.answer.send(Err(Fault::Together(fault.clone())));
                }
            }
        }
    }

    /// All steps as one transaction, sent without waiting in between.
    async fn transact(&self, steps: &[Step]) -> Result<Vec<Vec<Cells>>, Refusal> {
        let session = Session::borrow(&self.pool, self.pooler).await;
        let mut session = session.map_err(Refusal::Unsure)?;
        for step in steps {
            // Prepared beforehand: what is sent together must be ready to go.
            let prepared = session.prepare(&step.statement).await;
            prepared.map_err(Refusal::Unsure)?;
        }
        let (begun, answers, committed) = {
            let begin = session.begin_together();
            let all = join_all(steps.iter().map(|s| session.run(&s.statement, &s.values)));
            let commit = session.run_commit();
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

/// Why a transaction has no answers.
enum Refusal {
    /// Nothing of it happened.
    NotCommitted,
    /// It may have happened.
    Unsure(Fault),
}

/// One step by itself.
async fn take(pool: &Pool, pooler: Pooler, deadline: Duration, step: &Step) -> Answer {
    let work = async {
        let mut session = Session::borrow(pool, pooler).await?;
        session.rows(&step.statement, &step.values).await
    };
    match tokio::time::timeout(deadline, work).await {
        Ok(taken) => taken,
        Err(_) => Err(Fault::TooSlow(deadline)),
    }
}
