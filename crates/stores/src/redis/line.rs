//! Lines to Redis: one server, or a Cluster.
//!
//! Many callers share a line; what they ask goes out together and comes back in
//! order. A line that was lost is made again by whoever needs it next.
//!
//! Where writes must reach replicas, a step is followed, on the same line, by a
//! small write and by `WAIT`. The write is there because `WAIT` covers what its
//! own line wrote: a step that found everything done already, by an earlier try
//! or by somebody else, would otherwise be confirmed by nobody.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, try_join_all};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisResult,
    ServerErrorKind, Value,
};

use super::fault::{Fault, Step};
use super::script::spelled_out;
use super::shard::Shard;
use crate::Durability;

/// The rest before a line that could not be made is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How much a line holds back before its callers wait.
const BUFFER: usize = 1_024;

/// All lines of a store.
pub(super) struct Lines {
    lines: Vec<Line>,
    next: AtomicUsize,
    durability: Durability,
    /// How long `WAIT` may take.
    patience: Duration,
}

/// A line to where the data is.
pub(super) enum Line {
    Server(Box<ServerLine>),
    Cluster(ClusterConnection),
}

impl Lines {
    pub(super) fn new(lines: Vec<Line>, durability: Durability, deadline: Duration) -> Self {
        Self {
            lines,
            next: AtomicUsize::default(),
            durability,
            // Soon enough for its answer to come before the step is given up.
            patience: deadline / 2,
        }
    }

    fn line(&self) -> &Line {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.lines[next % self.lines.len()]
    }

    /// Takes a step on a shard, and sees it confirmed by as many as must.
    pub(super) async fn take(&self, shard: &Shard, step: Cmd) -> Step<Value> {
        self.take_with(&shard.confirmed, step).await
    }

    /// The same, with the key of the small write.
    pub(super) async fn take_with(&self, confirmed: &str, step: Cmd) -> Step<Value> {
        let wanted = match self.durability {
            Durability::Primary => return self.ask(step).await,
            Durability::Replicas(wanted) => wanted,
        };
        let line = self.line();
        let answer = self.send_confirmed(line, confirmed, wanted, &step).await;
        match answer {
            Err(Fault::Redis(error)) if is_unknown_script(&error) => {
                let step = spelled_out(&step).ok_or(Fault::Redis(error))?;
                self.send_confirmed(line, confirmed, wanted, &step).await
            }
            answer => answer,
        }
    }

    async fn send_confirmed(
        &self,
        line: &Line,
        confirmed: &str,
        wanted: u32,
        step: &Cmd,
    ) -> Step<Value> {
        let mut all = Pipeline::with_capacity(3);
        all.add_command(step.clone());
        all.cmd("SET").arg(confirmed).arg(1);
        let patience = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        all.cmd("WAIT").arg(wanted).arg(patience.max(1));
        let answers = line.send_all(&all, 3).await?;
        let Ok([answer, written, reached]) = <[Value; 3]>::try_from(answers) else {
            return Err(Fault::Answer("the number of answers"));
        };
        let answer = answer.extract_error()?;
        written.extract_error()?;
        let Value::Int(reached) = reached.extract_error()? else {
            return Err(Fault::Answer("the number of replicas"));
        };
        let reached = u64::try_from(reached).unwrap_or_default();
        if reached < u64::from(wanted) {
            return Err(Fault::Unconfirmed { reached, wanted });
        }
        Ok(answer)
    }

    /// Asks something that need not be confirmed.
    pub(super) async fn ask(&self, question: Cmd) -> Step<Value> {
        let line = self.line();
        match line.send(&question).await {
            Err(error) if is_unknown_script(&error) => {
                let question = spelled_out(&question).ok_or(Fault::Redis(error))?;
                Ok(line.send(&question).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// Asks many things at once: one round trip, or one to each node of a Cluster.
    pub(super) async fn ask_all(&self, questions: Vec<Cmd>) -> Step<Vec<Value>> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        let line = self.line();
        let mut all = Pipeline::with_capacity(questions.len());
        let answers = match line {
            Line::Server(server) => {
                for question in &questions {
                    all.add_command(question.clone());
                }
                server.send_all(&all, questions.len()).await?
            }
            Line::Cluster(cluster) => {
                try_join_all(questions.iter().map(|question| async {
                    match cluster.clone().req_packed_command(question).await {
                        // Told one by one, below.
                        Err(error) => match redis::ServerError::try_from(error) {
                            Ok(error) => Ok(Value::ServerError(error)),
                            Err(error) => Err(error),
                        },
                        answer => answer,
                    }
                }))
                .await?
            }
        };
        let mut told = Vec::with_capacity(answers.len());
        for (question, answer) in questions.iter().zip(answers) {
            told.push(match answer.extract_error() {
                Err(error) if is_unknown_script(&error) => {
                    let question = spelled_out(question).ok_or(Fault::Redis(error))?;
                    line.send(&question).await?
                }
                answer => answer?,
            });
        }
        Ok(told)
    }

    /// Takes many steps at once.
    pub(super) async fn take_all(&self, steps: Vec<(&Shard, Cmd)>) -> Step<Vec<Value>> {
        match self.durability {
            Durability::Primary => {
                let steps = steps.into_iter().map(|(_, step)| step);
                self.ask_all(steps.collect()).await
            }
            Durability::Replicas(_) => {
                try_join_all(
                    steps
                        .into_iter()
                        .map(|(shard, step)| self.take(shard, step)),
                )
                .await
            }
        }
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl Line {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(server) => server.send(command).await,
            Self::Cluster(cluster) => cluster.clone().req_packed_command(command).await,
        }?
        .extract_error()
    }

    async fn send_all(&self, all: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        match self {
            Self::Server(server) => server.send_all(all, count).await,
            Self::Cluster(cluster) => cluster.clone().req_packed_commands(all, 0, count).await,
        }
    }
}

/// A line to one server.
pub(super) struct ServerLine {
    client: Client,
    deadline: Duration,
    made: Mutex<Made>,
}

type Making = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

/// A connection that is made, or is being made.
#[derive(Clone)]
struct Made {
    number: u64,
    making: Making,
    /// Set when it ends, so that nobody sends anything into the void.
    ended: Arc<AtomicBool>,
}

impl ServerLine {
    pub(super) fn new(client: Client, deadline: Duration) -> Self {
        let made = Made::make(0, client.clone(), deadline, Duration::ZERO);
        Self {
            client,
            deadline,
            made: Mutex::new(made),
        }
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let made = self.made();
        let mut connection = self.made_by(&made).await?;
        let answer = connection.send_packed_command(command).await;
        let answer = self.look_at(&made, answer)?;
        self.look_for_replica(&made, &answer);
        Ok(answer)
    }

    async fn send_all(&self, all: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let made = self.made();
        let mut connection = self.made_by(&made).await?;
        let answers = connection.send_packed_commands(all, 0, count).await;
        let answers = self.look_at(&made, answers)?;
        for answer in &answers {
            self.look_for_replica(&made, answer);
        }
        Ok(answers)
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> Made {
        let mut made = self.lock();
        if made.ended.load(Ordering::Acquire) {
            *made = self.make_again(made.number, Duration::ZERO);
        }
        made.clone()
    }

    async fn made_by(&self, made: &Made) -> RedisResult<MultiplexedConnection> {
        let connection = made.making.clone().await;
        if connection.is_err() {
            self.replace(made, PAUSE);
        }
        connection
    }

    fn look_at<T>(&self, made: &Made, answer: RedisResult<T>) -> RedisResult<T> {
        // Whoever does not answer may never do: behind the address somebody else
        // may stand by now.
        if let Err(error) = &answer
            && (error.is_unrecoverable_error() || error.is_timeout())
        {
            self.replace(made, Duration::ZERO);
        }
        answer
    }

    /// A primary that became a replica answers and helps nobody: the address may
    /// lead to another one by now.
    fn look_for_replica(&self, made: &Made, answer: &Value) {
        if let Value::ServerError(error) = answer
            && let Fault::Replica(_) = Fault::from(redis::RedisError::from(error.clone()))
        {
            self.replace(made, Duration::ZERO);
        }
    }

    fn replace(&self, lost: &Made, pause: Duration) {
        let mut made = self.lock();
        if made.number == lost.number {
            *made = self.make_again(lost.number, pause);
        }
    }

    fn make_again(&self, number: u64, pause: Duration) -> Made {
        Made::make(number + 1, self.client.clone(), self.deadline, pause)
    }
}

impl Made {
    /// Made when the first one waits for it.
    fn make(number: u64, client: Client, deadline: Duration, pause: Duration) -> Self {
        let ended = Arc::new(AtomicBool::default());
        let tell = ended.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(deadline))
            .set_response_timeout(Some(deadline))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    tell.store(true, Ordering::Release);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        let making = async move {
            tokio::time::sleep(pause).await;
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        };
        Self {
            number,
            making: making.boxed().shared(),
            ended,
        }
    }
}
