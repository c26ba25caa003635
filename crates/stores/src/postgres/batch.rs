//! Group commit: the steps of several callers at the same moment are one statement,
//! and are acknowledged when it has committed. Commits cost most, then statements, so
//! with more callers each step costs less. A single step is sent without delay.
//!
//! A statement that was sent is followed to its end, even if its caller has gone: the
//! sender takes back a claim that was granted to a caller that has gone. Another
//! connection could be too early for that, while the claim is still under way.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use onceward_core::deadline::within;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::task::{JoinHandle, yield_now};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::address::Pooler;
use super::driver::{Cells, Driver as _, Statement, Value};
use super::error::Error;
use super::row::ClaimRows;
use super::session::Session;
use super::statements::BatchStatement;
use crate::mailbox::{Outbox, Responder, responder};

/// The most steps in one statement.
const STEPS_MAX: usize = 64;
/// The most steps that wait to be sent; further callers wait to enter.
const WAITING_MAX: usize = 4_096;
/// The number of statements of a kind under way at once: while one commits, the next
/// is collected.
const WORKERS: usize = 2;
/// How long a statement is followed.
const FOLLOW_MAX: Duration = Duration::from_secs(60);

/// A statement with its values.
pub(crate) struct Query {
    pub(crate) statement: Arc<Statement>,
    pub(crate) values: Vec<Value>,
}

/// One caller's step.
pub(crate) struct BatchStep {
    /// Its values in the statement.
    pub(crate) values: Vec<Value>,
    /// The first column of the row that answers it; by default its position among the
    /// steps. A row that begins with a digest answers every step whose first value is
    /// that digest.
    pub(crate) mark: Option<Value>,
    /// The query that takes back a claim that was granted, if its caller has gone.
    pub(crate) otherwise: Option<Query>,
}

type RowResult = Result<Option<Cells>, Error>;

struct PendingStep {
    step: BatchStep,
    answer: Responder<RowResult>,
}

/// Sends steps of one kind together.
pub(crate) struct Batcher {
    steps: mpsc::Sender<PendingStep>,
    _workers: Vec<AbortOnDropHandle<()>>,
}

/// The common part of all steps of a kind.
pub(crate) struct BatchKind {
    pub(crate) steps: Arc<BatchStatement>,
    /// Returns the first values, which all steps share.
    pub(crate) first: Box<dyn Fn() -> Vec<Value> + Send + Sync>,
}

impl Batcher {
    /// Starts the workers. A statement that takes longer than `deadline` delays only
    /// the steps in it.
    pub(crate) fn new(kind: BatchKind, executor: &Arc<Executor>, deadline: Duration) -> Self {
        let (steps, waiting) = mpsc::channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let sender = Arc::new(BatchSender {
            kind,
            executor: executor.clone(),
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

    /// The row that answers a step, once it is committed.
    pub(crate) async fn row(&self, step: BatchStep) -> RowResult {
        let (answer, answered) = responder();
        // The workers live as long as this does.
        let asked = PendingStep { step, answer };
        self.steps.send(asked).await.map_err(|_| Error::Ended)?;
        answered.await.map_err(|_| Error::Ended)?
    }
}

async fn work(
    waiting: Arc<Mutex<mpsc::Receiver<PendingStep>>>,
    sender: Arc<BatchSender>,
    deadline: Duration,
) {
    loop {
        let mut steps = Vec::new();
        let mut turn = waiting.lock().await;
        if turn.recv_many(&mut steps, STEPS_MAX).await == 0 {
            return;
        }
        // Callers that the same commit woke send their next steps now.
        yield_now().await;
        while steps.len() < STEPS_MAX
            && let Ok(next) = turn.try_recv()
        {
            steps.push(next);
        }
        drop(turn);
        // A step whose caller has gone was not begun yet.
        steps.retain(|asked| !asked.answer.is_gone());
        if steps.is_empty() {
            continue;
        }
        let sent = sender.executor.spawn(sender.clone().send(steps));
        // A longer statement continues in its own task.
        if within(deadline, sent).await.is_err() {
            sender.executor.close_resting(deadline);
        }
    }
}

/// Sends the steps of a kind.
struct BatchSender {
    kind: BatchKind,
    executor: Arc<Executor>,
}

/// Why a statement returned no rows.
enum BatchFailure {
    /// Nothing of it was committed.
    NotCommitted,
    /// It may be committed.
    Unsure(Error),
}

impl BatchSender {
    async fn send(self: Arc<Self>, steps: Vec<PendingStep>) {
        let taken = within(FOLLOW_MAX, self.run_together(&steps)).await;
        match taken.unwrap_or(Err(BatchFailure::Unsure(Error::TooSlow(FOLLOW_MAX)))) {
            Ok(rows) => self.answer_all(steps, rows),
            // One step failed all of them: each is sent alone.
            Err(BatchFailure::NotCommitted) => {
                for asked in steps {
                    self.executor.spawn(self.clone().send_alone(asked));
                }
            }
            Err(BatchFailure::Unsure(error)) => {
                let error = Arc::new(error);
                let mut outbox = Outbox::default();
                for asked in steps {
                    self.answer(asked, Err(Error::Together(error.clone())), &mut outbox);
                }
            }
        }
    }

    /// A step that may have to wait for a row.
    async fn send_alone(self: Arc<Self>, asked: PendingStep) {
        let values = self.values_of(&asked);
        let _turn = self.executor.turn().await;
        if asked.answer.is_gone() {
            return;
        }
        let rows = self.executor.run(&self.kind.steps.one, &values).await;
        let row = rows.map(|rows| rows.into_iter().next());
        self.answer(asked, row, &mut Outbox::default());
    }

    /// The first values, and those of one step.
    fn values_of(&self, asked: &PendingStep) -> Vec<Value> {
        let mut values = (self.kind.first)();
        values.extend(asked.step.values.iter().cloned());
        values
    }

    /// Gives each step its row. There are few, so a linear search is enough.
    fn answer_all(self: &Arc<Self>, steps: Vec<PendingStep>, mut rows: Vec<Cells>) {
        let mut outbox = Outbox::default();
        for (place, asked) in (1..).zip(steps) {
            let place = Value::Int(place);
            let mark = asked.step.mark.as_ref().unwrap_or(&place);
            let row = match rows.iter().position(|row| row.first() == Some(mark)) {
                Some(found) => Some(rows.swap_remove(found)),
                None => {
                    let digest = asked.step.values.first();
                    rows.iter().find(|row| row.first() == digest).cloned()
                }
            };
            self.answer(asked, Ok(row), &mut outbox);
        }
    }

    fn answer(self: &Arc<Self>, asked: PendingStep, answer: RowResult, outbox: &mut Outbox) {
        let PendingStep { step, answer: to } = asked;
        let executor = self.executor.clone();
        outbox.add(to, answer, move |unheard| {
            if let (Ok(Some(row)), Some(otherwise)) = (unheard, step.otherwise)
                && is_granted(&row)
            {
                let undoing = executor.clone();
                executor.spawn(async move { undoing.undo(&otherwise).await });
            }
        });
    }

    /// The first values, and a list of the steps' values for each of the rest.
    fn listed(&self, steps: &[PendingStep]) -> Vec<Value> {
        let mut values = (self.kind.first)();
        let lists = self.kind.steps.many.types.len() - values.len();
        let list = |at: usize| {
            let each = steps.iter().map(|asked| asked.step.values[at].clone());
            Value::List(each.collect())
        };
        values.extend((0..lists).map(list));
        values
    }

    /// All steps in one statement, which does not wait for a locked row: it would
    /// delay the commit of the others.
    async fn run_together(&self, steps: &[PendingStep]) -> Result<Vec<Cells>, BatchFailure> {
        let (statement, values) = match steps {
            [alone] => (&self.kind.steps.one, self.values_of(alone)),
            many => (&self.kind.steps.many, self.listed(many)),
        };
        let session = self.executor.session().await;
        let mut session = session.map_err(BatchFailure::Unsure)?;
        let said = session.run_without_waiting(statement, &values).await;
        let (rows, committed) = said.map_err(BatchFailure::Unsure)?;
        match (rows, committed) {
            (Ok(rows), Ok(())) => Ok(rows),
            // The commit of a failed transaction rolls it back.
            (Err(_), Ok(())) => Err(BatchFailure::NotCommitted),
            (_, Err(error)) => Err(BatchFailure::Unsure(error)),
        }
    }
}

/// Whether a row of grant.sql is a grant: the row of a known key has no fence.
fn is_granted(row: &Cells) -> bool {
    row.get(1) != Some(&Value::Null)
}

/// Runs statements on connections of the pool.
pub(crate) struct Executor {
    pub(crate) pool: Pool,
    pub(crate) pooler: Pooler,
    /// Drives everything that outlives its caller.
    runtime: Handle,
    tasks: TaskTracker,
    /// Limits statements that may wait for a locked row to half of the connections.
    turns: Semaphore,
}

impl Executor {
    pub(crate) fn new(pool: Pool, pooler: Pooler, runtime: Handle) -> Self {
        Self {
            turns: Semaphore::new((pool.status().max_size / 2).max(1)),
            pool,
            pooler,
            runtime,
            tasks: TaskTracker::new(),
        }
    }

    /// Runs work that outlives its caller.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.tasks.spawn_on(work, &self.runtime)
    }

    /// A permit for a statement that may wait for a locked row.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire().await.ok()
    }

    /// One statement that does not wait for a locked row: `None` if it would have to.
    pub(crate) async fn run_without_waiting(
        &self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Option<Vec<Cells>>, Error> {
        let mut session = self.session().await?;
        let (rows, committed) = session.run_without_waiting(statement, values).await?;
        match rows {
            Err(error) if error.is_locked() => Ok(None),
            rows => committed.and(rows).map(Some),
        }
    }

    pub(crate) async fn session(&self) -> Result<Session, Error> {
        Session::borrow(&self.pool, self.pooler).await
    }

    /// Closes connections that were idle for this long, after a statement on another
    /// connection was not answered for as long: all may be dead, and each would cost
    /// a caller the same wait to find out.
    fn close_resting(&self, rested: Duration) {
        self.pool.retain(|_, used| used.last_used() < rested);
    }

    /// One statement, committed by itself.
    pub(crate) async fn run(
        &self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<Cells>, Error> {
        let said = async { self.session().await?.rows(statement, values).await };
        let said = within(FOLLOW_MAX, said).await;
        said.unwrap_or(Err(Error::TooSlow(FOLLOW_MAX)))
    }

    /// The same for a claim, followed to its end: if it was granted and the caller has
    /// gone, `otherwise` is run.
    pub(crate) async fn run_or_undo(
        self: &Arc<Self>,
        said: Query,
        otherwise: Query,
    ) -> Result<Vec<Cells>, Error> {
        let (answer, answered) = oneshot::channel();
        let executor = self.clone();
        self.spawn(async move {
            let rows = executor.run(&said.statement, &said.values).await;
            if let Err(Ok(unheard)) = answer.send(rows)
                && ClaimRows::read(unheard).map_or(true, |found| found.granted.is_some())
            {
                executor.undo(&otherwise).await;
            }
        });
        answered.await.map_err(|_| Error::Ended)?
    }

    async fn undo(&self, otherwise: &Query) {
        let said = self.run(&otherwise.statement, &otherwise.values).await;
        if let Err(error) = said {
            tracing::warn!(%error, "cannot take back an abandoned claim; it ends with its lease");
        }
    }
}
